"""The attacks of the founding documents, and every membership attack beside the others.

Every membership attack beside the others, by the number of shadow models that it may use.

One network is trained on a random half of the rows, shadow models on other random halves; all attacks read the answers
of the same models. What a run with m shadow models costs is their training alone, which the table shows beside.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordina import datasets, models, random
from sordina.auditing import findings
from sordina.auditing.audit import SHADOWED, audit
from sordina.auditing.findings import Audit
from sordina.auditing.membership.attacks import LossAttack, MembershipAttack, NoisyNeighbours
from sordina.auditing.membership.query_attacks import LabelOnly, QuantileRegression
from sordina.auditing.membership.reference_attacks import PopulationAttack
from sordina.auditing.membership.shadows import PlainTraining, Shadows, make_shadows, train
from sordina.auditing.membership.target import Classifier, Samples, as_samples
from sordina.auditing.reconstruction import reconstruction_study
from sordina.auditing.scores import BoolArray, Scores, auc, tpr_at
from sordina.clipping import Fixed
from sordina.errors import InvalidInput
from sordina.privacy import Budget, Guarantee
from sordina.progress import Progress, silent
from sordina.reproduction.experiment import ExperimentFindings, Job, Value
from sordina.reproduction.language import language_study
from sordina.training import Trainer

# One network trained twice on the same few rows, without privacy and with: what do the attacks see of each?
#
# Also 003's experiment (its sections IV and VI-E): a shadow attack with an attack model, on Adult. There the target was
# a well-fitted logistic regression and the attack did not learn; here the target has memorised its rows, and it must.

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
    recipe: PlainTraining | None = None,
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
    """Overfit a network to about ``rows`` rows, train the same network at ``epsilon``, and attack both.

    Of ``2 rows`` rows of the training file each is a member by a fair coin, so the one-run bound holds.
    ``label_noise`` is the share of labels drawn anew at random, in members and non-members alike: something that can
    only be memorised. ``balanced`` keeps as many rows of each class, as 003 does.
    """
    rng = random.seeded(seed)
    data = datasets.load(dataset)
    everything = as_samples(data.train)
    if balanced:
        everything = everything.take(_balanced(everything, rng))
    everything = _relabelled(everything, data.classes, label_noise, rng)
    if 2 * rows > len(everything):
        raise InvalidInput(f"{dataset} has {len(everything)} rows: members and non-members need {2 * rows}.")
    order = rng.permutation(len(everything))[: 2 * rows]
    coins = rng.random(2 * rows) < 0.5
    members, others = everything.take(order[coins]), everything.take(order[~coins])
    recipe = recipe or PlainTraining(epochs=100, batch_size=32, learning_rate=2e-3)

    def build() -> nn.Module:
        sizes = {"inputs": math.prod(data.input_shape), "classes": data.classes, "hidden": hidden}
        return models.build("mlp", seed=seed, **sizes)

    def judged(model: nn.Module, claim: Guarantee | None) -> Trained:
        found = audit(
            model, members, others, attacks,
            claim=claim, membership="coins", delta=delta, confidence=confidence, recipe=recipe, shadows=shadows,
            seed=seed, progress=progress,
        )  # fmt: skip
        return Trained(accuracy(model, members), accuracy(model, others), found)

    overfitted = judged(train(build(), members, recipe, rng), None)
    if epsilon is None:
        return MembershipStudy(overfitted, None)
    trainer = Trainer(
        build(), nn.functional.cross_entropy, Budget(epsilon, delta),
        clipping=Fixed(1.0), batch_size=rows // 4, epochs=private_epochs, learning_rate=private_rate, seed=seed,
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


# The attacks: chapter 4 of 000 (membership of text), figure 2.5 (reconstruction), and 003's shadow attack.


def language_figures(job: Job) -> ExperimentFindings:
    """Figures 4.2 to 4.4: noisy neighbours against shadow models on a small language model."""
    given = job.settings
    studies = [language_study(seed=seed, **given.get("options", {})) for seed in range(given["seeds"])]
    values = []
    for attack in ("loss", "shadow", "noisy", "lower-case", "word-swap"):
        areas = [study.audit[attack].auc.value for study in studies]
        spread = float(np.std(areas, ddof=1)) if len(areas) > 1 else None
        note = f"{np.mean([study.audit[attack].seconds for study in studies]):.1f} processor seconds"
        what = {"attack": attack, "quantity": "AUC"}
        values.append(Value(what, float(np.mean(areas)), spread, given.get(attack), note=note))
    ratio = float(np.mean([study.cost_ratio for study in studies]))
    values.append(Value({"attack": "noisy", "quantity": "cost relative to shadow"}, ratio))
    first = studies[0].audit
    shown = [first[name] for name in ("loss", "shadow", "noisy")]
    findings.sigma_figure(first["noisy"].details["auc_by_sigma"], job.folder / "figure-4.2.png")
    findings.roc_figure(shown, job.folder / "figure-4.3.png")
    findings.epsilon_figure(shown, job.folder / "figure-4.4.png")
    remarks = [
        f"A GPT-2 of {studies[0].parameters} parameters trained from scratch stands in for the fine-tuned GPT-2.",
        "Empirical epsilons are lower confidence bounds, not ratios of point estimates (errata 6).",
    ]
    pictures = ["figure-4.2.png", "figure-4.3.png", "figure-4.4.png"]
    return ExperimentFindings("WikiText-2", values, (), [*remarks, *job.caveats], pictures)


def reconstruction_figure(job: Job) -> ExperimentFindings:
    """Figure 2.5: gradient inversion of single images under per-layer noise."""
    given = job.settings
    study = reconstruction_study(given["dataset"], **given["options"])
    values = []
    for one in study.defences:
        qualities = [quality.psnr for quality in one.qualities]
        note = f"{one.reconstructed} of {len(qualities)} above 25 dB, {one.failed} below 12 dB"
        what = {"defence": one.defence, "quantity": "median PSNR, dB"}
        values.append(Value(what, float(np.median(qualities)), note=note))
    rows = [(one.defence, one.images) for one in study.defences]
    captions = [[f"{quality.psnr:.1f} dB" for quality in one.qualities] for one in study.defences]
    findings.reconstruction_figure(study.originals, rows, job.folder / "figure-2.5.png", captions)
    remarks = ["The thesis shows full reconstruction at nu = 1e-3, partial up to 1e-1, and failure from nu = 1."]
    return ExperimentFindings(given["dataset"], values, (), [*remarks, *job.caveats], ["figure-2.5.png"])


def attack_003(job: Job) -> ExperimentFindings:
    """003 section VI-E: shadow attacks on Adult; theirs did not learn."""
    given = job.settings
    study = membership_study(given["dataset"], balanced=True, **given["options"])
    values = _areas("overfitted", study.overfitted)
    if study.private is not None:
        values += _areas("private", study.private)
    remarks = ["003's attack model did not learn, because its target hardly overfitted; ours attacks one that has."]
    return ExperimentFindings(f"{given['dataset']}, as many rows of each class", values, (), [*remarks, *job.caveats])


def _areas(model: str, trained: Trained) -> list[Value]:
    note = f"accuracy {trained.train_accuracy:.3f} on members, {trained.test_accuracy:.3f} on others"
    return [
        Value({"model": model, "attack": result.name, "quantity": "AUC"}, result.auc.value, note=note)
        for result in trained.audit.results
    ]


# Every membership attack beside the others, by the number of shadow models that it may use.

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
