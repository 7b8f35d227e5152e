"""Model inversion: what a classifier of images thinks its classes look like (Fredrikson et al. 2015).

No update is seen, only the model: an image is moved until the model is sure of the class. What appears is an average
face of the class, not a person, unless the class *is* a person or the model knows one image by heart: the similarity to
the nearest training image, beside that to the nearest image that was not trained on, tells which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sordina import private_files
from sordina.auditing.membership.target import evaluating
from sordina.errors import InvalidInput
from sordina.plan import check_whole


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
    from sordina.auditing import figures
    from sordina.training.recipe import open_run

    _, data, model, _ = open_run(Path(folder))
    inputs = data.train.tensors[0]
    if data.task.value != "classification" or inputs.dim() < 3:
        raise InvalidInput("model inversion draws the classes of a classifier of images: this run is none.")
    shape = tuple(inputs.shape[1:])
    found = invert_classes(model, shape, range(data.classes), steps=steps, seed=seed)
    private_files.make_folder(Path(out))
    picture = Path(out) / "classes.png"
    square = found.images.reshape(len(found.images), *shape[-2:])
    figures.class_figure(square, found.confidences, picture)
    return found, picture
