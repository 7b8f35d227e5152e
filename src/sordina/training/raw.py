"""Statistics of the raw data, for debugging on data that are nobody's: off by default, and marked wherever they show.

They are computed without noise from the people in the batch, so no guarantee covers them. A run that collects them
carries a caveat, and its metrics must not leave the room.
"""

from __future__ import annotations

import torch
from torch import Tensor

KEY = "NOT_PRIVATE"
CAVEAT = "The metrics hold raw statistics of the training data (NOT_PRIVATE), which no guarantee covers."


def raw_statistics(losses: Tensor, norms: Tensor, threshold: float) -> dict[str, float]:
    """Mean loss, median gradient norm and clipped fraction of a batch."""
    return {
        "training_loss": float(losses.detach().mean()),
        "median_norm": float(torch.median(norms)),
        "clipped": float((norms > threshold).double().mean()),
    }
