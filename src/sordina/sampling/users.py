"""User-level privacy: a unit is a person with many rows, of whom a bounded number take part."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordina.arguments import checked
from sordina.errors import InvalidInput
from sordina.sampling.sampler import Indices

PADDING = -1


@checked
@dataclass(frozen=True)
class Users:
    """Who owns which row.

    A sampler draws users; `rows` then gives each drawn user's rows, at most ``rows_per_user`` of them (a fresh uniform
    choice where there are more), padded with -1. The engine clips all rows of one user as one vector, so one person
    changes a sum by no more than one row would.

    >>> Users(np.array([7, 7, 9]), rows_per_user=2).rows(np.array([1, 0]), np.random.default_rng(0))
    array([[ 2, -1], [ 0,  1]])
    """

    owners: ArrayLike
    rows_per_user: int
    _rows: tuple[NDArray[np.int64], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        owners = np.asarray(self.owners)
        if owners.ndim != 1 or not len(owners):
            raise InvalidInput(f"owners must name one user per row, got an array of shape {owners.shape}.")
        if self.rows_per_user < 1:
            raise InvalidInput(f"rows_per_user must be at least 1, got {self.rows_per_user}.")
        _, inverse = np.unique(owners, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        starts = np.flatnonzero(np.diff(inverse[order])) + 1
        object.__setattr__(self, "_rows", tuple(np.split(order.astype(np.int64), starts)))

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, users: Indices, rng: np.random.Generator) -> Indices:
        """The rows of the drawn ``users``, shape (len(users), rows_per_user)."""
        table = np.full((len(users), self.rows_per_user), PADDING, dtype=np.int64)
        for place, user in enumerate(users):
            rows = self._rows[user]
            if len(rows) > self.rows_per_user:
                rows = rng.choice(rows, self.rows_per_user, replace=False)
            table[place, : len(rows)] = rows
        return table
