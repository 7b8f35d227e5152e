"""Whole searches: one (epsilon, delta) for all runs of a search together.

*Composition* releases every run and pays for every run. *Random stopping* draws how many runs to make, releases only
the best of them, and pays little more than for one or two (Papernot and Steinke 2022). What ``runs`` means differs:

===============  ==============================================================================================
method           ``runs``
===============  ==============================================================================================
composition      exactly that many runs, on any settings, chosen in any way
random-stopping  that many on average: K is drawn first and kept secret, each run draws its setting at random, and
                 nothing but the best outcome, by a score that is itself private, ever leaves
===============  ==============================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sordina._arguments import checked
from sordina.accounting.accountants import accountant as _accountant
from sordina.accounting.calibration import noise_multiplier
from sordina.accounting.events import NOTHING, Composed, Event, RandomStopping, Repeated
from sordina.accounting.stopping import POISSON, at_least, stopping
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Adjacency, Budget

METHODS = ("composition", "random-stopping")
_LAWS = {0.0: "logarithmic", 1.0: "geometric", POISSON: "Poisson"}


@dataclass(frozen=True)
class SearchPlan:
    """How to spend one budget on a whole search.

    Args:
        method: How the runs are composed.
        runs: How many runs there are.
        noise_multiplier: The noise of every run.
        reason: Why this method.
        noise_by_method: The noise that each method would have needed.
    """

    method: str
    runs: int
    noise_multiplier: float
    per_run_epsilon: float
    """What one run would cost alone, at the delta of the budget."""
    event: Event
    """The whole search, to be charged once."""
    reason: str
    noise_by_method: dict[str, float]

    @property
    def stopping(self) -> RandomStopping | None:
        """The law of the number of runs, for `draw_runs`; None under composition."""
        return self.event if isinstance(self.event, RandomStopping) else None


@checked
def search_noise(
    make_event: Callable[[float], Event],
    budget: Budget,
    runs: int,
    *,
    method: str | None = None,
    selection: Event = NOTHING,
    score: Event = NOTHING,
    etas: Sequence[float] = (1.0, POISSON),
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
) -> SearchPlan:
    """The noise multiplier of every run such that the whole search costs ``budget``, by the cheaper method.

    ``make_event(noise)`` is one run. ``selection`` is what choosing among the released runs costs, once (composition);
    ``score`` is what the score of a run costs, every time (random stopping). ``etas`` are the laws of the number of
    runs to choose from (see `stopping`); those with a small eta are cheaper but often stop after very few runs.

    Args:
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        accountant: The accountant's name: pld (the tightest), rdp, gdp, zcdp, advanced or basic.
    """
    if isinstance(runs, bool) or runs != int(runs) or runs < 1:
        raise InvalidInput(f"runs must be a whole number of at least 1, got {runs}.")
    if method not in (None, *METHODS):
        raise InvalidInput(f"no search method is called {method!r}. Choose one of {', '.join(METHODS)}.")
    if method == "random-stopping" and accountant not in ("pld", "rdp"):
        raise Unsupported(
            f"random stopping is a theorem about Renyi divergences; {accountant} cannot judge it. Use pld."
        )

    def composed(noise: float) -> Event:
        return Composed((Repeated(make_event(noise), int(runs)), selection))

    candidates: dict[str, Callable[[float], Event]] = {}
    if method != "random-stopping":
        candidates["composition"] = composed
    if method != "composition" and accountant in ("pld", "rdp"):
        candidates |= {_label(eta): _stopped(make_event, score, int(runs), eta) for eta in etas}
    noises = {label: noise_multiplier(make, budget, adjacency, accountant) for label, make in candidates.items()}
    best = min(noises, key=lambda label: noises[label])
    noise = noises[best]
    event = candidates[best](noise)
    return SearchPlan(
        method="composition" if best == "composition" else "random-stopping",
        runs=int(runs),
        noise_multiplier=noise,
        per_run_epsilon=_accountant(accountant).epsilon(make_event(noise), budget.delta, adjacency),
        event=event,
        reason=_reason(best, noises, event, int(runs)),
        noise_by_method=noises,
    )


def _label(eta: float) -> str:
    return f"random-stopping ({_LAWS.get(eta, f'negative binomial, eta {eta:g}')})"


def _stopped(make_event: Callable[[float], Event], score: Event, runs: int, eta: float) -> Callable[[float], Event]:
    def make(noise: float) -> Event:
        run = make_event(noise)
        return stopping(run if score == NOTHING else Composed((run, score)), runs, eta)

    return make


def _reason(best: str, noises: dict[str, float], event: Event, runs: int) -> str:
    """One sentence: what was chosen, against what, and what it means."""
    others = ", ".join(f"{label} {noise:.4g}" for label, noise in noises.items() if label != best)
    against = f" against {others}" if others else ", the only method asked for"
    if isinstance(event, RandomStopping):
        half = max(1, math.ceil(runs / 2))
        meaning = (
            f"only the best of K runs is released, K has mean {runs} and is at least {half} "
            f"with probability {at_least(event, half):.2f}"
        )
    else:
        meaning = f"all {runs} runs may be released"
    return f"{best} needs the least noise per run, {noises[best]:.4g}{against}: {meaning}."
