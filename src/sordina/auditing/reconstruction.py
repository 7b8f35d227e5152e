"""Gradient inversion: what an honest but curious server can see of the images behind one client update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from sordina import datasets, random
from sordina.errors import InvalidInput
from sordina.mechanisms.laplace import MetricLaplace
from sordina.privacy import check_positive
from sordina.progress import Progress, silent

# Gradient inversion: DLG and inverting gradients, defences, the attacked network, and quality of images.

# Two attacks on one update: DLG (Zhu et al. 2019) and inverting gradients (Geiping et al. 2020).
#
# Both look for images whose gradient equals the one that was sent; the labels come first, read off the last layer.

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


# What a client may do to its update before it sends it. An update is one gradient per parameter tensor.


class Defence(Protocol):
    """Changes an update before the server sees it."""

    @property
    def name(self) -> str:
        """How results call it."""
        ...

    def protect(self, update: Sequence[Tensor], rng: np.random.Generator) -> list[Tensor]:
        """The update that is sent."""
        ...


@dataclass(frozen=True)
class NoDefence:
    """The update itself."""

    name: str = "none"

    def protect(self, update: Sequence[Tensor], rng: np.random.Generator) -> list[Tensor]:
        """Unchanged."""
        return [part.clone() for part in update]


@dataclass(frozen=True)
class LayerLaplace:
    """Euclidean Laplace noise on each layer by itself, ``eps = n / (nu r)``, r the layer's norm (000 section 2.5.1).

    The noise is as long as nu times the layer's update, in expectation. A radius read off the secret update is the
    thesis's heuristic, not a guarantee (errata 4); against a given attack it is what figure 2.5 measures.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_positive("noise multiplier nu", self.noise_multiplier)

    @property
    def name(self) -> str:
        """With nu."""
        return f"laplace nu={self.noise_multiplier:g}"

    def protect(self, update: Sequence[Tensor], rng: np.random.Generator) -> list[Tensor]:
        """Each layer with its own noise; a layer without update stays so."""
        return [self._noised(part, rng) for part in update]

    def _noised(self, part: Tensor, rng: np.random.Generator) -> Tensor:
        radius = float(part.norm())
        if radius == 0:
            return part.clone()
        noised: Tensor = MetricLaplace(part.numel() / (self.noise_multiplier * radius)).release(part, rng)
        return noised


@dataclass(frozen=True)
class GaussianNoise:
    """``N(0, sigma^2)`` on every component."""

    sigma: float

    def __post_init__(self) -> None:
        check_positive("standard deviation sigma", self.sigma)

    @property
    def name(self) -> str:
        """With sigma."""
        return f"gaussian sigma={self.sigma:g}"

    def protect(self, update: Sequence[Tensor], rng: np.random.Generator) -> list[Tensor]:
        """Noise everywhere."""
        return [
            part + self.sigma * torch.from_numpy(rng.standard_normal(tuple(part.shape))).to(part) for part in update
        ]


@dataclass(frozen=True)
class Clipped:
    """The whole update scaled to norm at most C, then Gaussian noise of ``noise_multiplier * C``, if any."""

    threshold: float = 1.0
    noise_multiplier: float = 0.0

    def __post_init__(self) -> None:
        check_positive("clipping threshold", self.threshold)

    @property
    def name(self) -> str:
        """With its numbers."""
        return f"clipped C={self.threshold:g}" + (f" nu={self.noise_multiplier:g}" if self.noise_multiplier else "")

    def protect(self, update: Sequence[Tensor], rng: np.random.Generator) -> list[Tensor]:
        """Scaling alone hides nothing from an attack on directions."""
        norm = float(torch.stack([part.norm() for part in update]).norm())
        scaled = [part * min(1.0, self.threshold / norm) if norm else part.clone() for part in update]
        if not self.noise_multiplier:
            return scaled
        return GaussianNoise(self.noise_multiplier * self.threshold).protect(scaled, rng)


# The network that DLG is shown on: twice differentiable, so every activation is a sigmoid (000 section 2.5.1).


