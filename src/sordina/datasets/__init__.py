"""Data sets: found through SORDINA_DATA or downloaded with a checksum, one file each, one shape for all.

>>> data = load("digits")
>>> data.task, data.classes, len(data.train)
(<Task.CLASSIFICATION: 'classification'>, 10, 1437)
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from sordina.datasets.data import Column, Data, Task
from sordina.errors import InvalidInput

__all__ = ["Column", "Data", "Task", "load", "names"]

_MODULES = {
    "digits": "digits",
    "adult": "adult",
    "mnist": "mnist",
    "fashion-mnist": "fashion_mnist",
    "ag-news": "ag_news",
    "hospital": "hospital",
    "mnist-writers": "mnist_writers",
    "femnist": "femnist",
    "wikitext-2": "wikitext",
}


def names() -> tuple[str, ...]:
    """The names `load` knows."""
    return tuple(_MODULES)


def load(name: str, **options: Any) -> Data:
    """Load a data set by name; the options are those of its own ``load``.

    >>> load("imagenet")
    Traceback (most recent call last):
    sordina.errors.InvalidInput: unknown data set 'imagenet': choose one of digits, adult, ...
    """
    if name not in _MODULES:
        raise InvalidInput(f"unknown data set {name!r}: choose one of {', '.join(_MODULES)}.")
    loader = importlib.import_module(f"sordina.datasets.{_MODULES[name]}").load
    known = inspect.signature(loader).parameters
    for option in options:
        if option not in known:
            raise InvalidInput(f"data set {name} has no option {option!r}: it takes {', '.join(known)}.")
    data: Data = loader(**options)
    return data
