"""The removal test: one sample is replaced by something very different, or some are taken away; others may not notice.

It sees what no gradient shows: statistics taken without one, a maximum over the batch, the capacity of an expert, a
loss divided by its mean or by the size of the batch. Where a sample is replaced the shapes stay the same, so that a
sound model gives the same numbers to the last bit. Where they differ, chance and rounding are ruled out first: both
runs are repeated with dropout off, and in double precision.

A backward pass may mix where the forward pass does not (a hook on a tensor, a backward of one's own): so now and then
the way back is gone too, and compared with that of samples apart (`backward_mixes`). Where the model fails at a test,
nobody knows, and it runs one sample at a time from then on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from random import SystemRandom
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput
from sordina.gradients._carried import CARRIED, Stir, carried
from sordina.gradients._chance import CASES, WithoutChance
from sordina.gradients._crowds import company_trials
from sordina.gradients._footprints import Footprints, followed, same_chance
from sordina.gradients._kept_state import COUNTERS, KeptState, keeps_nothing
from sordina.gradients._rehearsal import (
    CHANGES,
    Attributes,
    Dims,
    Doubled,
    Snapshot,
    all_whole,
    aside,
    chosen,
    gone_back,
    is_whole,
    looked_at,
    made,
    moved,
    normal_rows,
    part,
    replaced,
    scaled,
)
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients.one_by_one import SamplePlacement, SamplePlacements, close, others_same, part_same
from sordina.gradients.structure import ADVICE, Mixing

CHANCE = SystemRandom()
EVERY = 64
"""How many batches lie, in the long run, between two removal tests."""
Run = Callable[[Any], list[Tensor]]
"""From arguments to the tensors of a result."""
Change = Callable[[Tensor], Tensor]
"""What is done to the row that takes the place of a sample."""
Same = Callable[..., bool]
"""Whether two lists of tensors say the same of the samples that stayed."""


class RemovalSchedule:
    """Random times: the first at once, the next soon, then more and more seldom, on average every ``every`` calls.

    >>> schedule = RemovalSchedule(every=8)
    >>> schedule.due(), sum(schedule.due() for _ in range(10_000)) > 800
    (True, True)
    """

    def __init__(self, every: int = EVERY, first: int = 1) -> None:
        """On average every ``every`` calls in the long run, and after about ``first`` calls for the first time."""
        self.every = every
        self.window, self.left = first, CHANCE.randint(1, 2 * first - 1)

    def due(self) -> bool:
        """Whether the time has come; to be asked once per call."""
        self.left -= 1
        if self.left > 0:
            return False
        self.window = min(2 * self.window, self.every)
        self.left = CHANCE.randint(1, 2 * self.window - 1)
        return True

    def force(self) -> None:
        """Have the time come at the next call: what began late is found in the last batch."""
        self.left = 1


def others_change(
    model: nn.Module,
    run: Run,
    value: Any,
    dims: Dims,
    places: SamplePlacements,
    rows: int,
    seen: Sequence[Tensor],
    before: Snapshot,
    first: Change | EllipsisType | None = ...,
    labels: bool = False,
) -> bool | None:
    """Whether replacing one sample of ``value``, or taking some away, changes what ``run`` says of another.

    None if it cannot be told, because the model takes none of that.

    Args:
        model: What is run; it is left as it was.
        run: Called without gradients.
        value: The arguments, with ``rows`` samples along ``dims``.
        dims: Where the samples lie in the arguments.
        places: Where they lie in the result.
        rows: How many samples there are.
        seen: What ``run`` said of ``value``.
        before: The state of the model before it did.
        first: What is tried first, None to take some samples away; left out, chance decides. The next is tried where
            the model takes nothing like it.
        labels: Whether it changes whole numbers too; chance decides that where it decides what is tried first.
    """
    begin = CHANCE.choice(_kinds(value, dims)) if first is ... else first
    whole = labels or all_whole(value, dims) or (first is ... and CHANCE.random() < 0.5)
    for change, also in ((begin, whole), *([(begin, False)] if whole else []), (CHANGES[0], False), (None, False)):
        base, twin, same = _twin(value, dims, places, rows, change, also)
        for gradients in (False, True) if base is value else (True, False):  # what was seen had gradients
            with torch.set_grad_enabled(gradients), aside(model):
                try:
                    before.restore()
                    known = seen if base is value else [tensor.detach() for tensor in run(base)]
                    before.restore()
                    if same(known, run(twin)):
                        return False
                    with torch.enable_grad():  # as the batch itself ran: there are models that ask
                        alike = change is not None
                        if alike and _as_drawn(model, run, (base, twin), same, known, before):
                            return True
                        found = _truly(model, run, (base, twin), same, before, alike)
                        if found is not None:
                            return found
                        break
                except Exception:
                    continue  # it needs gradients inside, or does not take such a row
    return None


def _kinds(value: Any, dims: Dims) -> list[Change | None]:
    """All that is done to samples: None takes some away."""
    numbers = any(dim is not None and is_whole(x) for x, dim in zip(tensors_in([value]), dims, strict=True))
    return [*CHANGES, MOST, None, None, *([COMPANY] if numbers else [])]


def _twin(
    value: Any, dims: Dims, places: SamplePlacements, rows: int, change: Callable[[Tensor], Tensor] | None, whole: bool
) -> tuple[Any, Any, Same]:
    """The arguments with a sample replaced by ``change`` of another, or without some, and who must stay the same.

    Where ``whole``, whole numbers are changed too. What to compare with comes first.
    """
    if change is None:
        start = CHANCE.randrange(rows)
        count = CHANCE.randint(1, rows - start - (start == 0))
        same = partial(part_same, places=places, start=start, count=count, rows=rows)
        return value, part(value, dims, start, count), same
    if change is COMPANY:
        draw = torch.Generator().manual_seed(CHANCE.getrandbits(62))
        value, twins = CHANCE.choice(list(company_trials(value, dims, draw)))
        gone, twin = CHANCE.choice(twins)
    elif change is MOST:
        gone = CHANCE.sample(range(rows), CHANCE.randint(1, rows - 1))
        twin = scaled(value, dims, gone, CHANCE.choice((1e-4, 1e4)), whole)
    else:
        sample, other = CHANCE.sample(range(rows), 2)
        gone, twin = [sample], replaced(value, dims, sample, other, change, whole)
    return value, twin, partial(others_same, places=places, sample=gone, rows=rows)


def MOST(row: Tensor) -> Tensor:
    """Stands for many samples made larger or smaller: they may move what one alone does not, such as a median."""
    return row


def COMPANY(row: Tensor) -> Tensor:
    """Stands for whole numbers close to one end of their range, with some samples at the other."""
    return row


def _truly(model: nn.Module, run: Run, pair: tuple[Any, Any], same: Same, before: Snapshot, alike: bool) -> bool | None:
    """Whether neither chance nor rounding explains why the others' results differ; ``alike`` are shapes in both runs.

    Arguments of the same shapes are rounded alike, so a large difference is none of rounding. Double precision, which
    else decides, may be another way through the model. None: there is chance that nothing holds (`WithoutChance`), and
    runs of different shapes draw other numbers.
    """
    case = CHANCE.choice(CASES)
    with WithoutChance(generators=before.generators) as chance:

        def played(which: Any, case: int = case, seed: int = 0) -> tuple[list[Tensor], list[int]]:
            _again(model, before)
            chance.begin(case, seed)
            return [tensor.detach() for tensor in run(which)], chance.seeds()

        (one, seeds), (two, other_seeds) = map(played, pair)
        if set(seeds) != set(other_seeds):
            return True
        if same(one, two):
            return False
        if not alike and chance.left(lambda seed: played(pair[0], 1, seed)[0]):
            return None
        if alike and one[0].device.type == "cpu" and not same(one, two, rough=20):
            return True
        try:
            with moved(model, None, double=True):
                return not same(*(played(_doubled(each))[0] for each in pair))
        except Exception:
            return not same(one, two, rough=20)


def _as_drawn(
    model: nn.Module, run: Run, pair: tuple[Any, Any], same: Same, seen: Sequence[Tensor], before: Snapshot
) -> bool:
    """Whether the others' results differ with the random numbers that the batch itself had.

    Only where they are the same again: the results are what they were, and both runs draw as many numbers, so that
    everybody gets the same ones. With numbers that do not vary (`WithoutChance`) a random order, for one, is none.

    Where how many are drawn depends on the samples (a gamma distribution's, by rejection), two runs may still end with
    as many by chance: so they must with other random numbers too.
    """

    def played(which: Any, seed: int | None = None) -> tuple[list[Tensor], Any]:
        before.restore()
        if seed is not None:
            before.generators.seed(seed)
        return [tensor.detach() for tensor in run(which)], before.generators.states()

    (one, left), (two, also_left) = map(played, pair)
    repeated = len(one) == len(seen) and all(close(a, b, None) for a, b in zip(one, seen, strict=True))
    if not repeated or left != also_left or one[0].device.type != "cpu" or same(one, two, rough=20):
        return False
    return all(played(pair[0], seed)[1] == played(pair[1], seed)[1] for seed in range(_AS_MANY))


_AS_MANY = 32
"""With how many seeds two runs must draw as many random numbers, before it is believed that they always do."""


def _again(model: nn.Module, before: Snapshot) -> None:
    """As before the batch ran, but without the dropout inside of recurrent layers, which no mode reaches (`aside`)."""
    before.restore()
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.dropout = 0.0


_ALIKE, _EXACT, _ROUNDED = 1e-3, 1e-6, 0.1
"""How far two computations of a gradient may differ, relative to its size, as they are and in double precision; and how
far these two may be apart where it is not rounding that decides."""


def backward_mixes(
    model: nn.Module, run: Run, value: Any, dims: Dims, places: SamplePlacements, rows: int, before: Snapshot
) -> bool | None:
    """Whether the gradients of samples depend on one another; None if that cannot be told.

    With random gradients at the results, the parameters' gradient must be that of some samples, run without the
    others, plus that of the others: where the results of the former have no gradient, and where theirs is large.

    Where this does not hold to single precision, double precision decides; where a maximum, or a sign, hangs on the
    last digit, a gradient is not continuous and rounding shows, so parameters moved at random must agree with it, and
    single precision must not be far off: of huge inputs even double precision says little. Where the batch's own rows
    leave it open, made-up ones are asked: otherwise it would be one record that decides how all are computed.

    Args:
        model: What is run; it is left as it was.
        run: Called with gradients.
        value: The arguments, with ``rows`` samples along ``dims``.
        dims: Where the samples lie in the arguments.
        places: Where they lie in the result.
        rows: How many samples there are.
        before: The state of the model before it ran.
    """
    draw = torch.Generator().manual_seed(CHANCE.getrandbits(62))
    found: bool | None = None
    for asked in (value, made(value, dims, rows, _normal_floats, draw, (0,) * len(dims))):
        sample, other = CHANCE.sample(range(rows), 2)
        twin = replaced(asked, dims, sample, other, CHANCE.choice(CHANGES[:4]))
        for one, two in CHANCE.choice(((asked, twin), (twin, asked))), (asked, asked):
            try:
                found = _WayBack(model, run, dims, places, rows, before, sample).mixes(one, two)
                break
            except Exception:
                continue  # perhaps it does not take such a row: the second time it is the batch's own
        if found is not None:
            break
    return found


def _normal_floats(like: Tensor, dim: int, rows: int, generator: torch.Generator, limit: int) -> Tensor:
    """Normal numbers in place of floats, and everything else as it is."""
    return normal_rows(like, dim, rows, generator, limit) if like.is_floating_point() else like.detach()


class _WayBack:
    """The way back from the results of all samples, of some, and of the others."""

    def __init__(
        self,
        model: nn.Module,
        run: Run,
        dims: Dims,
        places: SamplePlacements,
        rows: int,
        before: Snapshot,
        sample: int,
    ) -> None:
        self.model, self.run, self.dims, self.places, self.before = model, run, dims, places, before
        self.rows = rows
        more = CHANCE.choice((0, CHANCE.randrange(rows - 1)))
        drawn = CHANCE.sample([row for row in range(rows) if row != sample], more)
        self.some = sorted([sample, *drawn])
        self.others = [row for row in range(rows) if row not in self.some]
        self.case, self.seed, self.shift = CHANCE.choice(CASES), CHANCE.getrandbits(62), 0
        loud, quiet = CHANCE.choice((1.0, 10.0, 1e2)), 10 ** CHANCE.uniform(-12, -3)
        self.trials = ((0.0, 1.0), (loud, 1.0), (loud * quiet, quiet))
        """How large the gradients at the results of `some`, and of the others, are: both may make a difference."""
        self.parameters = looked_at(model, self.seed)
        self.draw = torch.Generator()

    def mixes(self, value: Any, twin: Any) -> bool | None:
        """Whether gradients are not those of samples apart; None if rounding may be why, and nobody can tell.

        Without double precision a ``twin`` tells, which differs in the sample: with its results' gradients at zero and
        the same shapes, all is the same to the last bit.
        """
        with aside(self.model), torch.enable_grad(), WithoutChance(self.draw, self.before.generators) as self.chance:
            found, single = self._off(value, _ALIKE)
            if not found:
                return False
            if self._random(value):
                return None
            try:
                with moved(self.model, None, double=True):
                    found, double = self._off(_doubled(value), _EXACT)
                    if not found:
                        return False
                with moved(self.model, torch.Generator().manual_seed(self.seed), double=True):
                    found &= self._off(_doubled(value), _EXACT)[0]
                rounded = set[int]().union(*map(_off, single, double, [_ROUNDED] * len(single)))
                return True if found - rounded else None
            except Exception:
                (one,), (two,) = (
                    self._gradients(each, list(range(self.rows)), self.trials[:1]) for each in (value, twin)
                )
                return True if _off(one, two, 1e2 * _ALIKE if self._short() else _ALIKE) else None

    def _random(self, value: Any) -> bool:
        """Whether gradients differ with other random numbers, which nothing here holds."""
        case, self.case = self.case, 1

        def played(shift: int) -> list[Tensor]:
            self.shift = shift
            (found,) = self._gradients(value, list(range(self.rows)), self.trials[1:2])
            return [each for each in found if each is not None]

        found: bool = self.chance.left(played)
        self.case, self.shift = case, 0
        return found

    def _short(self) -> bool:
        """Whether numbers are shorter than in single precision, so that routes of another length round otherwise."""
        device = self.parameters[0].device.type if self.parameters else "cpu"
        return torch.is_autocast_enabled(device) or any(one.element_size() < 4 for one in self.parameters)

    def _off(self, value: Any, tolerance: float) -> tuple[set[int], list[list[Tensor | None]]]:
        """The parameters whose gradient is not that of some samples plus the others', and all these gradients."""
        usual, quiet = self._gradients(value, self.others, self.trials[1:])
        whole = self._gradients(value, list(range(self.rows)), self.trials)
        own = self._gradients(value, self.some, self.trials)
        found = set[int]()
        for together, rest, one in zip(whole, (usual, usual, quiet), own, strict=True):
            found |= _off(together, [_sum(*pair) for pair in zip(rest, one, strict=True)], tolerance)
        return found, [usual, quiet, *whole, *own]

    def _gradients(
        self, value: Any, members: list[int], trials: Sequence[tuple[float, float]]
    ) -> list[list[Tensor | None]]:
        """The gradients of the parameters, trial by trial."""
        _again(self.model, self.before)
        self.chance.begin(self.case, self.shift)
        self.draw.manual_seed(self.seed)
        factors = torch.tensor([[loud if row in self.some else rest for row in members] for loud, rest in trials])
        results, upstream, scales = list[Tensor](), list[Tensor](), list[Tensor]()
        run = self.run(value if len(members) == self.rows else chosen(value, self.dims, members))
        for tensor, place in zip(run, self.places, strict=True):
            if (
                place is None
                or not (tensor.requires_grad and tensor.is_floating_point())
                or tensor.shape[place.dim] % len(members)
            ):
                continue
            size = tensor.shape[place.dim] // len(members)
            shape = [self.rows * size if dim == place.dim else n for dim, n in enumerate(tensor.shape)]
            drawn = torch.randn(shape, generator=self.draw)
            if len(members) < self.rows:
                drawn = drawn.index_select(place.dim, _blocks(members, size))
            results.append(tensor)
            upstream.append(drawn.to(tensor))
            after = [1] * (tensor.dim() - place.dim - 1)
            scales.append(factors.repeat_interleave(size, 1).view(len(trials), -1, *after).to(tensor))
        if not results:
            return [[None] * len(self.parameters) for _ in trials]
        answers = list[list[Tensor | None]]()
        for number in range(len(trials)):
            spread = [drawn * scale[number] for drawn, scale in zip(upstream, scales, strict=True)]
            more = number + 1 < len(trials)
            found = gone_back(results, self.parameters, spread, more)
            answers.append([None if one is None or one.is_sparse else one.detach() for one in found])
        return answers


def _blocks(members: Sequence[int], size: int) -> Tensor:
    """The rows of some samples where each has ``size``."""
    return (torch.tensor(members)[:, None] * size + torch.arange(size)).flatten()


def _sum(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    return two if one is None else one if two is None else one + two


def _off(one: Sequence[Tensor | None], two: Sequence[Tensor | None], tolerance: float) -> set[int]:
    """The places at which two lists of gradients differ by more than rounding; what is not finite tells nothing."""
    pairs = list(zip(one, two, strict=True))
    sizes = [max(map(_length, pair)) for pair in pairs]
    gaps = [max(map(_length, (a, b))) if a is None or b is None else _length(a.double() - b) for a, b in pairs]
    floor = 1e-3 * math.hypot(*(size for size in sizes if math.isfinite(size)))
    return {place for place, gap in enumerate(gaps) if gap > tolerance * (sizes[place] + floor)}


def _length(vector: Tensor | None) -> float:
    return 0.0 if vector is None else float(torch.linalg.vector_norm(vector.detach(), dtype=torch.float64))


def _doubled(value: Any) -> Any:
    return changed(value, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


_BEFORE = 3
"""So many samples are computed before a batch, each with a larger one."""


class LossWatch:
    """The removal test on the losses themselves, for a loop that knows how they are computed."""

    checking = 0
    """How many tests are running: meanwhile a model runs one sample at a time if it did so before."""

    def __init__(
        self,
        model: nn.Module,
        losses: Callable[[Any], Tensor],
        loss: Any = None,
        stirs: Callable[[], Sequence[Stir]] = list,
        anew: Callable[[], None] = lambda: None,
    ) -> None:
        """Watch ``losses``, a function of a batch, computed with ``model`` and ``loss``, which may keep a state.

        ``stirs`` gives what may be done before and may not matter; ``anew`` has ``losses`` try the loss as at first.
        """
        self.model, self.losses, self.loss, self.stirs, self.anew = model, losses, loss, stirs, anew
        self.schedule, self.footprints = RemovalSchedule(), Footprints()
        self._keeps_nothing = loss is None or keeps_nothing(loss)
        while isinstance(loss, partial):
            loss = loss.func
        self._plain = str(getattr(loss, "__module__", None)).startswith("torch.")

    def __call__(self, batch: Any) -> Tensor:
        """The losses of ``batch``; refuses those of which one depends on another sample."""
        return self._watched(batch, self.schedule.due(), new=False)

    def _watched(self, batch: Any, due: bool, new: bool) -> Tensor:
        """The losses, tested if it is ``due``; those that do something ``new`` as thoroughly as at the beginning."""
        trail = None if self._plain else self.footprints.trail()
        before = Snapshot(self.model) if due else None
        kept = KeptState(self.loss) if due else None
        again = None if due or trail is None else self._as_it_is()
        with nullcontext() if trail is None else followed(trail):
            losses = self.losses(batch)
        if trail is not None and again is not None and self.footprints.new(trail):
            del losses
            again()
            self.anew()
            try:
                return self._watched(batch, due=True, new=True)
            except InvalidInput as error:
                raise Mixing(f"{error} No guarantee holds for the steps since this began.") from error
        times = Doubled.times
        if before is not None and kept is not None and losses.dim() == 1 and len(losses) > 1:
            told = self._check(batch, losses, before, kept, thorough=new)
            if trail is not None and told:
                self.footprints.learn(trail)
            if Doubled.times > times:
                del losses
                before.restore()
                kept.restore()
                return self.losses(batch)
        return losses

    def _as_it_is(self) -> Callable[[], None]:
        """What puts back what the loss and the model keep, and the random numbers."""
        kept = None if self._keeps_nothing else KeptState(self.loss, COUNTERS)
        model, chance = Attributes(self.model), same_chance()

        def back() -> None:
            model.restore()
            chance()
            if kept is not None:
                kept.restore()

        return back

    def _check(self, batch: Any, losses: Tensor, before: Snapshot, kept: KeptState, thorough: bool) -> bool:
        """Refuse losses that mix; whether it could be told that they do not."""
        rows, after = len(losses), KeptState(self.loss)

        def run(value: Any) -> list[Tensor]:
            kept.restore()
            return [self.losses(value)]

        dims = tuple(0 if tensor.shape[:1] == (rows,) else None for tensor in tensors_in([batch]))
        where = (SamplePlacement(0, True),)
        LossWatch.checking += 1
        try:
            kinds: list[Any] = [(..., False)]
            if thorough:
                kinds = [(kind, labels) for kind in _kinds(batch, dims) for labels in (False, True)]
            seen = [losses.detach()]
            found = [others_change(self.model, run, batch, dims, where, rows, seen, before, *kind) for kind in kinds]
            changes = True in found
            if not changes:
                self._check_carried(batch, dims, rows, before, kept)
        finally:
            after.restore()
            LossWatch.checking -= 1
        if changes:
            raise Mixing(
                "samples mix: without one sample the losses of others change, so no per-sample bound exists, and "
                f"none holds for the steps since this began. {ADVICE}"
            )
        return None not in found

    def _check_carried(self, batch: Any, dims: Dims, rows: int, before: Snapshot, kept: KeptState) -> None:
        """Single samples are computed before the batch, or others read: its losses may not notice."""
        some = CHANCE.sample(range(rows), min(rows, _BEFORE))
        alone = [part(each, dims, row) for row in some for each in (batch, scaled(batch, dims, [row], 1e4, False))]

        def begin() -> None:
            before.restore()
            kept.restore()

        for stirs in ([partial(self.losses, each) for each in alone], self.stirs()):
            run = partial(self._said, batch)
            if stirs and carried(self.model, run, stirs, before.generators, begin):
                raise Mixing(CARRIED.format("loss says"))

    def _said(self, batch: Any) -> list[Tensor]:
        return [self.losses(batch)]
