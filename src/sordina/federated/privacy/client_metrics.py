"""Randomised client metrics: held-out clients tell how well a model fits them without trusting the server.

In every validation each client answers once, at ``epsilon / validations``: its loss (cut at a public bound) and its
share of right classes by `Hybrid`, and which model it chose by `Frequency`, with half of that for the loss and the
rest shared. Coins come from a secure generator of the client's own, or from the given one where a run is repeatable.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sordina._arguments import checked
from sordina.accounting import Event, PureDP, Repeated
from sordina.errors import BudgetRefused
from sordina.mechanisms.mechanism import settle, whole
from sordina.privacy import Adjacency, Guarantee, Trust, Unit, check_epsilon, check_positive, format_up
from sordina.statistics.local import Frequency, Hybrid

Floats = NDArray[np.float64]


@checked
@dataclass(frozen=True)
class RandomizedMetrics:
    """What held-out clients may tell, and how often.

    Args:
        epsilon: Of all that one client tells, in all validations together.
        validations: How often clients are asked at most; the next time is refused.
        largest_loss: Losses above count as this.
        seed: Makes the answers repeatable, for experiments: it protects nobody.
    """

    epsilon: float
    validations: int
    largest_loss: float
    seed: int | None = None
    _asked: list[int] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        settle(self, epsilon=check_epsilon(self.epsilon), validations=whole("validations", self.validations))
        settle(self, largest_loss=check_positive("largest_loss", self.largest_loss))

    @property
    def guarantee(self) -> Guarantee:
        """For all data of one held-out client, against everybody."""
        return Guarantee(self.epsilon, 0.0, Adjacency.REPLACE_ONE, Unit.USER, Trust.LOCAL)

    def event(self) -> Event:
        """All validations."""
        return Repeated(PureDP(self.epsilon / self.validations), self.validations)

    def check(self, times: int) -> None:
        """Refuse a run that would ask more often than clients agreed to, before it begins.

        Args:
            times: How often it would ask.
        """
        if len(self._asked) + times > self.validations:
            raise BudgetRefused(
                f"held-out clients answer {self.validations} times, for epsilon {format_up(self.epsilon)} in all, and "
                f"the run would ask {len(self._asked) + times} times: validate less often, or agree on more before it."
            )

    def ask(
        self, losses: Floats, right: Floats | None, chosen: NDArray[np.int64], models: int
    ) -> tuple[float, float | None, tuple[float, ...]]:
        """Mean loss, mean share of right classes, and share of clients for each model, from one answer of each client.

        Args:
            losses: Of each client with the model it chose; what is not finite counts as the largest loss.
            right: The share of right classes of each client, where there are classes.
            chosen: The model that fits each client best.
            models: How many models there are.
        """
        self.check(1)
        turn = len(self._asked)
        self._asked.append(turn)
        rng = None if self.seed is None else np.random.default_rng((self.seed, turn))
        others = (right is not None) + (models > 1)
        share = self.epsilon / self.validations
        first = share if not others else share / 2
        rest = share / 2 / max(1, others)
        told = Hybrid(0.0, self.largest_loss, first)
        cut = np.nan_to_num(losses, nan=self.largest_loss, posinf=self.largest_loss, neginf=0.0)
        loss = float(np.clip(told.estimate(told.randomize(cut, rng)).values[0], 0.0, self.largest_loss))
        accuracy = None
        if right is not None:
            asked = Hybrid(0.0, 1.0, rest)
            accuracy = float(np.clip(asked.estimate(asked.randomize(right, rng)).values[0], 0.0, 1.0))
        shares = (1.0,)
        if models > 1:
            vote = Frequency(models, rest)
            shares = tuple(vote.estimate(vote.randomize(chosen, rng)).consistent().values.tolist())
        return loss, accuracy, shares
