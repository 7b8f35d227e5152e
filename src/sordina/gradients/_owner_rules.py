"""Operations of which it is known whose values are in their results: they need not be tried.

They move values, pick them or put them where whole numbers say, or look them up in a list. Trials would not do: numbers
that pick are tried on what a batch has there, and other batches have others. So where a sample's own number picks, it
may pick whatever lies along that dimension, and where it says to which place, that may be any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

SEVERAL = 255
"""The owner of what may depend on more than one sample."""
SPREADING = {
    "index_put", "index_put_", "_index_put_impl_", "scatter", "scatter_", "scatter_add", "scatter_add_",
    "scatter_reduce", "scatter_reduce_", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill",
    "index_fill_",
}  # fmt: skip
"""Operations that put values where whole numbers say."""
PICKING = {"index", "index_select", "gather", "embedding"}
"""Operations that pick values by whole numbers."""
LISTING = {"bucketize", "searchsorted", "isin"}
"""Operations that look each value up in a list."""
COUNTING = {"histc", "bincount", "histogram"}
"""Operations of which each result depends on all values, wherever these lie."""
MOVING = {"cat", "stack", "select_backward", "slice_backward", "flip", "roll", "repeat"}
"""Operations that move values: they do the same to their owners."""


Leaves = list[Any]
"""The arguments of an operation, in a row."""


def known_owners(
    func: Any, name: str, leaves: Leaves, spec: Any, owners: Mapping[int, Tensor], results: Sequence[Tensor]
) -> list[Tensor] | None:
    """The owners of results of operations that need not be tried; None for others."""
    if name in COUNTING:
        return [anybodys(owners).expand(each.shape) for each in results]
    if len(results) != 1:
        return None
    found: Tensor | None = None
    if name == "multinomial" and list(owners) == [0]:
        found = along(owners[0], -1).expand(results[0].shape)
    elif name in MOVING:
        found = _moved(func, leaves, spec, owners)
    elif name in PICKING | LISTING | SPREADING:
        values, _ = tree_unflatten(leaves, spec)
        whose, named = tree_unflatten([owners.get(place) for place in range(len(leaves))], spec)
        if any(each is not None for each in named.values()):
            return None
        rule = partial(_picked, name) if name in PICKING else partial(_looked_up, name) if name in LISTING else _spread
        found = rule(values, whose)
    return None if found is None or found.shape != results[0].shape else [found]


def anybodys(owners: Mapping[int, Tensor]) -> Tensor:
    """The owner of what depends on all of it."""
    return along(torch.cat([each.reshape(-1) for each in owners.values()]), 0)[0]


def along(owner: Tensor, dim: int) -> Tensor:
    """The owners of what depends on all values along a dimension."""
    if not owner.shape[dim]:
        return owner.sum(dim, keepdim=True).to(torch.uint8)
    most = owner.amax(dim, keepdim=True)
    least = torch.where(owner == 0, SEVERAL, owner).amin(dim, keepdim=True)
    return torch.where((most == 0) | (most == least), most, SEVERAL).to(torch.uint8)


def _picked(name: str, values: Sequence[Any], whose: Sequence[Any]) -> Tensor | None:
    """The owners of what is picked: where a sample's own numbers pick, they may pick whatever is there."""
    source = values[0]
    owner = torch.zeros_like(source, dtype=torch.uint8) if whose[0] is None else whose[0]
    if name == "gather":
        dim, index = values[1], values[2]
        if whose[2] is None:
            return owner.gather(dim, index)
        held = along(owner, dim) if source.dim() else owner
        return together([held.gather(dim, torch.zeros_like(index)), whose[2]], index.shape)
    dim = values[1] % source.dim() if name == "index_select" and source.dim() else 0
    one = name != "index"
    indices = [*[None] * dim, values[2 if name == "index_select" else 1]] if one else values[1]
    numbers = [*[None] * dim, whose[2 if name == "index_select" else 1]] if one else whose[1]
    if any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices):
        return None
    found = []
    for place, number in enumerate(numbers):
        if number is not None:
            owner = along(owner, place)
            indices[place] = torch.zeros_like(indices[place])
    for place, number in enumerate(numbers):
        if number is not None:  # a table of all owners along this dimension says where the numbers' own come to lie
            table = torch.arange(256, dtype=torch.uint8, device=owner.device)
            table = table.view(-1, *[1] * (source.dim() - place - 1))
            wide = table.expand(*(256 if each == place else size for each, size in enumerate(owner.shape)))
            chosen = [number.long() if each == place else index for each, index in enumerate(indices)]
            found.append(torch.ops.aten.index.Tensor(wide, chosen))
    first: Tensor = torch.ops.aten.index.Tensor(owner, indices)
    return together([first, *found], first.shape)


