"""How much noise a budget buys, for one run and for a whole search.

Whole searches: one (epsilon, delta) for all runs of a search together.

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

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sordina._arguments import checked
from sordina.accounting.accountants import Accountant
from sordina.accounting.accountants import accountant as _accountant
from sordina.accounting.events import NOTHING, Composed, Event, RandomStopping, Repeated
from sordina.accounting.pld import PLD
from sordina.accounting.stopping import POISSON, at_least, stopping
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Adjacency, Budget

_LEAST, _MOST = 1e-6, 1e9
_UNSPENT = 2e-5
"""Relative part of epsilon that may stay unspent."""
_NARROW = 1e-12
"""Relative width of the bracket at which the search ends, whatever is unspent."""
_IDLE = 1e-4
"""The same where the upper end costs nothing at all: delta alone pays there, and no secant helps."""

Excess = Callable[[float], float]
"""``ln(spent / budget)`` at a noise multiplier: falls as the noise grows, and must not be positive."""


@dataclass(frozen=True)
class _Point:
    noise: float
    excess: float


@checked
def noise_multiplier(
    make_event: Callable[[float], Event],
    budget: Budget,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
) -> float:
    """The least ``x`` with ``make_event(x)`` within ``budget``: accounted back it spends at least 99 % of epsilon.

    0 if the event costs nothing at any noise, or if the budget is infinite.

    Args:
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        accountant: The accountant's name: pld (the tightest), rdp, gdp, zcdp, advanced or basic.

    >>> from sordina.accounting.events import Gaussian
    >>> round(noise_multiplier(Gaussian, Budget(1.0, 1e-5)), 2)
    3.73
    """
    judge = _accountant(accountant)

    def excess(by: Accountant, noise: float) -> float:
        spent = by.epsilon(make_event(noise), budget.delta, adjacency)
        return math.log(spent / budget.epsilon) if spent else -math.inf

    if math.isinf(budget.epsilon) or excess(judge, 0.0) <= 0:
        return 0.0
    start, slope = 1.0, -1.0
    if accountant == "pld":
        rough = PLD(tolerance=math.inf)
        start, slope = _solve(lambda noise: excess(rough, noise), start, slope, budget, 10 * _UNSPENT)
    return _solve(lambda noise: excess(judge, noise), start, slope, budget, _UNSPENT)[0]


def _solve(excess: Excess, start: float, slope: float, budget: Budget, unspent: float) -> tuple[float, float]:
    """A noise whose excess lies in [-unspent, 0], and the slope of excess against ln(noise) there.

    Secants through the last two points, in logarithms; bisections where these lead out of the bracket or take too long.
    """
    low, high = _Point(0.0, math.inf), _Point(math.inf, -math.inf)
    last, noise = None, start
    for turn in itertools.count():
        point = _Point(noise, excess(noise))
        low, high = (low, point) if point.excess <= 0 else (point, high)
        narrow = _NARROW if math.isfinite(high.excess) else _IDLE
        if high.excess >= -unspent or high.noise <= max(low.noise * (1 + narrow), _LEAST):
            break
        if low.noise > _MOST:
            raise InvalidInput(
                f"no noise multiplier up to {_MOST:g} meets epsilon {budget.epsilon:g} at delta {budget.delta:g}: "
                "some part of the spend does not shrink with the noise, or delta is 0."
            )
        if last is not None and math.isfinite(point.excess - last.excess) and point.noise != last.noise:
            slope = min((point.excess - last.excess) / math.log(point.noise / last.noise), -1e-3)
        last, noise = point, _next(point, low, high, slope, -unspent / 2, turn)
    return high.noise, slope


def _next(point: _Point, low: _Point, high: _Point, slope: float, target: float, turn: int) -> float:
    """Where to look next."""
    reach = math.log(8)
    stride = (target - point.excess) / slope if math.isfinite(point.excess) else math.copysign(reach, point.excess)
    noise = point.noise * math.exp(min(max(stride, -reach), reach))
    if low.noise == 0 or math.isinf(high.noise):
        return noise if turn < 8 else point.noise * math.exp(math.copysign(reach, stride))
    if low.noise < noise < high.noise and turn < 12:
        return noise
    return math.sqrt(low.noise) * math.sqrt(high.noise)


# Whole searches: one (epsilon, delta) for all runs of a search together.

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
