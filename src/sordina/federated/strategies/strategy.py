"""The seam of strategies: state in, state out, released values only."""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

from sordina.federated.messages import Arrays, Release

State = TypeVar("State")


class Strategy(Protocol[State]):
    """What the server sends, and what it makes of what it may see."""

    @property
    def needs_vectors(self) -> bool:
        """Whether a mean is not enough."""
        ...

    def init(self, models: Tensor) -> State:
        """The state before the first round, from initial models ``(k, P)``."""
        ...

    def configure(self, state: State) -> Arrays:
        """What every client of the next round is sent."""
        ...

    def update(self, state: State, release: Release) -> State:
        """The next state."""
        ...

    def models(self, state: State) -> Tensor:
        """The models as they stand, ``(k, P)``: what would be deployed."""
        ...
