"""Public state as named plain arrays, for engines whose clients are elsewhere.

`pack` turns nested frozen dataclasses, tuples, numbers and tensors into ``{path: array}``; `unpack` rebuilds them from
the arrays and a template, which tells the classes (a client makes one with ``placement.start(size)``). Nothing is
pickled, so nothing that arrives can run. The end of a path says what was there: t tensor, f float, i integer, b
boolean, # the length of a tuple; None leaves no trace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordina.errors import InvalidInput

Packed = Mapping[str, NDArray[Any]]
_LONGEST = 4096
"""No public state holds a longer tuple: a larger number in a message is a mistake or an attack."""


def pack(value: Any, path: str = "") -> dict[str, NDArray[Any]]:
    """``value`` as arrays.

    >>> sorted(pack((1.5, None, torch.zeros(2))))
    ['/0:f', '/2:t', ':#']
    """
    if value is None:
        return {}
    if is_dataclass(value):
        inner = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, tuple):
        inner = {str(place): part for place, part in enumerate(value)}
    elif isinstance(value, torch.Tensor):
        return {f"{path}:t": value.detach().cpu().numpy()}
    elif isinstance(value, bool | int | float):
        return {f"{path}:{type(value).__name__[0]}": np.asarray(value)}
    else:
        raise InvalidInput(f"cannot send a {type(value).__name__} at {path or 'the top'} as arrays.")
    arrays: dict[str, NDArray[Any]] = {f"{path}:#": np.asarray(len(value))} if isinstance(value, tuple) else {}
    for name, part in inner.items():
        arrays |= pack(part, f"{path}/{name}")
    return arrays


def unpack(arrays: Packed, like: Any, path: str = "") -> Any:
    """What was packed, with the classes of ``like``."""
    for kind in "tfib":
        if f"{path}:{kind}" in arrays:
            return _leaf(arrays[f"{path}:{kind}"], kind)
    if f"{path}:#" in arrays:
        count = int(_leaf(arrays[f"{path}:#"], "i"))
        if not 0 <= count <= _LONGEST:
            raise InvalidInput(f"a tuple of {count} parts at {path or 'the top'} is not what the other side sends.")
        templates = [*(like if isinstance(like, tuple) else ()), *[None] * count]
        return tuple(unpack(arrays, templates[place], f"{path}/{place}") for place in range(count))
    names = {re.split("[/:]", key[len(path) + 1 :])[0] for key in arrays if key.startswith(f"{path}/")}
    if is_dataclass(like) and not isinstance(like, type):
        known = [field.name for field in fields(like)]
        if unknown := names - set(known):
            raise InvalidInput(f"{type(like).__name__} has no field {min(unknown)!r}: the two sides do not match.")
        return type(like)(**{name: unpack(arrays, getattr(like, name), f"{path}/{name}") for name in known})
    if names or any(key.startswith(f"{path}:") for key in arrays):
        raise InvalidInput(f"unexpected structure at {path or 'the top'}: the two sides do not match.")
    return None


def _leaf(array: NDArray[Any], kind: str) -> Any:
    if array.dtype.kind not in "fiub" or not array.dtype.isnative or array.dtype.itemsize > 8:
        raise InvalidInput(f"numbers were expected, an array of {array.dtype} came: the two sides do not match.")
    if kind == "t":
        return torch.from_numpy(np.array(array))
    if array.ndim:
        raise InvalidInput(f"a number was expected, an array of shape {array.shape} came: the two sides do not match.")
    return {"f": float, "i": int, "b": bool}[kind](array)
