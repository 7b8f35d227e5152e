"""What a whole search costs, decided before it touches data: the noise of its runs, and how they add up.

Two ways to pay for K runs out of one budget:

- *composition*: every run may be seen, so all of them and the choice among them are composed;
- *random stopping* (Papernot and Steinke 2022): the number of runs is random, each draws its configuration at random,
  and only the best is released. The other runs, their scores and their number stay secret (`secret`) and are erased.
  Needs runs that all cost the same.

The one that needs less noise per run is taken unless one is asked for by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sordina.accounting import NOTHING, Composed, Event, Gaussian, RandomStopping, Repeated
from sordina.accounting.search import METHODS, search_noise
from sordina.errors import InvalidInput, Unsupported
from sordina.sampling import Sampler
from sordina.tuning.selection import Kind, Selection
from sordina.types import Adjacency, Budget, Unit

COMPOSITION, STOPPING = METHODS


@dataclass(frozen=True)
class Schedule:
    """What one run does to the data, up to its noise."""

    sampler: Sampler
    steps: int
    unit: Unit = Unit.RECORD

    def event(self, noise_multiplier: float) -> Event:
        """The whole run, at this noise."""
        return Repeated(self.sampler.event(Gaussian(noise_multiplier)), self.steps)


@dataclass(frozen=True)
class Scheme:
    """How one budget pays for a search."""

    method: str
    noise_multiplier: float
    event: Event
    """Everything: all runs and the choice."""
    choice: Event
    """What choosing costs: once with composition, in every run with random stopping."""
    accountant: str
    budget: Budget
    adjacency: Adjacency
    unit: Unit
    reason: str
    noise_by_method: dict[str, float] = field(default_factory=dict)
    population: int | None = None
    """The public number of records or users."""

    @property
    def stopping(self) -> RandomStopping | None:
        """The law of the number of runs; None under composition."""
        return self.event if isinstance(self.event, RandomStopping) else None


def make_scheme(
    schedules: Sequence[Schedule],
    budget: Budget,
    selection: Selection,
    *,
    method: str | None = None,
    accountant: str = "pld",
) -> Scheme:
    """The cheapest way (or the one asked for) to pay for one run per schedule and for the choice among them."""
    if method not in (None, *METHODS):
        raise InvalidInput(f"no search method is called {method!r}: choose one of {', '.join(METHODS)}.")
    first = schedules[0]
    if any((s.sampler.adjacency, s.unit) != (first.sampler.adjacency, first.unit) for s in schedules):
        raise Unsupported("the runs of a search must share neighbours and unit: guarantees that differ do not add up.")
    if first.unit is not Unit.RECORD and not selection.exact and len(schedules) > 1:
        raise Unsupported(
            "private selection counts validation records, of which one user may own many: select on public data."
        )
    if method == STOPPING and selection.kind is Kind.TEST_SET:
        raise Unsupported(
            "random stopping releases the best of runs that are alike; the thesis's means over seeds are not: take "
            "composition."
        )
    if math.isinf(budget.epsilon):
        return _without_privacy(first, budget, selection)
    alone = len(schedules) == 1 or len(set(schedules)) > 1 or selection.kind is Kind.TEST_SET
    method = COMPOSITION if method is None and alone else method
    return _with_noise(schedules, budget, selection, method, accountant)


def _with_noise(
    schedules: Sequence[Schedule], budget: Budget, selection: Selection, method: str | None, accountant: str
) -> Scheme:
    first, count = schedules[0], len(schedules)
    adjacency = first.sampler.adjacency
    same = len(set(schedules)) == 1
    if not same and method == STOPPING:
        raise Unsupported("random stopping needs runs that all cost the same: take composition, or one schedule.")
    choices: dict[str, Event] = {COMPOSITION: NOTHING, STOPPING: NOTHING}
    if not selection.exact and count > 1:
        choices[COMPOSITION] = selection.chooser(budget, adjacency).event()
        choices[STOPPING] = selection.scorer(budget, adjacency).event()

    def all_runs(noise: float) -> Event:
        return Composed(tuple(schedule.event(noise) for schedule in schedules))

    found = search_noise(
        first.event if same else all_runs, budget, count if same else 1, method=method,
        selection=choices[COMPOSITION], score=choices[STOPPING], adjacency=adjacency, accountant=accountant,
    )  # fmt: skip
    reason = found.reason
    if found.stopping is not None:
        reason += (
            f" Each of {count} configurations is tried with probability {chance_tried(found.stopping, count):.2f}."
        )
    return Scheme(
        found.method, found.noise_multiplier, found.event, choices[found.method], accountant, budget, adjacency,
        first.unit, reason, found.noise_by_method, _population(first),
    )  # fmt: skip


def _without_privacy(first: Schedule, budget: Budget, selection: Selection) -> Scheme:
    if not selection.exact:
        raise InvalidInput("without a finite epsilon nothing is private: select by 'public' or 'thesis-test-set'.")
    return Scheme(
        COMPOSITION, 0.0, first.event(0.0), NOTHING, "pld", budget, first.sampler.adjacency, first.unit,
        "NOT PRIVATE: no noise at all.", population=_population(first),
    )  # fmt: skip


def _population(schedule: Schedule) -> int | None:
    return getattr(schedule.sampler, "population", None)


def chance_tried(stop: RandomStopping, configurations: int) -> float:
    """The chance that a given one of equally likely ``configurations`` is drawn at least once.

    ``1 - E[x^K]`` with ``x = 1 - 1/configurations``; the generating functions of Papernot and Steinke 2022.

    >>> from sordina.accounting.stopping import stopping
    >>> round(chance_tried(stopping(NOTHING, 10, eta=1.0), 10), 3)
    0.526
    """
    missed = 1 - 1 / configurations
    if math.isinf(stop.eta):
        return -math.expm1(stop.mean * (missed - 1))
    base = math.log1p(-(1 - stop.gamma) * missed)
    if stop.gamma == 1:
        return 1 - missed
    if stop.eta == 0:
        return 1 - base / math.log(stop.gamma)
    return 1 - math.expm1(-stop.eta * base) / math.expm1(-stop.eta * math.log(stop.gamma))
