"""Follow the size of the last released gradients: the sound form of 003's Algorithm 2.

003 sets the threshold to the largest of the last *raw* gradient norms, which leaks them (errata 10). Here the norms
are those of already noised gradients, so the rule is post-processing. A noised mean over n coordinates has the
squared norm ``|g|^2 + n sigma^2`` in expectation; the public second part is subtracted, else it would feed back into
the threshold and blow it up.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordina._arguments import checked
from sordina._renamed import renamed
from sordina.clipping.policy import ball, shrink
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, check_positive
from sordina.queries import Query, Released, Scalars, VectorQuery


@renamed(C="threshold")
@dataclass(frozen=True)
class TrailingState:
    """The current threshold and the last estimated norms of the mean gradient."""

    threshold: float
    norms: tuple[float, ...] = ()


@renamed(initial="threshold")
@checked
@dataclass(frozen=True)
class Trailing:
    """``C = factor * (largest norm of the last `window` released mean gradients)``, kept within ``[lowest, highest]``.

    A mean of vectors is shorter than the vectors, hence the ``factor`` above 1.

    Args:
        threshold: The first threshold.
    """

    window: int = 10
    threshold: float = 1.0
    factor: float = 4.0
    lowest: float = 1e-3
    highest: float = 1e3

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InvalidInput(f"the window must hold at least one step, got {self.window}.")
        for name in ("threshold", "factor", "lowest", "highest"):
            check_positive(f"{name} of trailing clipping", getattr(self, name))
        if not self.lowest <= self.threshold <= self.highest:
            raise InvalidInput(f"threshold {self.threshold} must lie in [{self.lowest}, {self.highest}].")

    def init(self, size: int) -> TrailingState:
        """Start at ``threshold``."""
        return TrailingState(self.threshold)

    def direction(self, state: TrailingState) -> Tensor | None:
        """No projections are wanted."""
        return None

    def ask(self, scalars: Scalars, state: TrailingState) -> tuple[Query, ...]:
        """The sum of clipped vectors."""
        return (VectorQuery(shrink(scalars.norms, state.threshold)),)

    def bounds(self, state: TrailingState, adjacency: Adjacency) -> tuple[float, ...]:
        """C or 2C."""
        return (ball(state.threshold, adjacency),)

    def split(self, noise_multiplier: float) -> tuple[float, ...]:
        """All noise on the one query."""
        return (noise_multiplier,)

    def adapt(self, state: TrailingState, released: Released) -> TrailingState:
        """Remember the newest norm, forget the oldest."""
        answer = released.answers[0]
        squared = float(answer.double().square().sum()) - answer.numel() * released.noise[0] ** 2
        norm = max(squared, 0.0) ** 0.5 / released.divisor
        norms = (*state.norms, norm)[-self.window :]
        return TrailingState(min(max(self.factor * max(norms), self.lowest), self.highest), norms)

    def current_threshold(self, state: TrailingState) -> float:
        """The current threshold."""
        return state.threshold
