"""Learning a model's structure: where the samples lie in every tensor, and whether samples stay apart.

Nothing is taken from a real batch but the shapes and kinds of the arguments. The model runs on synthetic rows
(`sordina.gradients._rehearsal`), with its parameters moved at random:

1. in two batch sizes. What grows with the batch is the dimension of the samples, in every tapped tensor and result;
2. on each sample alone. A sample whose result is another one in company *mixes* with others, with or without a
   gradient between them, and no per-sample bound exists: refused;
3. with one sample replaced by something very different (a thousand times as large, not a number): the results of the
   others may not change;
4. after two different batches: what the model then says of a third may not differ, or it keeps data between batches;
5. the engine's norms and sums of every parameter, with random gradients at the results, are held against autograd on
   each sample alone; then once more with the samples in the opposite order (a model may sort them) and one gradient far
   larger than the others (a backward pass may look across the batch too). Where they differ, where a gradient vanishes
   for all samples, and where a shape depends on values, the model runs one sample at a time from then on. So it does
   where Python reads values of samples with consequences (`_reads`), and where operations bring them together, on
   whatever rows (`_owners`).

A structure holds for arguments of the same shapes: models do other things to longer sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from sordina.errors import Unsupported
from sordina.gradients._asides import Results, check_asides, check_said, check_told, numbers_kept, with_asides
from sordina.gradients._chance import AS_DRAWN, CASES, TOSSES, WithoutChance
from sordina.gradients._crowds import company_trials, crowd_sizes, crowd_trials, missing_trials
from sordina.gradients._following import brings_together, in_own_precision, remembered
from sordina.gradients._hooks import Recorder, Tap, refuse_reentrant
from sordina.gradients._kept_state import kept_state, left_otherwise
from sordina.gradients._reads import SCALES, Company, Remembered, settled
from sordina.gradients._rehearsal import (
    BY_THE_BATCH_BEFORE,
    CHANGES,
    FEW,
    LOUD,
    MAKERS,
    Dims,
    Limits,
    Maker,
    Recast,
    Snapshot,
    aside,
    batch_dims,
    batch_sizes,
    check_parameters,
    chosen,
    extreme_batches,
    fingerprint,
    flipped,
    gone_back,
    kept_words,
    limits_found,
    looked_at,
    made,
    moved,
    part,
    positive_rows,
    random_like,
    ranged,
    remembers_words,
    replaced,
    rows_in,
    rows_of,
    scaled,
    swamped,
)
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients._turns import Site
from sordina.gradients.checks import Squeezed, refuse_compiled, unseen_words
from sordina.gradients.one_by_one import (
    SamplePlacement,
    SamplePlacements,
    Truth,
    close,
    loosely_differing,
    others_same,
    part_same,
    piece_of,
)
from sordina.gradients.structure import Key, Mixing, Structure, form_of, forms_of, grown, places_of, shapes_of
from sordina.gradients.tape import full_precision, gradients, names_of, passed_through, terms_of

DOUBLE_LIMIT = 20_000_000
"""Models of up to so many parameters are studied in double precision."""


@dataclass
class Study:
    """One way to call a model, under study; `learn` is the way to it."""

    model: nn.Module
    forward: Callable[..., Any]
    """The model's own forward pass."""
    listen: Callable[..., Any]
    """The same with taps; called with the number of samples, their dimensions, arguments and keyword arguments."""
    recorder: Recorder
    parameters: Mapping[str, Tensor]
    public_buffers: frozenset[str]
    thorough: bool = True
    """Whether to look for data kept between batches, and for what replaced samples do."""
    seed: int = 0
    constant: frozenset[int] = frozenset()
    """The places of tensors among the arguments that hold no samples, as was seen where their sizes told."""
    known: Dims | None = None
    """Where samples lie in such arguments, as was seen where their sizes told."""
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def learn(self, value: tuple[Any, Any], rows: int) -> Structure:
        """The structure of calls with arguments like ``value``, which hold ``rows`` samples.

        Where samples mix if a tensor of so many rows holds samples, it is not taken for something else.
        """
        mixing: Mixing | None = None
        mixed: list[Dims] = []
        failure: Exception | None = None
        for dims in batch_dims(value, rows, self.constant) if self.known is None else [self.known]:
            if any(one is not None and two is None for other in mixed for one, two in zip(other, dims, strict=True)):
                continue
            silent: Structure | None = None
            why = ""
            for maker, double, wide in self.ways(value, dims):
                try:
                    found, spoke = self._tried(value, dims, maker, double, wide)
                    if double and self.thorough:
                        found = in_own_precision(self, value, maker, wide, found)
                except Mixing as error:
                    mixing = mixing or error
                    mixed.append(dims)
                    break
                except Exception as error:
                    if isinstance(error, Unsupported) and not (double and isinstance(error, Recast)):
                        raise
                    failure = failure or error
                    continue
                if spoke:
                    return replace(found, alone=found.alone or why)  # what one way has shown, no other takes back
                silent, why = silent or found, why or ("" if found.alone == VANISHES else found.alone)
            if silent is not None:
                return silent
        if mixing is not None:
            raise mixing
        refuse_compiled(self.model)
        raise Unsupported(unseen_words(failure, list(tensors_in([value])), rows)) from failure

    def ways(self, value: tuple[Any, Any], dims: Dims) -> Iterator[tuple[Maker, bool, bool]]:
        """How to make rows, whether in double precision (not every model can, or is small), and whether from a range.

        Whole numbers come from as large a range as the model takes, and if that fails, are the smallest.
        """
        small = sum(parameter.numel() for parameter in self.model.parameters()) <= DOUBLE_LIMIT
        ranges = any(dim is not None and ranged(x) for x, dim in zip(tensors_in([value]), dims, strict=True))
        for maker in MAKERS:
            for double in (True, False) if small else (False,):
                yield from ((maker, double, wide) for wide in ((True, False) if ranges else (False,)))

    def _tried(
        self, value: tuple[Any, Any], dims: Dims, maker: Maker, double: bool, wide: bool
    ) -> tuple[Structure, bool]:
        many = batch_sizes(value)[1]
        with self.trial(value, dims, maker, double, wide) as (trial, make, alike):
            found, spoke = trial.run(many, make(many), alike)
            if self.thorough:
                trial.check_history()
                if name := remembered(trial, make(trial.rows)):
                    raise Unsupported(remembers_words(name))
                for company in company_trials(make(many), dims, self.generator):
                    trial.check_trials(*company, found.outputs, optional=True)
                for crowd in crowd_trials(self.model, self.plain, make, dims, trial.value, self.generator):
                    trial.check_trials(*crowd, found.outputs)
                if not found.alone:
                    sizes = crowd_sizes(self.plain, dims, trial.value, rows_in(list(tensors_in([value])), dims) or 0)
                    why = brings_together(trial, found, [(size, make(size)) for size in sizes or [many]])
                    for company in () if why else missing_trials(make(many), dims, self.generator):
                        trial.check_trials(*company, found.outputs, optional=True)
                    found = replace(found, alone=why)
            return replace(found, shared=found.shared | trial.uneven), spoke

    @contextmanager
    def trial(
        self, value: tuple[Any, Any], dims: Dims, maker: Maker, double: bool, wide: bool
    ) -> Iterator[tuple[StructureTrial, Callable[[int], tuple[Any, Any]], Callable[[], Any]]]:
        """A trial on few rows, what makes more, and what makes positive ones."""
        few, _ = batch_sizes(value)
        with (
            moved(self.model, self.generator, double),
            aside(self.model, anew=True) as snapshot,
            WithoutChance(self.generator, snapshot.generators) as chance,
            torch.enable_grad(),
            self._unheard(),
        ):
            made_up = partial(made, value, dims, maker=maker, generator=self.generator, double=double)
            limits = (FEW,) * len(dims)
            if wide:
                limits = self._limits(value, dims, lambda limits: made_up(rows=few, limits=limits), snapshot)
            trial = StructureTrial(self, dims, few, made_up(rows=few, limits=limits), snapshot, chance)
            alike = partial(made_up, rows=few, limits=limits, maker=positive_rows)
            yield trial, lambda rows: made_up(rows=rows, limits=limits), alike

    def _limits(
        self, value: tuple[Any, Any], dims: Dims, make: Callable[[Limits], tuple[Any, Any]], snapshot: Snapshot
    ) -> Limits:
        def takes(limits: Limits) -> bool:
            snapshot.restore()
            with suppress(Exception):
                self.plain(make(limits))
                return True
            return False

        return limits_found(value, dims, takes)

    @contextmanager
    def _unheard(self) -> Iterator[None]:
        """What was recorded before is kept, what is recorded now is not."""
        taps, self.recorder.taps = self.recorder.taps, []
        self.recorder.learning = True
        try:
            yield
        finally:
            self.recorder.taps, self.recorder.learning = taps, False

    def heard(self, rows: int, dims: Dims, value: tuple[Any, Any]) -> tuple[Any, list[Tap]]:
        """A forward pass with taps."""
        self.recorder.taps = []
        result = self.listen(rows, dims, *changed(value, torch.clone))
        taps, self.recorder.taps = self.recorder.taps, []
        return result, taps

    def plain(self, value: tuple[Any, Any]) -> Results:
        """The tensors of the result of a forward pass without taps."""
        self.recorder.muted += 1
        args, kwargs = changed(value, torch.clone)
        try:
            return Results(self.forward(*args, **kwargs))
        finally:
            self.recorder.muted -= 1


