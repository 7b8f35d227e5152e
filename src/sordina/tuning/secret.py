"""What a search that stops at random keeps to itself: how many runs there were, and which of them won.

Papernot and Steinke 2022 prove the price of random stopping for an observer who sees the best run and nothing else. So

- everything that tells of the runs lies in one part of the folder, `INTERNAL`, and goes when the search ends;
- what stays carries the date at which the search began: the time in between is proportional to the number of runs;
- runs are done one by one, by a number of workers and threads that does not depend on how many there are;
- a run draws all its randomness, also that of PyTorch's and numpy's global generators, from a seed of its own
  (`private_randomness`): a position in a common stream would tell its number;
- a run logs nothing and warns of nothing: the same words from every run would tell how many there are;
- a run that was killed starts over: what it had done was never seen.

Who looks into the folder, or at the clock, *while* the search runs is not that observer (SECURITY.md).
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordina import private_files
from sordina.run_folder import RunFolder

INTERNAL = "internal"
_NOTE = (
    "This part of the folder exists while the search runs. It tells how many runs there are and which is best; the "
    "guarantee of the search does not hold against who reads it. It is removed when the search ends.\n"
)


def part(folder: Path) -> Path:
    """The internal part of a search's ``folder``."""
    return folder / INTERNAL


def write_json(folder: RunFolder, name: str, value: Any) -> None:
    """Write plain data into the internal part, which is made if it is missing.

    Args:
        folder: The search's folder.
        name: The file's name.
        value: Plain data.
    """
    inside = part(folder.path)
    private_files.make_folder(inside)
    private_files.write(inside / "READ-ME", _NOTE.encode())
    folder.write_json(f"{INTERNAL}/{name}", value)


def erase(folder: Path, began: float) -> None:
    """Remove the internal part and give all that stays the date at which the search began.

    Args:
        folder: The search's folder.
        began: In seconds since 1970.
    """
    inside = part(folder)
    if inside.exists():
        with private_files.explained("remove", inside):
            shutil.rmtree(inside)
    date_back(folder, began)


def date_back(folder: Path, began: float) -> None:
    """Give ``folder`` and all in it the date ``began``.

    Args:
        folder: What to date.
        began: In seconds since 1970.
    """
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink():
            os.utime(path, (began, began))


@contextmanager
def private_randomness(seed: int) -> Iterator[None]:
    """Start the global generators of PyTorch, numpy and Python from ``seed``, and put them back afterwards.

    Args:
        seed: Drawn at random for the run that goes on inside.
    """
    before, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(legacy)  # noqa: NPY002


@contextmanager
def silence() -> Iterator[None]:
    """Nothing is logged, and no warning shown, while a run of which nobody may know goes on."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
