"""What a model hands on beside its results per sample: numbers of the whole batch, values of Python's, attributes.

A loss that uses such a thing, a maximum over the batch for one, is another function for every batch, and no trial of
the loss by itself shows that. Tensors without a place for each sample that hold values of samples are *withheld*:
nobody can use them, and a loss computed inside of a model is left alone by one who does not. Values of Python's may not
depend on samples at all.
"""

from __future__ import annotations

import enum
import itertools
import operator
from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from functools import cached_property, partial
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina.errors import Unsupported
from sordina.gradients._kept_state import _installed, attributes_of, inside_generator
from sordina.gradients._owners import Owners
from sordina.gradients._reads import Reads
from sordina.gradients._tracing import changed, described, sequence_like, tensors_in
from sordina.gradients._turns import Turns
from sordina.gradients.one_by_one import NOT_PER_SAMPLE, Apart
from sordina.gradients.structure import Mixing, Structure

if TYPE_CHECKING:
    from sordina.gradients._study import StructureTrial

READING = {
    "item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__", "__complex__", "__len__",
    "backward", "__contains__", "is_nonzero", "__iter__",
}  # fmt: skip
"""Ways from a tensor to Python."""


class Withheld(Tensor):
    """Stands for a tensor that holds values of several samples: its shape can be asked for, and nothing else."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Operations on nothing else give the same; with other tensors, or into Python, there is no way."""
        name = getattr(func, "__name__", "")
        if name == "__repr__":
            return "withheld"
        if name in READING or not all(isinstance(each, Withheld) for each in tensors_in([args, kwargs or {}])):
            raise Unsupported(NOT_PER_SAMPLE)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def withheld(tensor: Tensor) -> Tensor:
    """What stands for ``tensor``, with none of its values."""
    if isinstance(tensor, Withheld):
        return tensor
    number = float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0
    return torch.full_like(tensor.detach(), number).as_subclass(Withheld)


def without_asides(result: Any, structure: Structure, apart: Apart | None) -> Any:
    """A result of the model in which tensors are withheld that are not of one sample each, nor of none.

    Args:
        result: What the model said.
        structure: What is known of it.
        apart: Of samples that ran alone: where they do not all agree on a tensor, it is withheld.
    """
    hidden = structure.shared if apart is None else apart.disputed()
    places = itertools.count()
    return changed(result, lambda each: withheld(each) if next(places) in hidden else each) if hidden else result


def withhold_attributes(model: nn.Module, names: Collection[str]) -> None:
    """Leave nothing of a batch in the attributes of these names."""
    for prefix, module in model.named_modules() if names else ():
        for key, value in list(vars(module).items()):
            if (f"{prefix}.{key}" if prefix else key) in names:
                if isinstance(value, list):
                    value[:] = changed(value, withheld)
                else:
                    vars(module)[key] = changed(value, withheld)


# Objects, of which nobody knows whose values they hold.

OBJECT = (
    "the model returns, or its result holds, an object ({}), of which nobody knows whose samples are in it: return "
    "what the loss needs as tensors with a row for each sample, in a tuple, a dictionary, a dataclass or a ModelOutput "
    "(of a distribution its parameters: make it in the loss)."
)
NUMBERS = {type(None), bool, int, float, complex, str, bytes}
CONSTANTS = (enum.Enum, torch.dtype, torch.device)
"""With `NUMBERS` and those of NumPy what is compared from batch to batch (`said`)."""


