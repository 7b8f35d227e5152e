"""The page: sections in reading order, runs side by side, and one self-contained file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from html import escape
from importlib import resources
from pathlib import Path

import sordina
from sordina import private_files
from sordina.privacy import best_guess, format_down, format_up, percent_up, rounded_up
from sordina.reports import charts, reading, words
from sordina.reports.charts import data_address, png_address
from sordina.reports.facts import (
    AccountFacts,
    Image,
    NetworkFacts,
    NetworkFigure,
    Reconstruction,
    ReleasedAnswer,
    Report,
    RunFacts,
    last,
)
from sordina.reports.html_pieces import bullets, cards, figure, keys, paragraph, section, table

# The sections of a report in reading order; a section without facts is empty and does not appear.

_FEW = (
    "In brackets: 95 % confidence intervals. Where there are fewer others than a rate of false alarms can count, the "
    "rate stands for no false alarm at all."
)
_GENERAL = (
    "What follows from everybody's data together, such as that smoking causes cancer, may be learned and may hurt a "
    "person who took no part; that is not what a guarantee of this kind is about.",
    "What a person tells elsewhere, and data sets that were never protected, can be combined with the model.",
)
_MOST_LINES = 1000
"""Of released answers on the page; all of them are in its JSON."""


def answer(report: Report) -> str:
    """First of all: what was trained, on whom, and what an attacker can at most learn."""
    judged = [run for run in report.runs if run.kind != "audit" or run.attacks]
    return section("answer", "The answer first", cards((_card(run) for run in judged), "cards duo"))


def _card(run: RunFacts) -> str:
    text, mood = words.badge(run)
    loud = " alarm" if mood == "bad" else ""
    sentences = "".join(paragraph(sentence) for sentence in words.answer(run))
    return (
        f'<article class="card{loud}"><h3>{escape(run.name)}</h3><span class="badge {mood}">{escape(text)}</span>'
        f"{paragraph(words.subject(run))}{_gauge(run)}{sentences}{keys(_facts(run))}</article>"
    )


def _gauge(run: RunFacts) -> str:
    """Where the best attacker stands between guessing and knowing."""
    claim = run.claim
    refuted = any(attack.refuted for attack in run.attacks)
    if (
        refuted
        or claim.other_model
        or claim.private is None
        or claim.trust not in ("central", "distributed", "local")
        or (run.private and claim.epsilon is None)
    ):
        return ""
    share = best_guess(claim.epsilon, claim.delta or 0.0) if run.private and claim.epsilon else 1.0
    said = percent_up(share) if run.private else "no limit"
    return (
        f'<div class="gauge" role="img" aria-label="The best attacker is right: {escape(said)}, where 50 % is guessing '
        f'and 100 % is certainty"><div class="track"><div class="{"fill" if run.private else "fill all"}" '
        f'style="width:{200 * (share - 0.5):.1f}%"><b>{escape(said)}</b></div></div>'
        "<p><span>50 % guessing</span><span>100 % certain</span></p></div>"
    )


_SCORES = (
    ("balanced_accuracy", "Balanced accuracy", ".1%"),
    ("auc", "AUC", ".3f"),
    ("log_loss", "Log loss", ".4g"),
    ("calibration_error", "Calibration error", ".3g"),
    ("rmse", "RMSE", ".4g"),
    ("r2", "R\u00b2", ".3f"),
)
"""Scores beyond accuracy, where a run has them: how they are called and written."""


def _score(run: RunFacts, name: str, form: str) -> str | None:
    value = dict(run.scores).get(name)
    return None if value is None else f"{value:{form}}{_constant(run, name, form)}"


def _constant(run: RunFacts, name: str, form: str) -> str:
    """What the best answer scores that is the same for everybody."""
    value = dict(run.scores).get(f"constant_{name}")
    return "" if value is None else f" (best constant answer: {value:{form}})"


def _facts(run: RunFacts) -> list[tuple[str, str | None]]:
    claim, found = run.claim, run.measured
    exact = (
        f"ε = {rounded_up(claim.epsilon)}, δ = {format_up(claim.delta or 0, 3)}" if claim.epsilon is not None else None
    )
    return [
        ("Guarantee", exact if run.private else None),
        ("Protects", words.protects(claim) if run.private else None),
        ("Accuracy", None if run.accuracy is None else f"{run.accuracy:.1%}{_constant(run, 'accuracy', '.1%')}"),
        *((title, _score(run, name, form)) for name, title, form in _SCORES),
        ("Loss", f"{run.loss:.4g}" if run.accuracy is None and run.loss is not None and not run.scores else None),
        ("Attacks prove", None if found is None else words.proven(found)),
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
    alarm = f'<div class="card alarm"><span class="badge bad">REFUTED</span>{bullets(refuted)}</div>'
    figures = [figure(charts.measured(runs)), *(figure(charts.roc(run)) for run in runs)]
    rows = [
        (
            f"{run.name} · {attack.name}",
            f"{attack.auc.value:.3f} [{attack.auc.low:.3f}, {attack.auc.high:.3f}]" if attack.auc else "—",
            *(f"{one.value:.1%} [{one.low:.1%}, {one.high:.1%}]" for _, one in attack.tpr_at),
            f"≥ {_number(attack.measured)} at {attack.confidence:.0%}",
            f"{attack.members} / {attack.non_members}",
            attack.knows or "—",
            "—" if attack.seconds is None else f"{attack.seconds:.1f} s",
        )
        for run in runs
        for attack in run.attacks
    ]
    rates = [f"found at {rate:.1%} false alarms" for rate, _ in runs[0].attacks[0].tpr_at]
    head = ("attack", "AUC [95 %]", *rates, "measured ε", "members / others", "the attacker knows", "cost")
    return section(
        "attacks", "What attackers achieved",
        paragraph("An attack that finds little proves little: it bounds what leaks from below, the guarantee bounds it "
                  "from above, and the truth lies between.", "hint"),
        alarm if refuted else "",
        cards(figures, "cards charts"),
        f'<div class="card" style="margin-top:16px">{table(head, rows, "Membership attacks", "tight")}'
        f"{paragraph(_FEW, 'hint')}</div>",
    )  # fmt: skip


def reconstructed(report: Report) -> str:
    """Originals next to what an attacker made of the updates they caused."""
    parts = []
    for run in report.runs:
        shown: dict[tuple[str, Image], list[Reconstruction]] = {}
        for case in run.reconstructions:
            shown.setdefault((case.attack, case.original), []).append(case)
        for (attack, original), cases in shown.items():
            shots = _shot(original, "The client's image", "original") + "".join(_rebuilt(case) for case in cases)
            title = f"{run.name}: rebuilt by {attack}"
            parts.append(f'<article class="card"><h3>{escape(title)}</h3><div class="shots">{shots}</div></article>')
    hint = "Whoever sees a bare update of one client can search for the image that causes it. Noise spoils the search."
    return section("images", "Images rebuilt from updates", paragraph(hint, "hint") if parts else "", cards(parts))


def _rebuilt(case: Reconstruction) -> str:
    defence = "no defence" if case.defence == "none" else case.defence
    values = (("PSNR {:.1f} dB", case.psnr), ("SSIM {:.2f}", case.ssim))
    quality = ", ".join(form.format(value) for form, value in values if value is not None)
    return _shot(case.result, f"Image rebuilt by {case.attack}, {defence}", defence, quality)


def _shot(image: Image, alt: str, *lines: str) -> str:
    said = "".join(paragraph(line) for line in lines if line)
    return f'<div><img src="{data_address(image)}" width="132" height="132" alt="{escape(alt)}">{said}</div>'


def statistics(report: Report) -> str:
    """The answers of releases of statistics, each with its interval, its bias and its cost."""
    parts = [_answered(run) for run in report.runs if run.answers]
    return section("statistics", "Released answers", cards(parts, "cards stack"))


def _answered(run: RunFacts) -> str:
    lines = [line for one in run.answers for line in _lines(one)]
    left = len(lines) - _MOST_LINES
    sure = " / ".join(f"{level:g} %" for level in sorted({100 * one.confidence for one in run.answers}))
    head = ("question", "group", "value", f"{sure} interval", "what is biased", "cost by itself")
    seeded = not all(one.releasable for one in run.answers)
    return (
        f'<article class="card{" alarm" if seeded else ""}"><h3>{escape(run.name)}</h3>'
        + ('<span class="badge bad">SEEDED: DO NOT RELEASE</span>' if seeded else "")
        + table(head, lines[:_MOST_LINES], f"Released answers of {run.name}")
        + (paragraph(f"{left:,} more lines are in the JSON file beside this page.", "hint") if left > 0 else "")
        + paragraph(
            f"Each interval holds by itself. All questions together: {run.claim.statement.rstrip('.')}.", "hint"
        )
        + "</article>"
    )


def _lines(one: ReleasedAnswer) -> list[tuple[str, ...]]:
    """A line for each cell; bias and cost are the whole question's and stand in its first."""
    told = (" ".join(one.notes) or "—", f"ε = {format_up(one.epsilon)}, δ = {format_up(one.delta, 3)}")
    if not one.cells:
        return [(one.question, "no group was found", "—", "—", *told)]
    return [
        (
            one.question,
            ", ".join(cell.group) or "all",
            f"{cell.value:.6g}",
            "—" if cell.low is None or cell.high is None else f"{cell.low:.6g} to {cell.high:.6g}",
            *(told if place == 0 else ("", "")),
        )
        for place, cell in enumerate(one.cells)
    ]


