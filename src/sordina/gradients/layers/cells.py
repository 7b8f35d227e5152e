"""``torch.nn.LSTMCell``, ``GRUCell`` and ``RNNCell``: two linear maps each, listened to one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from sordina.gradients.layers.fold import Fold
from sordina.gradients.layers.linear import own
from sordina.gradients.terms import Dense, Term, outer
from sordina.gradients.wrapping import own_class


def forward(module: nn.RNNCellBase, tap: Callable[..., None], input: Tensor, hx: Any = None) -> Any:
    """The same function as the module's own forward pass."""
    if input.dim() != 2:
        return own_class(module).forward(module, input, hx)
    gated = isinstance(module, nn.LSTMCell)
    if hx is None:
        nothing = input.new_zeros(len(input), module.hidden_size)
        hx = (nothing, nothing) if gated else nothing
    hidden, cell = hx if gated else (hx, None)
    given, inner = _part(module, tap, "ih", input), _part(module, tap, "hh", hidden)
    if isinstance(module, nn.GRUCell):
        (rx, zx, nx), (rh, zh, nh) = given.chunk(3, 1), inner.chunk(3, 1)
        update = (zx + zh).sigmoid()
        return (1 - update) * (nx + (rx + rh).sigmoid() * nh).tanh() + update * hidden
    if gated:
        assert cell is not None
        i, f, g, o = (given + inner).chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell
    total = given + inner
    return total.tanh() if getattr(module, "nonlinearity", "tanh") == "tanh" else total.relu()


def _part(module: nn.RNNCellBase, tap: Callable[..., None], side: str, x: Tensor) -> Tensor:
    output = F.linear(x, getattr(module, f"weight_{side}"), getattr(module, f"bias_{side}"))

    def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
        if (weight := own(module, f"weight_{side}")) is not None:
            yield weight, outer(fold.places(b), fold.places(x.detach()))
        if (bias := own(module, f"bias_{side}")) is not None:
            yield bias, Dense(fold.total(b))

    tap(side, output, build, (x,))
    return output
