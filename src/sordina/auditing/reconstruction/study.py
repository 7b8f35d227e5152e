"""Figure 2.5 of 000: what DLG sees of images through an update, under defences; one local step, sigmoid network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from sordina import datasets, random
from sordina.auditing.reconstruction.attacks import (
    DLG,
    Clipped,
    Defence,
    GaussianNoise,
    Inversion,
    InvertingGradients,
    LayerLaplace,
    NoDefence,
    Quality,
    client_update,
    infer_labels,
    quality,
    sigmoid_network,
)
from sordina.errors import InvalidInput
from sordina.progress import Progress, silent

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
