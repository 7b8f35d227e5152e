"""Attribute and label inference, and model inversion: what does a model tell of a person, and of its classes?

The attacker knows a record but for one attribute (or its label), and picks the value under which the model finds the
record most likely (Fredrikson et al. 2015; Yeom et al. 2018). That a model knows the world is no leak: from age and
income anybody may guess a marital status. So the same is done for people who were not in, and what counts is how much
better it goes for those who were.

Model inversion: what a classifier of images thinks its classes look like (Fredrikson et al. 2015).

No update is seen, only the model: an image is moved until the model is sure of the class. What appears is an average
face of the class, not a person, unless the class *is* a person or the model knows one image by heart: the similarity to
the nearest training image, beside that to the nearest image that was not trained on, tells which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sordina import private_files
from sordina.auditing.findings import NO_SPLIT
from sordina.auditing.membership.target import Samples, Target, evaluating
from sordina.auditing.scores import Estimate, FloatArray
from sordina.errors import InvalidInput
from sordina.plan import check_whole
from sordina.privacy import check_seed
from sordina.tables import ColumnKind


@dataclass(frozen=True)
class AttributeInference:
    """How often the attribute was guessed.

    Args:
        attribute: Its name.
        members: Share of right guesses for those who were in.
        non_members: The same for those who were not.
        majority: Share that guessing the most frequent value of the non-members gets right among members.
        confidence: Of the intervals.
        random_split: Whether chance alone decided who was in; else the two groups may differ in other ways.
    """

    attribute: str
    members: Estimate
    non_members: Estimate
    majority: float
    confidence: float = 0.95
    random_split: bool = True

    @property
    def advantage(self) -> Estimate:
        """How much better it goes for members, with an interval from those of both shares (Newcombe 1998)."""
        ins, out = self.members, self.non_members
        value = ins.value - out.value
        low = value - float(np.hypot(ins.value - ins.low, out.high - out.value))
        high = value + float(np.hypot(ins.high - ins.value, out.value - out.low))
        return Estimate(value, low, high)

    @property
    def leaks(self) -> bool:
        """Whether members are guessed better, beyond chance, and only being in can be the reason."""
        return self.random_split and self.advantage.low > 0

    @property
    def verdict(self) -> str:
        """The finding in a sentence."""
        seen = (
            f"{self.attribute} was guessed right for {100 * self.members.value:.1f} % of members and "
            f"{100 * self.non_members.value:.1f} % of others ({100 * self.majority:.1f} % by the most frequent value)"
        )
        if self.leaks:
            return f"LEAK: {seen}: the model tells more of those it was trained on."
        if self.advantage.low > 0:
            return f"NOT SHOWN TO BE A LEAK: {seen}, but {NO_SPLIT}."
        return f"{seen}: nothing is shown that the model tells of its members alone. This proves no privacy."

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {
            "attribute": self.attribute,
            "members": self.members.to_dict(),
            "non_members": self.non_members.to_dict(),
            "majority": self.majority,
            "advantage": self.advantage.to_dict(),
            "random_split": self.random_split,
            "leaks": self.leaks,
            "verdict": self.verdict,
        }


def infer_attribute(
    target: Target,
    members: Samples,
    non_members: Samples,
    columns: int | Sequence[int],
    *,
    name: str = "the attribute",
    values: Sequence[float] | None = None,
    confidence: float = 0.95,
    random_split: bool = True,
) -> AttributeInference:
    """Guess one attribute of every record from the rest of it and the model.

    Args:
        target: The model as attacks see it.
        members: Prepared rows that were trained on, with labels.
        non_members: Rows that were not.
        columns: The attribute's column, or the columns of its indicator (one-hot) block.
        name: How the finding calls it.
        values: What a single column may hold; those that occur if left out (at most 20).
        confidence: Of the intervals.
        random_split: Whether chance alone decided who was in; else nothing is called a leak.
    """
    block = [columns] if isinstance(columns, int) else list(columns)
    width = members.inputs.shape[1]
    if members.inputs.dim() != 2 or not block or not all(0 <= column < width for column in block):
        raise InvalidInput(f"the attribute's columns must lie among the {width} of the rows.")
    both = torch.cat([members.inputs[:, block], non_members.inputs[:, block]])
    options = _options(both, values)
    truths = [_nearest(part.inputs[:, block], options) for part in (members, non_members)]
    guesses = [_guess(target, part, block, options) for part in (members, non_members)]
    return replace(_judged(name, truths, guesses, len(options), confidence), random_split=random_split)


def infer_label(
    target: Target, members: Samples, non_members: Samples, classes: int, *, confidence: float = 0.95
) -> AttributeInference:
    """Guess the label of every record: the one that the model finds most likely.

    Args:
        target: The model as attacks see it.
        members: Rows that were trained on, with labels.
        non_members: Rows that were not.
        classes: How many labels there are.
        confidence: Of the intervals.
    """
    truths, guesses = [], []
    for part in (members, non_members):
        if part.labels is None or part.labels.is_floating_point():
            raise InvalidInput("label inference needs rows with classes.")
        losses = [target.losses(Samples(part.inputs, torch.full_like(part.labels, label))) for label in range(classes)]
        truths.append(part.labels.numpy())
        guesses.append(np.argmin(np.stack(losses), axis=0))
    return _judged("the label", truths, guesses, classes, confidence)


def _options(seen: Tensor, values: Sequence[float] | None) -> Tensor:
    """(K, width of the block): what the attribute may be."""
    if seen.shape[1] > 1:
        return torch.eye(seen.shape[1], dtype=seen.dtype)
    found = torch.unique(seen) if values is None else torch.tensor(list(values), dtype=seen.dtype)
    if not 2 <= len(found) <= 20:
        raise InvalidInput(
            f"an attribute of {len(found)} values cannot be guessed: give 2 to 20 values to choose among."
        )
    return found.unsqueeze(1)


def _nearest(given: Tensor, options: Tensor) -> FloatArray:
    return torch.cdist(given.double(), options.double()).argmin(dim=1).numpy()


def _guess(target: Target, samples: Samples, block: list[int], options: Tensor) -> FloatArray:
    losses = []
    for option in options:
        rows = samples.inputs.clone()
        rows[:, block] = option
        losses.append(target.losses(Samples(rows, samples.labels)))
    guessed: FloatArray = np.argmin(np.stack(losses), axis=0)
    return guessed


def _judged(
    name: str, truths: list[FloatArray], guesses: list[FloatArray], options: int, confidence: float
) -> AttributeInference:
    right = [_share(truth == guess, confidence) for truth, guess in zip(truths, guesses, strict=True)]
    frequent = np.bincount(truths[1].astype(int), minlength=options).argmax()
    return AttributeInference(name, right[0], right[1], float((truths[0] == frequent).mean()), confidence)


def _share(hits: Any, confidence: float) -> Estimate:
    """A share with its Clopper-Pearson interval."""
    from scipy.special import betaincinv

    count, total, tail = int(hits.sum()), len(hits), (1 - confidence) / 2
    low = float(betaincinv(count, total - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return Estimate(count / total, low, high)


def infer_table_attribute(
    folder: str | Path, column: str, *, rows: int = 2000, confidence: float = 0.95, seed: int | None = None
) -> AttributeInference:
    """Guess a category of everybody in the table of a run, by the run's folder alone.

    Args:
        folder: A run of ``sordina train FILE`` that kept rows out.
        column: A category of its schema.
        rows: The most members and non-members to look at.
        confidence: Of the intervals.
        seed: Makes it repeatable.
    """
    from sordina.auditing.runs import EstimatorTarget, open_table_run
    from sordina.tables import feature_names

    if rows < 10:
        raise InvalidInput(f"an audit looks at 10 rows at least, got {rows}.")
    opened = open_table_run(Path(folder))
    target: EstimatorTarget = opened.model
    schema = target.fitted.schema
    kinds = {one.name: one.kind for one in schema.features}
    if kinds.get(column) is not ColumnKind.CATEGORY:
        known = ", ".join(name for name, kind in kinds.items() if kind is ColumnKind.CATEGORY)
        raise InvalidInput(f"{column!r} is no category among the features; there are: {known or 'none'}.")
    names = feature_names(schema)
    own = {f"{column}={value}" for value in (*schema[column].values, "other", "missing")}
    block = [index for index, name in enumerate(names) if name in own]
    kept = opened.some(rows, rows, np.random.default_rng(None if seed is None else check_seed(seed)))
    return infer_attribute(
        target, kept.members, kept.others, block, name=column, confidence=confidence,
        random_split=opened.membership.by_chance,
    )  # fmt: skip


# Model inversion: what a classifier of images thinks its classes look like (Fredrikson et al. 2015).


@dataclass(frozen=True)
class InvertedClasses:
    """One image per class.

    Args:
        images: (classes, ...) what the model thinks.
        confidences: The probability that the model gives to the class of its image.
    """

    images: Tensor
    confidences: tuple[float, ...]

    def nearest(self, others: Tensor) -> list[float]:
        """For each image the mean squared difference to the nearest of ``others``."""
        flat = self.images.flatten(1).double()
        return [
            float(value)
            for value in (torch.cdist(flat, others.flatten(1).double()).min(dim=1).values ** 2) / flat.shape[1]
        ]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture, without the images."""
        return {"confidences": [round(value, 4) for value in self.confidences]}


