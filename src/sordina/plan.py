"""The one object that decides: sampler, normaliser, adjacency, noise and accountant are all read from a `Plan`."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordina.accounting import Account, Composed, Event, Gaussian, Repeated, accountant, noise_multiplier
from sordina.accounting.events import NOTHING
from sordina.errors import BudgetRefused, InvalidInput
from sordina.mechanisms import correlated
from sordina.mechanisms.correlated import CorrelatedNoise
from sordina.privacy import Adjacency, Budget, Guarantee, Unit, check_positive, format_up
from sordina.sampling import CyclicPoisson, Sampler


@dataclass(frozen=True)
class Plan:
    """What a training run will do to the data, decided before it touches the data.

    All fields are public. ``noise_multiplier`` is relative to the sensitivity of a step under the sampler's adjacency.

    Args:
        steps: How many steps.
        budget: What they may spend.
        unit: Whose data the guarantee speaks of: a record or a person.
        accountant: The accountant's name: pld (the tightest), rdp, gdp, zcdp, advanced or basic.
        noise: How the noise of a step depends on that of earlier ones; None draws it independently.
        before: What is released once, before the first step (`sordina.training.components`).
    """

    sampler: Sampler
    steps: int
    budget: Budget
    noise_multiplier: float
    unit: Unit = Unit.RECORD
    accountant: str = "pld"
    noise: CorrelatedNoise | None = None
    before: Event | None = None

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if self.noise is not None and not isinstance(self.sampler, CyclicPoisson):
            raise InvalidInput(
                "correlated noise is accounted where a unit's turns lie apart: it goes with CyclicPoisson sampling."
            )

    @property
    def private(self) -> bool:
        """False when the budget is infinite: then nothing is clipped and no noise is added."""
        return not math.isinf(self.budget.epsilon)

    @property
    def adjacency(self) -> Adjacency:
        """The sampler's."""
        return self.sampler.adjacency

    def event(self, steps: int | None = None) -> Event:
        """What ``steps`` steps cost (all of them, unless said)."""
        return with_before(self.before, Repeated(*self.charged(self.steps if steps is None else steps)))

    def charged(self, steps: int) -> tuple[Event, int]:
        """What ``steps`` steps cost: an event, and how often it is paid for.

        Args:
            steps: From the first on.
        """
        return charged(self.sampler, self.noise, self.noise_multiplier, steps, self.steps)

    @property
    def turn(self) -> int:
        """After so many steps, or a multiple of it, noise may begin anew (`mechanisms.correlated`, breaks)."""
        return self.sampler.parts if isinstance(self.sampler, CyclicPoisson) else 1

    @functools.cached_property
    def coefficients(self) -> tuple[float, ...]:
        """Of the matrix that correlates the noise; one number for independent noise."""
        return (1.0,) if self.noise is None else correlated.coefficients_of(self.noise, self.steps)

    @property
    def noise_of_sum(self) -> float:
        """The standard deviation of the noise of all steps together, over the noise multiplier."""
        if self.noise is None:
            return math.sqrt(self.steps)
        return float(np.linalg.norm(np.cumsum(correlated.inverse(self.coefficients, self.steps))))

    @property
    def adds_up(self) -> float:
        """The noise of all steps together over what independent noise of a step's size would add up to."""
        if self.noise is None:
            return 1.0
        each = float(np.linalg.norm(correlated.inverse(self.coefficients, self.steps)))
        return self.noise_of_sum / (each * math.sqrt(self.steps))

    def guarantee(self, steps: int | None = None) -> Guarantee:
        """The guarantee after ``steps`` steps."""
        event = self.event(steps)
        return _cost(self.accountant, event, self.budget.delta, self.adjacency, self.unit, self.private)


def with_before(before: Event | None, steps: Event) -> Event:
    """A run that releases something once before its first step.

    Args:
        before: What that is, if anything.
        steps: All steps.
    """
    return steps if before is None else Composed((Repeated(before, 1), steps))


