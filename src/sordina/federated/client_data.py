"""Clients' data as people have them: pairs of arrays, data sets of PyTorch, frames with a schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from sordina.errors import InvalidInput
from sordina.federated.data.partition import Shard
from sordina.tables import Schema, read_table

Clients: TypeAlias = Mapping[str, Any] | Sequence[Any]


def named_shards(
    clients: Clients, schema: Schema | str | Path | None = None, dtype: torch.dtype = torch.float32
) -> dict[str, Shard]:
    """Every client's rows as tensors ``(x, y)``, by name.

    Args:
        clients: A mapping from names to data, or a sequence of data, whose names are then 0, 1, ... The data of a
            client are a pair ``(x, y)`` of tensors or arrays, a TensorDataset of two tensors, a map-style Dataset of
            pairs, or, with a schema, a pandas or polars frame or the path of a CSV or Parquet file.
        schema: What is public about frames and files; the same for all clients.
        dtype: Of the model: numbers that are not whole become this kind.
    """
    if isinstance(clients, Mapping):
        pairs = {str(name): data for name, data in clients.items()}
        if len(pairs) != len(clients):
            raise InvalidInput("two clients have the same name.")
    elif isinstance(clients, Sequence) and not isinstance(clients, str):
        pairs = {str(number): data for number, data in enumerate(clients)}
    else:
        raise InvalidInput(
            f"clients are a list or a dict of data sets, one for each client, not a {type(clients).__name__}."
        )
    if not pairs:
        raise InvalidInput("a federation needs at least one client.")
    loaded = None if schema is None else Schema.load(str(schema) if isinstance(schema, Path) else schema)
    shards = {name: _cast(shard_of(data, f"client {name!r}", loaded), dtype) for name, data in pairs.items()}
    _check_alike(shards)
    return shards


def shard_of(data: Any, whose: str, schema: Schema | None = None) -> Shard:
    """The rows of one client as tensors ``(x, y)``.

    Args:
        data: What the client has.
        whose: Its name in messages.
        schema: What is public about a frame or file.
    """
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, (tuple, list)) and all(isinstance(one, (Tensor, np.ndarray)) for one in data):
        if len(data) != 2:
            raise InvalidInput(f"{whose} has {len(data)} arrays: give a pair, inputs and targets.")
        x, y = (torch.as_tensor(one) for one in data)
    elif isinstance(data, Dataset) and hasattr(data, "__len__"):
        x, y = _collated(data, whose)
    elif schema is not None:
        table = read_table(data, schema)
        if table.targets is None:
            raise InvalidInput("the schema names no target: state target = NAME.")
        x, y = table.inputs, table.targets
    else:
        raise InvalidInput(
            f"{whose} is a {type(data).__name__}: give a pair (x, y) of tensors or arrays, a TensorDataset or a "
            "map-style Dataset, or state a schema for frames and files (schema=)."
        )
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise InvalidInput(f"{whose} must have as many targets as inputs, one of each per row.")
    return x, y


def _cast(shard: Shard, dtype: torch.dtype) -> Shard:
    x, y = (one.to(dtype) if one.is_floating_point() else one for one in shard)
    return x, y


def _collated(data: Any, whose: str) -> Shard:
    if not len(data):
        raise InvalidInput(
            f"{whose} is an empty Dataset, whose rows have no known shape: give tensors, or leave it out."
        )
    batch = default_collate([data[index] for index in range(len(data))])
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not all(isinstance(one, Tensor) for one in batch):
        raise InvalidInput(f"{whose}: the items of a Dataset are pairs, an input and a target.")
    return batch[0], batch[1]


def _check_alike(shards: Mapping[str, Shard]) -> None:
    """Refuse rows of different shapes or kinds; says whose, never what."""
    names = list(shards)
    first = [(one.shape[1:], one.dtype) for one in shards[names[0]]]
    for name in names[1:]:
        for mine, other, what in zip(shards[name], first, ("inputs", "targets"), strict=True):
            if (mine.shape[1:], mine.dtype) != other:
                raise InvalidInput(
                    f"the {what} of client {name!r} have rows of shape {tuple(mine.shape[1:])} and type {mine.dtype}; "
                    f"those of {names[0]!r} {tuple(other[0])} and {other[1]}. All clients' rows must be alike."
                )
