"""The former name of `sordina.privacy`; it goes with 0.4."""

from __future__ import annotations

import warnings
from typing import Any

from sordina import privacy


def __getattr__(name: str) -> Any:
    value = getattr(privacy, name)
    warnings.warn("sordina.types is now sordina.privacy.", DeprecationWarning, stacklevel=2)
    return value
