"""Running a model on the side: on made-up rows, without chance, and so that nothing is left behind.

What the engine must know about a model it finds out on *synthetic* rows, which have the shapes and kinds of the real
ones and nothing else of them. So what it decides does not depend on anybody's record. The parameters are moved a
little at random meanwhile: a gate that is still zero, or a head that starts at zero, would hide what lies behind it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina.errors import Unsupported
from sordina.gradients._chance import Generators
from sordina.gradients._kept_state import KeptState as KeptState
from sordina.gradients._kept_state import digest, same
from sordina.gradients._kept_state import kept_state as kept_state
from sordina.gradients._kept_state import left_otherwise as left_otherwise
from sordina.gradients._tracing import changed, tensors_in

Dims = tuple[int | None, ...]
"""For each tensor among the arguments the dimension of the samples; None where it is the same for all of them."""
Maker = Callable[[Tensor, int, int, torch.Generator, int], Tensor]
"""From a real tensor, its dimension of samples, a number of rows and a limit of whole numbers to that many rows."""
FEW = 2
"""Whole numbers below it are taken by nearly every model: the first word, the second class."""
LIMITS = (65536, 1009, 101, 29, 13, 7, 5, 4, 3)
"""Other limits to try: with zeros and ones alone, rows are too much alike to show what happens between them."""


def normal_rows(like: Tensor, dim: int, rows: int, generator: torch.Generator, limit: int) -> Tensor:
    """Normal numbers, and whole ones from zero on where only those fit."""
    shape = _resized(like, dim, rows)
    if like.is_floating_point() or like.is_complex():
        return torch.randn(shape, generator=generator).to(like)
    return _whole(like, shape, generator, 0, limit)


def positive_rows(like: Tensor, dim: int, rows: int, generator: torch.Generator, limit: int) -> Tensor:
    """Numbers between a half and one, and whole ones from one on where only those fit."""
    shape = _resized(like, dim, rows)
    if like.is_floating_point() or like.is_complex():
        return (torch.rand(shape, generator=generator) / 2 + 0.5).to(like)
    return _whole(like, shape, generator, 1, limit)


def _whole(like: Tensor, shape: list[int], generator: torch.Generator, low: int, limit: int) -> Tensor:
    """Whole numbers from ``low`` to below ``limit``, both ends among them."""
    high = min(limit, 2 if like.dtype == torch.bool else torch.iinfo(like.dtype).max + 1)
    drawn = torch.randint(low, high, shape, generator=generator).flatten()
    for place, end in zip(torch.randperm(len(drawn), generator=generator).tolist(), (high - 1, low), strict=False):
        drawn[place] = end
    return drawn.view(shape).to(like.device, like.dtype)


def real_rows(like: Tensor, dim: int, rows: int, generator: torch.Generator, limit: int) -> Tensor:
    """Rows of the batch itself, for models that take nothing else."""
    return like.detach().index_select(dim, torch.arange(rows, device=like.device) % max(1, like.shape[dim]))


MAKERS: tuple[Maker, ...] = (normal_rows, positive_rows, real_rows)


def _resized(like: Tensor, dim: int, rows: int) -> list[int]:
    return [rows if place == dim else size for place, size in enumerate(like.shape)]


Limits = tuple[int, ...]
"""For each tensor among the arguments the limit of whole numbers in it."""


def made(
    value: Any, dims: Dims, rows: int, maker: Maker, generator: torch.Generator, limits: Limits, double: bool = False
) -> Any:
    """Arguments like ``value`` for ``rows`` made-up samples."""
    places = zip(dims, limits, strict=True)

    def change(tensor: Tensor) -> Tensor:
        dim, limit = next(places)
        fresh = tensor.detach() if dim is None else maker(tensor, dim, rows, generator, limit)
        return fresh.double() if double and fresh.is_floating_point() else fresh

    return changed(value, change)


def limits_found(value: Any, dims: Dims, takes: Callable[[Limits], bool]) -> Limits:
    """The largest of `LIMITS` for each tensor of whole numbers that the model takes, one tensor after the other.

    An index beyond a table is an error that can be caught on a processor only; elsewhere it ends the process.
    """
    tensors = list(tensors_in([value]))
    found = [FEW] * len(tensors)
    for place, (tensor, dim) in enumerate(zip(tensors, dims, strict=True)):
        if dim is None or not ranged(tensor):
            continue
        for limit in LIMITS:
            if takes((*found[:place], limit, *found[place + 1 :])):
                found[place] = limit
                break
    return tuple(found)


def ranged(tensor: Tensor) -> bool:
    """Whether a tensor holds whole numbers of which nobody knows how large they may be."""
    kind = tensor.dtype
    return not (kind.is_floating_point or kind.is_complex or kind == torch.bool) and tensor.device.type == "cpu"


SIZES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31), (4, 6, 8, 10, 14, 16, 22, 26, 34, 38)
"""An odd and an even batch size to try a model with; those that occur among the sizes of its inputs are left out."""


def batch_dims(value: tuple[Any, Any], rows: int, constant: frozenset[int]) -> Iterator[Dims]:
    """For each tensor of the arguments the dimensions in which the samples may lie, most likely first."""
    choices: list[list[int | None]] = []
    for place, tensor in enumerate(tensors_in([value])):
        dims: list[int | None] = [dim for dim, size in enumerate(tensor.shape) if size == rows]
        choices.append([*([] if place in constant else dims), None])
    options = (dims for dims in product(*choices) if any(dim is not None for dim in dims))
    return islice(options, 12)


def batch_sizes(value: tuple[Any, Any]) -> tuple[int, int]:
    """An odd and an even size that do not occur among the sizes of the arguments."""
    taken = {size for tensor in tensors_in([value]) for size in tensor.shape}
    few, many = (next((size for size in sizes if size not in taken), sizes[-1]) for sizes in SIZES)
    return few, many


SMALL, LARGE = 1 << 16, 1 << 23
"""Gradients of all parameters of up to so many values are compared, and of larger ones with as many in all."""


def looked_at(model: nn.Module, seed: int) -> list[nn.Parameter]:
    """The parameters whose gradients are compared: all that are small, and some others, one at least, by ``seed``."""
    trained = [one for one in model.parameters() if one.requires_grad]
    chosen, large = [one for one in trained if one.numel() <= SMALL], [one for one in trained if one.numel() > SMALL]
    left = LARGE
    for number, one in enumerate(random.Random(seed).sample(large, len(large))):
        if not number or one.numel() <= left:
            chosen.append(one)
            left -= one.numel()
    return chosen


def flipped(value: Any, dims: Dims) -> Any:
    """The arguments with the samples in the opposite order."""
    places = iter(dims)

    def change(tensor: Tensor) -> Tensor:
        dim = next(places)
        return tensor if dim is None else tensor.flip(dim)

    return changed(value, change)


def part(value: Any, dims: Dims, start: int, count: int = 1) -> Any:
    """The arguments of ``count`` samples from ``start`` on."""
    places = iter(dims)

    def change(tensor: Tensor) -> Tensor:
        dim = next(places)
        return tensor if dim is None else tensor.narrow(dim, start, count)

    return changed(value, change)


def chosen(value: Any, dims: Dims, rows: Sequence[int]) -> Any:
    """The arguments of some samples."""
    places = iter(dims)

    def change(tensor: Tensor) -> Tensor:
        dim = next(places)
        return tensor if dim is None else tensor.index_select(dim, torch.tensor(rows, device=tensor.device))

    return changed(value, change)


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor holds whole numbers that may be changed within their range.

    They may be indices, of which a wrong one can be caught on a processor only; those of shorter types are none.
    """
    return tensor.dtype in (WHOLE if tensor.device.type == "cpu" else WHOLE[:3]) and tensor.numel() > 0