def invert_classes(
    model: nn.Module,
    shape: Sequence[int],
    classes: Sequence[int],
    *,
    steps: int = 300,
    learning_rate: float = 0.05,
    smoothness: float = 1e-2,
    low: float = 0.0,
    high: float = 1.0,
    seed: int = 0,
) -> InvertedClasses:
    """Move a grey image per class until the model is sure of it, kept smooth and within the range of images.

    Args:
        model: A classifier that gives logits.
        shape: Of one input.
        classes: Which classes.
        steps: Of Adam.
        learning_rate: Their length.
        smoothness: Weight of the total variation, for inputs with rows and columns.
        low: The least value of an input.
        high: The largest.
        seed: Of the starting images.
    """
    check_whole("steps", steps)
    if not classes or high <= low:
        raise InvalidInput("model inversion needs classes, and a range of inputs that is not empty.")
    labels = torch.tensor(list(classes))
    generator = torch.Generator().manual_seed(seed)
    start = (low + high) / 2 + 0.05 * (high - low) * torch.randn(len(labels), *shape, generator=generator)
    images = start.clamp(low, high).requires_grad_(True)
    optimizer = torch.optim.Adam([images], lr=learning_rate * (high - low))
    with evaluating(model), torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels, reduction="sum") + smoothness * _variation(images)
            (images.grad,) = torch.autograd.grad(loss, [images])
            optimizer.step()
            images.data.clamp_(low, high)
        sure = model(images).softmax(dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)
    return InvertedClasses(images.detach(), tuple(float(value) for value in sure.detach()))


def _variation(images: Tensor) -> Tensor:
    if images.dim() < 3:
        return images.new_zeros(())
    down, across = images.diff(dim=-2).abs().sum(), images.diff(dim=-1).abs().sum()
    return down + across


def invert_run(folder: str | Path, out: str | Path, *, steps: int = 300, seed: int = 0) -> tuple[InvertedClasses, Path]:
    """The classes of the model of a run on images, and a picture of them.

    Args:
        folder: A run of ``sordina train``.
        out: Where ``classes.png`` goes.
        steps: Of the inversion.
        seed: Of the first images.
    """
    from sordina.auditing import findings
    from sordina.training.recipe import open_run

    _, data, model, _ = open_run(Path(folder))
    inputs = data.train.tensors[0]
    if data.task.value != "classification" or inputs.dim() < 3:
        raise InvalidInput("model inversion needs a classifier of images; this run is not one.")
    shape = tuple(inputs.shape[1:])
    found = invert_classes(model, shape, range(data.classes), steps=steps, seed=seed)
    private_files.make_folder(Path(out))
    picture = Path(out) / "classes.png"
    square = found.images.reshape(len(found.images), *shape[-2:])
    findings.class_figure(square, found.confidences, picture)
    return found, picture
