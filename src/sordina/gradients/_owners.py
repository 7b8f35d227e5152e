"""Whose values are in every value: every operation of a forward pass, and of the way back, is tried by itself.

Trials of a whole model see what it does to the rows they make up; a model that looks across the batch at other rows
only (records that are all yes, a value above nine) may pass them. So the *operations* of a pass are looked at too. Each
value has an owner: nobody (weights, constants), one sample, or `SEVERAL`. What owners the results of an operation have
is found out by calling this operation again with the values of one owner changed, to "not a number" and to random ones,
not by what the model had there: the least over rows of truths, for one, mixes them whatever they are. Operations that
work value by value are told by PyTorch itself; views share their memory, by which owners are kept.

Where a result of a sample, or a gradient on the way back to a tapped layer, has a value that is neither its own nor
nobody's, samples may mix, and the model runs one sample at a time (`sordina.gradients.one_by_one`), where no two ever
meet. That a value was computed from several samples says only that it *may* depend on them: nothing is refused by it.

What this does not see: what Python reads of values (`sordina.gradients._reads` does), and what depends on how many
samples there are (studies compare a sample in company with the same alone). `sordina.gradients._following` follows
passes of models and losses as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from sordina.gradients._chance import DROPOUTS, WATCHED
from sordina.gradients._owner_rules import SEVERAL, Leaves, along, anybodys, known_owners, together
from sordina.gradients._reads import SHAPES, memory_of

MOST_OWNERS, CROWD = 8, 3
"""So many samples are told apart; of more, groups."""
CHOOSING = {"where", "masked_fill", "masked_fill_"}
"""Operations value by value that may leave a value out: what they choose by is tried."""
ARITHMETIC = {
    "mm", "bmm", "addmm", "baddbmm", "convolution", "native_layer_norm", "native_group_norm", "_softmax",
    "_log_softmax", "sum", "mean", "convolution_backward", "native_layer_norm_backward", "native_group_norm_backward",
    "_softmax_backward_data", "_log_softmax_backward_data", "linear", "mv", "dot", "addmv",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
    "max_pool2d_with_indices", "avg_pool2d", "avg_pool2d_backward", "_adaptive_avg_pool2d",
}  # fmt: skip
"""Operations through which "not a number" passes wherever a value does."""
PYTORCHS = {"aten", "prims", "prim", "mkldnn", "quantized", "_quantized"}
"""Whose operations PyTorch's own are."""
VALUE_BY_VALUE = {
    "_to_copy", "floor_divide", "floor_divide_", "bernoulli", "bernoulli_", "poisson", "binomial", "_standard_gamma",
}  # fmt: skip
"""Operations that work value by value though PyTorch does not say so."""
SILENT = {*CHOOSING, "fill_", "zero_", "copy_", "set_", "resize_"}
"""Operations that may leave nothing of the values that are given to them."""


