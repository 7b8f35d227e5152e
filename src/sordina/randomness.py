"""The former name of `sordina.random`; it goes with 0.4."""

from __future__ import annotations

import warnings
from typing import Any

from sordina import random


def __getattr__(name: str) -> Any:
    value = getattr(random, name)
    warnings.warn("sordina.randomness is now sordina.random.", DeprecationWarning, stacklevel=2)
    return value
