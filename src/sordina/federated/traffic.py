"""How many bytes a message has: its numbers, without the transport's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sordina.federated.wire import pack


def weight(message: Any) -> int:
    """The bytes of named arrays, or of anything that can be packed.

    >>> import torch
    >>> weight({"model": torch.zeros(10)}), weight((torch.zeros(3, dtype=torch.uint8),)), weight(None)
    (40, 3, 0)
    """
    parts = message.values() if isinstance(message, Mapping) else [message]
    packed = [pack(part) for part in parts]
    return sum(array.nbytes for part in packed for path, array in part.items() if not path.endswith("#"))