class Owners(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Around a forward pass and its way back: keeps the owners of all values."""

    def __init__(self, rows: int, seed: int = 0) -> None:
        """For ``rows`` samples; ``seed`` is that of the values that operations are tried with.

        Few samples are owners of their own, many stand in `CROWD` random groups: what looks across a whole batch shows.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._draw = torch.Generator().manual_seed(seed)
        each = torch.arange(1, rows + 1)
        self._who = (each if rows <= MOST_OWNERS else each[torch.randperm(rows, generator=self._draw)] % CROWD + 1).to(
            torch.uint8
        )
        self.lost = ""
        """An operation on values of samples whose results nobody can follow."""
        self._held: dict[int, _Held] = {}
        """By memory who owns what is in it."""
        self._most = FORGOTTEN
        self._dims, self._sizes, self._long = {0}, set[int](), set[int]()
        self._draws: list[_Draws] = []
        self._chance = False

    def own_chance(self) -> None:
        """From here on, give each sample the random numbers that are drawn for it too."""
        self._chance = True

    def __enter__(self) -> Owners:
        self._draws.append(_Draws(self))
        self._draws[-1].__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._draws.pop().__exit__(*error)  # type: ignore[no-untyped-call]

    def own(self, tensor: Tensor, dim: int) -> None:
        """Give each sample its part along ``dim``."""
        self._dims.add(dim)
        self._give(tensor, self._by_sample(tensor, dim).expand(tensor.shape))

    def foreign(self, tensor: Tensor, dim: int) -> bool:
        """Whether the part of a sample along ``dim`` has a value that is neither its own nor nobody's."""
        owners = self._owners(tensor)
        return owners is not None and bool(((owners != 0) & (owners != self._by_sample(tensor, dim))).any())

    def ownerless(self, tensor: Tensor) -> bool:
        """Whether all values are nobody's."""
        return tensor.numel() > 0 and self._owned(tensor) is None

    def _by_sample(self, tensor: Tensor, dim: int) -> Tensor:
        each = self._who.repeat_interleave(tensor.shape[dim] // len(self._who)).to(tensor.device)
        return each.view(-1, *[1] * (tensor.dim() - dim - 1))

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._operation(func, args, kwargs or {})

    def _operation(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
        owners = {place: each for place, leaf in enumerate(leaves) if (each := self._owned(leaf)) is not None}
        name = func._schema.name.rpartition("::")[2]
        self._note_sizes(leaves, owners)
        if not owners and self._chance and torch.Tag.nondeterministic_seeded in func.tags:
            return self.drawn(func(*args, **kwargs), leaves)
        if not owners or name in SHAPES or any(_seen_through(each) for each in func._schema.returns):
            return func(*args, **kwargs)
        if func.namespace not in PYTORCHS and (inner := self._inside(func, args, kwargs)) is not None:
            return inner
        written = _written(func, args, kwargs, leaves)
        kept = [leaf.clone() if place in written else leaf for place, leaf in enumerate(leaves)]
        with _same_chance(func, leaves) as again:
            result = func(*args, **kwargs)
            made = [each for each in tree_flatten(result)[0] if isinstance(each, Tensor)]
            changed = [leaves[place] for place in written]
            given = {memory_of(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
            fresh = [each for each in made if memory_of(each) not in given]
            if not fresh and not changed:
                return result
            if not all(map(memory_of, (*fresh, *changed))):
                self.lost = name
                return result
            pointwise = torch.Tag.pointwise in func.tags and name not in CHOOSING and not again
            if name in VALUE_BY_VALUE or pointwise:
                found = [together(owners.values(), each.shape) for each in (*changed, *fresh)]
            elif (known := known_owners(func, name, leaves, spec, owners, (*changed, *fresh))) is not None:
                found = known
            else:
                trials = _Trials(func, kept, spec, owners, written, self._draw, again)
                found = trials.found([*changed, *made], name in ARITHMETIC)
                if name not in SILENT and not any(bool(each.any()) for each in found):
                    found = [anybodys(owners).expand(each.shape) for each in found]  # no trial told anything
                found = found[: len(changed)] + [
                    each for each, tensor in zip(found[len(changed) :], made, strict=True) if _among(tensor, fresh)
                ]
        for tensor, each in zip((*changed, *fresh), found, strict=True):
            self._give(tensor, each)
        return result

    def _note_sizes(self, leaves: Leaves, owners: Mapping[int, Tensor]) -> None:
        """Sizes that are no numbers of samples, as weights and samples have; and of what has rows for each sample."""
        for place, leaf in enumerate(leaves):
            if place in owners:
                self._sizes.update(leaf.shape[1:])
                self._long.update(leaf.shape[:1])
            elif isinstance(leaf, Tensor) and _weight(leaf):
                self._sizes.update(leaf.shape)

    def drawn(self, result: Any, given: Sequence[Any], whose: Tensor | None = None) -> Any:
        """Random numbers are those of the samples that they are drawn for, if any.

        Args:
            result: The numbers.
            given: What the operation that drew them was given.
            whose: Their owners, where something of samples says how they are drawn, or how many.
        """
        for tensor in tree_flatten(result)[0] if self._chance else ():
            if not isinstance(tensor, Tensor) or not memory_of(tensor) or not self.ownerless(tensor):
                continue
            owner = self._whose_chance(tensor, given) if whose is None or whose.shape != tensor.shape else whose
            if owner is not None:
                self._give(tensor, owner.expand(tensor.shape))
        return result

    def _whose_chance(self, tensor: Tensor, given: Sequence[Any]) -> Tensor | None:
        if any(_weight(each) and each.shape == tensor.shape for each in given):
            return None  # noise on weights
        rows, few = len(self._who), len(self._who) <= MOST_OWNERS
        if not few and (rows in self._sizes or tensor.dim() < 2):
            return None  # it is likely not a number of samples
        for dim in (*sorted(self._dims), *(range(tensor.dim()) if few else ())):
            if dim < tensor.dim() and tensor.shape[dim] == rows:
                return self._by_sample(tensor, dim)
        long = few and tensor.dim() > 1 and tensor.shape[0] in self._long and tensor.shape[0] % rows == 0
        return self._by_sample(tensor, 0) if long else None

    def _inside(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of somebody's own operation, followed through what it is made of; None if that leads nowhere."""
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        with self:
            result = func.redispatch(keys, *args, **kwargs)
        made = [each for each in tree_flatten(result)[0] if isinstance(each, Tensor)]
        followed = made and not func._schema.is_mutable and not any(map(self.ownerless, made))
        return result if followed else None

    def _owned(self, leaf: Any) -> Tensor | None:
        owners = self._owners(leaf) if isinstance(leaf, Tensor) else None
        return owners if owners is not None and bool(owners.any()) else None

    def _owners(self, tensor: Tensor) -> Tensor | None:
        """The owners of a tensor's values; None where all are nobody's."""
        held = self._held.get(memory_of(tensor))
        return None if held is None else together(held.places(tensor).unbind(-1), tensor.shape)

    def _give(self, tensor: Tensor, owners: Tensor) -> None:
        memory = memory_of(tensor)
        held = self._held.get(memory)
        if held is None:
            if not bool(owners.any()):
                return
            if len(self._held) >= self._most:
                self._held = {key: each for key, each in self._held.items() if not each.gone}
                self._most = 2 * len(self._held) + FORGOTTEN
            held = self._held[memory] = _Held(tensor)
        places = held.places(tensor)
        places.copy_(owners[..., None].expand(places.shape))


class _Draws(TorchFunctionMode):
    """Gives random numbers to their samples, also where studies hold them (`sordina.gradients._chance`)."""

    def __init__(self, owners: Owners) -> None:
        super().__init__()
        self.owners = owners

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name not in WATCHED:
            return func(*args, **kwargs)
        given = tree_flatten((tuple(args), dict(kwargs)))[0]
        owned = {
            place: each.clone() for place, leaf in enumerate(given) if (each := self.owners._owned(leaf)) is not None
        }
        shaping = owned.pop(0, None) if name.endswith(("_like", "_")) else None  # nothing but its shape is used
        result = func(*args, **kwargs)
        if name in DROPOUTS and not owned and not name.endswith("_") and _among(result, given) and not _weight(result):
            result = result.clone()  # dropout that is held does nothing: what it was given stays nobody's
        if owned and isinstance(result, Tensor):
            return self.owners.drawn(result, given, _drawn_by(name, owned, result.shape))
        several = shaping is not None and bool((shaping == SEVERAL).any())
        return self.owners.drawn(result, given, None if several else shaping)


def _drawn_by(name: str, owners: Mapping[int, Tensor], shape: torch.Size) -> Tensor:
    """The owners of random numbers whose chances are somebody's."""
    if name == "multinomial" and list(owners) == [0]:
        return along(owners[0], -1).expand(shape)
    with suppress(RuntimeError):
        return together([each.expand(shape) for each in owners.values()], shape)
    return anybodys(owners).expand(shape)


FORGOTTEN = 64
"""So many memories are kept before those that are gone are forgotten."""


class _Held:
    """A memory, and who owns its values."""

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._storage = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._unit = tensor.element_size()
        self._each = torch.zeros(storage.nbytes() // self._unit, dtype=torch.uint8, device=tensor.device)

    @property
    def gone(self) -> bool:
        """Whether nobody holds it any more."""
        return bool(self._storage.expired())  # type: ignore[no-untyped-call]

    def places(self, tensor: Tensor) -> Tensor:
        """The owners of what a tensor has in it, several in the last dimension where its values are cut in pieces."""
        if tensor.element_size() % self._unit:  # complex numbers seen as pairs, for one
            self._each, self._unit = self._each.repeat_interleave(self._unit), 1
        size = tensor.element_size() // self._unit
        strides = [size * n for n in tensor.stride()]
        return self._each.as_strided((*tensor.shape, size), (*strides, 1), size * tensor.storage_offset())


class _Trials:
    """One operation, called again with the values of one owner changed."""

    def __init__(
        self,
        func: Any,
        leaves: Leaves,
        spec: Any,
        owners: Mapping[int, Tensor],
        written: Sequence[int],
        draw: torch.Generator,
        again: Callable[[], None] | None,
    ) -> None:
        self.func, self.leaves, self.spec, self.owners, self.written = func, leaves, spec, owners, written
        self.draw, self.again = draw, again
        self.groups = sorted(set[int]().union(*(owner.flatten().tolist() for owner in owners.values())) - {0})

    def found(self, results: Sequence[Tensor], arithmetic: bool) -> list[Tensor]:
        """The owners of the values of the ``results``."""
        self.owned = [torch.zeros(each.shape, dtype=torch.uint8, device=each.device) for each in results]
        floats = [self._number(place) for place in self.owners]
        if any(floats):
            spoke = self._tried(self._actual, self._missing, results)
            if spoke and all(floats) and arithmetic and not any(map(_missing_in, results)):
                return self.owned
        trials: list[tuple[Callable[[int], Tensor], Callable[[int], Tensor]]] = [
            (self._random, self._random),
            (self._actual, self._random),
            (self._positive, self._positive),
            (self._actual, self._halved),
        ]
        if not any(self._tried(base, change, results) for base, change in trials):
            return [torch.full_like(each, SEVERAL) for each in self.owned]
        if all(floats) and all(bool(each.all()) for each in self.owned):
            return self.owned  # all of it has changed
        for end in (torch.amin, torch.amax):  # the largest of many values, or whether any is true, seldom changes
            self._tried(partial(self._constant, end, all(floats)), self._random, results)
        return self.owned

    def _tried(self, base: Callable[[int], Tensor], change: Callable[[int], Tensor], results: Sequence[Tensor]) -> bool:
        """Note what changes with the values of each owner; False where the operation does not take such values."""
        usual = {place: self._blended(place, base(place), None) for place in self.owners}
        found = [each.clone() for each in self.owned]
        try:
            before = self._call(usual, results)
            for group in self.groups:
                other = {place: self._blended(place, change(place), group, usual[place]) for place in self.owners}
                for number, (one, two) in enumerate(zip(before, self._call(other, results), strict=True)):
                    if one.shape != two.shape or one.shape != results[number].shape:
                        found[number] = torch.full_like(found[number], SEVERAL)
                        continue
                    own = (found[number] == 0) | (found[number] == group)
                    found[number] = torch.where(_differ(one, two), torch.where(own, group, SEVERAL), found[number])
        except Exception:
            return False
        self.owned = [each.to(torch.uint8) for each in found]
        return True

    def _blended(self, place: int, values: Tensor, group: int | None, other: Tensor | None = None) -> Tensor:
        """An argument with ``values`` where somebody, or one ``group``, owns it, and the ``other`` elsewhere."""
        owner = self.owners[place]
        mask = owner != 0 if group is None else owner == group
        return torch.where(mask, values, self.leaves[place] if other is None else other)

    def _call(self, changes: Mapping[int, Tensor], results: Sequence[Tensor]) -> list[Tensor]:
        leaves = [changes.get(place, leaf) for place, leaf in enumerate(self.leaves)]
        for place in self.written:
            leaves[place] = leaves[place].clone()
        if self.again is not None:
            self.again()
        args, kwargs = tree_unflatten(leaves, self.spec)
        made = tree_flatten(self.func(*args, **kwargs))[0]
        found = [leaves[place] for place in self.written] + [each for each in made if isinstance(each, Tensor)]
        if len(found) != len(results):
            raise ValueError("another number of results")
        return found

    # Values to try.

    def _number(self, place: int) -> bool:
        return bool(self.leaves[place].is_floating_point() or self.leaves[place].is_complex())

    def _actual(self, place: int) -> Tensor:
        leaf: Tensor = self.leaves[place]
        return leaf

    def _missing(self, place: int) -> Tensor:
        leaf = self.leaves[place]
        return torch.full_like(leaf, float("nan")) if self._number(place) else leaf

    def _halved(self, place: int) -> Tensor:
        return self.leaves[place] * 0.5 if self._number(place) else self._random(place)

    def _positive(self, place: int) -> Tensor:
        leaf: Tensor = self.leaves[place]
        return torch.rand(leaf.shape, generator=self.draw).to(leaf) if self._number(place) else self._random(place)

    def _constant(self, end: Callable[[Tensor], Tensor], numbers: bool, place: int) -> Tensor:
        """Nothing but the least, or largest, whole number that is there, no truth, or every one; or zeros, or ones."""
        leaf: Tensor = self.leaves[place]
        if self._number(place) and not numbers:
            return self._random(place)
        if self._number(place) or leaf.dtype == torch.bool:
            return torch.full_like(leaf, float(end is torch.amax))
        return end(leaf).expand(leaf.shape)

    def _random(self, place: int) -> Tensor:
        """Normal numbers; truths; of whole numbers those that are there, which are in nobody's way as indices."""
        leaf: Tensor = self.leaves[place]
        if leaf.is_complex():
            return torch.complex(*(torch.randn(leaf.shape, generator=self.draw) for _ in range(2))).to(leaf)
        if leaf.is_floating_point():
            return torch.randn(leaf.shape, generator=self.draw).to(leaf)
        if leaf.dtype == torch.bool:
            return torch.randint(0, 2, leaf.shape, generator=self.draw).to(leaf)
        flat = leaf.reshape(-1)
        drawn = flat[torch.randint(len(flat), leaf.shape, generator=self.draw)]
        if bool((flat == flat[0]).all()):  # the operation may not take others: then it is not known what it does
            drawn = drawn + torch.randint(0, 2, leaf.shape, generator=self.draw).to(leaf)
        return drawn


def _weight(tensor: Any) -> bool:
    """Whether a tensor is a parameter: its shape says nothing of samples."""
    return isinstance(tensor, Tensor) and tensor.is_leaf and tensor.requires_grad


def _differ(one: Tensor, two: Tensor) -> Tensor:
    return (one != two) & ~((one != one) & (two != two))


def _missing_in(tensor: Tensor) -> bool:
    return bool((tensor != tensor).any())


def _among(tensor: Any, others: Sequence[Any]) -> bool:
    return any(tensor is each for each in others)


def _seen_through(returned: Any) -> bool:
    """Whether what an operation returns is a view of its argument."""
    return returned.alias_info is not None and not returned.alias_info.is_write


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], leaves: Leaves) -> list[int]:
    """The places of the arguments that an operation writes into."""
    names = [
        (number, each.name)
        for number, each in enumerate(func._schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    ]
    given = [args[number] if number < len(args) else kwargs.get(name) for number, name in names]
    written = {id(each) for each in tree_flatten(given)[0] if isinstance(each, Tensor)}
    return [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and id(leaf) in written]


@contextmanager
def _same_chance(func: Any, leaves: Leaves) -> Iterator[Callable[[], None] | None]:
    """What puts random numbers back to before an operation, None if it draws none; they go on as after one call."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        yield None
        return
    generators = [torch.default_generator, *(leaf for leaf in leaves if isinstance(leaf, torch.Generator))]
    before, after = [each.get_state() for each in generators], list[Tensor]()

    def again(states: Sequence[Tensor] = before) -> None:
        after.extend([] if after else [each.get_state() for each in generators])
        for each, state in zip(generators, states, strict=True):
            each.set_state(state)

    yield again
    if after:
        again(after)
