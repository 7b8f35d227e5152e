"""The former name of `sordina.queries`; it goes with 0.4."""

from __future__ import annotations

import warnings
from typing import Any

from sordina import queries


def __getattr__(name: str) -> Any:
    value = getattr(queries, name)
    warnings.warn("sordina.seam is now sordina.queries.", DeprecationWarning, stacklevel=2)
    return value
