"""Two attacks on one update: DLG (Zhu et al. 2019) and inverting gradients (Geiping et al. 2020).

Both look for images whose gradient equals the one that was sent; the labels come first, read off the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sordina.errors import InvalidInput

Distance = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


class Inversion(Protocol):
    """Reconstructs the images behind an update."""

    @property
    def name(self) -> str:
        """How results call it."""
        ...

    def reconstruct(
        self, model: nn.Module, update: Sequence[Tensor], labels: Tensor, shape: Sequence[int], rng: np.random.Generator
    ) -> Tensor:
        """Images (len(labels), *shape)."""
        ...


def client_update(model: nn.Module, images: Tensor, labels: Tensor, *, create_graph: bool = False) -> list[Tensor]:
    """The gradient of the mean loss: a client's update after one local step, up to its step size."""
    loss = functional.cross_entropy(model(images), labels)
    return list(torch.autograd.grad(loss, list(model.parameters()), create_graph=create_graph))


def infer_labels(update: Sequence[Tensor], count: int) -> Tensor:
    """The labels of ``count`` images from the gradient of the last bias (iDLG, Zhao et al. 2020).

    ``g_k = mean(p_k) - share of label k`` under cross-entropy: exact for one image, where only the truth is negative.
    For more, labels are taken greedily: the most negative first, each worth ``1 / count``.

    >>> infer_labels([torch.tensor([0.1, -0.9, 0.8])], 1)
    tensor([1])
    """
    bias = update[-1]
    if bias.dim() != 1:
        raise InvalidInput("labels are read off the bias of the last layer, which this model does not have.")
    left = bias.detach().clone()
    labels = []
    for _ in range(count):
        label = int(left.argmin())
        labels.append(label)
        left[label] += 1 / count
    return torch.tensor(sorted(labels))


def squared(mine: Sequence[Tensor], sent: Sequence[Tensor]) -> Tensor:
    """``sum |g' - g|^2``."""
    return torch.stack([(a - b).square().sum() for a, b in zip(mine, sent, strict=True)]).sum()


def cosine(mine: Sequence[Tensor], sent: Sequence[Tensor]) -> Tensor:
    """``1 - <g', g> / (|g'| |g|)``."""
    inner = torch.stack([(a * b).sum() for a, b in zip(mine, sent, strict=True)]).sum()
    lengths = [torch.stack([part.square().sum() for part in parts]).sum().sqrt() for parts in (mine, sent)]
    return 1 - inner / (lengths[0] * lengths[1]).clamp(min=1e-30)


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels."""
    across, down = images.diff(dim=-1).abs().mean(), images.diff(dim=-2).abs().mean()
    return across + down


@dataclass(frozen=True)
class DLG:
    """Minimise ``|grad(x') - g|^2`` with L-BFGS, in double precision; the best of ``restarts`` by that distance.

    The distance is scaled by ``1/|g|^2``, so that stopping rules do not depend on how long the update is.
    """

    iterations: int = 300
    restarts: int = 3
    good_enough: float = 1e-9
    name: str = "dlg"

    def reconstruct(
        self, model: nn.Module, update: Sequence[Tensor], labels: Tensor, shape: Sequence[int], rng: np.random.Generator
    ) -> Tensor:
        """The reconstruction whose gradient is nearest."""
        sent = [part.double() for part in update]
        scale = max(float(squared(sent, [torch.zeros_like(part) for part in sent])), 1e-300)
        best, least = None, float("inf")
        for _ in range(self.restarts):
            images = torch.from_numpy(rng.uniform(size=(len(labels), *shape))).requires_grad_()
            distance = self._descend(model, sent, labels, images, scale)
            if best is None or distance < least:
                best, least = images.detach(), distance
            if least < self.good_enough:
                break
        assert best is not None
        return best

    def _descend(self, model: nn.Module, sent: list[Tensor], labels: Tensor, images: Tensor, scale: float) -> float:
        optimizer = torch.optim.LBFGS(
            [images], max_iter=self.iterations, history_size=50, line_search_fn="strong_wolfe",
            tolerance_grad=1e-12, tolerance_change=1e-14,
        )  # fmt: skip

        def distance() -> Tensor:
            optimizer.zero_grad()
            gap = squared(client_update(model, images, labels, create_graph=True), sent) / scale
            gap.backward(inputs=[images])  # type: ignore[no-untyped-call]
            return gap

        optimizer.step(distance)  # type: ignore[no-untyped-call]
        final = float(distance().detach())
        return final if np.isfinite(final) else float("inf")


@dataclass(frozen=True)
class InvertingGradients:
    """Minimise ``1 - cos(grad(x'), g) + tv TV(x')`` with Adam on the sign of the gradient, pixels kept in [0, 1].

    The cosine does not see the length of the update: clipping alone is no defence.
    """

    iterations: int = 600
    learning_rate: float = 0.1
    tv: float = 1e-4
    name: str = "inverting-gradients"

    def reconstruct(
        self, model: nn.Module, update: Sequence[Tensor], labels: Tensor, shape: Sequence[int], rng: np.random.Generator
    ) -> Tensor:
        """The images at the end; the step size falls tenfold after 3/8, 5/8 and 7/8 of the way."""
        sent = [part.double() for part in update]
        images = torch.from_numpy(rng.uniform(size=(len(labels), *shape))).requires_grad_()
        optimizer = torch.optim.Adam([images], lr=self.learning_rate)
        milestones = [self.iterations * eighths // 8 for eighths in (3, 5, 7)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
        for _ in range(self.iterations):
            optimizer.zero_grad()
            mine = client_update(model, images, labels, create_graph=True)
            (cosine(mine, sent) + self.tv * total_variation(images)).backward(inputs=[images])  # type: ignore[no-untyped-call]
            assert images.grad is not None
            images.grad.sign_()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                images.clamp_(0, 1)
        return images.detach()
