"""A model that holds records of the data it is trained on would release them as they are, whatever the noise.

Centres of a radial basis network, prototypes, inducing points or a memory that are rows of the training data: the
textbook initialisation. They are looked for bit by bit, before anything is spent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sordina.errors import InvalidInput

_VALUES, _TIMES, _LARGEST = 4, 2, 1 << 31
"""Rows with fewer different values may be equal by chance, rows that come more often are nobody's own (a public grid);
data of more bytes are not looked through."""


def refuse_held_records(model: nn.Module, data: Any) -> None:
    """Refuse a model of which a weight, a buffer or another tensor holds a row of ``data``.

    Args:
        model: What will be trained.
        data: Tensors with a row per record; of data in another form nothing is known, and nothing refused.
    """
    if not isinstance(data, tuple):
        return
    held = list(_tensors(model))
    for rows in data:
        width = rows[:1].numel()
        if not rows.is_floating_point() or width < _VALUES or rows.nbytes > _LARGEST:
            continue
        wide = [(name, tensor) for name, tensor in held if tensor.numel() % width == 0 and tensor.is_floating_point()]
        if not wide:
            continue
        factors = np.random.default_rng().integers(-(2**63), 2**63, width, dtype=np.int64) | 1
        known, times = np.unique(_digests(rows, width, factors), return_counts=True)
        known = known[times <= _TIMES]
        for name, tensor in wide:
            found = np.isin(_digests(tensor, width, factors), known)
            if any(len(row.unique()) >= _VALUES for row in tensor.reshape(-1, width)[torch.from_numpy(found)]):
                raise InvalidInput(
                    f"{name!r} of the model holds records of the training data (centres, prototypes or a memory taken "
                    "from it), which would be released as they are: take random or public ones, or learn them."
                )


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All that a model holds, by name, matrices also on their side."""
    attributes = [
        (f"{prefix}.{name}" if prefix else name, value)
        for prefix, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    ]
    for name, tensor in (*model.named_parameters(), *model.named_buffers(), *attributes):
        if not is_lazy(tensor) and tensor.layout is torch.strided:
            yield name, tensor.detach()
            if tensor.dim() > 1:
                yield name, tensor.detach().mT.contiguous()


def _digests(rows: Tensor, width: int, factors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A number for each row, in single precision; the same for equal rows, and else hardly ever."""
    bits = rows.detach().cpu().float().reshape(-1, width).numpy().view(np.int32)
    parts = [(bits[start : start + 4096] * factors).sum(1) for start in range(0, len(bits), 4096)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
