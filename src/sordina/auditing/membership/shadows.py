"""Shadow models: trained like the target on random halves of the rows, so that each row is in some and not in others.

Column j of every array belongs to row j of the samples that the shadows were made for, and an attack is asked about
those same samples in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from sordina.auditing.membership.recipe import Progress, Recipe, silent, streams, train_loop, train_together
from sordina.auditing.membership.samples import Samples
from sordina.auditing.membership.target import Classifier, Target, as_target
from sordina.auditing.scores import BoolArray, FloatArray
from sordina.errors import InvalidInput


@dataclass(frozen=True)
class Shadows:
    """What ``m`` shadow models say of N samples, and on which of these each was trained."""

    inside: BoolArray
    """(m, N): whether shadow i was trained on sample j."""
    losses: FloatArray
    """(m, N)."""
    confidences: FloatArray
    """(m, N)."""
    logits: tuple[Tensor, ...] = ()
    """Per shadow (N, classes), for classifiers."""

    def __len__(self) -> int:
        return len(self.inside)

    def check(self, samples: Samples) -> None:
        """Refuse samples that these shadows were not asked about."""
        if self.inside.shape[1] != len(samples):
            raise InvalidInput(f"the shadows know {self.inside.shape[1]} samples, but {len(samples)} are attacked.")

    def take(self, columns: BoolArray) -> Shadows:
        """The same shadows on some of the samples."""
        logits = tuple(part[columns] for part in self.logits)
        return Shadows(self.inside[:, columns], self.losses[:, columns], self.confidences[:, columns], logits)


def draw_halves(count: int, rows: int, rng: np.random.Generator) -> BoolArray:
    """(count, rows) memberships: each shadow gets half the rows, each row is in half the shadows (up to one).

    Shadows come in pairs of complementary halves, so no row is left without an "in" or an "out" model.
    """
    if count < 2:
        raise InvalidInput(f"at least two shadow models are needed, got {count}.")
    inside = np.zeros((count, rows), dtype=bool)
    for index in range(count):
        if index % 2 and rows % 2 == 0:
            inside[index] = ~inside[index - 1]
        else:
            inside[index, rng.permutation(rows)[: rows // 2]] = True
    return inside


def make_shadows(
    build: Callable[[int], nn.Module],
    samples: Samples,
    recipe: Recipe,
    rng: np.random.Generator,
    *,
    count: int = 16,
    together: bool = True,
    progress: Progress = silent,
) -> Shadows:
    """Train ``count`` shadow models on random halves of ``samples`` and ask them about all of it.

    ``build(i)`` gives model i with its own initial weights. ``together``: as one batched computation.
    """
    inside = draw_halves(count, len(samples), rng)
    models = [build(index) for index in range(count)]
    parts = [samples.take(row) for row in inside]
    fit = train_together if together and samples.labels is not None else train_loop
    return ask(fit(models, parts, recipe, streams(count, rng), progress), samples, inside)


def ask(models: Sequence[nn.Module], samples: Samples, inside: BoolArray) -> Shadows:
    """The answers of trained shadow models on ``samples``."""
    targets: list[Target] = [as_target(model, samples) for model in models]
    return Shadows(
        inside=inside,
        losses=np.stack([target.losses(samples) for target in targets]),
        confidences=np.stack([target.confidences(samples) for target in targets]),
        logits=tuple(target.logits(samples) for target in targets if isinstance(target, Classifier)),
    )
