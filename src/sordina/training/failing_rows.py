"""Losses of a batch in which some rows cannot be computed: they add nothing, and nothing stops.

A loss may refuse a value (`torch.nn.functional.binary_cross_entropy` refuses what is not a number), a model may refuse
a token. An error at the step that draws such a record would tell when it was drawn, and often quote it. So the batch is
computed again with the rows that fail alone replaced by zeros, whose losses then count nothing. What fails on zeros
too is a fault of model or loss, which depends on released weights only, and is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sordina.errors import SordinaError
from sordina.gradients import Engine
from sordina.gradients._rehearsal import Dims, aside, part
from sordina.gradients._tracing import changed, tensors_in


class FailingRows:
    """The losses of a batch, zero for the rows that cannot be computed.

    Args:
        model: What ``losses`` calls.
        losses: From a batch to one loss per row.
        engine: Listens to the model, if anybody does.
    """

    def __init__(self, model: nn.Module, losses: Callable[[Any], Tensor], engine: Engine | None) -> None:
        self.model, self.losses, self.engine = model, losses, engine

    def __call__(self, batch: Any) -> Tensor:
        """The losses of ``batch``."""
        try:
            return self.losses(batch)
        except SordinaError:
            raise
        except Exception as error:
            return self._without_failing(batch, error)

    def _without_failing(self, batch: Any, error: Exception) -> Tensor:
        tensors = list(tensors_in([batch]))
        rows = next((len(tensor) for tensor in tensors if tensor.dim()), 0)
        dims: Dims = tuple(0 if tensor.shape[:1] == (rows,) else None for tensor in tensors)
        failing = [row for row in range(rows) if self._fails(part(batch, dims, row))]
        if not failing:
            raise error
        if self.engine is not None and torch.is_grad_enabled():
            self.engine.clear()
        places, where = iter(dims), torch.tensor(failing)

        def blank(tensor: Tensor) -> Tensor:
            return tensor if next(places) is None else tensor.index_fill(0, where.to(tensor.device), 0)

        losses = self.losses(changed(batch, blank))
        return losses.index_fill(0, where.to(losses.device), 0.0)

    def _fails(self, row: Any) -> bool:
        with torch.no_grad(), aside(self.model):
            try:
                self.losses(row)
            except SordinaError:
                raise
            except Exception:
                return True
        return False
