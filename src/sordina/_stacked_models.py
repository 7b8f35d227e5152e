"""Many models of one architecture as one computation: of a federation's clients, of a search, of shadow models.

Parameters are *parts*: one tensor ``(models, *shape)`` per parameter of the module. Chains of linear layers and
pointwise functions become batched matrix products (`Chain`), for clients with a backward pass of their own, which adds
each gradient to where it belongs as it forms it, for private runs with a tape for each of them (`LinearStack`);
everything else goes through ``torch.vmap`` and autograd (`mapped`), or, where a module does what ``vmap`` cannot,
through the module itself, one model after the other (`Looped`).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput
from sordina.queries import Query, ScalarQuery, Scalars

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
    known = all(_plain(each) for each in {module, *layers})
    if known and all(value.requires_grad for value in module.parameters()):
        return Chain(layers)
    if example is None or _can(Mapped(copy.deepcopy(module)), example):
        return Mapped(copy.deepcopy(module))
    return Looped(copy.deepcopy(module))


def _plain(module: nn.Module) -> bool:
    """Whether ``module`` does what PyTorch's of its kind does: no forward pass, hooks or weights of its own making."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if any(hooks) or "forward" in vars(module):
        return False
    if isinstance(module, nn.Linear):
        return type(module).forward is nn.Linear.forward and "weight" in module._parameters
    if isinstance(module, nn.Sequential | nn.Flatten):
        return type(module).forward in (nn.Sequential.forward, nn.Flatten.forward)
    return type(module) in _SLOPES


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name: those that need a gradient.

    Args:
        module: Any module.
    """
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def mapped(module: nn.Module, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """What many models of one architecture answer, each on rows of its own, by ``torch.vmap``.

    Args:
        module: The architecture.
        parameters: By name, ``(models, *shape)``; those that are left out are the module's.
        buffers: The same for buffers.
        rows: ``(models, rows, ...)``.
    """

    def one(own: dict[str, Tensor], kept: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(module, (own, kept), (x,))
        return out

    answers: Tensor = torch.vmap(one, randomness="different")(dict(parameters), dict(buffers), rows)
    return answers


def _can(other: Mapped, example: Tensor) -> bool:
    """Whether ``vmap`` takes the module, tried on made-up rows of two clients."""
    x = torch.zeros(2, 2, *example.shape[1:], dtype=example.dtype)
    parts = [value.detach().expand(2, *value.shape) for value in trained_parameters(other.module).values()]
    total = [torch.zeros(part.shape, dtype=part.dtype) for part in parts]
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other.accumulate(parts, x, torch.ones_like, total, 1.0)
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
        return self.trace(parts, x)[-1]

    def accumulate(self, parts: Parts, x: Tensor, slope: Slope, into: Parts, factor: float) -> None:
        """Back through the layers; a layer's parameters change after the gradient of its input was taken."""
        trace = self.trace(parts, x)
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

    def trace(self, parts: Sequence[Tensor], x: Tensor, *, recorded: bool = False) -> list[Tensor]:
        """The input and the output of every layer.

        Args:
            parts: The parameters of all models.
            x: ``(models, rows, ...)``.
            recorded: Whether autograd shall know the outputs of linear layers.
        """
        left, trace = iter(parts), [x]
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                weight = next(left).mT
                x = torch.bmm(x, weight) if layer.bias is None else torch.baddbmm(next(left).unsqueeze(1), x, weight)
                x = x.requires_grad_() if recorded else x
            else:
                x = x.flatten(2) if isinstance(layer, nn.Flatten) else layer(x)
            trace.append(x)
        return trace


def _nothing() -> None:
    """Nothing is to be done before a pass."""


