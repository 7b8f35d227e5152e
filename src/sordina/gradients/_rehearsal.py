"""Running a model on the side: on made-up rows, without chance, and so that nothing is left behind.

What the engine must know about a model it finds out on *synthetic* rows, which have the shapes and kinds of the real
ones and nothing else of them. So what it decides does not depend on anybody's record. The parameters are moved a
little at random meanwhile: a gate that is still zero, or a head that starts at zero, would hide what lies behind it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sordina.gradients._tracing import changed, tensors_in

Dims = tuple[int | None, ...]
"""For each tensor among the arguments the dimension of the samples; None where it is the same for all of them."""
Maker = Callable[[Tensor, int, int, torch.Generator], Tensor]
"""From a real tensor, its dimension of samples and a number of rows to that many rows."""


def normal_rows(like: Tensor, dim: int, rows: int, generator: torch.Generator) -> Tensor:
    """Normal numbers, and zeros and ones where only whole numbers fit."""
    shape = _resized(like, dim, rows)
    if like.is_floating_point() or like.is_complex():
        return torch.randn(shape, generator=generator).to(like)
    return torch.randint(0, 2, shape, generator=generator).to(like.device, like.dtype)


def positive_rows(like: Tensor, dim: int, rows: int, generator: torch.Generator) -> Tensor:
    """Numbers between a half and one, and ones where only whole numbers fit."""
    shape = _resized(like, dim, rows)
    if like.is_floating_point() or like.is_complex():
        return (torch.rand(shape, generator=generator) / 2 + 0.5).to(like)
    return torch.ones(shape, dtype=like.dtype, device=like.device)


def real_rows(like: Tensor, dim: int, rows: int, generator: torch.Generator) -> Tensor:
    """Rows of the batch itself, for models that take nothing else."""
    return like.detach().index_select(dim, torch.arange(rows, device=like.device) % max(1, like.shape[dim]))


MAKERS: tuple[Maker, ...] = (normal_rows, positive_rows, real_rows)


def _resized(like: Tensor, dim: int, rows: int) -> list[int]:
    return [rows if place == dim else size for place, size in enumerate(like.shape)]


def made(value: Any, dims: Dims, rows: int, maker: Maker, generator: torch.Generator, double: bool = False) -> Any:
    """Arguments like ``value`` for ``rows`` made-up samples."""
    places = iter(dims)

    def change(tensor: Tensor) -> Tensor:
        dim = next(places)
        fresh = tensor.detach() if dim is None else maker(tensor, dim, rows, generator)
        return fresh.double() if double and fresh.is_floating_point() else fresh

    return changed(value, change)


def part(value: Any, dims: Dims, start: int, count: int = 1) -> Any:
    """The arguments of ``count`` samples from ``start`` on."""
    places = iter(dims)

    def change(tensor: Tensor) -> Tensor:
        dim = next(places)
        return tensor if dim is None else tensor.narrow(dim, start, count)

    return changed(value, change)


def replaced(value: Any, dims: Dims, sample: int, other: int, change: Callable[[Tensor], Tensor]) -> Any:
    """The arguments with those of ``sample`` replaced by the ``other`` sample's; ``change`` is done to floats after."""
    places = iter(dims)

    def exchange(tensor: Tensor) -> Tensor:
        dim = next(places)
        if dim is None:
            return tensor
        twin = tensor.detach().clone()
        row = twin.select(dim, other).clone()
        twin.select(dim, sample).copy_(change(row) if row.is_floating_point() else row)
        return twin

    return changed(value, exchange)


def rows_in(value: Any, dims: Dims) -> int | None:
    """How many samples the arguments have; None if they do not agree."""
    sizes = {
        tensor.shape[dim] if dim < tensor.dim() else -1
        for tensor, dim in zip(tensors_in([value]), dims, strict=True)
        if dim is not None
    }
    return sizes.pop() if len(sizes) == 1 else None


DROPOUTS = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout",
    "dropout_", "alpha_dropout_", "feature_dropout_", "feature_alpha_dropout_",
}  # fmt: skip
DRAWS = {
    "rand": 0.4, "rand_like": 0.4, "randn": 0.3, "randn_like": 0.3, "normal": 0.3, "bernoulli": 1.0, "poisson": 1.0,
    "uniform_": 0.4, "normal_": 0.3, "bernoulli_": 1.0, "exponential_": 0.7, "log_normal_": 0.7, "cauchy_": 0.3,
    "geometric_": 1.0, "random_": 1.0,
}  # fmt: skip
RATES = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}
"""Functions that drop values inside, and the place of the rate among their arguments."""


