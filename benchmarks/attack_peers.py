"""Membership attacks beside those of a peer toolkit (ART), on the same networks, rows and knowledge.

ART is no dependency: ``pip install adversarial-robustness-toolbox`` (or put it on PYTHONPATH), else its rows are left
out. Both know the membership of a fifth of the rows; ART's attack models are fitted on them, ours tune on them.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch

from sordina.auditing.audit import SHADOWED
from sordina.auditing.membership.attacks import LossAttack, NoisyNeighbours
from sordina.auditing.membership.query_attacks import LabelOnly, QuantileRegression
from sordina.auditing.membership.reference_attacks import PopulationAttack
from sordina.auditing.membership.shadows import PlainTraining
from sordina.auditing.scores import Scores, auc, tpr_at
from sordina.reproduction.attacks import AttackedSplit, attacked_split

RECIPE = PlainTraining(epochs=40, batch_size=64, learning_rate=2e-3)


def peers(split: AttackedSplit) -> dict[str, tuple[Scores, float]]:
    """ART's black-box attacks: an attack model on the outputs, fitted on the known rows."""
    from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
    from art.estimators.classification import PyTorchClassifier

    inputs = split.samples.inputs.float().numpy()
    labels = split.samples.labels.numpy()
    classes = int(labels.max()) + 1
    wrapped = PyTorchClassifier(
        split.target.model.float(), torch.nn.CrossEntropyLoss(), input_shape=inputs.shape[1:], nb_classes=classes
    )
    found = {}
    for kind in ("rf", "gb", "lr"):
        start = time.process_time()
        attack = MembershipInferenceBlackBox(wrapped, attack_model_type=kind)
        known_in, known_out = split.known & split.member, split.known & ~split.member
        attack.fit(inputs[known_in], labels[known_in], inputs[known_out], labels[known_out])
        scores = [
            np.asarray(attack.infer(inputs[rows], labels[rows], probabilities=True), dtype=float).reshape(-1)
            for rows in (split.member & ~split.known, ~split.member & ~split.known)
        ]
        found[f"ART black box, {kind}"] = (Scores(*scores), time.process_time() - start)
    return found


def ours(split: AttackedSplit, shadows: int) -> dict[str, tuple[Scores, float]]:
    """All of ours; those by shadow models with ``shadows`` of them, whose training is counted."""
    rng = np.random.default_rng(0)
    population = split.known & ~split.member
    alone = [LossAttack(), NoisyNeighbours(rng), PopulationAttack(population), QuantileRegression(), LabelOnly(rng)]
    by_shadows = [make(split.first(shadows), population) for make in SHADOWED.values()]
    found = {}
    for attack in alone + by_shadows:
        start = time.process_time()
        scores = split.judged(attack)
        training = split.seconds if hasattr(attack, "shadows") else 0.0
        found[attack.name] = (scores, training + time.process_time() - start)
    return found


def run(argv: list[str] | None = None) -> None:
    """One table per data set."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=700)
    parser.add_argument("--shadows", type=int, default=4)
    parser.add_argument("--datasets", default="digits,adult")
    given = parser.parse_args(argv if argv is not None else [])
    for dataset in given.datasets.split(","):
        split = attacked_split(dataset, given.rows, 64, RECIPE, given.shadows, seed=0)
        found = ours(split, given.shadows)
        try:
            found |= peers(split)
        except ImportError as error:
            print(f"(ART is not here: {error})")
        print(f"\n{dataset}, {given.rows} members, {given.shadows} shadow models")
        print("| attack | AUC | TPR at 1 % | s |\n|---|---|---|---|")
        for name, (scores, seconds) in sorted(found.items(), key=lambda one: -auc(one[1][0]).value):
            rate = tpr_at(scores, 0.01).value
            print(
                f"| {name} | {auc(scores).value:.3f} | {100 * rate:.1f} % | {seconds:.1f} |"
                if not math.isnan(rate)
                else name
            )


if __name__ == "__main__":
    import sys

    run(sys.argv[1:])
