"""All that a search decides before it touches data: the noise of its runs, how they add up, who runs what."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from sordina.accounting import NOTHING, Composed, Event, RandomStopping, Repeated, from_dict, to_dict
from sordina.accounting.calibration import METHODS, search_noise
from sordina.accounting.stopping import draw_runs
from sordina.errors import InvalidInput, Unsupported
from sordina.mechanisms.correlated import CorrelatedNoise
from sordina.plan import charged, with_before
from sordina.privacy import Adjacency, Budget, Unit
from sordina.run_folder import RunFolder, read_json
from sordina.sampling import Sampler
from sordina.tuning import runner
from sordina.tuning.chosen_schedule import ChosenSchedule
from sordina.tuning.runner import RunOrder
from sordina.tuning.selection import Selection, SelectionKind
from sordina.tuning.space import Configuration, Space

# What a whole search costs, decided before it touches data: the noise of its runs, and how they add up.
#
# Two ways to pay for K runs out of one budget:
#
# - *composition*: every run may be seen, so all of them and the choice among them are composed;
# - *random stopping* (Papernot and Steinke 2022): the number of runs is random, each draws its configuration at random,
#   and only the best is released. The other runs, their scores and their number stay secret (`secret`) and are erased.
#   Needs runs that all cost the same.
#
# The one that needs less noise per run is taken unless one is asked for by name.

COMPOSITION, STOPPING = METHODS


@dataclass(frozen=True)
class TrainingSchedule:
    """What one run does to the data, up to its noise."""

    sampler: Sampler
    steps: int
    unit: Unit = Unit.RECORD
    noise: CorrelatedNoise | None = None
    before: Event | None = None

    def event(self, noise_multiplier: float) -> Event:
        """The whole run, at this noise."""
        steps = Repeated(*charged(self.sampler, self.noise, noise_multiplier, self.steps, self.steps))
        return with_before(self.before, steps)


@dataclass(frozen=True)
class Scheme:
    """How one budget pays for a search.

    Args:
        method: How the runs are composed.
        noise_multiplier: The noise of every run.
        accountant: The accountant's name: pld (the tightest), rdp, gdp, zcdp, advanced or basic.
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        unit: Whose data the guarantee speaks of: a record or a person.
        reason: Why this method.
        noise_by_method: The noise that each method would have needed.
    """

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
    chosen: ChosenSchedule | None = None
    """The schedule of the runs, where the trainer states none; `event` has it already."""

    @property
    def stopping(self) -> RandomStopping | None:
        """The law of the number of runs; None under composition."""
        return self.event if isinstance(self.event, RandomStopping) else None


def make_scheme(
    schedules: Sequence[TrainingSchedule],
    budget: Budget,
    selection: Selection,
    *,
    method: str | None = None,
    accountant: str = "pld",
) -> Scheme:
    """The cheapest way (or the one asked for) to pay for one run per schedule and for the choice among them.

    Args:
        schedules: What each run does.
        budget: For the whole search.
        selection: How the best run is found.
        method: How the runs are composed; None takes the cheapest.
        accountant: The accountant's name: pld (the tightest), rdp, gdp, zcdp, advanced or basic.
    """
    if method not in (None, *METHODS):
        raise InvalidInput(f"no search method is called {method!r}: choose one of {', '.join(METHODS)}.")
    first = schedules[0]
    if any((s.sampler.adjacency, s.unit) != (first.sampler.adjacency, first.unit) for s in schedules):
        raise Unsupported("the runs of a search must share neighbours and unit: guarantees that differ do not add up.")
    if first.unit is not Unit.RECORD and not selection.exact and len(schedules) > 1:
        raise Unsupported(
            "private selection counts validation records, of which one user may own many: select on public data."
        )
    if method == STOPPING and selection.kind is SelectionKind.TEST_SET:
        raise Unsupported(
            "random stopping releases the best of runs that are alike; the thesis's means over seeds are not: take "
            "composition."
        )
    if math.isinf(budget.epsilon):
        return _without_privacy(first, budget, selection)
    alone = len(schedules) == 1 or len(set(schedules)) > 1 or selection.kind is SelectionKind.TEST_SET
    method = COMPOSITION if method is None and alone else method
    return _with_noise(schedules, budget, selection, method, accountant)


def _with_noise(
    schedules: Sequence[TrainingSchedule], budget: Budget, selection: Selection, method: str | None, accountant: str
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


def _without_privacy(first: TrainingSchedule, budget: Budget, selection: Selection) -> Scheme:
    if not selection.exact:
        raise InvalidInput("without a finite epsilon nothing is private: select by 'public' or 'thesis-test-set'.")
    return Scheme(
        COMPOSITION, 0.0, first.event(0.0), NOTHING, "pld", budget, first.sampler.adjacency, first.unit,
        "NOT PRIVATE: no noise at all.", population=_population(first),
    )  # fmt: skip


def _population(schedule: TrainingSchedule) -> int | None:
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


# All that a search decides before it touches data, on disk: whoever resumes it does exactly this, nothing else.
#
# With random stopping the list of runs, and so their number K, is sealed in the internal part of the folder (`secret`):
# drawn once, before anything is reserved, so that no kill and no resume draws it again.

PLAN = "plan.json"
ORDERS = "orders.json"


@dataclass(frozen=True)
class Decision:
    """The scheme and the runs. ``started`` is when it was decided, in seconds since 1970."""

    scheme: Scheme
    orders: tuple[RunOrder, ...]
    started: float

    def save(self, folder: RunFolder) -> None:
        """Write `PLAN` into ``folder``; with random stopping the runs go into its internal part, before."""
        plain = {field.name for field in fields(Scheme)} - {"event", "choice", "budget", "chosen"}
        scheme = {name: getattr(self.scheme, name) for name in sorted(plain)}
        if self.scheme.chosen is not None:
            scheme["chosen"] = asdict(self.scheme.chosen)
        data: dict[str, Any] = {
            "scheme": scheme
            | {"event": to_dict(self.scheme.event), "choice": to_dict(self.scheme.choice)}
            | {"epsilon": self.scheme.budget.epsilon, "delta": self.scheme.budget.delta},
            "started": self.started,
        }
        orders = [asdict(order) for order in self.orders]
        if self.scheme.stopping is not None:
            runner.write_json(folder, ORDERS, {"orders": orders})
        else:
            data["orders"] = orders
        folder.write_json(PLAN, data)

    @classmethod
    def load(cls, folder: RunFolder) -> Decision | None:
        """The decision in ``folder``; None if none was made. The runs of a stopped search that has ended are gone."""
        if not folder.has(PLAN):
            return None
        data = read_json(folder.path / PLAN)
        try:
            saved = data["scheme"]
            budget = Budget(saved.pop("epsilon"), saved.pop("delta"))
            chosen = ChosenSchedule(**saved["chosen"]) if "chosen" in saved else None
            scheme = Scheme(
                **saved
                | {"event": from_dict(saved["event"]), "choice": from_dict(saved["choice"]), "budget": budget}
                | {"adjacency": Adjacency(saved["adjacency"]), "unit": Unit(saved["unit"]), "chosen": chosen}
            )
            if scheme.stopping is None:
                listed = data["orders"]
            else:
                listed = [] if folder.finished else read_json(runner.part(folder.path) / ORDERS)["orders"]
            return cls(scheme, tuple(RunOrder(**order) for order in listed), float(data["started"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"{folder.path / PLAN} is damaged: begin a new search in another folder.") from error


def decide(
    space: Space,
    scheme: Scheme,
    configurations: list[Configuration],
    seeds: int,
    rng: np.random.Generator,
    seed: int | None,
) -> Decision:
    """The runs: every configuration ``seeds`` times, or with random stopping a random number of random ones.

    The runs of a stopped search are drawn alike and independently of their number: configuration, first weights
    (``weights`` seeds them) and, under a ``seed``, noise.

    Args:
        space: Where configurations come from.
        scheme: How the search is paid for.
        configurations: Those of a search that tries each of them.
        seeds: How often each of these is tried.
        rng: Draws the runs.
        seed: That of the whole search; None keeps all noise secret.
    """
    if scheme.stopping is not None:
        drawn = [
            RunOrder(number, space.draw(rng), weights=_draw_seed(rng), seed=None if seed is None else _draw_seed(rng))
            for number in range(draw_runs(scheme.stopping, rng))
        ]
        return Decision(scheme, tuple(drawn), time.time())
    pairs = [(configuration, repetition) for repetition in range(seeds) for configuration in configurations]
    orders = [
        RunOrder(number, configuration, repetition, noise_seed(seed, number), repetition)
        for number, (configuration, repetition) in enumerate(pairs)
    ]
    return Decision(scheme, tuple(orders), time.time())


def check_costs(
    orders: tuple[RunOrder, ...],
    schedule_of: Callable[[Configuration], TrainingSchedule],
    scheme: Scheme,
    common: TrainingSchedule,
) -> None:
    """Refuse a stopped search whose runs would not all do the same to the data.

    Args:
        orders: The runs.
        schedule_of: From a configuration to its `Schedule`.
        scheme: How the search is paid for.
        common: The schedule that was paid for.
    """
    if scheme.stopping is not None and any(schedule_of(order.configuration) != common for order in orders):
        raise Unsupported("random stopping needs runs that all cost the same: take composition, or one schedule.")


def noise_seed(seed: int | None, number: int) -> int | None:
    """A seed for the noise of run ``number``, or none at all: then noise is secret."""
    return None if seed is None else int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0])


def _draw_seed(rng: np.random.Generator) -> int:
    """Small enough for every library's ``seed``; drawn alike for all runs, so who finds it learns no number."""
    return int(rng.integers(1 << 31))