WHOLE = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
"""Types of whole numbers with which one can calculate."""


def within(tensor: Tensor, numbers: Tensor) -> Tensor:
    """``numbers`` as whole ones between the least and the largest of ``tensor``; what is no number is the least.

    No negative number is made but the least: it may stand for something (a label that is ignored), and no other does.
    """
    low, high = float(tensor.min()), float(tensor.max())
    numbers = numbers.nan_to_num(low, high, low).clamp(low, high).trunc()
    return numbers.masked_fill(numbers < 0, low).to(tensor.dtype)


def all_whole(value: Any, dims: Dims) -> bool:
    """Whether samples have no floats, so that what is done to floats can be done to whole numbers only."""
    held = [x for x, dim in zip(tensors_in([value]), dims, strict=True) if dim is not None]
    return not any(x.is_floating_point() for x in held) and any(is_whole(x) for x in held)


def replaced(
    value: Any, dims: Dims, sample: int, other: int, change: Callable[[Tensor], Tensor], whole: bool = False
) -> Any:
    """The arguments with those of ``sample`` replaced by the ``other`` sample's.

    ``change`` is done to floats after, and where ``whole`` also to whole numbers, within their range.
    """
    places = iter(dims)

    def exchange(tensor: Tensor) -> Tensor:
        dim = next(places)
        if dim is None:
            return tensor
        twin = tensor.detach().clone()
        row = twin.select(dim, other).clone()
        if row.is_floating_point() or (row.dtype == torch.bool and change in (torch.zeros_like, torch.ones_like)):
            row = change(row)
        elif whole and is_whole(tensor):
            row = within(tensor, change(row.double()))
        twin.select(dim, sample).copy_(row)
        return twin

    return changed(value, exchange)