def _spread(values: Sequence[Any], whose: Sequence[Any]) -> Tensor | None:
    """The owners of what is spread: where a sample's own numbers say to which place, that may be any."""
    if isinstance(values[1], int):
        return _spread_along(values, whose)
    target, given = values[0], list(values[1])
    dims = {place for place, each in enumerate(whose[1]) if each is not None}
    own = _picked("index", [target, given], [None, whose[1]]) if dims else None
    if own is None:
        return None
    places = [torch.zeros_like(each) if place in dims else each for place, each in enumerate(values[1])]
    put = own if whose[2] is None else together([own, whose[2].expand(own.shape)], own.shape)

    def count(into: Tensor, here: Tensor) -> Tensor:
        return into.index_put(places, here, accumulate=True)

    return _reached(target, whose[0], dims, put, count)


def _spread_along(values: Sequence[Any], whose: Sequence[Any]) -> Tensor | None:
    """The same along one dimension."""
    target, own, source = values[0], whose[2], whose[3] if len(whose) > 3 else None
    if own is None or not target.dim():
        return None
    dim = values[1] % target.dim()
    if own.dim() < target.dim():  # one number for a whole row
        shape = [own.numel() if each == dim else size for each, size in enumerate(target.shape)]
        own = own.view(-1, *[1] * (target.dim() - dim - 1)).expand(shape)
    put = own if source is None else together([own, source[tuple(map(slice, own.shape))]], own.shape)
    places = torch.zeros_like(own, dtype=torch.int64)
    return _reached(target, whose[0], {dim}, put, lambda into, here: into.scatter_add(dim, places, here))


def _reached(
    target: Tensor, before: Tensor | None, dims: Collection[int], put: Tensor, count: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """The owners of what values are put into.

    Args:
        target: That.
        before: The owners of what was there.
        dims: Along these each value may go anywhere.
        put: The owners of the values.
        count: Adds numbers for the values to one tensor for all that lies along ``dims``.
    """
    small = [1 if dim in dims else size for dim, size in enumerate(target.shape)]
    found = torch.zeros(small, dtype=torch.uint8, device=target.device)
    for group in sorted(set(put.flatten().tolist()) - {0}):
        here = count(torch.zeros_like(found, dtype=torch.int32), (put == group).int()) > 0
        found = torch.where(here, torch.where((found == 0) | (found == group), group, SEVERAL), found).to(torch.uint8)
    after = found.expand(target.shape)
    return after if before is None else together([before, after], target.shape)


def _looked_up(name: str, values: Sequence[Any], whose: Sequence[Any]) -> Tensor | None:
    """The owners of what is looked up in a list: those of the value, and of the whole list."""
    each, listed = (whose[1], whose[0]) if name == "searchsorted" else (whose[0], whose[1])
    value = values[1] if name == "searchsorted" else values[0]
    if not isinstance(value, Tensor):
        return None
    found = [] if each is None else [each]
    if listed is not None:
        found.append(along(listed.reshape(-1) if name == "isin" else listed, -1))
    first = torch.zeros_like(value, dtype=torch.uint8)
    return together([first, *(other.expand(value.shape) for other in found)], value.shape)


def _moved(func: Any, leaves: Leaves, spec: Any, owners: Mapping[int, Tensor]) -> Tensor:
    """The owners of what is moved."""
    nobody = partial(torch.zeros_like, dtype=torch.uint8)
    places = enumerate(leaves)
    moved = [owners.get(place, nobody(leaf)) if isinstance(leaf, Tensor) else leaf for place, leaf in places]
    args, kwargs = tree_unflatten(moved, spec)
    found: Tensor = func(*args, **kwargs)
    return found


def together(owners: Collection[Tensor], shape: torch.Size) -> Tensor:
    """The owners of what is computed value by value."""
    first, *others = owners
    found = first.expand(shape)
    for each in others:
        if each.shape == shape and torch.equal(found, each):
            continue
        clash = (found != 0) & (each != 0) & (found != each)
        found = torch.where(clash, SEVERAL, torch.where(found == 0, each, found)).to(torch.uint8)
    return found
