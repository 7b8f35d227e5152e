"""Trials of a loss on made-up rows: the loss of one sample may depend on no other, nor on earlier batches.

A loss gets the model's results and the targets, in whatever form: tensors, tuples, dictionaries, dataclasses. Tensors
in which every sample has a row are made up, exchanged and taken away; everything else is left as it is. A loss that is
an object, or a function that holds on to one, is put back after every trial as it was.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.gradients._catching import catching
from sordina.gradients._chance import UNUSUAL, Generators, InOrder
from sordina.gradients._following import brought_together
from sordina.gradients._kept_state import KeptState, all_differing, is_huge, keeps_nothing, kept_state
from sordina.gradients._reads import SCALES, Company, Reads, Remembered, settled
from sordina.gradients._rehearsal import Dims, chosen, flipped, part
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients._turns import Site
from sordina.gradients.one_by_one import SamplePlacement
from sordina.gradients.removal import CHANCE

Pair = tuple[Any, Any]
"""The results of a model and the targets."""
FEW, MANY = 3, 1024
"""Rows on which every loss is tried: few, and many, because some look across a batch only if it is large."""
_CROWDS = 16, 64, 256
"""Other numbers of rows for which operations are followed."""
_PIECE = 1 << 22
"""Numbers at once."""
_ONE_BY_ONE = 8
"""So many tensors are changed one by one, and all others together."""
_LOUD: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda row: 1 - row / 2,
    lambda row: row * 1e3 + 1e2,
    lambda row: torch.full_like(row, math.nan),
    torch.zeros_like,
)
"""What a row of numbers is changed to: another one, one that moves every statistic, one that is no number, nothing."""
_EXTREME: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda row: torch.full_like(row, math.nan),
    lambda row: torch.full_like(row, math.inf),
    lambda row: torch.full_like(row, -math.inf),
    lambda row: row * 1e30,
    lambda row: row * -1e30,
    lambda row: row * 1e3 + 1e2,
    lambda row: torch.zeros_like(row),
)
"""What a row is changed to for states that seldom change: scales that follow overflows, counts of what is no number."""
_IGNORED = (-100, -1)
"""Whole numbers that stand for "no label"."""
_AGAIN = 2
"""So many extreme batches are tried each time after the first."""
_UNLIKE = (3, 5, 7, 11, 13, 17, 19), (4, 6, 8, 9, 10, 12, 14)
"""Numbers of rows to try a loss with, of which one is no other size of its arguments."""


class LossTrials:
    """Trials of ``loss`` in the form of one pair of results and targets.

    Args:
        loss: From results and targets to one value per sample; its state is put back after every trial.
        pair: What it is called with.
        dims: For each tensor in ``pair`` zero if its rows are samples, else None.
        plain: Whether ``pair`` is two tensors.
    """

    def __init__(self, loss: Callable[..., Any], pair: Pair, dims: Dims, plain: bool) -> None:
        self.loss, self.dims, self.plain = loss, dims, plain
        self.pair = changed(pair, lambda tensor: tensor.detach())
        self.tensors = list(tensors_in([self.pair]))
        self.results = sum(1 for _ in tensors_in([pair[0]]))
        """How many of the tensors are results; the others are targets."""
        self.rows = max(len(each) for each, dim in zip(self.tensors, dims, strict=True) if dim == 0)
        self.kept = KeptState(loss)
        self.sites: frozenset[Site] = frozenset()
        """Where Python reads of the samples what does not matter on any rows that were tried: see `decided`."""
        self.error: Exception | None = None
        """Why it could not be tried."""
        self._later = False
        """Whether all extreme batches were tried before."""

    def at_present(self) -> LossTrials:
        """The same, from the state that the loss is in now."""
        self.kept, self._later = KeptState(self.loss), True
        return self

    def many(self) -> int:
        """`MANY` rows, or twice those there are if that is more, as far as memory allows."""
        wide = sum(each[:1].numel() for each, dim in zip(self.tensors, self.dims, strict=True) if dim == 0)
        return max(FEW, min(max(MANY, 2 * self.rows), _PIECE // (8 * max(1, wide))))

    # Samples apart.

    def apart(self, rows: int) -> bool | None:
        """Whether changing one row changes the loss of that row alone; None if it cannot be tried: see ``error``."""
        for pair in self._sources(rows):
            try:
                before = self._run(pair)
            except Exception as error:
                self.error = error
                continue
            if not before.ndim:
                return True  # no loss per sample: refused where it is used
            return len(before) == rows and self._kept_apart(pair, before)
        return None

    def _kept_apart(self, pair: Pair, before: Tensor) -> bool:
        """Whether the losses stay ``before`` when another row changes, and when there are fewer rows."""
        rows = len(before)
        for row in range(rows) if rows == FEW else (rows // 2,):
            rest = [other for other in range(rows) if other != row]
            for twin in self._twins(pair, row):
                try:
                    after = self._run(twin)
                except Exception:
                    continue  # a value that the loss does not take: that it says so is dealt with row by row
                if after.shape != before.shape or not torch.equal(after[rest], before[rest]):
                    return False
        if not self._kept_among_equals(pair, before):
            return False
        fewer = part(pair, self.dims, 0, rows - rows // 3)
        try:
            after = self._run(fewer)
        except Exception:
            return True
        return _begins(before, after) or _begins(*map(self._in_order, (pair, fewer)))

    def _in_order(self, pair: Pair) -> Tensor:
        """The losses with random numbers that do not depend on how many rows there are."""
        with InOrder():
            return self._run(pair)

    def _kept_among_equals(self, pair: Pair, before: Tensor) -> bool:
        """Whether a row's loss stays ``before`` among rows that all have a very small, or a very large one.

        One row does not move a median, or a quantile, but all others do.
        """
        row, rows = len(before) // 2, len(before)

        def stays(others: Pair) -> bool:
            places = iter(list(tensors_in([pair])))

            def mixed(tensor: Tensor, dim: int | None) -> Tensor:
                own = next(places)
                if dim is not None:
                    tensor = tensor.clone()
                    tensor[row] = own[row]
                return tensor

            after = self._run(self._each(others, mixed))
            return after.shape == before.shape and torch.equal(after[row], before[row])

        with suppress(Exception):  # values that the loss does not take
            for factor, extreme in itertools.product((100, -100), (torch.argmin, torch.argmax)):
                scaled = self._times(pair, factor, targets=False)
                other = int(extreme(self._run(scaled)))
                if not stays(chosen(scaled, self.dims, [other] * rows)):
                    return False
        with suppress(Exception):
            if not all(stays(self._times(pair, factor, targets=True)) for factor in (1e-4, 1e4)):
                return False
        return True

    def _times(self, pair: Pair, factor: float, targets: bool) -> Pair:
        """The numbers of the results, and of the targets, times ``factor``."""
        number = iter(range(len(self.tensors)))

        def times(tensor: Tensor, dim: int | None) -> Tensor:
            scaled = next(number) < self.results or targets
            return tensor * factor if scaled and dim is not None and _numbers(tensor) else tensor

        return self._each(pair, times)

    def _twins(self, pair: Pair, row: int) -> Iterator[Pair]:
        """The same with another ``row`` of one tensor; those beyond the first few are changed together."""
        own = [place for place, dim in enumerate(self.dims) if dim is not None]
        groups = [{place} for place in own[:_ONE_BY_ONE]] + [set(own[_ONE_BY_ONE:])] * (len(own) > _ONE_BY_ONE)
        for group in groups:
            loud = any(_numbers(self.tensors[place]) for place in group)
            for change in _LOUD if loud else _LOUD[:1]:
                yield _replaced(pair, group, row, change)

    # What Python reads.

    def decided(self) -> str:
        """Where numbers of the batch that Python reads decide what the loss does; empty if none do.

        Refuses a loss for which they decide what it keeps.
        """
        sizes = {size for tensor in self.tensors for size in tensor.shape}
        few, many = (next(rows for rows in some if rows not in sizes) for some in _UNLIKE)

        def company(rows: int, classes: int | None, factor: float = 1.0) -> Company:
            pair = self._times(self._made(rows, classes), factor, targets=False)
            return pair, self._samples(pair), rows

        def spare(classes: int | None) -> Iterator[Company]:
            yield company(many, 1)
            yield from (company(many, classes, factor) for factor in SCALES)

        def same(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
            return torch.allclose(one[0], two[0], 1e-4, 1e-4) if one[0].shape == two[0].shape else False

        def run(pair: Pair) -> list[Tensor]:
            """There and back: a hook on the results may read their gradients."""
            self.kept.restore()
            pair = changed(pair, lambda each: each.clone().requires_grad_() if each.is_floating_point() else each)
            leaves = [each for each in tensors_in([pair]) if each.requires_grad]
            losses = self._losses(pair, gradients=True)
            if losses.requires_grad:
                torch.autograd.grad(losses, leaves, losses.detach(), allow_unused=True)
            return [losses.detach().nan_to_num()]

        for limit in self._limits():
            last = self._made(few, limit)

            def left(last: Pair = last) -> dict[str, Any]:
                try:
                    losses = self._call(last, gradients=False)
                    return self._state() | {_LOSSES: losses}
                finally:
                    self.kept.restore()

            try:
                both = company(few, limit), company(many, limit)
                self.sites, why = settled(run, both, same, partial(spare, limit), left)
                return why
            except Remembered as found:
                raise memory_refusal(str(found)) from None
            except Exception:
                continue
            finally:
                self.kept.restore()
        with Reads(self._samples(self.pair), self.rows) as reads:
            try:
                self._run(self.pair)
            except Exception:
                return ""  # what it does not take is dealt with row by row
        return reads.unknown()

    def by_chance(self) -> str:
        """That the loss draws random numbers: a coin that is tossed for a whole batch may do anything to all of it."""
        generators = Generators(self.loss)
        for source in self._sources(FEW):
            begun = generators.states()
            with suppress(Exception):
                try:
                    self.loss(*source)
                    return "it draws random numbers" if generators.states() != begun else ""
                finally:
                    self.kept.restore()
        return ""

    def brought_together(self) -> str:
        """Where operations of the loss, or of its way back, bring samples together, on whatever rows; or errors do."""
        if found := catching(self.loss):
            return found
        for rows in dict.fromkeys((FEW, *_CROWDS, self.rows, self.many())):
            for source in self._sources(rows) if rows > 1 else ():
                with suppress(Exception):
                    if not self._run(source).ndim:
                        return ""  # no loss per sample: refused where it is used
                    if found := self._followed(source, rows):
                        return found
                    break
        return ""

    def _followed(self, source: Pair, rows: int) -> str:
        pair = changed(source, lambda each: each.clone().requires_grad_() if each.is_floating_point() else each)
        samples = list(zip(tensors_in([pair]), self.dims, strict=True))
        asked = [(each, each.shape, dim) for each, dim in samples if dim is not None and each.requires_grad]

        def forward() -> tuple[Tensor, Any]:
            self.kept.restore()
            return self._losses(pair, gradients=True), asked

        try:
            return brought_together(forward, samples, [SamplePlacement(0, True)], rows, self.sites)
        finally:
            self.kept.restore()

    def can_be_split(self) -> bool:
        """Whether the loss takes the samples one at a time."""
        try:
            return all(self._run(part(self.pair, self.dims, row)).shape[:1] == (1,) for row in range(min(2, self.rows)))
        except Exception:
            return False

    # What it remembers.

    def remembers(self) -> str | None:
        """The attribute in which the loss keeps something of the data of earlier batches; empty if it does not.

        The same batch after one batch and after others: counts of calls are equal then, and what a state has of the
        data is not. Some of the others have rows that are no numbers, infinite or huge, or fewer rows. None if there is
        no state, or if nothing could be tried.
        """
        if keeps_nothing(self.loss):
            return None
        for first in self._sources(FEW):
            with suppress(Exception):
                batch = flipped(first, self.dims)
                one, again, two = (self._after([each, batch]) for each in (first, first, self._other(first)))
                volatile = set(all_differing(one, again))  # the time of day, for one
                huge = next((name for name in volatile if is_huge(one.get(name))), "")
                name = huge or self._told_apart(one, two, volatile) or self._extremes_show(first, batch, one, volatile)
                return name if name or len(one) > 1 else None
        return None

    def _extremes_show(self, first: Pair, batch: Pair, usual: dict[str, Any], volatile: set[str]) -> str:
        """What is not as ``usual`` after a batch with extreme rows, and ``batch``."""
        extremes = list(self._extremes(first))
        for other in CHANCE.sample(extremes, min(_AGAIN, len(extremes))) if self._later else extremes:
            with suppress(Exception):  # a value that the loss does not take leaves nothing behind
                if name := self._told_apart(usual, self._after([other, batch]), volatile):
                    return name
        return ""

    def _told_apart(self, one: dict[str, Any], two: dict[str, Any], volatile: set[str]) -> str:
        return next((name for name in all_differing(one, two) if name not in volatile), "")

    def _extremes(self, pair: Pair) -> Iterator[Pair]:
        """``pair`` with one row, and with all rows, of results or of targets as records seldom are; fewer rows."""
        yield part(pair, self.dims, 0, FEW - 1)
        for targets, rows in itertools.product((False, True), ([0], range(FEW))):
            own = [place for place, dim in enumerate(self.dims) if dim is not None]
            group = {place for place in own if (place >= self.results) == targets}
            if any(_numbers(self.tensors[place]) for place in group):
                yield from (_extreme(pair, group, rows, change) for change in _EXTREME)
            if targets and all(tensor.device.type == "cpu" for tensor in self.tensors):  # elsewhere it ends the process
                yield from (_extreme(pair, group, rows, None, label) for label in _IGNORED)

    def _state(self) -> dict[str, Any]:
        return kept_state(self.loss, frozen=True)

    def _after(self, batches: Sequence[Pair]) -> dict[str, Any]:
        """The state after ``batches``, and the losses of the last one."""
        self.kept.restore()
        try:
            for batch in batches:
                losses = self._call(batch, gradients=True)
            return self._state() | {_LOSSES: losses}
        finally:
            self.kept.restore()

    def _other(self, pair: Pair) -> Pair:
        """Other numbers of the same kind; of whole ones the first stays."""

        def change(tensor: Tensor, dim: int | None) -> Tensor:
            if dim is None:
                return tensor
            if _numbers(tensor):
                return tensor * tensor if bool((tensor != 0).any()) else tensor + 0.4
            return torch.cat([tensor[:1], torch.zeros_like(tensor[1:])])

        return self._each(pair, change)

    # Made-up rows, and calls.

    def _run(self, pair: Pair) -> Tensor:
        """The losses, NaN as a number; the loss is as it was afterwards."""
        try:
            return self._call(pair, gradients=False)
        finally:
            self.kept.restore()

    def _call(self, pair: Pair, gradients: bool) -> Tensor:
        """The losses, NaN as a number, without their graph."""
        if gradients:
            pair = changed(pair, lambda each: each.clone().requires_grad_() * 1 if each.is_floating_point() else each)
        return self._losses(pair, gradients).detach().nan_to_num()

    def _losses(self, pair: Pair, gradients: bool) -> Tensor:
        """The losses, from the same random numbers every time.

        Only generators that are put back are seeded: `torch.manual_seed` would leave a public seed in all others, and
        takes longer than most losses.
        """
        devices = sorted({each.get_device() for each in tensors_in([pair]) if each.is_cuda})
        with (
            torch.set_grad_enabled(gradients),
            torch.random.fork_rng(devices=devices),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            for generator in (torch.default_generator, *(torch.cuda.default_generators[each] for each in devices)):
                generator.manual_seed(UNUSUAL)
            losses: Tensor = self.loss(*pair)
            return losses

    def _sources(self, rows: int) -> Iterator[Pair]:
        """Made-up pairs of so many rows, and one of the rows that there are: some losses know more of their targets."""
        for classes in self._limits():
            yield self._made(rows, classes)
        if all(len(each) for each in self._samples(self.pair)):
            yield self._each(
                self.pair,
                lambda each, dim: each if dim is None else each[torch.arange(rows, device=each.device) % len(each)],
            )

    def _limits(self) -> list[int | None]:
        """How many classes whole-number targets may name, most first: the width of the results."""
        if all(_numbers(each) or each.dtype is torch.bool for each in self.tensors[self.results :]):
            return [None]
        results = zip(self.tensors[: self.results], self.dims, strict=False)
        widths = [each.shape[1] if each.ndim > 1 else 2 for each, dim in results if dim is not None]
        width = min(widths, default=2)
        return list(dict.fromkeys([max(2, width), width]))

    def _made(self, rows: int, classes: int | None) -> Pair:
        """So many rows in the form of the pair; the targets come in the opposite order."""
        number = iter(range(len(self.tensors)))

        def make(tensor: Tensor, dim: int | None) -> Tensor:
            place = next(number)
            if dim is None:
                return tensor
            if place < self.results:
                return _made_up(tensor, None, rows, place)
            return _made_up(tensor, classes, rows, place - self.results).flip(0)

        return self._each(self.pair, make)

    def _each(self, pair: Pair, change: Callable[[Tensor, int | None], Tensor]) -> Pair:
        dims = iter(self.dims)
        twin: Pair = changed(pair, lambda tensor: change(tensor, next(dims)))
        return twin

    def _samples(self, pair: Pair) -> list[Tensor]:
        return [each for each, dim in zip(tensors_in([pair]), self.dims, strict=True) if dim is not None]

    # What is told.

    def refusal(self) -> InvalidInput:
        """Why a loss that mixes is refused."""
        output, target = self.tensors[0], self.tensors[-1]
        if not self.plain or output.shape[1:] == target.shape[1:]:
            return InvalidInput(
                "the loss of one sample depends on other samples, or on how many there are: leave out what looks "
                "across the batch, and divide by no size of a batch (the mean over the expected batch is taken "
                "afterwards)."
            )
        return InvalidInput(
            f"the loss of one sample depends on other samples when outputs are {_shape(output)} and targets "
            f"{_shape(target)}: either shapes that broadcast pair every output with every target (give both the same "
            "shape, for instance by targets[:, None] or outputs.squeeze(1)), or something looks across the batch or at "
            "its size (leave it out)."
        )

    def not_taken(self) -> InvalidInput:
        """That the loss does not take such shapes."""
        output, target = self.tensors[0], self.tensors[-1]
        return InvalidInput(
            f"the loss cannot take outputs {_shape(output)} with targets {_shape(target)}: "
            f"{' '.join(str(self.error).split())}."
        )


_LOSSES = "(the losses themselves)"


def memory_refusal(name: str) -> InvalidInput:
    """Why a loss that remembers data is refused."""
    return InvalidInput(
        f"the loss keeps data between batches in {name!r}: a later step would depend on records of earlier ones, "
        "outside of any budget. Keep nothing of a batch for the next (running averages, weights that follow the "
        "losses, banks, lists or counts of what was seen); a count of calls may stay."
    )


def _numbers(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _made_up(like: Tensor, classes: int | None, rows: int, place: int) -> Tensor:
    """Rows in the shape and type of ``like``: probabilities if they are numbers, else the first classes."""
    shape = (rows, *like.shape[1:])
    count = math.prod(shape)
    if _numbers(like):
        line = torch.linspace(0.15, 0.85, count, dtype=torch.float64) ** (1 + 0.3 * place)
        return line.to(like.dtype).to(like.device).view(shape)
    return (torch.arange(count) % max(1, min(2, classes or 2))).to(like.dtype).to(like.device).view(shape)


def _replaced(pair: Pair, group: set[int], row: int, change: Callable[[Tensor], Tensor]) -> Pair:
    """``pair`` with another ``row`` in some of its tensors."""
    places = itertools.count()
    twin: Pair = changed(pair, lambda each: _with_row(each, row, change) if next(places) in group else each)
    return twin


def _extreme(
    pair: Pair, group: set[int], rows: Sequence[int], change: Callable[[Tensor], Tensor] | None, label: int = 0
) -> Pair:
    """``pair`` with other ``rows`` in some of its tensors: numbers changed, or whole numbers at ``label``."""
    places = itertools.count()

    def extreme(tensor: Tensor) -> Tensor:
        if next(places) not in group or (change is not None) != _numbers(tensor) or tensor.dtype is torch.bool:
            return tensor
        other, index = tensor.clone(), torch.tensor(list(rows), device=tensor.device)
        other[index] = torch.full_like(other[index], label) if change is None else change(tensor[index])
        return other

    twin: Pair = changed(pair, extreme)
    return twin


def _with_row(values: Tensor, row: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """``values`` with another ``row``, of the same kind; ``change`` is what is done to numbers."""
    other = values.clone()
    if _numbers(values):
        other[row] = change(values[row])
    elif values.dtype is torch.bool:
        other[row] = ~values[row]
    else:
        other[row] = other[row].max() - other[row] if other[row].numel() > 1 else values.max() - other[row]
    return other


def _shape(values: Tensor) -> str:
    return "(n" + "".join(f", {size}" for size in values.shape[1:]) + ("," if values.ndim == 1 else "") + ")"


def _begins(many: Tensor, few: Tensor) -> bool:
    """Whether ``many`` losses begin with ``few``, up to rounding."""
    tolerance = 1e-4 if many.dtype in (torch.float32, torch.float64) else 3e-2
    return few.shape == many[: len(few)].shape and torch.allclose(few, many[: len(few)], tolerance, tolerance)
