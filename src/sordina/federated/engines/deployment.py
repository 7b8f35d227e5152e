"""Where apps that ``sordina flower init`` of 0.1 wrote look for their halves; it goes with 0.4."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    if name not in ("client_app", "server_app"):
        raise AttributeError(f"module 'sordina.federated.engines.deployment' has no attribute {name!r}")
    from sordina.federated.flower import deployment

    warnings.warn(f"{__name__} is now sordina.federated.flower.deployment.", DeprecationWarning, stacklevel=2)
    return getattr(deployment, name)
