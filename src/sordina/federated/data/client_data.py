"""Clients' data as people have them: pairs of arrays, data sets of PyTorch, frames with a schema, table files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from sordina.datasets import Task
from sordina.errors import InvalidInput
from sordina.federated.data.partition import Federation, Groups, Shard
from sordina.tables import ColumnKind, PreparedTable, Schema, pieces, read_table
from sordina.tables.prepare import person_texts

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


# Tables of the user's own as clients: one file a client, or one file with a column that names the client.


def table(
    rng: np.random.Generator,
    *,
    files: Sequence[str] = (),
    schema: Any = None,
    client_column: str | None = None,
    test: str | None = None,
    test_share: float = 0.2,
    model: str = "linear",
    encoding: str = "utf-8",
    separator: str = ",",
) -> Federation:
    """Clients with tables; some clients validate, or the rows of another file: neither is covered by a guarantee.

    Held out are whole clients, never rows of those that take part: those are promised that none of their rows shows.
    Preparation is a fixed public map, so nothing has to be agreed on among the clients but the schema.

    Args:
        rng: Decides which clients validate.
        files: One CSV or Parquet file a client, or a single one with ``client_column``.
        schema: What is public about them all, as `Schema.load` takes it.
        client_column: The column that says which client a row belongs to; never a feature.
        test: Another file to validate on, instead of a share of the clients.
        test_share: The share of clients that validate; one at least.
        model: "linear" (logistic regression for classes) or "network".
        encoding: Of CSV files.
        separator: Between the fields of CSV files.
    """
    public = _public(schema, client_column)
    reading: dict[str, Any] = {"encoding": encoding, "separator": separator}
    if len(files) < 2 and client_column is None:
        raise InvalidInput("clients are several files, or one file with a client column (--client-column).")
    if not 0 < test_share < 1:
        raise InvalidInput(f"the test share must lie between 0 and 1, got {test_share}.")
    tables = [one for path in files for one in _clients(path, public, client_column, reading)]
    order = rng.permutation(len(tables)).tolist()
    cut = 0 if test else max(1, round(test_share * len(tables)))
    if cut >= len(tables):
        raise InvalidInput(f"{len(tables)} clients are too few to hold one out: name a file to validate on (--test).")
    judged = [read_table(test, public, **reading)] if test else [tables[index] for index in sorted(order[:cut])]
    train = [tables[index] for index in sorted(order[cut:])]
    groups = {
        name: Groups(
            (*public[name].values, "other", "missing"),
            [one.groups[name] for one in train],
            [one.groups[name] for one in judged],
        )
        for name in public.groups
    }
    return Federation(
        name="table", train=[_shard(one) for one in train], validation=[_shard(one) for one in judged], groups=groups,
        source=f"{len(train)} clients with tables of their own", **_task(tables[0], model),
    )  # fmt: skip


def _public(schema: Any, client_column: str | None) -> Schema:
    if schema is None:
        raise InvalidInput("tables need a schema that says what is public: draft one with `sordina schema`.")
    public = Schema.load(schema).complete()
    if public.target is None:
        raise InvalidInput("the schema names no target: state target = NAME.")
    if client_column in (public.target, *public.groups):
        raise InvalidInput(f"the client column {client_column!r} cannot be the target or a protected attribute.")
    if client_column is None or all(one.name != client_column for one in public.columns):
        return public
    return public.with_column(replace(public[client_column], kind=ColumnKind.IGNORED))


def _clients(path: str, schema: Schema, column: str | None, reading: dict[str, Any]) -> list[PreparedTable]:
    whole = read_table(path, schema, **reading)
    if column is None:
        return [whole]
    names = np.array(
        [text for piece in pieces(path, [column], **reading) for text in person_texts(piece.columns[column])]
    )
    return [_part(whole, np.flatnonzero(names == one)) for one in np.unique(names)]


def _part(table: PreparedTable, rows: NDArray[np.int64]) -> PreparedTable:
    owners = None if table.owners is None else table.owners[rows]
    targets = None if table.targets is None else table.targets[rows]
    groups = {name: codes[rows] for name, codes in table.groups.items()}
    return PreparedTable(table.schema, table.inputs[rows], targets, owners, table.persons, groups)


def _shard(table: PreparedTable) -> tuple[Tensor, Tensor]:
    inputs, targets = table.dataset().tensors
    return inputs, targets[:, None] if table.task is Task.REGRESSION else targets


def _task(table: PreparedTable, model: str) -> dict[str, Any]:
    """Model, loss and metric by the kind of the target."""
    if model not in ("linear", "network"):
        raise InvalidInput(f"clients with tables train a linear model or a network, not {model!r}.")
    if table.task is Task.REGRESSION:
        if model == "network":
            raise InvalidInput("clients with tables train numbers by a linear model.")
        inputs = table.inputs.shape[1]
        return {"model": "linear", "loss": "mse", "metric": "rmse", "options": {"inputs": inputs, "bias": True}}
    name = "logistic" if model == "linear" else "mlp"
    options = {"inputs": table.inputs.shape[1], "classes": len(table.classes)}
    return {"model": name, "loss": "cross-entropy", "metric": "accuracy", "options": options}
