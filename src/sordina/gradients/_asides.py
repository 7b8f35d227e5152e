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
from array import array
from collections import UserDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields, is_dataclass, replace
from functools import cached_property, partial
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from sordina.errors import Unsupported
from sordina.gradients._kept_state import Itself, _installed, all_differing, digest
from sordina.gradients._owners import Owners
from sordina.gradients._reach import NOWHERE, Stillness, is_simple, places
from sordina.gradients._reads import Reads
from sordina.gradients._rehearsal import part
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


LEFT = (
    " What a forward pass leaves in attributes, objects or hooks is withheld until the next one: return it, with a row "
    "for each sample, or look at it in evaluation mode on rows that are public."
)


class Withheld(Tensor):
    """Stands for a tensor that holds values of several samples: its shape can be asked for, and nothing else."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Operations on nothing else give the same; with other tensors, or into Python, there is no way."""
        name = getattr(func, "__name__", "")
        if name == "__repr__":
            return "withheld"
        if name in READING or not all(isinstance(each, Withheld) for each in tensors_in([args, kwargs or {}])):
            raise Unsupported(NOT_PER_SAMPLE + LEFT)
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
    """Stands for an object in a result, or in an attribute: a cache that nobody uses may be there."""

    __slots__ = ("_kind", "_words")

    def __init__(self, kind: str, words: str = OBJECT) -> None:
        """``kind`` says what it is, ``words`` what is wrong with using it."""
        self._kind, self._words = kind, words

    def __repr__(self) -> str:
        return "withheld"

    def __getattr__(self, name: str) -> Any:
        """Nothing of it can be asked for."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(self._words.format(self._kind))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Nor can it be called."""
        raise Unsupported(self._words.format(self._kind))

    __getitem__ = __setitem__ = __contains__ = __iter__ = __next__ = __len__ = __bool__ = __array__ = __call__
    __float__ = __int__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __abs__ = __call__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __call__
    __floordiv__ = __rfloordiv__ = __mod__ = __pow__ = __rpow__ = __call__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Nor can anything be computed with it."""
        both = (*args, *(kwargs or {}).values())
        for each in both:
            if isinstance(each, WithheldObject):
                each()
        raise Unsupported(OBJECT.format("WithheldObject"))


class WithheldTime(WithheldObject):
    """Stands for what is another one every time, such as a time: a model may go on adding to it."""

    __slots__ = ()

    def _absorb(self, *_: Any) -> WithheldTime:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _absorb
    __floordiv__ = __rfloordiv__ = __mod__ = __neg__ = __abs__ = __round__ = _absorb

    def __format__(self, spec: str) -> str:
        return "withheld"


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
    model = trial.study.model
    loose = {place for place, each in enumerate(structure.outputs) if each is None}
    found, held = set[int](), set[str]()
    for rows, value in batches if loose else batches[:1]:
        samples = [(x, dim) for x, dim in zip(tensors_in([value]), trial.dims, strict=True) if dim is not None]
        turns = Turns()
        while (turned := turns.following()) is not None and not turns.too_many:
            reads = Reads([tensor for tensor, _ in samples], rows, turned) if structure.reads else None
            failed = False
            trial.snapshot.restore_all()
            before = {id(each): (each, _version(each)) for _, each in held_by(model)}
            try:
                with Owners(rows, trial.study.seed) as owners:
                    for tensor, dim in samples:
                        owners.own(tensor, dim)
                    with reads or nullcontext():
                        results = trial.fresh(partial(trial.study.plain, value))
                    loosely = {place for place in loose if not owners.ownerless(results[place])}
                    found |= loose if owners.lost else loosely
                    own = [(name, each) for name, each in held_by(model) if each.numel()]
                    held |= {name for name, each in own if not owners.ownerless(each)}
            except Exception:
                failed = True
                found |= set() if turned else loose  # it cannot be followed, or a check fails
            if failed or owners.lost:
                own = [(name, each) for name, each in held_by(model) if each.numel()]
                held |= {name for name, each in own if (each, _version(each)) != before.get(id(each))}
            if reads is not None:
                turns.ran(turned, reads.met(calm=False), failed)
        found |= loose if turns.too_many else set()
    held |= {place.name for place in places(model) if isinstance(place.value, RAW)}
    structure = replace(structure, shared=frozenset(found), holding=frozenset(held) - trial.study.public_buffers)
    return _with_numbers(trial, structure, batches[-1][1])


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed, if it counts that."""
    return 0 if tensor.is_inference() else tensor._version