def released(report: Report) -> str:
    """Attacks on releases of statistics: the naive release beside ours."""
    parts = []
    for run in report.runs:
        found = run.release
        if found is None:
            continue
        rows = [(one.name, *map(_share, (one.naive, one.ours, one.chance))) for one in found.measures]
        parts.append(
            f'<div class="card"><h3>{escape(found.title)}</h3>'
            f"{paragraph(f'{found.data}. Ours: {found.private}.')}"
            f"{table(('measure', 'naive release', 'ours', 'guessing'), rows, f'Attack: {found.attack}')}"
            f"{paragraph(found.verdict, 'hint')}</div>"
        )
        parts.append(figure(charts.release(run)))
    return section("releases", "Attacks on releases of statistics", cards(parts, "cards charts"))


def _share(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"


def clients(report: Report) -> str:
    """Leakage of clients and fairness towards groups."""
    figures = [figure(charts.leakage(run)) for run in report.runs]
    return section("clients", "What each client leaked", cards(figures, "cards charts"))


def network(report: Report) -> str:
    """Runs without a server: who is protected from whom, and the figures that the run drew."""
    parts = []
    for run in report.runs:
        found = run.network
        if found is None or run.claim.other_model:
            continue
        lacking = f"Left out, as no PNG file of a few megabytes: {', '.join(found.left_out)}." if found.left_out else ""
        parts.append(
            f'<div class="card"><h3>{escape(run.name)}: by the account of the run</h3>{keys(_network_keys(found))}'
            f"{paragraph(lacking, 'hint') if lacking else ''}</div>"
        )
        parts += [_drawn(one) for one in found.figures]
    return section("network", "Without a server: who learns what from whom", cards(parts, "cards charts"))


def _network_keys(found: NetworkFacts) -> list[tuple[str, str | None]]:
    averaging = f", {found.gossip_rounds} of averaging in each" if found.gossip_rounds else ""
    worst, mean = found.worst_epsilon, found.mean_epsilon
    over = f", over what {found.observers} parties see" if found.observers else ""
    return [
        ("Graph", f"{found.graph} ({found.topology})" + (f", {found.parties:,} parties" if found.parties else "")),
        ("Rounds", None if found.rounds is None else f"{found.rounds}{averaging}"),
        ("Protected", "each honest party" if found.topology == "decor" else "each party, with all its data"),
        ("From", found.protected_from),
        (
            "Worst party" if found.topology == "decor" else "Worst pair",
            f"ε at most {rounded_up(worst)}" if worst else None,
        ),
        ("Mean pair", f"ε = {rounded_up(mean)}{over}" if mean else None),
    ]


def _drawn(one: NetworkFigure) -> str:
    return (
        f"<figure><figcaption><h3>{escape(one.title)}</h3><p>{escape(one.sentence)}</p></figcaption>"
        f'<img class="drawn" src="{png_address(one.png)}" alt="{escape(one.sentence)}"></figure>'
    )


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


def _account(account: AccountFacts) -> str:
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
            f"Spent ε = {rounded_up(account.spent)} of {account.budget:g} at δ = {format_up(account.delta, 3)}, per "
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
        said = [warning for warning in (words.large_delta(run),) if warning and warning not in run.caveats]
        for caveat in (*said, *run.caveats) if run.private or not run.finished else ():
            own.setdefault(caveat, []).append(run.name)
    several = len(report.runs) > 1
    items = [f"{caveat} ({', '.join(names)})" if several else caveat for caveat, names in own.items()]
    return section("limits", "What the guarantee does not cover", bullets([*_together(report.runs), *items, *_GENERAL]))


def _together(runs: Sequence[RunFacts]) -> list[str]:
    """Guarantees of models of the same people add up."""
    shared: dict[str, list[RunFacts]] = {}
    for run in runs:
        if run.private and run.dataset and run.claim.epsilon is not None and run.claim.trust == "central":
            shared.setdefault(run.dataset, []).append(run)
    return [
        f"Each figure holds for one model alone. Who releases all {len(group)} private models of “{dataset}” spends up "
        f"to ε = {rounded_up(sum(run.claim.epsilon or 0.0 for run in group))} together; a ledger has the "
        "sharper bound."
        for dataset, group in shared.items()
        if len(group) > 1
    ]


def privacy_cards(report: Report) -> str:
    """The privacy card of each run."""
    parts = [
        f'<article class="card"><h3>{escape(run.name)}</h3>{keys(run.card)}</article>'
        for run in report.runs
        if run.card
    ]
    return section("card", "Privacy card", cards(parts))


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
    return "∞" if math.isinf(value) else format_down(value, 3)


SECTIONS = (
    answer, statistics, course, network, attacked, reconstructed, released, clients, fair, ledger, caveats,
    privacy_cards, origin,
)  # fmt: skip


# Several runs side by side: one row per fact, one column per run.

_NOTHING = "—"


def rows(runs: tuple[RunFacts, ...]) -> list[tuple[str, ...]]:
    """``(fact, value of the first run, of the second, ...)``; a fact that no run has is left out."""
    table_ = [(name, *(_said(tell, run) for run in runs)) for name, tell in _FACTS]
    return [row for row in table_ if any(cell != _NOTHING for cell in row[1:])]


def side_by_side(report: Report) -> str:
    """The rows as a section of a page."""
    head = ("fact", *(run.name for run in report.runs))
    inside = f'<div class="card">{table(head, rows(report.runs), "Runs side by side")}</div>'
    return section("compare", "Side by side", inside)


COMPARISON_SECTIONS = (
    side_by_side, course, network, attacked, reconstructed, clients, fair,
    caveats, origin,
)  # fmt: skip


def _said(tell: Callable[[RunFacts], str | None], run: RunFacts) -> str:
    return tell(run) or _NOTHING


def _guess(run: RunFacts) -> str | None:
    claim = run.claim
    if not run.private or claim.epsilon is None or claim.trust == "metric":
        return None
    return percent_up(best_guess(claim.epsilon, claim.delta or 0.0))


def _threshold(run: RunFacts) -> str | None:
    value = last(run.history, "threshold")
    return None if value is None or not run.private else f"{value:.3g}"


def _measured(run: RunFacts) -> str | None:
    return None if run.measured is None else words.proven(run.measured)


def _leaked(run: RunFacts) -> str | None:
    most = words.leaked(run)
    return None if most is None else format_up(most)


_FACTS: tuple[tuple[str, Callable[[RunFacts], str | None]], ...] = (
    ("verdict", lambda run: words.badge(run)[0]),
    ("data", lambda run: run.dataset),
    ("model", lambda run: run.model),
    ("epsilon", lambda run: rounded_up(run.claim.epsilon) if run.private and run.claim.epsilon else None),
    ("delta", lambda run: format_up(run.claim.delta, 3) if run.private and run.claim.delta is not None else None),
    ("protects", lambda run: words.protects(run.claim) if run.private else None),
    ("odds grow at most", lambda run: words.odds_short(run) if run.claim.sound else None),
    ("attacker right at most", _guess),
    ("attacks prove", _measured),
    ("largest leakage of a client", _leaked),
    ("accuracy", lambda run: None if run.accuracy is None else f"{run.accuracy:.2%}"),
    *((title, partial(_score, name=name, form=form)) for name, title, form in _SCORES),
    ("loss", lambda run: None if run.loss is None else f"{run.loss:.4g}"),
    ("clipping", lambda run: run.clipping.partition("(")[0] if run.clipping and run.private else None),
    ("final threshold", _threshold),
    ("noise multiplier", lambda run: f"{run.claim.noise_multiplier:.3g}" if run.claim.noise_multiplier else None),
    ("steps", lambda run: f"{run.steps}" if run.steps else None),
    ("command", lambda run: run.command),
)


# One self-contained page: it may ask the network for nothing, and says so to the browser.

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render(report: Report, order: Sequence[Callable[[Report], str]] = SECTIONS) -> str:
    """The whole page."""
    parts = [part for part in (one(report) for one in order) if part]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{escape(report.title)} · Sordina report</title><link rel="icon" href="data:,">'
        f"<style>{_asset('style.css')}</style></head><body>"
        '<a class="skip" href="#main">Skip to the answer</a>'
        f"<header><h1>{escape(report.title)}</h1>"
        f'<p class="meta">Privacy report by Sordina {sordina.__version__}, '
        f'<time datetime="{escape(report.created)}">{escape(_day(report.created))}</time></p>'
        f"{_contents(parts)}</header>"
        f'<main id="main">{"".join(parts)}</main>'
        "<footer><p>Numbers after “at most” are rounded up. The facts of this page are in the JSON file beside it.</p>"
        '<p class="screen">In a chart: hover, or focus it and use the arrow keys.</p></footer>'
        f"<script>{_asset('hover.js')}</script></body></html>\n"
    )


