"""A finished run as an audit sees it: a model, who was in, who was not, and what was claimed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sordina.auditing.membership.recipe import Recipe
from sordina.auditing.membership.samples import Samples
from sordina.types import Guarantee


@dataclass(frozen=True)
class Subject:
    """``recipe`` says how shadow models are trained; None where there can be none."""

    model: Any
    members: Samples
    others: Samples
    claim: Guarantee | None
    delta: float
    recipe: Recipe | None = None
    random_split: bool = False
    """Whether chance alone decided who was in."""

    def some(self, members: int, others: int, rng: np.random.Generator) -> Subject:
        """At most so many of each, drawn at random."""
        return replace(self, members=_drawn(self.members, members, rng), others=_drawn(self.others, others, rng))


def _drawn(samples: Samples, most: int, rng: np.random.Generator) -> Samples:
    return samples.take(rng.permutation(len(samples))[:most])