def sigmoid_network(
    side: int = 28, classes: int = 10, channels: int = 1, *, width: int = 12, seed: int = 0
) -> nn.Sequential:
    """The convolutional network of Zhu et al. (2019), weights uniform in [-1/2, 1/2], double precision."""
    if side < 4:
        raise InvalidInput(f"images need at least 4 x 4 pixels, got {side}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        half = -(-side // 2)
        quarter = -(-half // 2)
        model = nn.Sequential(
            nn.Conv2d(channels, width, 5, padding=2, stride=2), nn.Sigmoid(),
            nn.Conv2d(width, width, 5, padding=2, stride=2), nn.Sigmoid(),
            nn.Conv2d(width, width, 5, padding=2, stride=1), nn.Sigmoid(),
            nn.Flatten(), nn.Linear(width * quarter * quarter, classes),
        )  # fmt: skip
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    return model.double()


# How close a reconstruction is: MSE, PSNR and SSIM, for images with values in [0, 1].


@dataclass(frozen=True)
class Quality:
    """One reconstruction against its original."""

    mse: float
    psnr: float
    ssim: float

    def to_dict(self) -> dict[str, float | str]:
        """A JSON-ready picture; an exact copy has PSNR "inf"."""
        return {"mse": self.mse, "psnr": "inf" if math.isinf(self.psnr) else self.psnr, "ssim": self.ssim}


def quality(original: Tensor, reconstruction: Tensor) -> Quality:
    """All three of one image (channels, height, width), the reconstruction clamped to the range of pixels.

    >>> import torch
    >>> quality(torch.zeros(1, 8, 8), torch.full((1, 8, 8), 0.1)).psnr
    20.0
    """
    if original.shape != reconstruction.shape or original.dim() != 3:
        raise InvalidInput(f"two images of one shape are compared, got {original.shape} and {reconstruction.shape}.")
    original, reconstruction = original.double(), reconstruction.double().clamp(0, 1).nan_to_num(0.5)
    mse = float((original - reconstruction).square().mean())
    psnr = round(-10 * math.log10(mse), 6) if mse > 0 else math.inf
    return Quality(mse, psnr, ssim(original, reconstruction))


def ssim(first: Tensor, second: Tensor, window: int = 7) -> float:
    """Structural similarity (Wang et al. 2004) with a square window and unbiased variances, mean over the image.

    >>> import torch
    >>> ssim(torch.eye(8).unsqueeze(0), torch.eye(8).unsqueeze(0))
    1.0
    """
    size = min(window, *first.shape[-2:])
    pixels = size * size

    def mean(image: Tensor) -> Tensor:
        return functional.avg_pool2d(image.double(), size, stride=1)

    unbiased = pixels / (pixels - 1)
    x, y = mean(first), mean(second)
    xx, yy, xy = mean(first * first) - x * x, mean(second * second) - y * y, mean(first * second) - x * y
    c1, c2 = 0.01**2, 0.03**2
    similarity = ((2 * x * y + c1) * (2 * unbiased * xy + c2)) / ((x * x + y * y + c1) * (unbiased * (xx + yy) + c2))
    return float(similarity.mean())


# Figure 2.5 of 000: what DLG sees of images through an update, under defences; one local step, sigmoid network.

NUS = (1e-3, 1e-2, 1e-1, 1.0, 3.0)
SUCCESS, FAILURE = 25.0, 12.0
"""PSNR in decibels above which an image counts as reconstructed, and below which the attack has failed."""
ATTACKS: dict[str, Inversion] = {"dlg": DLG(), "inverting-gradients": InvertingGradients()}


@dataclass(frozen=True)
class Reconstructions:
    """All images under one defence."""

    defence: str
    images: Tensor
    qualities: tuple[Quality, ...]

    @property
    def reconstructed(self) -> int:
        """Images above 25 dB."""
        return sum(one.psnr > SUCCESS for one in self.qualities)

    @property
    def failed(self) -> int:
        """Images below 12 dB."""
        return sum(one.psnr < FAILURE for one in self.qualities)


@dataclass(frozen=True)
class ReconstructionStudy:
    """One attack against several defences on the same images."""

    attack: str
    batch_size: int
    originals: Tensor
    defences: tuple[Reconstructions, ...]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture: numbers per defence, and one case with pixels per image and defence."""
        return {
            "attack": self.attack,
            "batch_size": self.batch_size,
            "images": len(self.originals),
            "defences": [
                {
                    "defence": one.defence,
                    "median_psnr": float(np.median([item.psnr for item in one.qualities])),
                    "reconstructed": one.reconstructed,
                    "failed": one.failed,
                }
                for one in self.defences
            ],
            "cases": [
                {
                    "attack": self.attack,
                    "defence": one.defence,
                    "original": original.tolist(),
                    "reconstruction": image.tolist(),
                    **item.to_dict(),
                }
                for one in self.defences
                for original, image, item in zip(self.originals, one.images, one.qualities, strict=True)
            ],
        }


def named_defences(
    nus: Sequence[float] = NUS, sigmas: Sequence[float] = (), clips: Sequence[float] = ()
) -> list[Defence]:
    """None, then per-layer Laplace at each nu, Gaussian at each sigma, clipping at each threshold."""
    return [NoDefence(), *map(LayerLaplace, nus), *map(GaussianNoise, sigmas), *map(Clipped, clips)]


def reconstruction_study(
    dataset: str = "mnist",
    *,
    images: int = 10,
    batch_size: int = 1,
    attack: str | Inversion = "dlg",
    defences: Sequence[Defence] = (),
    seed: int = 0,
    progress: Progress = silent,
) -> ReconstructionStudy:
    """Attack the updates of ``images`` test images, ``batch_size`` at a time, under every defence."""
    if images < 1 or batch_size < 1 or images % batch_size:
        raise InvalidInput(f"the images must fill whole batches, got {images} in batches of {batch_size}.")
    if isinstance(attack, str):
        if attack not in ATTACKS:
            raise InvalidInput(f"no inversion is called {attack!r}. Choose one of {', '.join(ATTACKS)}.")
        attack = ATTACKS[attack]
    rng = random.seeded(seed)
    data = datasets.load(dataset)
    if images > len(data.test):
        raise InvalidInput(f"{dataset} has {len(data.test)} test images, not {images}.")
    inputs, labels = (tensor[:images] for tensor in data.test.tensors)
    if inputs.dim() != 4 or inputs.shape[-1] != inputs.shape[-2]:
        raise InvalidInput(f"{dataset} does not hold square images.")
    model = sigmoid_network(inputs.shape[-1], data.classes or 10, inputs.shape[1], seed=seed)
    chosen = list(defences) or named_defences()
    found = []
    for position, defence in enumerate(chosen):
        rebuilt = []
        for start in range(0, images, batch_size):
            part = slice(start, start + batch_size)
            sent = defence.protect(client_update(model, inputs[part].double(), labels[part].long()), rng)
            guess = attack.reconstruct(model, sent, infer_labels(sent, batch_size), tuple(inputs.shape[1:]), rng)
            rebuilt.append(matched(inputs[part], guess))
            progress(position * images + start + batch_size, len(chosen) * images)
        result = torch.cat(rebuilt).clamp(0, 1).nan_to_num(0.5)
        qualities = tuple(quality(one, two) for one, two in zip(inputs, result, strict=True))
        found.append(Reconstructions(defence.name, result, qualities))
    return ReconstructionStudy(attack.name, batch_size, inputs, tuple(found))


def matched(originals: Tensor, guesses: Tensor) -> Tensor:
    """The guesses in the order of the originals: an update does not say which image came first."""
    difference = (originals.double()[:, None] - guesses.double()[None]).flatten(2).square().mean(dim=2).nan_to_num(1e9)
    _, order = linear_sum_assignment(difference.numpy())
    return guesses[torch.from_numpy(order)]
