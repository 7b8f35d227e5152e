"""What a client writes back, as named arrays: its numbers and nothing else, or the one word that it sends none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.messages import Parcel
from sordina.federated.wire import unpack

VECTORS, SUM, WITHHELD, REJECTED = "vectors", "sum-", "withheld", "rejected"


def written(parcel: Parcel) -> dict[str, NDArray[Any]]:
    """One client's parcel. Counts stay at home: a letter is from one client, so they say nothing.

    >>> import torch
    >>> sorted(written(Parcel((torch.zeros(2), torch.tensor(1.0)), answered=1))), sorted(written(Parcel(withheld=1)))
    (['sum-0', 'sum-1'], ['withheld'])
    """
    for count, word in ((parcel.withheld, WITHHELD), (parcel.rejected, REJECTED)):
        if count:
            return {word: np.zeros(0, dtype=np.uint8)}
    arrays = {f"{SUM}{place}": one.detach().cpu().numpy() for place, one in enumerate(parcel.sums)}
    if parcel.vectors is not None:
        arrays[VECTORS] = parcel.vectors.detach().cpu().numpy()
    return arrays


def parcel_of(arrays: Mapping[str, NDArray[Any]]) -> Parcel:
    """The parcel in a letter; a letter of any other form is refused."""
    words = set(arrays)
    if words == {WITHHELD}:
        return Parcel(withheld=1)
    if words == {REJECTED}:
        return Parcel(rejected=1)
    sums = [f"{SUM}{place}" for place in range(len(words - {VECTORS}))]
    if not words or words != {*sums, *(words & {VECTORS})}:
        raise InvalidInput(f"malformed: a letter of {len(words)} arrays, named as no client of ours names them")
    numbers: dict[str, Tensor] = {name: unpack({":t": arrays[name]}, None) for name in words}
    rows = numbers.get(VECTORS)
    if rows is not None and (rows.dim() != 2 or len(rows) != 1):
        raise InvalidInput("malformed: one client sends one vector")
    return Parcel(tuple(numbers[name] for name in sums), rows)