def charged(
    sampler: Sampler, noise: CorrelatedNoise | None, noise_multiplier: float, steps: int, planned: int
) -> tuple[Event, int]:
    """What the first ``steps`` of ``planned`` steps cost: an event, and how often it is paid for.

    Independent noise is paid for in every step; banded noise by theorem 1 of `sordina.mechanisms.correlated`, once a
    turn; other noise by theorem 2, as a whole with the first step.

    Args:
        sampler: Who takes part in a step.
        noise: How noise is correlated.
        noise_multiplier: Relative to the sensitivity of a step.
        steps: What was done, or will be.
        planned: All steps of the run, which the coefficients of the noise are for.
    """
    event = sampler.event(Gaussian(noise_multiplier))
    if not isinstance(sampler, CyclicPoisson):
        return event, steps
    coefficients = (1.0,) if noise is None else correlated.coefficients_of(noise, planned)
    if len(coefficients) <= sampler.parts:
        return event, -(-steps // sampler.parts)
    whole = correlated.sensitivity(coefficients, planned, sampler.parts)
    return Gaussian(math.nextafter(noise_multiplier / whole, 0.0)), min(1, steps)


def spent(plan: Plan, account: Account) -> Guarantee:
    """What the events on ``account`` cost: the only way from a run to its epsilon.

    Args:
        plan: Whose delta, unit and accountant count.
        account: The events that ran.
    """
    return _cost(plan.accountant, event_of(account), plan.budget.delta, plan.adjacency, plan.unit, plan.private)


def event_of(account: Account) -> Event:
    """Everything on ``account`` as one event; steps that are all alike as the plan states them.

    Args:
        account: The events that ran.
    """
    whole = account.event
    return whole.events[0] if isinstance(whole, Composed) and len(whole.events) == 1 else whole


@functools.lru_cache(maxsize=4096)
def _cost(name: str, event: Event, delta: float, adjacency: Adjacency, unit: Unit, private: bool) -> Guarantee:
    """Remembered, because the many runs of a search share one plan."""
    epsilon = math.inf
    if private:
        epsilon = 0.0 if event == NOTHING else accountant(name).epsilon(event, delta, adjacency)
    return Guarantee(epsilon, delta, adjacency, unit)


def check_whole(name: str, value: Any) -> int:
    """Refuse anything but a whole number of at least one.

    Args:
        name: What it is, for the message.
        value: What was given.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InvalidInput(f"{name} must be a whole number of at least 1, got {value!r}.")
    return int(value)


def check_steps(steps: Any) -> None:
    """Refuse anything but a positive whole number of steps."""
    if isinstance(steps, bool) or not isinstance(steps, (int, float, np.number)) or not 1 <= steps < 2**53:
        raise InvalidInput(f"a run has at least one step, got {steps!r}.")
    if int(steps) != steps:
        raise InvalidInput(f"a run has a whole number of steps, got {steps!r}.")


def make_plan(
    budget: Budget,
    sampler: Sampler,
    steps: int,
    *,
    unit: Unit = Unit.RECORD,
    accountant: str = "pld",
    noise_multiplier: float | None = None,
    noise: CorrelatedNoise | None = None,
    before: Event | None = None,
) -> Plan:
    """The plan that spends ``budget``: its noise is the least that the accountant allows.

    A ``noise_multiplier`` given by the caller is kept, and refused when it would overspend the budget.

    Args:
        sampler: Who takes part in a step.
        unit: Whose data the guarantee speaks of: a record or a person.
        noise: How the noise of steps is correlated; None draws it independently.
        before: What is released once, before the first step.

    >>> from sordina.sampling import Poisson
    >>> plan = make_plan(Budget(3, 1e-5), Poisson(512, 60000), steps=1170)
    >>> 2.97 <= plan.guarantee().epsilon <= 3
    True
    """
    check_steps(steps)
    if math.isinf(budget.epsilon):
        return Plan(sampler, steps, budget, 0.0, unit, accountant)
    if noise_multiplier is not None:
        check_positive("noise_multiplier", noise_multiplier)
    else:
        noise_multiplier = _calibrate(budget, sampler, steps, accountant, noise, before)
    plan = Plan(sampler, steps, budget, noise_multiplier, unit, accountant, noise, before)
    spent = plan.guarantee().epsilon
    if spent > budget.epsilon:
        raise BudgetRefused(
            f"{steps} steps at noise multiplier {noise_multiplier:.4g} cost epsilon {format_up(spent)}, above the "
            f"budget of {budget.epsilon:g} at delta {budget.delta:g}. Raise noise or budget, or take fewer steps."
        )
    return plan


def _calibrate(
    budget: Budget, sampler: Sampler, steps: int, name: str, noise: CorrelatedNoise | None, before: Event | None
) -> float:
    def whole(nu: float) -> Event:
        return with_before(before, Repeated(*charged(sampler, noise, nu, steps, steps)))

    return noise_multiplier(whole, budget, sampler.adjacency, accountant=name)
