"""A module with one set of parameters per client.

Parameters are *parts*: one tensor ``(clients, *shape)`` per parameter of the module. Chains of linear layers and
pointwise functions become batched matrix products with a backward pass of their own, which adds each gradient to
where it belongs as it forms it; everything else goes through ``torch.vmap`` and autograd, or, where a module does what
``vmap`` cannot, through the module itself, client after client.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

Parts: TypeAlias = list[Tensor]
Slope: TypeAlias = Callable[[Tensor], Tensor]
"""``outputs -> d loss / d outputs``."""


class Stacked(Protocol):
    """A model of many clients."""

    def forward(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """``(U, B, ...) -> (U, B, ...)``: the model of each client on that client's rows."""
        ...

    def accumulate(self, parts: Parts, x: Tensor, slope: Slope, into: Parts, factor: float) -> None:
        """``into += factor * gradient``, in place; ``into`` may be ``parts`` itself."""
        ...


def stacked(module: nn.Module, example: Tensor | None = None) -> Stacked:
    """The stacked form of ``module``, in which parameters that need no gradient are the same for everybody.

    Args:
        module: Any module; it is copied.
        example: Some input rows, of whose values nothing is used: to try whether ``vmap`` can take the module.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> parts = [value.detach().expand(4, *value.shape) for value in net.parameters()]
    >>> stacked(net).forward(parts, torch.ones(4, 5, 2)).shape
    torch.Size([4, 5, 1])
    """
    layers = tuple(module) if isinstance(module, nn.Sequential) else (module,)
    known = all(isinstance(layer, (nn.Linear, nn.Flatten)) or type(layer) in _SLOPES for layer in layers)
    if known and all(value.requires_grad for value in module.parameters()):
        return Chain(layers)
    mapped = Mapped(copy.deepcopy(module))
    if example is None or _can(mapped, example):
        return mapped
    return Looped(mapped.module)


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name: those that need a gradient.

    Args:
        module: Any module.
    """
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def _can(mapped: Mapped, example: Tensor) -> bool:
    """Whether ``vmap`` takes the module, tried on made-up rows of two clients."""
    x = torch.zeros(2, 2, *example.shape[1:], dtype=example.dtype)
    parts = [value.detach().expand(2, *value.shape) for value in trained_parameters(mapped.module).values()]
    total = [torch.zeros(part.shape, dtype=part.dtype) for part in parts]
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mapped.accumulate(parts, x, torch.ones_like, total, 1.0)
    except Exception:
        return False
    return True


@contextmanager
def at_rest(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode, and afterwards as it was."""
    modes = [(one, one.training) for one in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for one, mode in modes:
            one.training = mode


_SLOPES: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    nn.ReLU: lambda layer, y: y > 0,
    nn.LeakyReLU: lambda layer, y: torch.where(y > 0, 1.0, layer.negative_slope).to(y.dtype),
    nn.Tanh: lambda layer, y: 1 - y.square(),
    nn.Sigmoid: lambda layer, y: y * (1 - y),
}
"""The derivative of a pointwise function, from its output."""


@dataclass(frozen=True)
class Chain:
    """Linear layers, pointwise functions and flattening, one after the other."""

    layers: tuple[nn.Module, ...]

    def forward(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """Batched matrix products."""
        return self._trace(parts, x)[-1]

    def accumulate(self, parts: Parts, x: Tensor, slope: Slope, into: Parts, factor: float) -> None:
        """Back through the layers; a layer's parameters change after the gradient of its input was taken."""
        trace = self._trace(parts, x)
        grown = slope(trace[-1])
        left, targets = list(parts), list(into)
        first = next(place for place, layer in enumerate(self.layers) if isinstance(layer, nn.Linear))
        for place in range(len(self.layers) - 1, first - 1, -1):
            layer, before = self.layers[place], trace[place]
            if isinstance(layer, nn.Linear):
                if layer.bias is not None:
                    left.pop()
                    targets.pop().add_(grown.sum(1), alpha=factor)
                weight, target = left.pop(), targets.pop()
                below = torch.bmm(grown, weight) if place > first else grown
                target.baddbmm_(grown.mT, before, alpha=factor)
                grown = below
            elif isinstance(layer, nn.Flatten):
                grown = grown.view(before.shape)
            else:
                grown = grown * _SLOPES[type(layer)](layer, trace[place + 1])

    def _trace(self, parts: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """The input and the output of every layer."""
        left, trace = iter(parts), [x]
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                weight = next(left).mT
                x = torch.bmm(x, weight) if layer.bias is None else torch.baddbmm(next(left).unsqueeze(1), x, weight)
            else:
                x = x.flatten(2) if isinstance(layer, nn.Flatten) else layer(x)
            trace.append(x)
        return trace


@dataclass(frozen=True)
class Mapped:
    """Any other module, by ``torch.vmap``; clients share no parameter, so one backward pass serves all."""

    module: nn.Module

    def forward(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """The module at rest (no dropout), mapped over clients."""
        with at_rest(self.module):
            return self._mapped(parts, x)

    def _mapped(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        names = list(trained_parameters(self.module))

        def one(own: Sequence[Tensor], rows: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(self.module, dict(zip(names, own, strict=True)), (rows,))
            return out

        mapped: Tensor = torch.vmap(one, randomness="different")(list(parts), x)
        return mapped

    def accumulate(self, parts: Parts, x: Tensor, slope: Slope, into: Parts, factor: float) -> None:
        """Autograd through the mapped forward pass."""
        leaves = [part.detach().requires_grad_() for part in parts]
        with torch.enable_grad():
            out = self._mapped(leaves, x)
        _add_gradients(out, leaves, slope, into, factor)


@dataclass(frozen=True)
class Looped:
    """A module that ``vmap`` cannot take (recurrent cells, decisions by value), client after client."""

    module: nn.Module

    def forward(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """The module at rest."""
        with at_rest(self.module):
            return self._looped(parts, x)

    def accumulate(self, parts: Parts, x: Tensor, slope: Slope, into: Parts, factor: float) -> None:
        """Autograd through all of them."""
        leaves = [part.detach().requires_grad_() for part in parts]
        with torch.enable_grad():
            out = self._looped(leaves, x)
        _add_gradients(out, leaves, slope, into, factor)

    def _looped(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        names = list(trained_parameters(self.module))
        each = []
        for client in range(len(x)):
            own = {name: part[client] for name, part in zip(names, parts, strict=True)}
            each.append(torch.func.functional_call(self.module, own, (x[client],)))
        return torch.stack(each)


def _add_gradients(out: Tensor, leaves: Parts, slope: Slope, into: Parts, factor: float) -> None:
    gradients = torch.autograd.grad(out, leaves, slope(out.detach()), allow_unused=True)
    found = [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(gradients, leaves, strict=True)]
    torch._foreach_add_(into, found, alpha=factor)
