"""Every membership attack beside the others, by the number of shadow models that it may use.

One network is trained on a random half of the rows, shadow models on other random halves; all attacks read the answers
of the same models. What a run with m shadow models costs is their training alone, which the table shows beside.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import nn

from sordina import datasets, models, random
from sordina.auditing.audit import SHADOWED
from sordina.auditing.membership.attacks import LossAttack, MembershipAttack, NoisyNeighbours
from sordina.auditing.membership.query_attacks import LabelOnly, QuantileRegression
from sordina.auditing.membership.reference_attacks import PopulationAttack
from sordina.auditing.membership.shadows import PlainTraining, Shadows, make_shadows, train
from sordina.auditing.membership.target import Classifier, Samples, as_samples
from sordina.auditing.scores import BoolArray, Scores, auc, tpr_at
from sordina.reproduction.experiment import ExperimentFindings, Job, Value

LOW_RATES = (0.01, 0.001)


@dataclass(frozen=True)
class AttackedSplit:
    """A network, the rows it is asked about, who of them was in, and who is known beforehand.

    Args:
        target: The network.
        samples: All rows.
        member: Who was in.
        known: Rows whose membership the attacker knows: for tuning, never reported on.
        shadows: The answers of all shadow models.
        seconds: What their training took.
    """

    target: Classifier
    samples: Samples
    member: BoolArray
    known: BoolArray
    shadows: Shadows
    seconds: float

    def first(self, count: int) -> Shadows:
        """The first ``count`` shadow models."""
        return self.shadows.first(count)

    def judged(self, attack: MembershipAttack) -> Scores:
        """The attack's scores on the rows reported on."""
        if getattr(attack, "needs_tuning", False):
            parts = (self.samples.take(self.known & self.member), self.samples.take(self.known & ~self.member))
            attack = attack.tuned(self.target, *parts)  # type: ignore[attr-defined]
        scores = attack.scores(self.target, self.samples)
        return Scores(scores[self.member & ~self.known], scores[~self.member & ~self.known])


def attacked_split(
    dataset: str, rows: int, hidden: int, recipe: PlainTraining, shadows: int, seed: int
) -> AttackedSplit:
    """Train the network and its shadow models.

    Args:
        dataset: One of classes, by name.
        rows: Members, and as many non-members.
        hidden: Width of the network.
        recipe: How all models are trained.
        shadows: How many shadow models.
        seed: Of everything.
    """
    rng = random.seeded(seed)
    data = datasets.load(dataset)
    everything = as_samples(data.train)
    half = min(rows, len(everything) // 2)
    samples = everything.take(rng.permutation(len(everything))[: 2 * half])
    member = np.zeros(2 * half, dtype=bool)
    member[rng.permutation(2 * half)[:half]] = True
    known = rng.random(2 * half) < 0.2

    def build(index: int) -> nn.Module:
        sizes = {"inputs": math.prod(data.input_shape), "classes": data.classes, "hidden": hidden}
        return models.build("mlp", seed=1000 * seed + index, **sizes)

    target = train(build(0), samples.take(member), recipe, rng)
    start = time.process_time()
    made = make_shadows(lambda index: build(index + 1), samples, recipe, rng, count=shadows)
    return AttackedSplit(Classifier(target), samples, member, known, made, time.process_time() - start)


def attack_table(job: Job) -> ExperimentFindings:
    """TPR at low FPR of every attack for every number of shadow models."""
    given = job.settings
    recipe = PlainTraining(**given["recipe"])
    counts = given["shadows"]
    values: list[Value] = []
    for dataset, rows in given["rows"].items():
        split = attacked_split(dataset, rows, given["hidden"], recipe, max(counts), given["seed"])
        rng = random.seeded(given["seed"])
        population = split.known & ~split.member
        alone: dict[str, Callable[[], MembershipAttack]] = {
            "loss": LossAttack,
            "noisy": lambda rng=rng: NoisyNeighbours(rng),  # type: ignore[misc]
            "population": lambda known=population: PopulationAttack(known),  # type: ignore[misc]
            "quantile-regression": QuantileRegression,
            "label-only": lambda rng=rng: LabelOnly(rng),  # type: ignore[misc]
        }
        for name, make in alone.items():
            values += _rates(dataset, name, 0, split, make(), 0.0)
        for count in counts:
            share = split.seconds * count / len(split.shadows)
            for name, by_shadows in SHADOWED.items():
                values += _rates(dataset, name, count, split, by_shadows(split.first(count), population), share)
    remarks = [
        "Networks are trained without privacy, as people train them: no label is made up.",
        "Membership of a fifth of the rows is known to the attacker, for tuning; the others are reported on.",
    ]
    return ExperimentFindings(", ".join(given["rows"]), values, (), [*remarks, *job.caveats])


def _rates(
    dataset: str, name: str, count: int, split: AttackedSplit, attack: MembershipAttack, training: float
) -> list[Value]:
    start = time.process_time()
    scores = split.judged(attack)
    seconds = training + time.process_time() - start
    what = {"data": dataset, "attack": name, "shadows": str(count)}
    rates = [Value(what | {"quantity": f"TPR at {rate:.1%} FPR"}, tpr_at(scores, rate).value) for rate in LOW_RATES]
    return [Value(what | {"quantity": "AUC"}, auc(scores).value, note=f"{seconds:.1f} s"), *rates]