def scaled(value: Any, dims: Dims, rows: Sequence[int], factor: float, whole: bool = False) -> Any:
    """The arguments with the floats of some samples times ``factor``: most of a batch may move its median.

    Where ``whole``, so are whole numbers, within their range.
    """
    places = iter(dims)

    def change(tensor: Tensor) -> Tensor:
        dim = next(places)
        floats = tensor.is_floating_point()
        if dim is None or not (floats or (whole and is_whole(tensor))):
            return tensor
        index = torch.tensor(rows, device=tensor.device)
        twin = tensor.detach().clone()
        some = twin.index_select(dim, index)
        return twin.index_copy_(dim, index, some * factor if floats else within(tensor, some.double() * factor))

    return changed(value, change)


def swamped(value: Any, dims: Dims, sample: int, number: float) -> Any:
    """The arguments with all floats of other samples than ``sample`` at ``number``."""
    places = iter(dims)

    def change(tensor: Tensor) -> Tensor:
        dim = next(places)
        if dim is None or not tensor.is_floating_point():
            return tensor
        twin = torch.full_like(tensor, number)
        twin.select(dim, sample).copy_(tensor.detach().select(dim, sample))
        return twin

    return changed(value, change)


CHANGES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda row: row,
    lambda row: row * 1e3 + 1e2,
    lambda row: row * -1e-2,
    lambda row: row * -1e3 - 1e2,
    lambda row: torch.full_like(row, float("nan")),
)
"""What is done to the row that takes the place of a sample."""
LOUD = (CHANGES[1], CHANGES[3], CHANGES[4])
"""Those that move any statistic of a batch, to either side."""
EXTREME: tuple[Callable[[Tensor], Tensor], ...] = (
    CHANGES[4],
    lambda row: torch.full_like(row, float("inf")),
    lambda row: row * 1e30,
    lambda row: row * -1e30,
    lambda row: row * 1e4,
    lambda row: torch.zeros_like(row),
)
"""What records seldom are, and what scales and counts may follow."""


def extreme_batches(value: Any, dims: Dims) -> Iterator[Any]:
    """The arguments with a row that is no number, infinite, huge or nothing: for states that seldom change."""
    samples = [(x, dim) for x, dim in zip(tensors_in([value]), dims, strict=True) if dim is not None]
    rows = range(samples[0][0].shape[samples[0][1]])
    if any(x.is_floating_point() for x, _ in samples):
        yield from (replaced(value, dims, 0, 0, change) for change in EXTREME)
        yield scaled(value, dims, rows, 1e30)
    if any(is_whole(x) for x, _ in samples):
        yield scaled(value, dims, rows, 1 / 16, whole=True)


def rows_of(tensor: Tensor, dim: int, sample: int, rows: int) -> Tensor:
    """What belongs to one of ``rows`` samples along ``dim``."""
    size = tensor.shape[dim] // rows
    return tensor.narrow(dim, sample * size, size)


def random_like(like: Tensor, generator: torch.Generator, dim: int | None, loud: Tensor | None) -> Tensor:
    """Normal numbers, those of each sample along ``dim`` as many times as large as ``loud`` says."""
    kind = like.dtype if like.is_floating_point() else torch.float32
    drawn = torch.randn(like.shape, generator=generator)
    if dim is not None and loud is not None:
        size = like.shape[dim]
        drawn = drawn * loud.repeat_interleave(size // len(loud)).view(size, *[1] * (like.dim() - dim - 1))
    return drawn.to(like.device, kind)


def rows_in(tensors: Sequence[Tensor], dims: Dims) -> int | None:
    """How many samples the tensors of the arguments have; None if they do not agree."""
    sizes = {
        tensor.shape[dim] if dim < tensor.dim() else -1
        for tensor, dim in zip(tensors, dims, strict=True)
        if dim is not None
    }
    return sizes.pop() if len(sizes) == 1 else None


def gone_back(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], upstream: Sequence[Tensor], retain: bool = False
) -> tuple[Tensor | None, ...]:
    """As `torch.autograd.grad`, but for modes, which do not hold inside of that: see what a checkpoint computes again.

    Args:
        outputs: Where to begin.
        inputs: What the gradients are taken of; None is the gradient of what the outputs do not depend on.
        upstream: The gradients of the outputs.
        retain: Whether the graph is needed once more.
    """
    if RUN_BACKWARD is None:
        return torch.autograd.grad(outputs, inputs, upstream, retain_graph=retain, allow_unused=True)
    found: tuple[Tensor | None, ...] = RUN_BACKWARD(
        tuple(outputs), tuple(upstream), retain, False, tuple(inputs), True, accumulate_grad=False
    )
    return found


