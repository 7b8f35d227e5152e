"""PLD (interim: judged by dp-accounting)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sordina.accounting.events import Composed, Event, Gaussian, Laplace, PoissonSampled, Repeated
from sordina.errors import Unsupported
from sordina.types import Adjacency


def _translate(event: Event) -> Any:
    import dp_accounting as dp

    if isinstance(event, Gaussian):
        return dp.GaussianDpEvent(event.noise_multiplier)
    if isinstance(event, Laplace):
        return dp.LaplaceDpEvent(event.noise_multiplier)
    if isinstance(event, PoissonSampled):
        return dp.PoissonSampledDpEvent(event.rate, _translate(event.event))
    if isinstance(event, Repeated):
        return dp.SelfComposedDpEvent(_translate(event.event), event.count)
    if isinstance(event, Composed):
        return dp.ComposedDpEvent([_translate(part) for part in event.events])
    raise Unsupported(f"the pld accountant does not know {type(event).__name__}.")


@dataclass(frozen=True)
class PLD:
    """Privacy loss distributions."""

    name: str = "pld"

    def _judge(self, event: Event, adjacency: Adjacency) -> Any:
        from dp_accounting import pld

        if adjacency is not Adjacency.ADD_REMOVE:
            raise Unsupported("interim: add-remove only.")
        return pld.PLDAccountant(value_discretization_interval=1e-3).compose(_translate(event))

    def epsilon(self, event: Event, delta: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """An epsilon such that ``event`` is (epsilon, delta)-DP."""
        return float(self._judge(event, adjacency).get_epsilon(delta))

    def delta(self, event: Event, epsilon: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """A delta such that ``event`` is (epsilon, delta)-DP."""
        return float(self._judge(event, adjacency).get_delta(epsilon))