IN_COMPANY = "on made-up rows, the model says something else of a sample in company than alone"
SEEDED = "the model seeds random numbers in its forward pass, so that without a sample others get other ones"
VANISHES = "a parameter's gradient vanishes on all rows tried"
ON_MADE_UP_ROWS = "on made-up rows, replacing one sample changes what the model says of others"


@dataclass
class StructureTrial:
    """The model on one synthetic batch of a few samples."""

    study: Study
    dims: Dims
    rows: int
    value: tuple[Any, Any]
    snapshot: Snapshot
    chance: WithoutChance
    squeezed: bool = False
    """Whether results of one sample alone have fewer dimensions."""
    telling: set[str] = field(default_factory=set)  # names of what holds values of Python's that depend on samples
    uneven: set[int] = field(default_factory=set)
    """The places of results without rows of samples that depend on how many there are."""

    def run(self, many: int, larger: tuple[Any, Any], alike: Callable[[], Any]) -> tuple[Structure, bool]:
        """The structure, and whether every parameter's gradient has spoken; ``alike`` makes positive rows."""
        self.study.recorder.dynamic = ""
        prints = fingerprint(self.study.model)
        result, taps = self._heard(many, larger)
        wide, shapes = [tensor.shape for tensor in tensors_in([result])], shapes_of(taps or [])
        self._check_buffers()
        check_parameters(prints, fingerprint(self.study.model))
        del result, taps
        result, taps = self._heard(self.rows, self.value)
        outputs = list(tensors_in([result]))
        check_told(result)
        refuse_reentrant(outputs)
        apart = self._apart(self.value)
        check_said([result, *apart])
        placements = self._placements(outputs, wide, apart, many)
        self._compare(outputs, apart, placements)
        first = {tap.key for tap in taps or () if not tap.any_dim}
        places = places_of(shapes_of(taps or []), shapes, self.rows, many, first)
        structure = Structure(self.dims, placements, places, frozenset(), forms_of(taps or [], places, self.rows))
        try:
            passed, differs, spoke = self._gradients(structure, outputs, taps, apart)
        finally:  # also where a backward pass fails: a model that mixes is refused, not tried in another way
            del result, outputs, taps, apart
            if self.study.thorough:
                self.check_replaced(self.value, self.rows, placements)
                self.check_replaced(larger, many, placements)
            self._check_memory(larger)
        if not differs:
            differs = self._other_way(structure)
        reads, read = self.reads(larger, many, alike, placements)
        structure = replace(structure, reads=reads)
        structure = with_asides(self, structure, [(self.rows, self.value), (many, larger)])
        why = self.study.recorder.dynamic or differs or read
        why = why or brings_together(self, structure, [(self.rows, self.value)])
        why = why or ("" if spoke else VANISHES)
        return replace(structure, passed=passed, alone=why), spoke

    def _heard(self, rows: int, value: tuple[Any, Any]) -> tuple[Any, list[Tap] | None]:
        """A forward pass with taps; without, where listening fails and the model alone does not."""
        try:
            return self.fresh(partial(self.study.heard, rows, self.dims, value))  # type: ignore[no-any-return]
        except Exception:
            return self.fresh(partial(self.study.plain, value)), None

    def _apart(self, value: tuple[Any, Any]) -> list[Results]:
        return [self.fresh(partial(self.study.plain, part(value, self.dims, row))) for row in range(self.rows)]

    def _other_way(self, structure: Structure) -> str:
        """What differs with the samples in the opposite order, one of them with a far larger gradient."""
        value = flipped(self.value, self.dims)
        result, taps = self._heard(self.rows, value)
        outputs, loud = list(tensors_in([result])), torch.ones(self.rows)
        short = any(tensor.dtype != torch.float64 for tensor in outputs if tensor.is_floating_point())
        loud[int(torch.randint(self.rows, (), generator=self.study.generator))] = 1e3 if short else 1e6
        return self._gradients(structure, outputs, taps, self._apart(value), loud)[1]

    def reads(
        self, larger: tuple[Any, Any], many: int, alike: Callable[[], Any], places: SamplePlacements
    ) -> tuple[frozenset[Site], str]:
        """Where Python may read values of the samples, or that it reads some that it may not (`settled`)."""

        def run(value: tuple[Any, Any]) -> Results:
            self.snapshot.restore_all()
            tensors: Results = self.fresh(partial(self.study.plain, value))
            tensors.kept = numbers_kept(self.study.model)
            wanted = [get_gradient_edge(each) for each in self.study.parameters.values()]
            chosen = [tensor for tensor in tensors if tensor.requires_grad and tensor.is_floating_point()]
            if chosen and wanted:
                gradients(torch.stack([tensor.square().sum() for tensor in chosen]), wanted, retain=False)
            tensors[:] = [tensor.detach() for tensor in tensors]
            return tensors

        def same(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
            self.telling |= check_asides(one, two)
            pairs = zip(one, two, places, strict=False)
            return len(one) == len(two) and all(close(a, b, place.dim if place else None) for a, b, place in pairs)

        def left() -> dict[str, Any]:
            self.snapshot.restore_chance()
            self.study.plain(self.value)
            return self._kept()

        def company(value: tuple[Any, Any], rows: int) -> Company:
            return value, [x for x, dim in zip(tensors_in([value]), self.dims, strict=True) if dim is not None], rows

        def spare() -> Iterator[Company]:
            yield company(alike(), self.rows)
            if any(each.dtype == torch.float64 for each in both[0][1]):  # others round too much
                for each in SCALES:
                    yield company(scaled(self.value, self.dims, range(self.rows), each), self.rows)

        try:
            both = company(self.value, self.rows), company(larger, many)
            return settled(run, both, same, spare, left)
        except Remembered as found:
            raise Unsupported(remembers_words(str(found))) from None
        except Unsupported:
            raise
        except Exception:
            return frozenset(), "the model cannot be watched while it runs"
        finally:
            self.snapshot.restore_all()

    def fresh(self, work: Callable[[], Any]) -> Any:
        """What ``work`` says, with the model as it was."""
        self.snapshot.restore()
        return work()

    def _check_buffers(self) -> None:
        if names := [each for each in self.snapshot.changed_buffers() if each not in self.study.public_buffers]:
            raise Unsupported(kept_words(names[0]))

    def _placements(
        self, few: Sequence[Tensor], many: Sequence[torch.Size], one: Sequence[Any], size: int
    ) -> SamplePlacements:
        if any(len(each) != len(few) for each in (many, *one)):
            raise Mixing.because("the form of the model's result depends on how many samples there are")
        found: list[SamplePlacement | None] = []
        for number, tensor in enumerate(few):
            place = grown(tensor.shape, many[number], self.rows, size)
            single = [each[number].shape for each in one]
            self.squeezed |= place is not None and any(len(shape) < tensor.dim() for shape in single)
            if place is not None and any(
                len(shape) < tensor.dim()
                or shape[place.dim] * self.rows != tensor.shape[place.dim]
                or form_of(shape, place.dim, 1) != form_of(tensor.shape, place.dim, self.rows)
                for shape in single
            ):
                place = None
            found.append(place)
        self.uneven |= set[int]().union(*(loosely_differing(few, each, found) for each in one))
        return tuple(found)

    def _compare(self, together: Sequence[Tensor], apart: Sequence[Sequence[Tensor]], places: SamplePlacements) -> None:
        for number, place in enumerate(places):
            alone = [tensors[number].detach() for tensors in apart]
            if place is not None and not close(together[number].detach(), torch.cat(alone, place.dim), place.dim):
                if self.chance.left(lambda seed: self._played(self.value, 1, seed)[0]):
                    self.study.recorder.dynamic = "the model draws random numbers where no test can hold them"
                    return
                raise Mixing.because(SEEDED if self.chance.seeded else IN_COMPANY)

    def check_replaced(self, value: tuple[Any, Any], rows: int, places: SamplePlacements, rough: float = 1.0) -> None:
        """Refuse a model whose results for others change when a sample of ``value`` is replaced."""
        sample = int(torch.randint(rows, (), generator=self.study.generator))  # one: it moves a mean up, then down
        changes = zip((*LOUD, torch.zeros_like, torch.ones_like), (*CASES, 0, 0), strict=True)
        trials = [(change, case, 0) for change, case in changes]
        differs, as_many = False, True
        for change, case, seed in trials:
            twin = replaced(value, self.dims, sample, (sample + 1) % rows, change)
            before, seeds = self._played(value, case, seed)
            if case == 0 and self.chance.drew:
                trials += [(CHANGES[2], AS_DRAWN, self.study.seed + number) for number in range(TOSSES)]
            try:
                others, other_seeds = self._played(twin, case, seed)
            except Exception:
                continue  # it does not take such a row (it checks for "not a number"), so nobody's batch will have one
            same = others_same(before, others, places, sample, rows, rough)
            if case == AS_DRAWN:
                differs |= not same
                as_many &= seeds == other_seeds
            elif not same or seeds != other_seeds:
                raise Mixing.because(ON_MADE_UP_ROWS)
        if differs and as_many:  # where not as many numbers are drawn each time, not everybody got the same ones
            raise Mixing.because(ON_MADE_UP_ROWS)
        self._check_swamped(value, rows, places, sample, rough)
        (_, seeds), (_, fewer) = (self._played(each, 0) for each in (value, part(value, self.dims, 0)))
        if set(seeds) != set(fewer):
            raise Mixing.because("the seed of random numbers depends on the samples, or on how many there are")

    def check_trials(
        self,
        value: Any,
        twins: Sequence[tuple[Sequence[int], Any]],
        places: SamplePlacements,
        optional: bool = False,
    ) -> None:
        """Refuse a model whose results for others change with some samples, in which a twin differs from ``value``, or
        what else it says with the number of samples. Where that is ``optional``, the model need not take it."""
        rows = rows_in(list(tensors_in([value])), self.dims) or 0
        try:
            before = self._played(value, 0)[0]
        except Exception:
            if not optional:
                raise
            return
        check_said([few := self._played(self.value, 0)[0], before])
        self.uneven |= loosely_differing(few, before, places)
        for gone, twin in twins:
            try:
                after = self._played(twin, 0)[0]
            except Exception:
                continue  # it does not take such rows
            check_said([before, after])
            if not others_same(before, after, places, gone, rows):
                raise Mixing.because("on made-up rows, replacing one sample of several changes what it says of others")

    def _check_swamped(
        self, value: tuple[Any, Any], rows: int, places: SamplePlacements, sample: int, rough: float
    ) -> None:
        """All samples but one infinite, to either side, beyond what any number is compared to; or small, or large."""
        before = self._played(value, 0)[0]
        for number in (math.inf, -math.inf, 1e-4, 1e4):
            try:
                after = self._played(swamped(value, self.dims, sample, number), 0)[0]
            except Exception:
                continue
            own = [x if y is None else rows_of(x, y.dim, sample, rows) for x, y in zip(after, places, strict=False)]
            if len(after) != len(before) or not part_same(before, own, places, sample, 1, rows, rough):
                raise Mixing.because("on made-up rows, replacing all others changes what the model says of a sample")

    def _played(self, value: tuple[Any, Any], case: int, seed: int = 0) -> tuple[Results, list[Any]]:
        """What the model says of ``value`` in a case of chance, and the seeds it used."""
        self.snapshot.restore()
        self.chance.begin(case, seed)
        try:
            results = self.study.plain(value)
            results[:] = [tensor.detach() for tensor in results]
            return results, self.chance.seeds()
        finally:
            self.chance.begin(0)

    def _check_memory(self, larger: tuple[Any, Any]) -> None:
        quiet, few = (self.value, 1.0), part(self.value, self.dims, 0, 2)
        afterwards = [self._after(*each) for each in (quiet, (larger, 1e9), (few, 1e9))]
        for one, two in (pair for later in afterwards[1:] for pair in zip(afterwards[0], later, strict=True)):
            if one.shape != two.shape or not close(one, two, None):
                raise Unsupported(BY_THE_BATCH_BEFORE)

    def check_history(self) -> None:
        """Refuse a model that keeps something of a batch beyond the next one, whether it is used now or much later.

        Whatever batches were there, as many leave it the same after one more: counts of calls are equal, memories of
        data are not, nor are counts of samples.
        """
        other = scaled(chosen(self.value, self.dims, [0] * self.rows), self.dims, range(self.rows), 3.0)
        if not self._check_left([other, part(self.value, self.dims, 0, 2)]):
            return  # it does not take such rows
        extremes = list(extreme_batches(self.value, self.dims))
        prints = fingerprint(self.study.model) if extremes else {}
        if extremes and not self._check_left(extremes):
            for each in extremes:
                self._check_left([each])
        check_parameters(prints, fingerprint(self.study.model) if extremes else prints)

    def _check_left(self, others: Sequence[tuple[Any, Any]]) -> bool:
        """Refuse a model in which ``others`` leave something else than as many ordinary batches; False if it fails."""

        def play(value: tuple[Any, Any]) -> None:
            self.snapshot.restore_chance()
            self._there_and_back(value, 1.0)

        if name := left_otherwise(self.study.model, self.snapshot.restore_all, play, self._kept, self.value, others):
            raise Unsupported(remembers_words(name))
        return name is not None

    def _kept(self) -> dict[str, Any]:
        """What the model keeps, but for buffers that the user has vouched for."""
        vouched = {f"buffer {name}" for name in self.study.public_buffers}
        return {name: each for name, each in kept_state(self.study.model).items() if name not in vouched}

    def _after(self, before: tuple[Any, Any], loud: float) -> list[Tensor]:
        self.snapshot.restore_all()
        self._there_and_back(before, loud)
        self.snapshot.restore_chance()
        return self._there_and_back(self.value, 1.0)

    def _there_and_back(self, value: tuple[Any, Any], loud: float) -> list[Tensor]:
        """The model's results, and in a thorough study gradients of their squares."""
        results = self.study.plain(value)
        told = [tensor.detach() for tensor in results]
        chosen = [tensor for tensor in results if tensor.requires_grad and tensor.is_floating_point()]
        looked = looked_at(self.study.model, self.study.seed)
        if not chosen or not looked or not self.study.thorough:
            return told
        with suppress(Exception):  # no way back: it will be said elsewhere
            found = gone_back(chosen, looked, [tensor.detach() * loud for tensor in chosen])
            return [*told, *(each.detach() for each in found if each is not None and not each.is_sparse)]
        return told

    def _gradients(
        self,
        structure: Structure,
        outputs: Sequence[Tensor],
        taps: list[Tap] | None,
        apart: Sequence[Sequence[Tensor]],
        loud: Tensor | None = None,
    ) -> tuple[frozenset[Key], str, bool]:
        """The taps a backward pass goes through, which parameter's answers are wrong, and whether all of them spoke.

        The gradients at the results are random, those of each sample as many times as large as ``loud`` says.
        """
        study, nothing = self.study, frozenset[Key]()
        spread = [
            random_like(tensor, study.generator, None if loud is None or place is None else place.dim, loud)
            for tensor, place in zip(outputs, structure.outputs, strict=True)
        ]
        chosen = [
            (tensor * weight).movedim(place.dim, 0).reshape(self.rows, -1).sum(1)
            for tensor, weight, place in zip(outputs, spread, structure.outputs, strict=True)
            if place is not None and tensor.requires_grad
        ]
        if not chosen and self.squeezed:
            raise Squeezed
        if not chosen:
            raise Mixing("samples mix: no result of the model that can be trained has one row, or several, per sample.")
        losses = torch.stack(chosen).sum(0)
        truth = Truth(study.parameters, torch.randn(self.rows, generator=study.generator, dtype=torch.float64))
        for row, tensors in enumerate(apart):
            truth.add(row, piece_of(row, tensors, structure.outputs, spread))
        if taps is None:
            return nothing, "a rule does not fit how its layer is called", True
        if not structure.fits(taps, self.rows):
            return nothing, "a layer is used on rows that are not samples", True
        passed = passed_through(losses, taps, structure.taps)
        try:
            terms = terms_of(
                losses, taps, structure.taps, passed, study.parameters, names_of(study.parameters), self.rows, 1
            )
            with full_precision(losses.device.type):  # as in a step
                recurrent = [f"{name}." for name, each in study.model.named_modules() if isinstance(each, nn.RNNBase)]
                tapped = {tap.key[0] for tap in taps if tap.build and tap.key[0].startswith(tuple(recurrent))}
                return passed, truth.differing(terms), truth.spoke(terms, tapped)
        except Exception:
            return nothing, "a rule does not fit how its layer is called", True
