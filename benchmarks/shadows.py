"""Shadow models trained one after the other and as one batched computation, interleaved."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

from sordina import datasets, models
from sordina.auditing.membership.shadows import PlainTraining, make_shadows
from sordina.auditing.membership.target import as_samples

_ROUNDS = 3
_RECIPE = PlainTraining(epochs=10, batch_size=32, learning_rate=2e-3)


def gain(count: int, hidden: int, rows: int = 600) -> tuple[float, float]:
    """Seconds of the loop and of the batch, for ``count`` networks on halves of ``rows`` digits."""
    samples = as_samples(datasets.load("digits").train).take(np.arange(rows))
    spent = {False: 0.0, True: 0.0}

    def build(index: int) -> nn.Module:
        return models.build("mlp", seed=index, inputs=64, hidden=hidden, classes=10)

    for _ in range(_ROUNDS):
        for together in spent:
            start = time.perf_counter()
            make_shadows(build, samples, _RECIPE, np.random.default_rng(0), count=count, together=together)
            spent[together] += (time.perf_counter() - start) / _ROUNDS
    return spent[False], spent[True]


def run() -> None:
    """Print seconds and their ratio."""
    print(f"{torch.get_num_threads()} threads")
    for count, hidden in ((16, 64), (64, 64), (16, 256)):
        loop, together = gain(count, hidden)
        print(
            f"{count} models of {hidden} hidden units: {loop:.2f} s, together {together:.2f} s: {loop / together:.1f} x"
        )
