"""Follow a quantile of the norms, estimated with a noisy count (Andrew et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordina._arguments import checked
from sordina._renamed import renamed
from sordina.clipping.policy import ball, moved, shrink, side_query
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, check_positive
from sordina.queries import Query, Released, ScalarQuery, Scalars, VectorQuery


@renamed(C="threshold")
@dataclass(frozen=True)
class QuantileState:
    """The current threshold."""

    threshold: float


@renamed(initial="threshold")
@checked
@dataclass(frozen=True)
class Quantile:
    """``C <- C exp(-rate (b - gamma))`` with b the noised fraction of norms at most C.

    The count is asked as ``sum (1[|g| <= C] - 1/2)``, whose sensitivity is 1/2 under add/remove and 1 under
    replace-one. It shares the noise with the gradient by Prop. 1 of 000: the gradient's grows by ``inflation``.

    Args:
        threshold: The first threshold.
    """

    gamma: float = 0.5
    threshold: float = 0.1
    rate: float = 0.2
    inflation: float = 0.002

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise InvalidInput(f"the quantile gamma must lie in (0, 1), got {self.gamma}.")
        check_positive("initial clipping threshold", self.threshold)
        check_positive("rate of the quantile update", self.rate)
        check_positive("inflation", self.inflation)

    def init(self, size: int) -> QuantileState:
        """Start at ``threshold``."""
        return QuantileState(self.threshold)

    def direction(self, state: QuantileState) -> Tensor | None:
        """No projections are wanted."""
        return None

    def ask(self, scalars: Scalars, state: QuantileState) -> tuple[Query, ...]:
        """The sum of clipped vectors and the centred count of those below the threshold."""
        below = torch.where(scalars.norms <= state.threshold, 0.5, -0.5).to(scalars.norms)
        return (VectorQuery(shrink(scalars.norms, state.threshold)), ScalarQuery(below))

    def bounds(self, state: QuantileState, adjacency: Adjacency) -> tuple[float, ...]:
        """C and 1/2, or twice that."""
        return (ball(state.threshold, adjacency), ball(0.5, adjacency))

    def split(self, noise_multiplier: float) -> tuple[float, ...]:
        """Little noise suffices for the gradient to stay almost as it was: a count is one number."""
        return side_query(noise_multiplier, self.inflation)

    def adapt(self, state: QuantileState, released: Released) -> QuantileState:
        """Move the threshold towards the quantile, geometrically."""
        fraction = float(released.mean(1)) + 0.5
        return QuantileState(moved(state.threshold, -self.rate * (fraction - self.gamma)))

    def current_threshold(self, state: QuantileState) -> float:
        """The current threshold."""
        return state.threshold