RUN_BACKWARD: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)
"""What stands behind `torch.autograd.grad`, whose checks of its arguments take as long as a small layer."""


class Doubled:
    """Parameters that were in double precision for a while are no longer what a graph from before leads to."""

    times = 0
    """How often parameters were; a forward pass from before a change is of no use."""


@contextmanager
def moved(model: nn.Module, generator: torch.Generator | None, double: bool = False) -> Iterator[None]:
    """All parameters that learn moved at random by about a tenth, and all in double precision; put back at the end.

    What is frozen stays what it is, and is not copied: a shut gate that does not learn will not open.
    """
    tensors: list[Tensor] = [each for each in model.parameters() if double or each.requires_grad]
    tensors += [buffer for buffer in model.buffers() if double and buffer.is_floating_point()]
    own = [tensor.data for tensor in tensors]
    Doubled.times += double
    torch.clear_autocast_cache()  # it would go on with the weights as they were, and afterwards as they were moved
    try:
        for tensor, value in zip(tensors, own, strict=True):
            fresh = value.double() if double and value.is_floating_point() else value
            if generator is not None and isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                fresh = fresh + _noise(fresh, generator)
            tensor.data = fresh
        yield
    finally:
        for tensor, value in zip(tensors, own, strict=True):
            tensor.data = value
        torch.clear_autocast_cache()