class WithheldObject:
    """Stands for an object in a result: a cache that nobody uses may be there."""

    __slots__ = ("_kind",)

    def __init__(self, kind: str) -> None:
        """``kind`` says what it is."""
        self._kind = kind

    def __repr__(self) -> str:
        return "withheld"

    def __getattr__(self, name: str) -> Any:
        """Nothing of it can be asked for."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(OBJECT.format(self._kind))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Nor can it be called."""
        raise Unsupported(OBJECT.format(self._kind))

    __getitem__ = __iter__ = __len__ = __bool__ = __call__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Nor can anything be computed with it."""
        both = (*args, *(kwargs or {}).values())
        kinds = [each._kind for each in both if isinstance(each, WithheldObject)]
        raise Unsupported(OBJECT.format(*kinds or ["WithheldObject"]))


def _compared(value: Any) -> bool:
    """Whether a value cannot depend on samples unseen."""
    if isinstance(value, (tuple, set, frozenset)):
        return type(value) in (tuple, set, frozenset) and all(map(_compared, value))
    return type(value) in NUMBERS or isinstance(value, (np.generic, *CONSTANTS))


def without_objects(value: Any) -> Any:
    """A result in which nothing is left but what is looked into; a copy that is not the model's own may be changed."""
    if isinstance(value, Tensor):  # one with a graph is a new one, without attributes (`Calls`)
        return value if value.requires_grad or not vars(value) else value.detach()
    if _compared(value):
        return value
    if isinstance(value, (list, tuple)):
        items = [without_objects(each) for each in value]
        return value if all(map(operator.is_, items, value)) else sequence_like(value, items)
    if isinstance(value, Mapping) and not all(map(_compared, value)):
        return WithheldObject(type(next(key for key in value if not _compared(key))).__name__)
    if isinstance(value, (dict, UserDict)):
        found = {key: without_objects(each) for key, each in value.items()}
        for key, each in found.items():
            if each is not value[key]:
                value[key] = each
        return _without_others(value, {**found, "data": value.data} if isinstance(value, UserDict) else found)
    if isinstance(value, Mapping):
        return {key: without_objects(each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        found = {each.name: without_objects(getattr(value, each.name)) for each in fields(value)}
        for name, each in found.items():
            object.__setattr__(value, name, each)
        return _without_others(value, found)
    seen = type(value) is np.ndarray and not value.dtype.hasobject
    return value if seen else WithheldObject(type(value).__name__)


def _without_others(value: Any, known: Mapping[Any, Any]) -> Any:
    """A mapping or dataclass in whose attributes nothing is but what is ``known``, and what is computed from it."""
    own = getattr(value, "__dict__", {})
    for name, held in list(own.items()):
        if name in known:
            own[name] = known[name]
        elif isinstance(getattr(type(value), name, None), cached_property):
            del own[name]
        elif held is not None:
            own[name] = WithheldObject(f"{type(value).__name__}.{name}")
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            hidden = isinstance(slot, MemberDescriptorType) and name not in known
            if hidden and getattr(value, name, None) is not None:
                object.__setattr__(value, name, WithheldObject(f"{type(value).__name__}.{name}"))
    return value


def check_told(result: Any) -> None:
    """Refuse a result without a tensor, if it is an object that may hold some."""
    if next(tensors_in([result]), None) is None:
        while isinstance(result, (list, tuple)) and result:
            result = result[0]
        if not (_compared(result) or isinstance(result, (Mapping, np.ndarray)) or is_dataclass(result)):
            raise Unsupported(OBJECT.format(type(result).__name__))


def with_asides(trial: StructureTrial, structure: Structure, batches: Sequence[tuple[int, Any]]) -> Structure:
    """The structure, with the results and attributes in which values of samples are that have no place of their own.

    Args:
        trial: The model, aside.
        structure: What is known of it.
        batches: Numbers of samples, and arguments for as many.
    """
    loose = {place for place, each in enumerate(structure.outputs) if each is None}
    found, held = set[int](), set[str]()
    for rows, value in batches if loose else batches[:1]:
        samples = [(x, dim) for x, dim in zip(tensors_in([value]), trial.dims, strict=True) if dim is not None]
        turns = Turns()
        while (turned := turns.following()) is not None and not turns.too_many:
            reads = Reads([tensor for tensor, _ in samples], rows, turned) if structure.reads else None
            failed = False
            try:
                with Owners(rows, trial.study.seed) as owners:
                    for tensor, dim in samples:
                        owners.own(tensor, dim)
                    with reads or nullcontext():
                        results = trial.fresh(partial(trial.study.plain, value))
                    loosely = {place for place in loose if not owners.ownerless(results[place])}
                    found |= loose if owners.lost else loosely
                    own = [(name, each) for name, each in held_by(trial.study.model) if each.numel()]
                    held |= {name for name, each in own if not owners.ownerless(each)}
            except Exception:
                failed = True
                found |= set() if turned else loose  # it cannot be followed, or a check fails
            if reads is not None:
                turns.ran(turned, reads.met(calm=False), failed)
        found |= loose if turns.too_many else set()
    return replace(structure, shared=frozenset(found), holding=frozenset(held) - trial.study.public_buffers)


def held_by(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors that the modules of a model hold, but for parameters; also what is put on these, or in generators."""
    for prefix, module in model.named_modules():
        own = {key: each for key, each in vars(module).items() if key not in ("_parameters", "_modules", "_buffers")}
        own |= {key: inside for key, each in own.items() if (inside := inside_generator(each)) is not None}
        for name, each in (*module._parameters.items(), *module._buffers.items()):
            own |= {f"{name}.{key}": inner for key, inner in attributes_of(each).items()}
        for key, value in (*own.items(), *module._buffers.items()):
            for tensor in tensors_in([value]):
                yield f"{prefix}.{key}" if prefix else key, tensor


# Values of Python's.

ASIDE = (
    "samples mix: a value of Python's in the model's result depends on samples, or on how many there are, so that a "
    "loss can be another one for every batch: return tensors with a row for each sample, and nothing of the batch."
)
IN_ATTRIBUTE = (
    "samples mix: the attribute {!r} of the model depends on samples, so that a loss which looks at it is another one "
    "for every batch: keep nothing of a batch in the model, and return what the loss needs, with a row for each sample."
)


def said(value: Any) -> Any:
    """What ``value`` is apart from its tensors: see `described`; also inside objects of the user's, and of NumPy."""
    if isinstance(value, (list, tuple)):
        return (type(value), *map(said, value))
    if isinstance(value, Mapping):
        return (type(value), *((key, said(each)) for key, each in value.items()))
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), *(said(getattr(value, each.name)) for each in fields(value)))
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, (set, frozenset, complex, bytes, *CONSTANTS)):
        return type(value), repr(value)
    if not isinstance(value, (Tensor, nn.Module, type)) and not _installed(type(value).__module__):
        return (type(value), said(getattr(value, "__dict__", {})))
    return described(value)


