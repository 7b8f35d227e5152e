"""How close a reconstruction is: MSE, PSNR and SSIM, for images with values in [0, 1]."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from sordina.errors import InvalidInput


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