def _noise(value: Tensor, generator: torch.Generator) -> Tensor:
    if not value.numel() or not value.is_floating_point():
        return torch.zeros_like(value)
    few = torch.randn(min(value.numel(), 4099), generator=generator)
    many = few.repeat(-(-value.numel() // len(few)))[: value.numel()].view(value.shape)
    size = float(value.detach().float().square().mean().sqrt())
    return (many * (0.1 * (size if np.isfinite(size) else 0.0) + 0.05)).to(value)


Fingerprint = Mapping[str, tuple[torch.dtype, int]]


class Recast(Unsupported):
    """A forward pass has brought a parameter to another precision."""


def fingerprint(model: nn.Module) -> Fingerprint:
    """The precision of each parameter, and a number that changes with its values, to the last bit, and their order.

    The bits of the values as whole numbers, each times an odd random number of its place, added up modulo 2^64: one
    changed value always shows, and several do but by a chance of about one in 2^32 or less.
    """
    with torch.no_grad():
        return {name: (each.dtype, digest(each.detach())) for name, each in model.named_parameters()}


def check_parameters(before: Fingerprint, after: Fingerprint) -> None:
    """Refuse a forward pass that changed a parameter."""
    for name, one in before.items():
        if (two := after.get(name)) != one:
            raise (Recast if two is not None and two[0] != one[0] else Unsupported)(changed_words(name))


def changed_words(name: str) -> str:
    """Why a parameter that a forward pass changes is refused."""
    return (
        f"the forward pass changes the parameter {name!r}, which would keep raw data outside any budget. Remove what "
        "writes into it (max_norm of an embedding, running averages, initialisation from the first batch)."
    )


BY_THE_BATCH_BEFORE = (
    "the model keeps data between batches: what it says of a batch, or its gradient, depends on the batch before, so "
    "what one record changes has no bound. Remove the memory (queues, averages)."
)


def remembers_words(name: str) -> str:
    """Why a model that keeps data is refused."""
    return (
        f"the model keeps data between batches, in {name!r}: what one record changes would have no bound as soon as it "
        "is used. Remove the memory (queues, averages, lists that grow, counts of samples), or begin anew in each call."
    )


def kept_words(name: str) -> str:
    """Why a buffer that changes is refused."""
    return (
        f"the forward pass changes the buffer {name!r}, which would keep raw data outside any budget. Remove it, or, "
        "if what it holds does not depend on the data (a count of steps), name it in public_buffers=."
    )


_PYTORCHS = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that every module has: its parts and hooks."""


class Attributes:
    """What the modules of a model keep in their attributes, and in buffers that may change, to be put back."""

    def __init__(self, model: nn.Module, buffers: Collection[str] = ()) -> None:
        """Remember all attributes, and the ``buffers`` of these names."""
        self._modules = [(own, {key: own[key] for key in own.keys() - _PYTORCHS}) for own in map(vars, model.modules())]
        self._filled = [
            (attributes, key, id(each), copy.copy(each))
            for _, attributes in self._modules
            for key, each in attributes.items()
            if type(each) in (list, dict, set)
        ]
        self._buffers = [
            (module._buffers, key, buffer, buffer.detach().clone())
            for prefix, module in (model.named_modules() if buffers else ())
            for key, buffer in module._buffers.items()
            if buffer is not None and (f"{prefix}.{key}" if prefix else key) in buffers
        ]

    def restore(self) -> None:
        """Put everything back; a list that was filled is replaced by what it was, one that several share by one."""
        fresh: dict[int, Any] = {}
        for attributes, key, number, filled in self._filled:
            if list(map(id, _items(attributes[key]))) != list(map(id, _items(filled))):
                attributes[key] = fresh.setdefault(number, copy.copy(filled))
        for own, attributes in self._modules:
            for key in own.keys() - attributes.keys() - _PYTORCHS:
                del own[key]
            own.update(attributes)
        for table, key, buffer, value in self._buffers:
            table[key] = buffer
            if not same(buffer, value):
                with torch.no_grad():
                    buffer.copy_(value)


def _items(filled: list[Any] | dict[Any, Any] | set[Any]) -> list[Any]:
    return [*filled, *(filled.values() if isinstance(filled, dict) else ())]


class Snapshot:
    """What a forward pass may change in a model besides its result: buffers, attributes, and the states of chance."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.objects: KeptState | None = None
        self._attributes = Attributes(model)
        self._modules = [(module, dict(module._buffers)) for module in model.modules()]
        self._hooks = [(hooks, dict(hooks)) for module in model.modules() for hooks in _hooks(module)]
        self._values = {id(buffer): buffer.detach().clone() for buffer in model.buffers()}
        self.generators = Generators(model)
        self._chance = self.generators.kept()

    def changed_buffers(self) -> list[str]:
        """Names of the buffers that do not hold the values they had."""
        names = []
        known = {id(module): buffers for module, buffers in self._modules}
        for prefix, module in self.model.named_modules():
            before = known.get(id(module), {})
            for name, buffer in module._buffers.items():
                old = before.get(name)
                if buffer is None and old is None:
                    continue
                if old is None or buffer is None or not same(buffer, self._values[id(old)]):
                    names.append(f"{prefix}.{name}" if prefix else name)
        return names

    def restore_all(self) -> None:
        """Put back also what is inside of objects, and wherever else the model leads to."""
        if self.objects is not None:
            self.objects.restore()
        self.restore()

    def restore(self) -> None:
        """Put everything back."""
        self._attributes.restore()
        for module, buffers in self._modules:
            module._buffers.clear()
            module._buffers.update(buffers)
            for buffer in buffers.values():
                if buffer is not None and not same(buffer, self._values[id(buffer)]):
                    with torch.no_grad():
                        buffer.copy_(self._values[id(buffer)])
        for hooks, those in self._hooks:
            if len(hooks) != len(those):
                hooks.clear()
                hooks.update(those)
        self.restore_chance()

    def renew_chance(self) -> None:
        """Have random numbers begin anew, here and wherever they are put back to from now on."""
        self.generators.begin_anew()
        self._chance = self.generators.kept()

    def restore_chance(self) -> None:
        """Put the states of chance back, and nothing else."""
        for put_back in self._chance:
            put_back()


def _hooks(module: nn.Module) -> list[dict[int, Any]]:
    """The tables of hooks, which others hold on to: some models hang hooks on themselves when they first run."""
    return [each for key, each in vars(module).items() if "hooks" in key and isinstance(each, dict)]


@contextmanager
def aside(model: nn.Module, anew: bool = False) -> Iterator[Snapshot]:
    """Run the model in here as often as you like: afterwards it is as it was.

    Args:
        model: What is run.
        anew: Whether random numbers begin anew in here, from where the snapshot puts them back to.
    """
    rates = [(module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    for module, _ in rates:
        module.dropout = 0.0
    snapshot = Snapshot(model)
    snapshot.objects = KeptState(model, 0)
    chance = snapshot.generators.kept()
    if anew:
        snapshot.renew_chance()
    try:
        yield snapshot
    finally:
        snapshot.restore_all()
        for put_back in chance:
            put_back()
        torch.clear_autocast_cache()  # weights that were cast without gradients would have none
        for module, rate in rates:
            module.dropout = rate
