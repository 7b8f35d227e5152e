"""The release: sums become noised sums, and only here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sordina.randomness import fill_normal
from sordina.seam import Released

PIECE = 1 << 18
"""How many values are noised at a time: the noise of a large model never lies in memory as a whole."""


def gaussian_like(reference: Tensor, rng: np.random.Generator) -> Tensor:
    """Standard Gaussian noise in the shape and type of ``reference``, from ``rng``."""
    shape = tuple(reference.shape)
    if reference.dtype == torch.float64:
        return torch.from_numpy(fill_normal(np.empty(shape, np.float64), rng)).to(reference)
    return torch.from_numpy(fill_normal(np.empty(shape, np.float32), rng)).to(reference)


def release(
    totals: Sequence[Tensor],
    bounds: Sequence[float],
    multipliers: Sequence[float],
    divisor: float,
    rng: np.random.Generator,
) -> Released:
    """Add Gaussian noise of standard deviation ``multiplier * bound`` to each total, in place.

    The bound travels with what it bounds: each total is noised by the sensitivity its own policy stated for it.
    """
    scales = tuple([bound * multiplier for bound, multiplier in zip(bounds, multipliers, strict=True)])
    for total, scale in zip(totals, scales, strict=True):
        for part in [total] if total.numel() <= PIECE else torch.split(total.view(-1), PIECE):
            part.add_(gaussian_like(part, rng), alpha=scale)
    return Released(tuple(totals), scales, divisor)
