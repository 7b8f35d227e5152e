"""Data that live with clients: `load` a federation by name.

>>> import numpy as np
>>> federation = load("synthetic", np.random.default_rng(0))
>>> len(federation.train), federation.train[0][0].shape
(100, torch.Size([10, 2]))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from sordina.errors import InvalidInput
from sordina.federated.data.client_data import table
from sordina.federated.data.partition import (
    Federation,
    Groups,
    adult,
    femnist,
    hospital,
    mnist_writers,
    synthetic,
    synthetic_fairness,
)

__all__ = ["Federation", "Groups", "load", "names"]

_LOADERS: dict[str, Callable[..., Federation]] = {
    "synthetic": synthetic,
    "synthetic-fairness": synthetic_fairness,
    "hospital": hospital,
    "mnist-writers": mnist_writers,
    "femnist": femnist,
    "adult": adult,
    "table": table,
}


def names() -> tuple[str, ...]:
    """The names `load` knows."""
    return tuple(_LOADERS)


def load(name: str, rng: np.random.Generator, **options: Any) -> Federation:
    """The federation called ``name``; ``rng`` decides who validates and how clients differ."""
    if name not in _LOADERS:
        raise InvalidInput(f"unknown federation {name!r}: choose one of {', '.join(_LOADERS)}.")
    known = [option for option in inspect.signature(_LOADERS[name]).parameters if option != "rng"]
    for option in options:
        if option not in known:
            raise InvalidInput(f"federation {name} has no option {option!r}: it takes {', '.join(known)}.")
    return _LOADERS[name](rng, **options)
