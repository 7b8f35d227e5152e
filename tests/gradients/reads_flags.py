"""A file that a model imports only when it is called."""

from __future__ import annotations

from torch import nn

FLAG = False


def of(model: nn.Module) -> bool:
    """Whether ``model`` has its flag set."""
    return bool(model.flag)
