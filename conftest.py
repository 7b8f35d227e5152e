"""What every test starts from and leaves behind: the same random numbers in every run, and nobody else's people.

`SORDINA_SEED=random make test` draws other numbers each time, `SORDINA_SEED=7 make test` always those of seed 7.
"""

import os
import random
import sys
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
import torch

from sordina.random import generators

_SEED = os.environ.get("SORDINA_SEED", "0")
_GENUINE = os.urandom
hypothesis.settings.register_profile("repeated", derandomize=True)
if _SEED != "random":
    hypothesis.settings.load_profile("repeated")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed all sources of chance by the test's name, keys and secrets among them: what fails once fails again.

    A forked process draws from the system, as it would outside of tests.
    """
    if _SEED == "random":
        return
    stream, own = random.Random(f"{_SEED} {item.nodeid}"), os.getpid()

    def urandom(count: int) -> bytes:
        return stream.randbytes(count) if os.getpid() == own else _GENUINE(count)

    os.urandom = random._urandom = urandom  # type: ignore[attr-defined]
    vars(generators._OWN).clear()  # the key of another test's noise
    random.seed(stream.getrandbits(64))
    np.random.seed(stream.getrandbits(32))  # noqa: NPY002
    torch.manual_seed(stream.getrandbits(63))


@pytest.fixture(autouse=True)
def _unbooked_fits_are_forgotten() -> Iterator[None]:
    """Fits without a ledger are counted per process, and tests share one: another test's people are other people."""
    yield
    base = sys.modules.get("sordina.estimators._base")
    if base is not None:
        base.forget_unbooked()
