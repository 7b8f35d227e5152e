"""The one object that decides: sampler, normaliser, adjacency, noise and accountant are all read from a `Plan`."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from sordina.accounting import Event, Gaussian, Repeated, accountant, noise_multiplier
from sordina.errors import BudgetRefused, InvalidInput
from sordina.sampling import Sampler
from sordina.types import Adjacency, Budget, Guarantee, Unit, format_up


@dataclass(frozen=True)
class Plan:
    """What a training run will do to the data, decided before it touches the data.

    All fields are public. ``noise_multiplier`` is relative to the sensitivity of a step under the sampler's adjacency.
    """

    sampler: Sampler
    steps: int
    budget: Budget
    noise_multiplier: float
    unit: Unit = Unit.RECORD
    accountant: str = "pld"

    def __post_init__(self) -> None:
        check_steps(self.steps)

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
        return Repeated(self.sampler.event(Gaussian(self.noise_multiplier)), self.steps if steps is None else steps)

    def guarantee(self, steps: int | None = None) -> Guarantee:
        """The guarantee after ``steps`` steps."""
        return _guarantee(self, self.steps if steps is None else steps)


@functools.lru_cache(maxsize=4096)
def _guarantee(plan: Plan, steps: int) -> Guarantee:
    """Remembered, because the many runs of a search share one plan."""
    delta, epsilon = plan.budget.delta, math.inf
    if plan.private:
        epsilon = accountant(plan.accountant).epsilon(plan.event(steps), delta, plan.adjacency)
    return Guarantee(epsilon, delta, plan.adjacency, plan.unit)


def check_steps(steps: int) -> None:
    """Refuse anything but a positive whole number of steps."""
    if steps < 1 or int(steps) != steps:
        raise InvalidInput(f"a run has at least one step, got {steps}.")


def make_plan(
    budget: Budget,
    sampler: Sampler,
    steps: int,
    *,
    unit: Unit = Unit.RECORD,
    accountant: str = "pld",
    noise_multiplier: float | None = None,
) -> Plan:
    """The plan that spends ``budget``: its noise is the least that the accountant allows.

    A ``noise_multiplier`` given by the caller is kept, and refused when it would overspend the budget.

    >>> from sordina.sampling import Poisson
    >>> plan = make_plan(Budget(3, 1e-5), Poisson(512, 60000), steps=1170)
    >>> 2.97 <= plan.guarantee().epsilon <= 3
    True
    """
    check_steps(steps)
    if math.isinf(budget.epsilon):
        return Plan(sampler, steps, budget, 0.0, unit, accountant)
    if noise_multiplier is None:
        noise_multiplier = _calibrate(budget, sampler, steps, accountant)
    plan = Plan(sampler, steps, budget, noise_multiplier, unit, accountant)
    spent = plan.guarantee().epsilon
    if spent > budget.epsilon:
        raise BudgetRefused(
            f"{steps} steps at noise multiplier {noise_multiplier:.4g} cost epsilon {format_up(spent)}, above the "
            f"budget of {budget.epsilon:g} at delta {budget.delta:g}. Raise noise or budget, or take fewer steps."
        )
    return plan


def _calibrate(budget: Budget, sampler: Sampler, steps: int, name: str) -> float:
    return noise_multiplier(
        lambda nu: Repeated(sampler.event(Gaussian(nu)), steps), budget, sampler.adjacency, accountant=name
    )
