"""The digits that come with scikit-learn: 1 797 images of 8 x 8, no download."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import TensorDataset

from sordina.datasets.data import Data, Task

_HIGHEST = 16.0
"""Public: a pixel counts the dark points of a 4 x 4 block."""
_TRAIN = 1437
"""Four fifths."""


def load(*, seed: int = 0) -> Data:
    """Digits, pixels mapped to [0, 1], split 1437 + 360 by ``seed``.

    >>> data = load()
    >>> len(data.train), len(data.test), data.input_shape
    (1437, 360, (1, 8, 8))
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    images = torch.from_numpy((pixels[order] / _HIGHEST).astype(np.float32)).reshape(-1, 1, 8, 8)
    targets = torch.from_numpy(labels[order].astype(np.int64))
    return Data(
        name="digits",
        train=TensorDataset(images[:_TRAIN], targets[:_TRAIN]),
        test=TensorDataset(images[_TRAIN:], targets[_TRAIN:]),
        task=Task.CLASSIFICATION,
        classes=10,
        source="Optical recognition of handwritten digits (Alpaydin and Kaynak 1998), the 1 797 of scikit-learn",
    )
