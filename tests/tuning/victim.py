"""A search to be killed: `python victim.py FOLDER` searches with two workers and says where its processes are."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import sordina as sd
from sordina.tuning import Grid, Search

RUNS = 3


def make(seed: int) -> sd.Trainer:
    from world import conv

    return replace(conv(seed), steps=300, checkpoint_every=20)


def search(folder: Path, trainer, workers: int) -> Search:
    space = Grid({"rho": tuple(0.1 * (number + 1) for number in range(RUNS))})
    return Search(
        space, trainer, sd.Budget(3, 1e-5), strategy="online", method="composition", accountant="rdp", seed=3,
        workers=workers, folder=folder,
    )  # fmt: skip


if __name__ == "__main__":
    from world import HELD_OUT, ROWS, world

    search(Path(sys.argv[1]), make, 2).fit(world(ROWS, 0), world(HELD_OUT, 1))