def _with_numbers(trial: StructureTrial, structure: Structure, larger: tuple[Any, Any]) -> Structure:
    """The structure, with the names of values of Python's that a model leaves behind otherwise than usual.

    Args:
        trial: The model, aside.
        structure: What is known of it.
        larger: Arguments for more samples than the trial has.
    """
    model, back = trial.study.model, trial.snapshot.restore_all

    def kept(value: tuple[Any, Any]) -> tuple[Kept, dict[str, list[Any]]]:
        back()
        old = {id(each): (each, _version(each)) for _, each in held_by(model)}
        trial.fresh(partial(trial.study.plain, value))
        numbers, made = numbers_kept(model), dict[str, list[Any]]()
        for name, each in held_by(model):
            if (each, _version(each)) != old.get(id(each)):
                made.setdefault(name, []).append(said_of(each))
        return numbers, made

    back()
    before, (usual, first), (again, second) = numbers_kept(model), kept(trial.value), kept(trial.value)
    volatile = usual.differing(again)  # as the time of day: what has the same name as a time is told apart by nothing
    others = [kept(value) for value in (larger, *(part(trial.value, trial.dims, row) for row in (0, 1)))]
    telling = trial.telling.union(*(usual.differing(numbers) for numbers, _ in others)) - volatile
    telling |= {name for name in volatile if not name.endswith(WHICH)}
    counts = any(all_differing(before.within, usual.within))
    held = {
        name
        for numbers, made in ((again, second), *others)
        for name in _otherwise(first, made) | _otherwise(usual.filled, numbers.filled)
    }
    return replace(
        structure, telling=frozenset(telling), volatile=frozenset(volatile), counts=counts,
        holding=structure.holding | held - trial.study.public_buffers,
    )  # fmt: skip


def _otherwise(one: Mapping[str, list[Any]], two: Mapping[str, list[Any]]) -> set[str]:
    """The names of tensors of one shape with other values: among them those that tell how many samples there were."""
    pairs = [(name, *pair) for name in one.keys() & two.keys() for pair in zip(one[name], two[name], strict=False)]
    return {name for name, a, b in pairs if a and b and a[0] == b[0] and a[1] != b[1]}


# What is left in attributes, or wherever else a model leads to.


