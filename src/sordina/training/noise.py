"""The release: sums become noised sums, and only here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sordina.randomness import fill_normal
from sordina.seam import Released


def gaussian_like(reference: Tensor, rng: np.random.Generator) -> Tensor:
    """Standard Gaussian noise in the shape and type of ``reference``, from ``rng``."""
    dtype = np.float64 if reference.dtype == torch.float64 else np.float32
    return torch.from_numpy(fill_normal(np.empty(tuple(reference.shape), dtype), rng)).to(reference)


def release(
    totals: Sequence[Tensor],
    bounds: Sequence[float],
    multipliers: Sequence[float],
    divisor: float,
    rng: np.random.Generator,
) -> Released:
    """Add Gaussian noise of standard deviation ``multiplier * bound`` to each total.

    The bound travels with what it bounds: each total is noised by the sensitivity its own policy stated for it.
    """
    scales = tuple(bound * multiplier for bound, multiplier in zip(bounds, multipliers, strict=True))
    answers = tuple(
        torch.add(total, gaussian_like(total, rng), alpha=scale) for total, scale in zip(totals, scales, strict=True)
    )
    return Released(answers, scales, divisor)
