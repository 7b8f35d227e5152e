"""What a client minimises, for many clients at once.

Parameters travel as flat vectors, one row per client; inside a computation they are parts (see `stacked`).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sordina._stacked_models import Looped, Mapped, Parts, Stacked, stacked, trained_parameters
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.losses import Afresh, RowLoss
from sordina.gradients._hooks import Recorder
from sordina.gradients._rehearsal import Maker, batch_sizes
from sordina.gradients._study import Study
from sordina.gradients.structure import Mixing


@dataclass(frozen=True)
class Batch:
    """Rows of several clients, padded to one length: ``x (U, B, ...)``, ``y (U, B, ...)``, ``mask (U, B)``."""

    x: Tensor
    y: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Objective:
    """A model and its loss: ``F(theta) = mean of the row losses``, or its square root (RMSE, eq. 2.13 of 000)."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    model: Stacked
    loss: RowLoss
    root: bool = False

    @property
    def size(self) -> int:
        """The number of parameters, n in the papers."""
        return sum(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """The number of numbers in each parameter."""
        return [math.prod(shape) for shape in self.shapes]

    def parts(self, flat: Tensor) -> Parts:
        """Flat rows ``(U, P)`` as parts that share their memory: what is done to one is done to the other."""
        pairs = zip(torch.split(flat, self.lengths, dim=1), self.shapes, strict=True)
        return [torch.unflatten(piece, 1, shape or (1,)) for piece, shape in pairs]

    def reduce(self, totals: Tensor, counts: Tensor) -> Tensor:
        """``F`` from summed row losses: their mean, or its root; 0 for a client without rows."""
        mean = totals / counts.clamp(min=1)
        return mean.sqrt() if self.root else mean

    def slope(self, outputs: Tensor, batch: Batch) -> Tensor:
        """``dF / d outputs``; of the root, ``(dF^2 / d outputs) / 2F``, taken as 0 where F is 0."""
        rows, targets = outputs.flatten(0, 1), batch.y.flatten(0, 1)
        share = batch.mask / batch.mask.sum(1, keepdim=True).clamp(min=1)
        if self.root:
            value = (self.loss.value(rows, targets).view(share.shape) * share).sum(1, keepdim=True).sqrt()
            share = torch.where(value > 0, share / (2 * value), 0.0)
        slopes = self.loss.slope(rows, targets).view(outputs.shape)
        return slopes * share.view(share.shape + (1,) * (outputs.dim() - 2))

    def descend(self, parts: Parts, batch: Batch, rate: float) -> None:
        """``parts -= rate * grad F``, each client on its own rows, in place."""
        with torch.no_grad():
            self.model.accumulate(parts, batch.x, lambda outputs: self.slope(outputs, batch), parts, -rate)

    def gradient(self, flat: Tensor, batch: Batch) -> Tensor:
        """``grad F`` of each client at its row of ``flat``, as flat rows."""
        total = torch.zeros_like(flat, memory_format=torch.contiguous_format)
        with torch.no_grad():
            parts, sums = self.parts(flat), self.parts(total)
            self.model.accumulate(parts, batch.x, lambda outputs: self.slope(outputs, batch), sums, 1.0)
        return total

    def predict(self, model: Tensor, x: Tensor) -> Tensor:
        """The outputs of one flat model on rows of anybody."""
        with torch.no_grad():
            return self.model.forward(self.parts(model[None]), x[None])[0]

    def row_losses(self, model: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The losses of one flat model on rows of anybody."""
        return self.loss.value(self.predict(model, x), y)


def own(flat: Tensor) -> Tensor:
    """A copy of flat rows that may be changed in place."""
    return flat.clone(memory_format=torch.contiguous_format)


def of_module(module: nn.Module, loss: RowLoss, *, root: bool = False, example: Tensor | None = None) -> Objective:
    """The objective of a module; its parameters that need no gradient, and its buffers, stay as they are.

    Args:
        module: The model.
        loss: One number per row.
        root: Whether a client minimises the root of its mean loss.
        example: Some input rows, of whose values nothing is used, to try the module with.

    >>> from sordina.federated.losses import mse
    >>> of_module(nn.Linear(3, 1), mse).size
    4
    """
    parameters = trained_parameters(module)
    if not parameters:
        raise InvalidInput(f"{type(module).__name__} has no parameters to train.")
    if changing := _changing_buffers(module, example):
        raise Unsupported(
            f"buffer {changing[0]!r} of {type(module).__name__} mixes samples or clients (BatchNorm?) and would never "
            "reach the server. Use GroupNorm: sordina.fix(model)."
        )
    model = stacked(module, example)
    if isinstance(model, (Mapped, Looped)):
        if example is not None:
            _refuse_mixing(module, example)
        model = replace(model, begin=Afresh(model.module))
    shapes = tuple(tuple(value.shape) for value in parameters.values())
    return Objective(tuple(parameters), shapes, model, loss, root)


def flat_parameters(module: nn.Module) -> Tensor:
    """A module's present parameters as a flat vector."""
    return torch.cat([value.detach().flatten() for value in trained_parameters(module).values()]).clone()


def with_parameters(module: nn.Module, flat: Tensor) -> nn.Module:
    """A copy of ``module`` with the trained parameters ``flat``, ready for use.

    Args:
        module: The model.
        flat: What `flat_parameters` would give of the copy.
    """
    made = copy.deepcopy(module)
    parameters = list(trained_parameters(made).values())
    with torch.no_grad():
        for value, part in zip(parameters, torch.split(flat, [one.numel() for one in parameters]), strict=True):
            value.copy_(part.view(value.shape))
    return made.eval()


def _changing_buffers(module: nn.Module, example: Tensor | None) -> list[str]:
    """Buffers that a forward pass changes; without rows to try it on, those of layers known to do so."""
    known = [
        f"{name}.{inner}".lstrip(".")
        for name, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._NormBase)
        for inner, _ in layer.named_buffers(recurse=False)
    ]
    if known or example is None or not list(module.buffers()):
        return known
    trial = copy.deepcopy(module).train()
    before = {name: value.clone() for name, value in trial.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        trial(torch.zeros(2, *example.shape[1:], dtype=example.dtype))
    return [name for name, value in trial.named_buffers() if not (name in before and torch.equal(value, before[name]))]


def _refuse_mixing(module: nn.Module, example: Tensor) -> None:
    """Refuse a module that mixes rows, or keeps data between batches, by tests of `sordina.Trainer` on made-up rows.

    Clients run together, their batches padded to one length: where rows mix, the size of one client's batch would
    change what others learn. All clients of a simulation, and all records of a client, run through one module. What it
    keeps is put back before each of them (`Afresh`), so it would not learn what it is meant to either.
    """
    trial = copy.deepcopy(module).train()
    parameters = dict(trial.named_parameters())
    study = Study(trial, trial, lambda rows, dims, *value: trial(*value[0]), Recorder(trial), parameters, frozenset())
    value: tuple[Any, Any] = ((torch.zeros_like(example[:1]),), {})
    dims, many = (0,), batch_sizes(value)[1]

    def tried(maker: Maker, double: bool, wide: bool) -> bool:
        try:
            with study.trial(value, dims, maker, double, wide) as (found, make, _):
                larger = make(many)
                found._check_memory(larger)
                found.check_history()
                together, more = (found.fresh(partial(study.plain, each)) for each in (found.value, larger))
                alone = found._apart(found.value)
                found._compare(together, alone, found._placements(together, [one.shape for one in more], alone, many))
        except Mixing:
            raise Unsupported(
                f"{type(module).__name__} mixes the rows of a batch: on made-up rows it says something else of a row "
                "in company than alone. Clients are trained together, their batches padded to one length, so the size "
                "of one client's batch would change what others learn. Replace what looks across the batch (means over "
                "dim=0, batch normalisation)."
            ) from None
        except Unsupported:
            raise
        except Exception:  # it does not take such rows: there are others
            return False
        return True

    any(tried(*way) for way in study.ways(value, dims))
