"""A kept past as bytes and back: a line of JSON, then the arrays it speaks of. Nothing is ever executed on reading."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from sordina.accounting.grid import Pmf
from sordina.accounting.kept import KeptDivergences, KeptLosses, KeptShift
from sordina.accounting.special import Array

_KINDS: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in (Pmf, KeptLosses, KeptDivergences, KeptShift)}


def pack(value: Any) -> bytes:
    """``value`` (numbers, texts, lists, dictionaries, kept pasts) as bytes.

    >>> unpack(pack({"entry": 3, "ids": [1, 2]}))
    {'entry': 3, 'ids': [1, 2]}
    """
    arrays: list[Array] = []
    text = json.dumps(_plain(value, arrays), sort_keys=True)
    return b"\n".join([text.encode(), b"".join(array.astype("<f8").tobytes() for array in arrays)])


def unpack(data: bytes) -> Any:
    """What `pack` made the bytes of; ValueError, KeyError or TypeError if it did not make them."""
    text, _, rest = data.partition(b"\n")
    return _back(json.loads(text), np.frombuffer(rest, dtype="<f8"))


def _plain(value: Any, arrays: list[Array]) -> Any:
    if isinstance(value, np.ndarray):
        start = sum(array.size for array in arrays)
        arrays.append(value)
        return {"kind": "array", "start": start, "size": value.size}
    if is_dataclass(value):
        inside = {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}
        return {"kind": type(value).__name__, "fields": inside}
    if isinstance(value, dict):
        return {"kind": "map", "items": [[key, _plain(part, arrays)] for key, part in value.items()]}
    if isinstance(value, tuple | list):
        return [_plain(part, arrays) for part in value]
    return value


def _back(value: Any, numbers: Array) -> Any:
    if isinstance(value, list):
        return [_back(part, numbers) for part in value]
    if not isinstance(value, dict):
        return value
    if value["kind"] == "array":
        return numbers[value["start"] : value["start"] + value["size"]]
    if value["kind"] == "map":
        return {key: _back(part, numbers) for key, part in value["items"]}
    inside = {name: _back(part, numbers) for name, part in value["fields"].items()}
    return _KINDS[value["kind"]](
        **{name: tuple(part) if isinstance(part, list) else part for name, part in inside.items()}
    )
