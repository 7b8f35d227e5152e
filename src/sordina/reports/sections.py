"""The sections of a report in reading order; a section without facts is empty and does not appear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from sordina.reports import charts, words
from sordina.reports.facts import Account, Reconstruction, Report, Run
from sordina.reports.html import bullets, cards, figure, keys, paragraph, section, table
from sordina.reports.odds import best_guess, percent_up, rounded_up
from sordina.reports.picture import data_address

_GENERAL = (
    "What follows from everybody's data together, such as that smoking causes cancer, may be learned and may hurt a "
    "person who took no part; that is not what a guarantee of this kind is about.",
    "What a person tells elsewhere, and data sets that were never protected, can be combined with the model.",
)


def answer(report: Report) -> str:
    """First of all: what was trained, on whom, and what an attacker can at most learn."""
    return section("answer", "The answer first", cards(_card(run) for run in report.runs))


def _card(run: Run) -> str:
    text, mood = words.badge(run)
    loud = " alarm" if mood == "bad" else ""
    sentences = "".join(paragraph(sentence) for sentence in words.answer(run))
    return (
        f'<article class="card{loud}"><h3>{escape(run.name)}</h3><span class="badge {mood}">{escape(text)}</span>'
        f"{paragraph(words.subject(run))}{_gauge(run)}{sentences}{keys(_facts(run))}</article>"
    )


def _gauge(run: Run) -> str:
    """Where the best attacker stands between guessing and knowing."""
    claim = run.claim
    if claim.private is None or claim.trust not in ("central", "local") or (run.private and claim.epsilon is None):
        return ""
    share = best_guess(claim.epsilon, claim.delta or 0.0) if run.private and claim.epsilon else 1.0
    said = percent_up(share) if run.private else "no limit"
    x = 4 + 292 * (share - 0.5) * 2
    side = "end" if x > 150 else "start"
    colour = "s0" if run.private else "s1"
    return (
        f'<div class="gauge"><svg viewBox="0 0 300 46" role="img" aria-label="Best attacker: {escape(said)}, between '
        f'50 % (guessing) and 100 % (certain)"><path class="axis" d="M4 24H296"/>'
        f'<rect class="bar {colour}" x="4" y="20" width="{max(2.0, x - 4):.1f}" height="8" rx="4"/>'
        f'<text x="{x:.1f}" y="13" text-anchor="{side}" class="value">{escape(said)}</text>'
        '<text class="tick" x="4" y="43">50 % guessing</text>'
        '<text class="tick" x="296" y="43" text-anchor="end">100 % certain</text></svg></div>'
    )


def _facts(run: Run) -> list[tuple[str, str | None]]:
    claim, accuracy, found = run.claim, run.last("accuracy"), run.measured
    exact = f"ε = {rounded_up(claim.epsilon)}" if claim.epsilon is not None else None
    exact = f"{exact}, δ = {claim.delta:.3g}" if exact and claim.delta is not None else exact
    return [
        ("Guarantee", exact if run.private else None),
        ("Protects", f"one {claim.unit}, {claim.adjacency} neighbours, {claim.trust} model" if run.private else None),
        ("Accuracy", None if accuracy is None else f"{accuracy:.1%}"),
        ("Loss", f"{run.last('loss'):.4g}" if accuracy is None and run.last("loss") is not None else None),
        ("Attacks prove", None if found is None else f"ε ≥ {_number(found.measured)} ({found.name})"),
        ("Clipping", run.clipping.partition("(")[0] if run.clipping and run.private else None),
    ]


def course(report: Report) -> str:
    """Budget, utility and threshold, step by step."""
    trained = [run for run in report.runs if run.kind != "federate"]
    federated = [run for run in report.runs if run.kind == "federate"]
    makers = (charts.budget, charts.accuracy, charts.loss, charts.threshold)
    figures = [figure(maker(runs)) for runs in (trained, federated) if runs for maker in makers]
    return section("course", "How it went: budget, utility, clipping", cards(figures, "cards charts"))


def attacked(report: Report) -> str:
    """What attacks achieved: ROC curves, and measured against claimed epsilon."""
    runs = [run for run in report.runs if run.attacks]
    if not runs:
        return ""
    refuted = [attack.verdict for run in runs for attack in run.attacks if attack.refuted]
    alarm = f'<div class="card alarm"><span class="badge bad">CLAIM REFUTED</span>{bullets(refuted)}</div>'
    figures = [figure(charts.measured(runs)), *(figure(charts.roc(run)) for run in runs)]
    rows = [
        (
            f"{run.name} · {attack.name}",
            f"{attack.auc.value:.3f} [{attack.auc.low:.3f}, {attack.auc.high:.3f}]" if attack.auc else "—",
            *(f"{one.value:.1%} [{one.low:.1%}, {one.high:.1%}]" for _, one in attack.tpr_at),
            f"≥ {_number(attack.measured)} at {attack.confidence:.0%}",
            f"{attack.members} / {attack.non_members}",
        )
        for run in runs
        for attack in run.attacks
    ]
    rates = [f"found at {rate:.1%} false alarms" for rate, _ in runs[0].attacks[0].tpr_at]
    head = ("attack", "AUC [95 %]", *rates, "measured ε", "members / others")
    return section(
        "attacks", "What attackers achieved",
        paragraph("An attack that finds little proves little: it bounds what leaks from below, the guarantee bounds it "
                  "from above, and the truth lies between.", "hint"),
        alarm if refuted else "",
        cards(figures, "cards charts"),
        f'<div class="card" style="margin-top:16px">{table(head, rows, "Membership attacks")}</div>',
    )  # fmt: skip


def reconstructed(report: Report) -> str:
    """Originals next to what an attacker made of the update."""
    parts = []
    for run in report.runs:
        if run.reconstructions:
            inside = "".join(_pair(case) for case in run.reconstructions)
            parts.append(f'<article class="card"><h3>{escape(run.name)}</h3>{inside}</article>')
    return section(
        "images", "Images rebuilt from updates",
        paragraph("Whoever sees one unprotected update of one client can search for the image that causes it.", "hint")
        if parts else "",
        cards(parts),
    )  # fmt: skip


def _pair(case: Reconstruction) -> str:
    quality = ", ".join(
        part
        for part in (
            f"PSNR {case.psnr:.1f} dB" if case.psnr is not None else "",
            f"SSIM {case.ssim:.2f}" if case.ssim is not None else "",
        )
        if part
    )
    shots = [
        (case.original, "original", "The client's image"),
        (case.result, f"rebuilt; defence: {case.defence}", f"Image rebuilt by {case.attack}, defence {case.defence}"),
    ]
    inside = "".join(
        f'<div><img src="{data_address(image)}" width="132" height="132" alt="{escape(alt)}">{paragraph(text)}</div>'
        for image, text, alt in shots
    )
    return f'<div class="shots" style="margin-top:10px">{inside}</div>{paragraph(quality, "hint")}'


def clients(report: Report) -> str:
    """Leakage of clients and fairness towards groups."""
    figures = [figure(charts.leakage(run)) for run in report.runs]
    return section("clients", "What each client leaked", cards(figures, "cards charts"))


def fair(report: Report) -> str:
    """How groups fare."""
    parts = []
    for run in report.runs:
        if run.fairness is None:
            continue
        found = run.fairness
        parts.append(figure(charts.fairness(run)))
        gaps = [
            ("Demographic parity", found.demographic_parity_difference),
            ("Equalized odds", found.equalized_odds_difference),
            ("Equal opportunity", found.equal_opportunity_difference),
        ]
        rows = [(name, "undefined" if gap is None else f"{gap:.3f}") for name, gap in gaps]
        left = f"Too small to compare: {', '.join(found.left_out)}." if found.left_out else ""
        parts.append(
            f'<div class="card"><h3>Differences between groups</h3>{table(("difference", "value"), rows, run.name)}'
            f"{paragraph(f'0 means that all groups are treated alike by this measure. {left}', 'hint')}</div>"
        )
    return section("fairness", "Fairness", cards(parts, "cards charts"))


def ledger(report: Report) -> str:
    """Budgets of data sets, what was booked, and what was refused."""
    parts = [_account(account) for account in report.accounts]
    if report.refusals:
        parts.append(
            '<article class="card"><h3>Refused</h3><span class="badge care">NOTHING WAS READ</span>'
            f"{bullets(report.refusals)}</article>"
        )
    return section("ledger", "The ledger", cards(parts))


def _account(account: Account) -> str:
    share = min(1.0, account.spent / account.budget)
    alone = sum(booking.epsilon for booking in account.bookings if booking.status != "released")
    rows = [
        (booking.what, rounded_up(booking.epsilon), booking.status, booking.time[:16].replace("T", " "))
        for booking in account.bookings
    ]
    return (
        f'<article class="card"><h3>Data set “{escape(account.dataset)}”</h3>'
        f'<div class="meter" role="img" aria-label="{share:.0%} of the budget spent">'
        f'<div style="width:{share:.1%}"></div></div>'
        + paragraph(
            f"Spent ε = {rounded_up(account.spent)} of {account.budget:g} at δ = {account.delta:.3g}, per "
            f"{account.unit}, {account.adjacency} neighbours. Together the spends cost this much; "
            f"added up one by one they would cost {rounded_up(alone) if alone else '0'}."
        )
        + table(("spend", "ε alone", "state", "when (UTC)"), rows, f"Spends on {account.dataset}")
        + "</article>"
    )


def caveats(report: Report) -> str:
    """What the guarantee does not cover."""
    own: dict[str, list[str]] = {}
    for run in report.runs:
        for caveat in run.caveats if run.private or not run.finished else ():
            own.setdefault(caveat, []).append(run.name)
    several = len(report.runs) > 1
    items = [f"{caveat} ({', '.join(names)})" if several else caveat for caveat, names in own.items()]
    return section("limits", "What the guarantee does not cover", bullets([*_together(report.runs), *items, *_GENERAL]))


def _together(runs: Sequence[Run]) -> list[str]:
    """Guarantees of models of the same people add up."""
    shared: dict[str, list[Run]] = {}
    for run in runs:
        if run.private and run.dataset and run.claim.epsilon is not None and run.claim.trust == "central":
            shared.setdefault(run.dataset, []).append(run)
    return [
        f"Each figure holds for one model alone. Who releases all {len(group)} private models of “{dataset}” spends up "
        f"to ε = {rounded_up(sum(run.claim.epsilon or 0.0 for run in group))} together; the ledger's figure, if any, "
        "is the exact one."
        for dataset, group in shared.items()
        if len(group) > 1
    ]


def origin(report: Report) -> str:
    """Exact commands and versions."""
    commands = [run.command for run in report.runs if run.command] + list(report.commands)
    shown = f"<pre>{escape(chr(10).join(commands))}</pre>" if commands else ""
    rows = [(run.name, ", ".join(f"{name} {version}" for name, version in run.versions)) for run in report.runs]
    known = [row for row in rows if row[1]]
    statements = [(run.name, run.claim.statement) for run in report.runs if run.claim.statement]
    return section(
        "origin", "Exact commands, statements and versions", shown,
        table(("run", "statement"), statements, "Statements") if statements else "",
        table(("run", "versions"), known, "Versions") if known else "",
    )  # fmt: skip


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}"


ORDER = (answer, course, attacked, reconstructed, clients, fair, ledger, caveats, origin)
