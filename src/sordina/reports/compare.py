"""Several runs side by side: one row per fact, one column per run."""

from __future__ import annotations

from collections.abc import Callable

from sordina.reports import sections, words
from sordina.reports.facts import Report, Run, last
from sordina.reports.html import section, table
from sordina.reports.odds import best_guess, percent_up, rounded_up
from sordina.types import format_up

_NOTHING = "—"


def rows(runs: tuple[Run, ...]) -> list[tuple[str, ...]]:
    """``(fact, value of the first run, of the second, ...)``; a fact that no run has is left out."""
    table_ = [(name, *(_said(tell, run) for run in runs)) for name, tell in _FACTS]
    return [row for row in table_ if any(cell != _NOTHING for cell in row[1:])]


def side_by_side(report: Report) -> str:
    """The rows as a section of a page."""
    head = ("fact", *(run.name for run in report.runs))
    inside = f'<div class="card">{table(head, rows(report.runs), "Runs side by side")}</div>'
    return section("compare", "Side by side", inside)


ORDER = (
    side_by_side, sections.course, sections.attacked, sections.reconstructed, sections.clients, sections.fair,
    sections.caveats, sections.origin,
)  # fmt: skip


def _said(tell: Callable[[Run], str | None], run: Run) -> str:
    return tell(run) or _NOTHING


def _guess(run: Run) -> str | None:
    claim = run.claim
    if not run.private or claim.epsilon is None or claim.trust == "metric":
        return None
    return percent_up(best_guess(claim.epsilon, claim.delta or 0.0))


def _threshold(run: Run) -> str | None:
    value = last(run.history, "threshold")
    return None if value is None or not run.private else f"{value:.3g}"


def _measured(run: Run) -> str | None:
    return None if run.measured is None else words.proven(run.measured)


def _leaked(run: Run) -> str | None:
    most = words.leaked(run)
    return None if most is None else format_up(most)


_FACTS: tuple[tuple[str, Callable[[Run], str | None]], ...] = (
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
    ("loss", lambda run: None if run.loss is None else f"{run.loss:.4g}"),
    ("clipping", lambda run: run.clipping.partition("(")[0] if run.clipping and run.private else None),
    ("final threshold", _threshold),
    ("noise multiplier", lambda run: f"{run.claim.noise_multiplier:.3g}" if run.claim.noise_multiplier else None),
    ("steps", lambda run: f"{run.steps}" if run.steps else None),
    ("command", lambda run: run.command),
)