@dataclass(frozen=True)
class Mapped:
    """Any other module, by ``torch.vmap``; clients share no parameter, so one backward pass serves all."""

    module: nn.Module
    begin: Callable[[], object] = _nothing
    """Called before every pass: puts back what the module keeps between two."""

    def forward(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """The module at rest (no dropout), mapped over clients."""
        with at_rest(self.module):
            return self._mapped(parts, x)

    def _mapped(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        self.begin()
        return mapped(self.module, dict(zip(trained_parameters(self.module), parts, strict=True)), {}, x)

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
    begin: Callable[[], object] = _nothing
    """Called before every client's pass, as in `Mapped`."""

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
            self.begin()
            each.append(torch.func.functional_call(self.module, own, (x[client],)))
        return torch.stack(each)


def _add_gradients(out: Tensor, leaves: Parts, slope: Slope, into: Parts, factor: float) -> None:
    gradients = torch.autograd.grad(out, leaves, slope(out.detach()), allow_unused=True)
    found = [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(gradients, leaves, strict=True)]
    torch._foreach_add_(into, found, alpha=factor)


# Models whose samples are clipped one by one: a pass for all of them, and a tape for each.
#
# For a linear layer with inputs a_i and output gradients b_i, ``|g_i|^2 = |a_i|^2 |b_i|^2 + |b_i|^2`` (weight and
# bias), and a weighted sum of gradients is ``(w o b)^T a``.


@dataclass(frozen=True)
class LinearTape:
    """The tape of one network: per linear layer its inputs (B, in) and output gradients (B, out)."""

    inputs: Sequence[Tensor]
    gradients: Sequence[Tensor]
    biased: Sequence[bool]

    def scalars(self, direction: Tensor | None = None, group: int = 0) -> Scalars:
        """Norms of the per-sample gradients; projections are not offered."""
        if direction is not None or group:
            raise InvalidInput(
                "stacked runs have one group of parameters and no direction: train such runs one by one."
            )
        return Scalars(self._norms.to(self.inputs[0]))

    @cached_property
    def _norms(self) -> Tensor:
        """In double precision, so that rounding hides nothing that clipping should see."""
        total = torch.zeros(len(self.inputs[0]), dtype=torch.float64)
        for a, b, biased in zip(self.inputs, self.gradients, self.biased, strict=True):
            total += (a.double().square().sum(1) + float(biased)) * b.double().square().sum(1)
        return total.sqrt_().mul_(1 + 2**-22)

    @cached_property
    def _sound(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Inputs and gradients without the samples whose gradient is not finite: they add nothing, to any sum."""
        poisoned = ~self._norms.to(self.inputs[0]).isfinite()
        if not poisoned.any():
            return self.inputs, self.gradients
        rows = poisoned[:, None]
        return [a.masked_fill(rows, 0) for a in self.inputs], [b.masked_fill(rows, 0) for b in self.gradients]

    def contract(self, queries: Sequence[Query], direction: Tensor | None = None, group: int = 0) -> list[Tensor]:
        """One flat vector per vector query, one number per scalar query."""
        return [
            query.value.sum() if isinstance(query, ScalarQuery) else self._sum(query.own.to(self.inputs[0]))
            for query in queries
        ]

    def _sum(self, own: Tensor) -> Tensor:
        parts = []
        for a, b, biased in zip(*self._sound, self.biased, strict=True):
            weighted = (b * own[:, None]).mT
            parts.append((weighted @ a).reshape(-1))
            if biased:
                parts.append(weighted.sum(1))
        return torch.cat(parts)


class LinearStack:
    """Networks of linear layers, of one architecture, whose weights are slices of common tensors.

    Args:
        networks: The layers of each.
    """

    def __init__(self, networks: Sequence[Sequence[nn.Module]]) -> None:
        self._chain = Chain(tuple(networks[0]))
        linear = [[layer for layer in layers if isinstance(layer, nn.Linear)] for layers in networks]
        self._biased = [layer.bias is not None for layer in linear[0]]
        self.parts: Parts = []
        for column in zip(*linear, strict=True):
            self.parts.append(_join([layer.weight for layer in column]))
            if column[0].bias is not None:
                self.parts.append(_join([layer.bias for layer in column]))

    def record(
        self, batches: Mapping[int, tuple[Tensor, Tensor]], loss: Callable[[Tensor, Tensor], Tensor]
    ) -> list[LinearTape]:
        """One pass over the batches of some networks, by their places, and a tape for each of them.

        Args:
            batches: Inputs and targets, padded here to the longest; padding enters no sum.
            loss: One number per row, of outputs and targets.
        """
        active = list(batches)
        parts = self.parts if len(active) == len(self.parts[0]) else [part[active] for part in self.parts]
        x = nn.utils.rnn.pad_sequence([x.flatten(1) for x, _ in batches.values()], batch_first=True)
        y = nn.utils.rnn.pad_sequence([y for _, y in batches.values()], batch_first=True)
        trace = self._chain.trace(parts, x, recorded=True)
        linear = [place for place, layer in enumerate(self._chain.layers) if isinstance(layer, nn.Linear)]
        losses = loss(trace[-1].flatten(0, 1), y.flatten(0, 1))
        gradients = torch.autograd.grad(losses.sum(), [trace[place + 1] for place in linear])
        return [
            LinearTape(
                [trace[place][row, : len(own)].detach() for place in linear],
                [one[row, : len(own)] for one in gradients],
                self._biased,
            )
            for row, (own, _) in enumerate(batches.values())
        ]


def _join(parameters: Sequence[nn.Parameter]) -> Tensor:
    """One tensor that holds all parameters; each parameter becomes a view of its slice."""
    joined = torch.stack([parameter.detach() for parameter in parameters])
    for place, parameter in enumerate(parameters):
        parameter.data = joined[place]
    return joined
