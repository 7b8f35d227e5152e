"""Data sets: found through SORDINA_DATA or downloaded with a checksum, one shape for all.

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

_LOADERS = {
    "digits": "images:load_digits",
    "adult": "adult:load",
    "mnist": "images:load_mnist",
    "fashion-mnist": "images:load_fashion_mnist",
    "ag-news": "texts:load_ag_news",
    "hospital": "hospital:load",
    "mnist-writers": "images:load_mnist_writers",
    "femnist": "images:load_femnist",
    "wikitext-2": "texts:load_wikitext",
}
"""By name: a module of this room, and its function."""


def names() -> tuple[str, ...]:
    """The names `load` knows."""
    return tuple(_LOADERS)


def load(name: str, **options: Any) -> Data:
    """Load a data set by name; the options are those of its own loader.

    >>> load("imagenet")
    Traceback (most recent call last):
    sordina.errors.InvalidInput: unknown data set 'imagenet': choose one of digits, adult, ...
    """
    if name not in _LOADERS:
        raise InvalidInput(f"unknown data set {name!r}: choose one of {', '.join(_LOADERS)}.")
    module, _, function = _LOADERS[name].partition(":")
    loader = getattr(importlib.import_module(f"sordina.datasets.{module}"), function)
    known = inspect.signature(loader).parameters
    for option in options:
        if option not in known:
            raise InvalidInput(f"data set {name} has no option {option!r}: it takes {', '.join(known)}.")
    data: Data = loader(**options)
    return data