def _contents(parts: Sequence[str]) -> str:
    heads = [re.search(r'<h2 id="([\w-]+)">(.*?)</h2>', part) for part in parts]
    links = "".join(f'<li><a href="#{head[1]}">{head[2]}</a></li>' for head in heads if head)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _day(time: str) -> str:
    return time[:16].replace("T", " ") + " UTC"


@lru_cache
def _asset(name: str) -> str:
    return resources.files("sordina.reports").joinpath(name).read_text(encoding="utf-8").strip()


# Write a report: the page, and its facts as JSON beside it.


def report(
    runs: str | Path | Sequence[str | Path],
    *,
    folder: str | Path | None = None,
    title: str | None = None,
    ledger: str | Path | None = None,
) -> Path:
    """Write one HTML page, and its facts as JSON beside it, from one or more runs; returns the page.

    Args:
        runs: Folders that training, federations, audits or a Flower app wrote.
        folder: A page's name or a folder; the first run's own if left out.
        title: Headline of the page.
        ledger: Ledger file or URL to show the budgets of.
    """
    folders = [runs] if isinstance(runs, (str, Path)) else list(runs)
    facts = reading.report(folders, title=title, ledger=ledger)
    return write(facts, folder or folders[0])


def write(report: Report, where: str | Path, order: Sequence[Callable[[Report], str]] = SECTIONS) -> Path:
    """Write ``where`` (a name ending in .html, or a folder for ``report.html``) and the JSON; returns the page."""
    page = Path(where)
    if page.suffix.lower() not in (".html", ".htm"):
        page = page / "report.html"
    facts = json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n"
    private_files.make_folder(page.parent)
    private_files.write(page.with_suffix(".json"), facts.encode())
    private_files.write(page, render(report, order).encode())
    return page
