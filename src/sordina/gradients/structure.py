"""What is known of a model's structure: where samples lie in every tensor (`sordina.gradients._study` learns it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sordina.errors import Unsupported
from sordina.gradients._hooks import Tap
from sordina.gradients._rehearsal import (
    Dims,
)
from sordina.gradients._turns import Site
from sordina.gradients.one_by_one import SamplePlacement, SamplePlacements

Key = tuple[str, int]
Form = tuple[int, ...]
"""The shape of a tensor, reduced to one sample."""
ADVICE = "Remove what looks across the batch (batch statistics, contrastive terms, load balancing)."


class Mixing(Unsupported):
    """The loss or result of one sample depends on other samples."""

    @classmethod
    def because(cls, words: str) -> Mixing:
        """With the reason, and what follows from it."""
        return cls(f"samples mix: {words}, so no per-sample bound exists. {ADVICE}")


@dataclass(frozen=True)
class Structure:
    """What is known about one way to call the model."""

    inputs: Dims
    outputs: SamplePlacements
    taps: Mapping[Key, SamplePlacement | None]
    """By the key of a tap where its samples lie; None where samples take no part."""
    passed: frozenset[Key]
    """The keys of taps below which the backward pass always goes on."""
    forms: Mapping[Key, tuple[Form, ...]]
    """By the key of a tap the forms in which its calls were seen, in their order."""
    reads: frozenset[Site] = frozenset()
    """Where Python reads values of samples without consequences for any result."""
    unclear: bool = False
    """Whether the samples might as well lie elsewhere: only the losses can tell."""
    alone: str = ""
    """Why the model must run one sample at a time; empty if it need not."""
    shared: frozenset[int] = frozenset()
    """The places of results that have no row for each sample, and hold values of samples."""
    holding: frozenset[str] = frozenset()
    """Attributes of the model that hold values of samples after a call."""
    telling: frozenset[str] = frozenset()
    """The names of what holds values of Python's that do, inside of objects, or on how many samples there are."""
    volatile: frozenset[str] = frozenset()
    """The names of what holds values of Python's that are others after every call."""
    counts: bool = False
    """Whether something inside of objects is changed by a call."""
    _fitting: dict[Any, bool] = field(init=False, default_factory=dict, repr=False, compare=False)
    """What was found of forward passes that looked the same: `_fit` is a function of what they look like."""

    def fits(self, taps: Sequence[Tap], rows: int) -> bool:
        """Whether the taps of a forward pass over ``rows`` samples are as expected.

        A layer that was always called in one form may be called any number of times in it; one that was called in
        several, in those and in that order. Rows of a batch that is cut into pieces are not a sample's rows.
        """
        if self.alone:
            return False
        for tap in taps:
            if tap.versions != tuple([source._version for source in tap.sources]) and self._holds_samples(tap):
                return False
        looks = (rows, *[(tap.key, tap.shape, tap.batched, tap.build is None) for tap in taps])
        found = self._fitting.get(looks)
        if found is None:
            if len(self._fitting) >= LOOKS_KEPT:
                self._fitting.clear()
            found = self._fitting[looks] = self._fit(taps, rows)
        return found

    def _holds_samples(self, tap: Tap) -> bool:
        """Whether a tap's terms are built from its inputs."""
        return tap.build is not None and self.taps.get(tap.key, MISSING) is not None

    def _fit(self, taps: Sequence[Tap], rows: int) -> bool:
        seen: dict[Key, list[Form]] = {}
        for tap in taps:
            if tap.build is None:
                continue
            place = self.taps.get(tap.key, MISSING)
            if place is None:
                if tap.batched:
                    return False
                continue
            form = form_of(tap.shape, place.dim, rows)
            if form is None:
                return False
            seen.setdefault(tap.key, []).append(form)
        for key, forms in seen.items():
            known = self.forms[key]
            if tuple(forms) != known and (len(set(known)) > 1 or set(forms) != set(known)):
                return False
        return True


def form_of(shape: Sequence[int], dim: int, rows: int) -> Form | None:
    """A shape with the rows of one sample in the place of those of all ``rows`` samples; None if that is not possible.

    >>> form_of((6, 4), 0, 3)
    (2, 4)
    """
    if dim >= len(shape) or not shape[dim] or shape[dim] % rows:
        return None
    return (*shape[:dim], shape[dim] // rows, *shape[dim + 1 :])


MISSING = SamplePlacement(99, True)
LOOKS_KEPT = 256
"""Of so many different forward passes a structure remembers whether they fit."""


def shapes_of(taps: Sequence[Tap]) -> dict[Key, list[torch.Size]]:
    """By the key of a tap the shapes of its calls, in their order."""
    shapes: dict[Key, list[torch.Size]] = {}
    for tap in taps:
        if tap.build is not None:
            shapes.setdefault(tap.key, []).append(tap.shape)
    return shapes


def forms_of(
    taps: Sequence[Tap], places: Mapping[Key, SamplePlacement | None], rows: int
) -> dict[Key, tuple[Form, ...]]:
    """By the key of a tap the forms of its calls, where the samples' places are known."""
    forms: dict[Key, tuple[Form, ...]] = {}
    for tap in taps:
        place = places.get(tap.key)
        form = None if place is None or tap.build is None else form_of(tap.shape, place.dim, rows)
        if form is not None:
            forms[tap.key] = (*forms.get(tap.key, ()), form)
    return forms


def grown(few: Sequence[int], many: Sequence[int], a: int, b: int) -> SamplePlacement | None:
    """The dimension that grew from a multiple of ``a`` to the same multiple of ``b``, if all others are equal."""
    if len(few) != len(many):
        return None
    other = [dim for dim, (one, two) in enumerate(zip(few, many, strict=True)) if one != two]
    if len(other) != 1:
        return None
    dim = other[0]
    if few[dim] % a or few[dim] // a * b != many[dim]:
        return None
    return SamplePlacement(dim, few[dim] == a)


def places_of(
    few: Mapping[Key, list[torch.Size]], many: Mapping[Key, list[torch.Size]], a: int, b: int, first: set[Key]
) -> dict[Key, SamplePlacement | None]:
    """Where the samples lie in the taps; those of ``first`` must have them in the first dimension."""
    found: dict[Key, SamplePlacement | None] = {}
    for key, shapes in few.items():
        others = many.get(key, [])
        if len(others) != len(shapes):
            found[key] = None
            continue
        places = {grown(one, two, a, b) for one, two in zip(shapes, others, strict=True)}
        dims = {place.dim for place in places if place is not None}
        if None in places or len(dims) != 1 or (key in first and dims != {0}):
            found[key] = None
        else:
            found[key] = SamplePlacement(dims.pop(), all(place is not None and place.single for place in places))
    return found
