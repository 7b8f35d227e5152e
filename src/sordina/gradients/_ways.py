"""The ways in which a model was called, and what is known of its structure in each.

A structure holds for arguments of the same shapes and kinds, and for a model that is switched as it was. What is no
tensor is told by what it is, and so are small tensors without samples; numbers with a fraction only by the round ones
between which they lie (`between_round`), for they may change in every step, and where a whole number does, it is told
so, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sordina._memory import apart_from_heap
from sordina.errors import Unsupported
from sordina.gradients._following import TOGETHER
from sordina.gradients._rehearsal import Dims
from sordina.gradients._study import VANISHES, Study
from sordina.gradients._tracing import DEEP, between_round, described, found_in, opaque
from sordina.gradients.removal import CHANCE
from sordina.gradients.structure import ADVICE, Mixing, Structure

BEGAN = (
    "samples mix: operations bring them together that did not before, so no per-sample bound exists, nor does one hold "
    f"for the steps since this began. {ADVICE}"
)
FEW_VALUES = 16
"""Tensors without samples of so many values are told by them."""
MOST = 24
"""So many different arguments of a kind are told exactly: beyond, whole numbers count and constants change."""


class Ways:
    """What is known of a model's structure by the way in which it is called."""

    def __init__(
        self, parameters: Mapping[str, Tensor], study: Callable[..., Study], tell: Callable[[str], None]
    ) -> None:
        """Nothing is known yet.

        Args:
            parameters: What is trained, if it is not frozen meanwhile.
            study: Begins a study: see `Study`.
            tell: Told why a model must run one sample at a time.
        """
        self.parameters, self.study, self.tell = parameters, study, tell
        self.known: dict[Any, Structure] = {}
        self._exact: set[Any] = set()
        """Arguments that are no tensors, as they were."""
        self._alike: dict[Any, set[Any]] = {}
        """By kinds of arguments, whatever their shapes, with what constants some were studied."""
        self._inputs: dict[Any, Dims] = {}
        """By such kinds where samples lie."""
        self._together: dict[Any, str] = {}
        """By such kinds that operations bring samples together, whatever the shapes."""
        self._constants: dict[Any, set[tuple[int, torch.Size]]] = {}
        """By kind of arguments the places and shapes of tensors that were seen to hold no samples."""
        self._dims: dict[Any, Dims] = {}
        """By kind of arguments where the samples lie, as was seen where sizes told: time may be as long as a batch."""

    def structure(
        self, value: tuple[Any, Any], tensors: Sequence[Tensor], sizes: Sequence[int], switches: Any, due: bool
    ) -> Structure:
        """The structure of a call.

        Args:
            value: The arguments.
            tensors: Those among them.
            sizes: How many samples there may be, most likely first.
            switches: What is switched on in the model.
            due: Whether to study it again.
        """
        shapes = tuple([(x.dtype, tuple([True if size == sizes[0] else size for size in x.shape])) for x in tensors])
        alike = (
            self._options(value),
            tuple([(dtype, tuple([size is True for size in shape])) for dtype, shape in shapes]),
            tuple([parameter.requires_grad for parameter in self.parameters.values()]),
            switches,
        )
        constants = self._values(alike, tensors)
        known = self.known.get((shapes, alike, constants))
        if known is not None and not due:
            return known
        before, known = known, self._learned(value, sizes, again=constants in self._alike.get(alike, ()))
        if before is not None and not before.alone and known.alone.startswith(TOGETHER):
            raise Mixing(BEGAN)
        shown = self._together.get(alike, "") or ("" if before is None else before.alone)
        if shown and shown != VANISHES:  # no later look takes it back
            known = replace(known, alone=shown)
        if known.alone.startswith(TOGETHER):
            self._together[alike] = known.alone
        self._inputs.setdefault(alike, known.inputs)
        constants = self._values(alike, tensors)
        self.known[(shapes, alike, constants)] = known
        self._alike.setdefault(alike, set()).add(constants)
        return known

    def _options(self, value: tuple[Any, Any]) -> Any:
        """What the arguments are apart from their tensors."""
        exact = described(value, between_round, DEEP)
        if exact not in self._exact and len(self._exact) >= MOST:
            return described(value, between_round, DEEP, counts=True)
        self._exact.add(exact)
        return exact

    def _values(self, alike: Any, tensors: Iterable[Tensor]) -> Any:
        """What small tensors without samples hold: they may open a gate, as numbers among the arguments may."""
        small = [
            each.tolist()
            for each, dim in zip(tensors, self._inputs.get(alike, ()), strict=False)
            if dim is None and each.layout == torch.strided and each.numel() <= FEW_VALUES
        ]
        told, seen = described(small, between_round, counts=True), self._alike.get(alike, set[Any]())
        return told if told in seen or len(seen) < MOST else None

    def _learned(self, value: tuple[Any, Any], sizes: Sequence[int], again: bool) -> Structure:
        """The structure, with as many samples as the first of ``sizes`` for which samples stay apart."""
        if (found := opaque(value)) is not None:
            raise Unsupported(
                f"an argument of the model is, or holds, a {type(found).__name__}, of which nobody knows whose samples "
                "are in it: pass tensors, in lists, tuples, dictionaries or dataclasses if you like."
            )
        seed = CHANCE.getrandbits(48) if again else 0
        shapes = list(enumerate(tensor.shape for tensor in found_in(value)))
        kind = self._options(value), tuple(len(shape) for _, shape in shapes)
        seen = self._constants.setdefault(kind[0], set())
        constant = frozenset(place for place, shape in shapes if (place, shape) in seen)
        known = self._dims.get(kind) if _unclear(value, sizes[0]) else None
        study = self.study(not again, seed, constant, known)
        refusal: Unsupported | None = None
        for rows in sizes:
            try:
                with apart_from_heap():
                    found = study.learn(value, rows)
            except Unsupported as error:
                refusal = refusal or error
                if not isinstance(error, Mixing):
                    break
                continue
            if found.alone:
                self.tell(found.alone)
            seen.update((place, shape) for place, shape in shapes if rows not in shape)
            if not _unclear(value, rows):
                self._dims[kind] = found.inputs
            return replace(found, unclear=_unclear(value, rows) and kind not in self._dims)
        assert refusal is not None
        if again:
            raise type(refusal)(f"{refusal} Nor does one hold for the steps since this began.") from refusal
        raise refusal


def _unclear(value: tuple[Any, Any], rows: int) -> bool:
    """Whether a tensor has several dimensions of as many elements as there are samples."""
    return any(list(tensor.shape).count(rows) > 1 for tensor in found_in(value))
