"""One network trained twice on the same few rows, without privacy and with: what do the attacks see of each?

Also 003's experiment (its sections IV and VI-E): a shadow attack with an attack model, on Adult. There the target was a
well-fitted logistic regression and the attack did not learn; here the target has memorised its rows, and it must.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordina import datasets, models, randomness
from sordina.auditing.audit import audit
from sordina.auditing.membership.recipe import Progress, Recipe, silent, train
from sordina.auditing.membership.samples import Samples, as_samples
from sordina.auditing.membership.target import Classifier
from sordina.auditing.result import Audit
from sordina.clipping import Fixed
from sordina.errors import InvalidInput
from sordina.training import Trainer
from sordina.types import Budget, Guarantee

ATTACKS = ("loss", "noisy", "shadow", "lira-online", "lira-offline", "attack-model")


@dataclass(frozen=True)
class Trained:
    """One model, its accuracies and its audit."""

    train_accuracy: float
    test_accuracy: float
    audit: Audit

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {
            "train_accuracy": self.train_accuracy,
            "test_accuracy": self.test_accuracy,
            **self.audit.to_dict(),
        }


@dataclass(frozen=True)
class MembershipStudy:
    """The overfitted model, and the private one if there is a budget."""

    overfitted: Trained
    private: Trained | None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {
            "overfitted": self.overfitted.to_dict(),
            "private": None if self.private is None else self.private.to_dict(),
        }


def membership_study(
    dataset: str = "digits",
    *,
    rows: int = 600,
    hidden: int = 256,
    label_noise: float = 0.2,
    balanced: bool = False,
    recipe: Recipe | None = None,
    attacks: tuple[str, ...] = ATTACKS,
    shadows: int = 16,
    epsilon: float | None = 3.0,
    delta: float = 1e-5,
    private_epochs: float = 20.0,
    private_rate: float = 0.5,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress = silent,
) -> MembershipStudy:
    """Overfit a network to ``rows`` rows, train the same network at ``epsilon``, and attack both.

    Members and non-members are a random split of ``2 rows`` rows of the training file, so the one-run bound holds.
    ``label_noise`` is the share of labels drawn anew at random, in members and non-members alike: something that can
    only be memorised. ``balanced`` keeps as many rows of each class, as 003 does.
    """
    rng = randomness.seeded(seed)
    data = datasets.load(dataset)
    everything = as_samples(data.train)
    if balanced:
        everything = everything.take(_balanced(everything, rng))
    everything = _relabelled(everything, data.classes, label_noise, rng)
    if 2 * rows > len(everything):
        raise InvalidInput(f"{dataset} has {len(everything)} rows: members and non-members need {2 * rows}.")
    order = rng.permutation(len(everything))
    members, others = everything.take(order[:rows]), everything.take(order[rows : 2 * rows])
    recipe = recipe or Recipe(epochs=100, batch_size=32, learning_rate=2e-3)

    def build() -> nn.Module:
        sizes = {"inputs": math.prod(data.input_shape), "classes": data.classes, "hidden": hidden}
        return models.build("mlp", seed=seed, **sizes)

    def judged(model: nn.Module, claim: Guarantee | None) -> Trained:
        found = audit(
            model, members, others, attacks,
            claim=claim, random_split=True, delta=delta, confidence=confidence, recipe=recipe, shadows=shadows,
            seed=seed, progress=progress,
        )  # fmt: skip
        return Trained(accuracy(model, members), accuracy(model, others), found)

    overfitted = judged(train(build(), members, recipe, rng), None)
    if epsilon is None:
        return MembershipStudy(overfitted, None)
    trainer = Trainer(
        build(), nn.functional.cross_entropy, Budget(epsilon, delta),
        clipping=Fixed(1.0), batch_size=rows // 4, epochs=private_epochs, lr=private_rate, seed=seed,
    )  # fmt: skip
    run = trainer.fit((members.inputs, members.labels))
    return MembershipStudy(overfitted, judged(run.model, run.guarantee))


def _balanced(samples: Samples, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows in random order, as many of each class as the rarest has."""
    assert samples.labels is not None
    labels = samples.labels.numpy()
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    return rng.permutation(np.concatenate([rows[: min(map(len, classes))] for rows in classes]))


def _relabelled(samples: Samples, classes: int, share: float, rng: np.random.Generator) -> Samples:
    """The samples, each with probability ``share`` under a label drawn uniformly."""
    if not 0 <= share <= 1:
        raise InvalidInput(f"the share of random labels must lie in [0, 1], got {share}.")
    assert samples.labels is not None
    anew = torch.from_numpy(rng.random(len(samples)) < share)
    drawn = torch.from_numpy(rng.integers(classes, size=len(samples))).to(samples.labels)
    return Samples(samples.inputs, torch.where(anew, drawn, samples.labels))


def accuracy(model: nn.Module, samples: Samples) -> float:
    """Share of samples whose class is predicted."""
    assert samples.labels is not None
    predicted = Classifier(model).logits(samples).argmax(dim=1)
    return float((predicted == samples.labels.to(predicted)).double().mean())