class WithoutChance(TorchFunctionMode):
    """Dropout does nothing and every random number is the same, so that two runs can be compared.

    What is drawn from ``own`` stays random: the rows that are made up, and what is asked about them.
    """

    def __init__(self, own: torch.Generator | None = None) -> None:
        super().__init__()
        self.own = own

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if name == "rrelu":
            return torch.nn.functional.leaky_relu(args[0], 0.2)
        if name == "gumbel_softmax":
            return torch.softmax(args[0], -1)
        if name in RATES:
            if len(args) > RATES[name]:
                args = [*args[: RATES[name]], 0.0, *args[RATES[name] + 1 :]]
            elif "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        result = func(*args, **kwargs)
        if (
            name in DRAWS
            and isinstance(result, Tensor)
            and (self.own is None or kwargs.get("generator") is not self.own)
        ):
            with torch.no_grad():
                result.fill_(DRAWS[name])
        return result


@contextmanager
def moved(model: nn.Module, generator: torch.Generator | None, double: bool = False) -> Iterator[None]:
    """All parameters moved at random by about a tenth of their size, and in double precision; put back at the end."""
    tensors = [*model.parameters(), *(buffer for buffer in model.buffers() if double and buffer.is_floating_point())]
    own = [tensor.data for tensor in tensors]
    try:
        for tensor, value in zip(tensors, own, strict=True):
            fresh = value.double() if double and value.is_floating_point() else value
            if generator is not None and isinstance(tensor, nn.Parameter):
                fresh = fresh + _noise(fresh, generator)
            tensor.data = fresh
        yield
    finally:
        for tensor, value in zip(tensors, own, strict=True):
            tensor.data = value


def _noise(value: Tensor, generator: torch.Generator) -> Tensor:
    if not value.numel() or not value.is_floating_point():
        return torch.zeros_like(value)
    few = torch.randn(min(value.numel(), 4099), generator=generator)
    many = few.repeat(-(-value.numel() // len(few)))[: value.numel()].view(value.shape)
    size = float(value.detach().float().square().mean().sqrt())
    return (many * (0.1 * (size if np.isfinite(size) else 0.0) + 0.05)).to(value)


class Snapshot:
    """What a forward pass may change in a model besides its result: buffers, attributes, and the states of chance."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._modules = [
            (
                module,
                {key: _kept(each) for key, each in vars(module).items() if key not in _PARTS},
                dict(module._buffers),
            )
            for module in model.modules()
        ]
        self._hooks = [(hooks, dict(hooks)) for module in model.modules() for hooks in _hooks(module)]
        self._values = {id(buffer): buffer.detach().clone() for buffer in model.buffers()}
        self._chance = (torch.get_rng_state(), random.getstate(), np.random.get_state())  # noqa: NPY002

    def changed_buffers(self) -> list[str]:
        """Names of the buffers that do not hold the values they had."""
        names = []
        known = {id(module): buffers for module, _, buffers in self._modules}
        for prefix, module in self.model.named_modules():
            before = known.get(id(module), {})
            for name, buffer in module._buffers.items():
                old = before.get(name)
                if buffer is None and old is None:
                    continue
                if old is None or buffer is None or not _same(buffer, self._values[id(old)]):
                    names.append(f"{prefix}.{name}" if prefix else name)
        return names

    def restore(self) -> None:
        """Put everything back."""
        for module, attributes, buffers in self._modules:
            for key in [key for key in module.__dict__ if key not in _PARTS and key not in attributes]:
                del module.__dict__[key]
            module.__dict__.update({key: _kept(each) for key, each in attributes.items()})
            module._buffers.clear()
            module._buffers.update(buffers)
            for buffer in buffers.values():
                if buffer is not None and not _same(buffer, self._values[id(buffer)]):
                    with torch.no_grad():
                        buffer.copy_(self._values[id(buffer)])
        for hooks, those in self._hooks:
            if len(hooks) != len(those):
                hooks.clear()
                hooks.update(those)
        torch.set_rng_state(self._chance[0])
        random.setstate(self._chance[1])
        np.random.set_state(self._chance[2])  # noqa: NPY002


_PARTS = {"_parameters", "_buffers", "_modules"}


def _hooks(module: nn.Module) -> list[dict[int, Any]]:
    """The tables of hooks, which others hold on to: some models hang hooks on themselves when they first run."""
    return [each for key, each in vars(module).items() if "hooks" in key and isinstance(each, dict)]


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return bool(((one == two) | ((one != one) & (two != two))).all())


def _kept(value: Any) -> Any:
    return copy.copy(value) if type(value) in (list, dict, set) else value


@contextmanager
def aside(model: nn.Module) -> Iterator[Snapshot]:
    """Run the model in here as often as you like: afterwards it is as it was."""
    rates = [(module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    for module, _ in rates:
        module.dropout = 0.0
    snapshot = Snapshot(model)
    try:
        yield snapshot
    finally:
        snapshot.restore()
        for module, rate in rates:
            module.dropout = rate