class Results(list[Tensor]):
    """The tensors of a model's result, and what else it says."""

    def __init__(self, result: Any) -> None:
        super().__init__(tensors_in([result]))
        self.said = said(result)
        self.kept: Mapping[str, Any] = {}
        """Values of Python's that the model has in its attributes afterwards, if somebody looked."""


def check_said(results: Sequence[Any]) -> None:
    """Refuse results that differ in more than their tensors.

    Args:
        results: What a model said of several batches.
    """
    first, *others = (each.said if isinstance(each, Results) else said(each) for each in results)
    if any(each != first for each in others):
        raise Mixing(ASIDE)


def check_asides(one: Sequence[Tensor], two: Sequence[Tensor]) -> None:
    """Refuse a model that leaves something else in its attributes, or says it, once an answer is turned around.

    Args:
        one: What it said usually.
        two: With the answer turned.
    """
    check_said([one, two])
    if isinstance(one, Results) and isinstance(two, Results):
        check_kept(one.kept, two.kept)


class Agreement:
    """Watches samples that run alone: all leave the same in attributes, and say the same in values of Python's."""

    def __init__(self, model: nn.Module, run: Callable[..., Any]) -> None:
        self.model, self.run = model, run
        self._first: tuple[Any, Mapping[str, Any]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model says of a sample."""
        result = self.run(*args, **kwargs)
        now = said(result), numbers_kept(self.model)
        self._first = self._first or now
        if now[0] != self._first[0]:
            raise Mixing(ASIDE)
        check_kept(self._first[1], now[1])
        return result


PLAIN = (bool, int, float, str, np.generic)


def numbers_kept(model: nn.Module) -> dict[str, Any]:
    """The attributes of a model's modules that are values of Python's."""
    return {
        f"{prefix}.{key}" if prefix else key: value
        for prefix, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, PLAIN)
    }


def check_kept(one: Mapping[str, Any], two: Mapping[str, Any]) -> None:
    """Refuse a model in which an attribute is another one after other samples.

    Args:
        one: What it kept after some samples.
        two: After others.
    """
    for name in dict.fromkeys((*one, *two)):
        before, after = one.get(name), two.get(name)
        if before is not after and before != after and not (before != before and after != after):
            raise Mixing(IN_ATTRIBUTE.format(name))