def held_by(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a model leads to, but for its parameters, by name (`places`)."""
    own = set(map(id, model.parameters()))
    for place in places(model):
        if isinstance(place.value, Tensor) and id(place.value) not in own:
            yield place.name, place.value


def withhold_attributes(
    model: nn.Module, holding: Collection[str], telling: Collection[str], value: Any, volatile: Collection[str] = ()
) -> None:
    """Leave nothing of a batch where a model leads to.

    Args:
        model: After a forward pass.
        holding: Names under which no tensor is left.
        telling: Names under which nothing is left at all.
        value: The arguments of the call: what they are in is left as it is.
        volatile: Those of what is another one every time.
    """
    if not holding and not telling:
        return
    given = set[int]()
    _containers(value, given)
    for place in list(places(model, (*holding, *telling), given)):
        tells = place.name in telling and not isinstance(place.value, (*CONTAINERS, WithheldObject))
        tells |= f"{place.name}{WHICH}" in telling and not is_simple(place.value)
        if tells or (place.name in holding and isinstance(place.value, (Tensor, *RAW))):
            moves = place.name in volatile and is_simple(place.whole)
            place.fill(WithheldTime(place.name, MOVES) if moves else _hidden(place.whole, place.name, tells))


def _hidden(whole: Any, name: str, tells: bool) -> Any:
    """What stands for something that holds values of samples; or tells them, as values of Python's do."""
    if isinstance(whole, Tensor):
        return withheld(whole)
    if not tells and isinstance(whole, (list, tuple, dict)) and all(_shown(each) for each in values_of(whole)):
        return changed(whole, withheld)
    return WithheldObject(name, IN_ATTRIBUTE)


def _shown(value: Any) -> bool:
    """Whether nothing is in a value that `changed` does not change, or is compared."""
    if isinstance(value, (list, tuple, dict)):
        return all(_shown(each) for each in values_of(value))
    return isinstance(value, Tensor) or _compared(value)


def values_of(value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> Sequence[Any]:
    """The items of a container, without keys."""
    return list(value.values()) if isinstance(value, dict) else value


def _containers(value: Any, found: set[int]) -> None:
    """Note the containers in the arguments of a call."""
    if isinstance(value, (list, tuple, dict)):
        found.add(id(value))
        for each in values_of(value):
            _containers(each, found)
    elif is_dataclass(value):
        found.add(id(value))


CONTAINERS = (list, dict, set, deque, nn.Module)
"""What stays when something in it is withheld."""
RAW = (torch.UntypedStorage, torch.TypedStorage, torch.autograd.graph.Node)
"""Kinds that hold values without being tensors."""


# Values of Python's.

ASIDE = (
    "samples mix: a value of Python's in the model's result depends on samples, or on how many there are, so that a "
    "loss can be another one for every batch: return tensors with a row for each sample, and nothing of the batch."
)
IN_ATTRIBUTE = (
    "samples mix: the attribute {!r} of the model depends on samples, so that a loss which looks at it is another one "
    "for every batch: keep nothing of a batch in the model, and return what the loss needs, with a row for each sample."
)
MOVES = (
    "samples mix, for all that is known: the attribute {!r} of the model, or something beside it, is another one every "
    "time (a time, for one), so that nobody can tell whether it depends on samples: measure times outside of the model."
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
        return value.dtype, value.shape, value.flat[:: 1 + value.size // FEW_VALUES].tobytes()
    if isinstance(value, (set, frozenset, complex, bytes, bytearray, array, *CONSTANTS)):
        return type(value), repr(value)
    if not isinstance(value, (Tensor, nn.Module, type)) and not _installed(type(value).__module__):
        return (type(value), said(getattr(value, "__dict__", {})))
    return described(value)


class Results(list[Tensor]):
    """The tensors of a model's result, and what else it says."""

    def __init__(self, result: Any) -> None:
        super().__init__(tensors_in([result]))
        self.said = said(result)
        self.kept = Kept({}, {}, {}, {})
        """Values of Python's that the model has in its attributes afterwards, if somebody looked."""


def check_said(results: Sequence[Any]) -> None:
    """Refuse results that differ in more than their tensors.

    Args:
        results: What a model said of several batches.
    """
    first, *others = (each.said if isinstance(each, Results) else said(each) for each in results)
    if any(each != first for each in others):
        raise Mixing(ASIDE)


def check_asides(one: Sequence[Tensor], two: Sequence[Tensor]) -> set[str]:
    """Refuse a model that leaves something else in its attributes, or says it, once an answer is turned around.

    Args:
        one: What it said usually.
        two: With the answer turned.

    Returns:
        the names of what else it leaves behind (`check_kept`).
    """
    check_said([one, two])
    return check_kept(one.kept, two.kept) if isinstance(one, Results) and isinstance(two, Results) else set()


class Agreement:
    """Watches samples that run alone: all leave the same in attributes, and say the same in values of Python's."""

    def __init__(self, model: nn.Module, run: Callable[..., Any], volatile: Collection[str]) -> None:
        self.model, self.run, self.volatile = model, run, volatile
        self.telling: set[str] = set()
        """The names of what they do not leave alike, in objects and the like."""
        self._first: tuple[Any, Kept] | None = None
        self._still: Stillness | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model says of a sample."""
        result = self.run(*args, **kwargs)
        if self._first is None:
            self._first, self._still = (said(result), numbers_kept(self.model)), Stillness(self.model)
            return result
        if said(result) != self._first[0]:
            raise Mixing(ASIDE)
        if self._still is None or not self._still.holds():
            self.telling |= check_kept(self._first[1], numbers_kept(self.model), self.volatile)
        return result


PLAIN = (bool, int, float, str, np.generic)


class Kept(NamedTuple):
    """Values of Python's that a model leads to."""

    direct: dict[str, Any]
    """Those that are attributes of modules."""
    within: dict[str, list[Any]]
    """By name what is inside of objects, containers, closures and so on."""
    which: dict[str, list[Itself]]
    """By name which objects and tensors they are: one of two that were there before tells something too."""
    filled: dict[str, list[Any]]
    """By name what is in tensors, but for parameters and buffers."""

    def differing(self, other: Kept) -> set[str]:
        """The names of values that are others there."""
        own = zip(self[:3], other[:3], strict=True)
        return {name for one, two in own for name in all_differing(one, two)}


def numbers_kept(model: nn.Module) -> Kept:
    """The values of Python's that a model leads to."""
    kept = Kept({}, {}, {}, {})
    for place in places(model):
        name, value = place.name, place.value
        if place.direct and isinstance(value, PLAIN):
            kept.direct[name] = value
        elif is_simple(value):
            kept.within.setdefault(name, []).append(value)
        else:
            kept.which.setdefault(f"{name}{WHICH}", []).append(Itself(value))
            if isinstance(value, Tensor) and place.put is not NOWHERE and value.numel() <= FEW_VALUES:
                kept.filled.setdefault(name, []).append(said_of(value))
            if not isinstance(value, CONTAINERS):
                kept.within.setdefault(name, []).append(_kind(value))
    return kept


def _kind(value: Any) -> Any:
    """What tells an array, or a function, from others; of other things their kind."""
    if isinstance(value, (np.ndarray, bytearray, array)):
        return said(value)
    if isinstance(value, FunctionType):
        return Itself(value.__code__)
    named = isinstance(value, (BuiltinFunctionType, type, ModuleType, np.ufunc))
    return type(value).__name__, getattr(value, "__qualname__", value.__name__) if named else ""


WHICH = ".(which)"
FEW_VALUES = 1 << 16
"""Larger tensors are not compared."""


def said_of(tensor: Tensor) -> Any:
    """What tells a tensor from others."""
    with suppress(Exception), torch._C.DisableTorchFunction(), _disable_current_modes():
        sparse = tensor._values if tensor.layout == torch.sparse_coo else tensor.values
        return tensor.shape, digest((tensor if tensor.layout == torch.strided else sparse()).detach())
    return None


def check_kept(one: Kept, two: Kept, volatile: Collection[str] = ()) -> set[str]:
    """Refuse a model in which an attribute is another value of Python's after other samples.

    Args:
        one: What it kept after some samples.
        two: After others.
        volatile: Names of what is another one every time, as the time of day.

    Returns:
        the names of what is another one within objects: nobody may look at it.
    """
    for name in all_differing(one.direct, two.direct):
        if name not in volatile:
            raise Mixing(IN_ATTRIBUTE.format(name))
    pairs = zip(one[1:], two[1:], strict=True)
    return {name for pair in pairs for name in all_differing(*pair)}.difference(volatile)
