"""Random numbers that are nobody's secret are part of the data: what dropout, collators and augmentation draw from.

Samples of a batch draw one after the other. Without one of them the next get other numbers, which changes nothing that
can be seen as long as nobody knows them: numbers are then as good as others. By a public seed everybody's change, and
no clipping bounds that. So all generators that are known are seeded in secret when a run begins, and again as soon as
somebody else has seeded them.
"""

from __future__ import annotations

from typing import Any

import torch

from sordina.gradients._chance import held_by
from sordina.random import reseed_globally
from sordina.random.generators import reseed


class SecretChance:
    """Keeps the random numbers of a run secret.

    Args:
        holders: What may hold generators of its own: the model, the loss, the data set, its transforms.
    """

    def __init__(self, *holders: Any) -> None:
        self.holders = holders
        self.seed: int | None = None
        """That of torch, of which nobody else knows; another one shows that somebody has seeded it since."""

    def renew(self) -> None:
        """Seed everything in secret; what the holders hold when it is done for the first time."""
        reseed_globally()
        if self.seed is None:
            for holder in self.holders:
                for generator in held_by(holder):
                    reseed(generator)
        self.seed = torch.initial_seed()
