"""The oracle: every per-sample gradient written down by ``torch.func``, and a tape over any matrix of vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sordina.errors import InvalidInput
from sordina.gradients.layout import Layout, layouts
from sordina.gradients.tape import GhostTape
from sordina.gradients.terms import Dense, Term
from sordina.queries import Query, Scalars


class MatrixTape:
    """A tape over an explicit (U, P) matrix, one vector per unit: the updates of clients, or an oracle's gradients.

    >>> from sordina.queries import VectorQuery
    >>> tape = MatrixTape(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    >>> tape.scalars().norms
    tensor([5., 2.])
    >>> tape.contract([VectorQuery(torch.tensor([1.0, 0.5]))])
    [tensor([3., 5.])]
    """

    def __init__(self, matrix: Tensor) -> None:
        if matrix.dim() != 2:
            raise InvalidInput(f"expected one row per unit, shape (U, P), got {tuple(matrix.shape)}.")
        layout = Layout(("vector",), ((matrix.shape[1],),))
        self._tape = GhostTape((layout,), {"vector": Dense(matrix)}, len(matrix), matrix.new_empty(0))

    def scalars(self, direction: Tensor | None = None, group: int = 0) -> Scalars:
        """Norms of the rows, and their projections on ``direction``."""
        return self._tape.scalars(direction, group)

    def contract(self, queries: Sequence[Query], direction: Tensor | None = None, group: int = 0) -> list[Tensor]:
        """One weighted sum of rows per vector query, one 0-d tensor per scalar query."""
        return self._tape.contract(queries, direction, group)


def matrix(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, layout: Layout) -> Tensor:
    """Per-sample gradients (B, P) of ``loss(model(x), y)`` in the order of ``layout``.

    ``loss`` is the batched per-sample loss; each sample is fed as a batch of one.
    """
    wanted = dict(model.named_parameters())
    free = {name: wanted[name].detach() for name in layout.names}
    rest = {name: p.detach() for name, p in wanted.items() if name not in free} | dict(model.named_buffers())

    def one(parameters: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
        output = functional_call(model, {**rest, **parameters}, (a.unsqueeze(0),))
        return loss(output, b.unsqueeze(0)).sum()

    each = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(free, x, y)
    return torch.cat([each[name].reshape(len(x), -1) for name in layout.names], 1)


def record(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    batch: tuple[Tensor, Tensor],
    groups: Sequence[Sequence[str]] | None = None,
    rows_per_unit: int = 1,
) -> GhostTape:
    """The tape that `sordina.gradients.Engine` gives, from per-sample gradients written down in full."""
    chosen = layouts(model, groups)
    x, y = batch
    terms: dict[str, Term] = {}
    for layout in chosen:
        rows = matrix(model, loss, x, y, layout)
        units = rows.view(-1, rows_per_unit, layout.size).sum(1)
        terms |= {name: Dense(units[:, where]) for name, _, where in layout}
    like = next(model.parameters()).new_empty(0)
    return GhostTape(chosen, terms, len(x) // rows_per_unit, like)
