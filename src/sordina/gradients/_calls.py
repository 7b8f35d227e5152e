"""The calls of a model: taps are placed, each call is run in the way its structure allows, and watched."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.nn.modules.batchnorm import _BatchNorm

from sordina._memory import apart_from_heap
from sordina.errors import Unsupported
from sordina.gradients._arguments import left_alone
from sordina.gradients._asides import Agreement, withhold_attributes, without_asides, without_objects
from sordina.gradients._carried import CARRIED, Stir, carried
from sordina.gradients._following import still_apart
from sordina.gradients._footprints import Following, Footprints, Trail, followed, same_chance
from sordina.gradients._hooks import Recorder, again, unwrap, wrap
from sordina.gradients._kept_state import COUNTERS, KeptState
from sordina.gradients._operations import FreeParameters
from sordina.gradients._reads import Reads
from sordina.gradients._rehearsal import (
    Attributes,
    Dims,
    Doubled,
    Snapshot,
    changed_words,
    check_parameters,
    fingerprint,
    kept_words,
    rows_in,
)
from sordina.gradients._study import Study
from sordina.gradients._switches import Switches
from sordina.gradients._tracing import Tracer, changed, found_in, tensors_in
from sordina.gradients._way_back import ModelCall
from sordina.gradients._ways import BEGAN, Ways
from sordina.gradients.checks import check
from sordina.gradients.layers import Fold, Rule, rule_for
from sordina.gradients.one_by_one import Apart, run_apart
from sordina.gradients.removal import CHANCE, LossWatch, RemovalSchedule, backward_mixes, others_change
from sordina.gradients.structure import ADVICE, Mixing, Structure

# The calls of a model: each is run in the way its structure allows, and watched.
#
# Before the first call of a kind, the model's structure is learned on made-up rows (`sordina.gradients._study`), and
# now and then again, at random steps to the end of the run. At other random steps the *removal test* is done on the
# batch itself: one sample is replaced by something very different, and what the model says of the others may not
# change.
#
# What can be seen from outside? What is decided on made-up rows does not depend on anybody's record; only a model that
# takes none of them (it fails on random numbers, and on ones) is studied on rows of its batch. A removal test that
# fails stops the run, and that it fails can depend on the batch. It cannot happen to a model whose samples stay apart;
# of one that mixes there is no guarantee that a failure could break. A batch that does not look as expected (a tensor
# of another shape) is answered one sample at a time, without a word.

STUDY_EVERY = 1024
"""How many calls lie, in the long run, between two looks at the structure."""
FOLLOWED = 0.25
"""How often operations are followed again at a removal test."""
STUDY_FIRST = 128
"""How many lie, on average, before the second look."""


class _Alive:
    """Lives as long as a graph does; when it dies, the call is forgotten."""

    def __init__(self, calls: Calls, call: ModelCall) -> None:
        self.calls, self.call = weakref.ref(calls), weakref.ref(call)

    def __del__(self) -> None:
        calls, call = self.calls(), self.call()
        if calls is not None and call is not None and calls.made:
            calls.made = [each for each in calls.made if each is not call]


class Calls:
    """Runs the model, and keeps its calls since the last record."""

    def __init__(
        self,
        model: nn.Module,
        recorder: Recorder,
        meeting: FreeParameters,
        parameters: Mapping[str, Tensor],
        public_buffers: frozenset[str] = frozenset(),
    ) -> None:
        self.model, self.recorder, self.meeting = model, recorder, meeting
        self.forward: Callable[..., Any] = model.forward
        """The forward pass, listened to."""
        self.run: Callable[..., Any] = self.forward
        """What was called last: the forward pass, or the model with its hooks."""
        self.parameters, self.public_buffers = parameters, public_buffers
        self.parts = tuple(model.modules())
        self.made: list[ModelCall] = []
        self.expected: int | None = None
        """How many samples the next call has, if somebody knows."""
        self.removal, self.study = RemovalSchedule(), RemovalSchedule(STUDY_EVERY, first=STUDY_FIRST)
        self.ways = Ways(parameters, self._new_study, self._tell_alone)
        self._quick: dict[Any, Structure] = {}
        """Structures by the shape of a sample and the type of a tensor that is the only argument (`_quickly_told`)."""
        self._buffers = [
            (module._buffers, key, f"{name}.{key}" if name else key)
            for name, module in model.named_modules()
            for key in module._buffers
        ]
        self._all = list(model.parameters())
        self.switches, self.footprints = Switches(model), Footprints()
        self.stirs: Callable[[], Sequence[Stir]] = list
        """What may be done before a call, and may not matter for it."""
        self._before: Attributes | None = None
        self._studied = False
        """Whether the structure of this call was learned, or learned again, for it."""
        self._frozen = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        self._running = False
        self._last: Structure | None = None
        """How the model ran last."""
        self._told: set[str] = set()
        """The names of what samples that ran alone did not leave alike."""
        self._asked = False
        """Whether anybody has called the model without gradients."""
        self._went_back = False
        """Whether the last removal test also went the way back."""
        self._follow = False
        """Whether operations are to be followed at the next removal test for certain."""
        self._owed = False
        """Whether the model is switched as it never was, and has not been tested so."""

    def __call__(self, *args: Any, whole: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
        """The model's forward pass, or the ``whole`` of what happens when the model is called."""
        if LossWatch.checking and not self._running:
            if self._last is not None and self._last.alone:
                return self._again((args, kwargs), self._last)
            return self._muted(_leaving_alone(whole or self.forward, self.parts), *args, **kwargs)
        if not self.recorder.listening or self._running:
            run, quiet = whole or self.forward, not self._running and self.recorder.unrecorded
            run = _leaving_alone(run, self.parts) if quiet else run
            quiet = quiet and self._alone_somewhere()
            return self._without_gradients((args, kwargs), run) if quiet else run(*args, **kwargs)
        self._running, self.run = True, _leaving_alone(whole or self.forward, self.parts)
        self._look_at_switches()
        try:
            with nullcontext() if Following.active is None else followed(None):
                return self._run((args, kwargs))
        finally:
            self._running = False
            self.switches.left()

    def _alone_somewhere(self) -> bool:
        """Whether the model runs one sample at a time in some way it is called, or nobody has looked yet."""
        asked, self._asked = self._asked, True
        return not asked or any(each.alone for each in self.ways.known.values())

    def _without_gradients(self, value: tuple[Any, Any], run: Callable[..., Any]) -> Any:
        """What the model says without gradients may be what a loss aims at: one sample at a time, if it runs so."""
        given, structure, self.run = found_in(value), None, run
        sizes = _likely_rows(given)
        if any(self.expected in each.shape for each in given) and self.expected:
            sizes = [self.expected]
        self._running = True
        try:
            with suppress(Exception):  # it is said where gradients are asked for
                structure = self.ways.structure(value, given, sizes, self.switches.way, False) if sizes else None
            rows = rows_in(given, structure.inputs) if structure is not None and structure.alone else 0
            if structure is None or not rows:
                return run(*value[0], **value[1])
            result, apart = self.run_apart(value, structure, rows)
            return without_objects(without_asides(result, structure, apart))
        finally:
            self._running = False

    def _look_at_switches(self) -> None:
        """Where somebody has changed what is switched on since the last call, the model is studied as it is now."""
        another, test = self.switches.look()
        if another:
            self._quick = {}
        if test or self._owed:
            self._owed = True
            self.demand_tests()

    def demand_tests(self) -> None:
        """Do the removal test on the next call for certain, the way back included."""
        self.removal.force()
        self._went_back, self._follow = False, True

    def _again(self, value: tuple[Any, Any], structure: Structure) -> Any:
        """As the model ran last, one sample at a time."""
        rows = rows_in(found_in(value), structure.inputs)
        self._running = True
        try:
            return self.run_apart(value, structure, rows)[0] if rows else self.run(*value[0], **value[1])
        finally:
            self._running = False

    def _run(self, value: tuple[Any, Any]) -> Any:
        if any(module.training for module in self._frozen) and (problems := check(self.model)):
            raise Unsupported(str(problems[0]))
        given = found_in(value)
        structure = self._structure(value, given)
        rows = rows_in(given, structure.inputs) if structure else 0
        if not structure or not rows:
            return self._muted(self.run, *value[0], **value[1])
        self.recorder.taps = []
        before = [(buffers.get(key), getattr(buffers.get(key), "_version", 0)) for buffers, key, _ in self._buffers]
        looked_at = [*self._all, *given]
        versions = [tensor._version for tensor in looked_at]
        watched = Snapshot(self.model) if self.removal.due() and rows > 1 else None
        prints = None if watched is None else fingerprint(self.model)
        self._before = Attributes(self.model) if self.switches.moving else None
        apart, trail = None, None if self.switches.plain else self.footprints.trail()
        if not structure.alone and watched is not None:
            result, structure = self._watched(value, given, structure, rows, watched, trail)
        elif not structure.alone:
            result = self._followed(value, structure, rows, trail)
            if trail is not None and result is trail:
                self.demand_tests()
                return self._run(value)
        if structure.alone:
            result, apart = self.run_apart(value, structure, rows)
        tensors = [result] if isinstance(result, Tensor) else list(tensors_in([result]))
        if len(tensors) != len(structure.outputs):
            raise Unsupported("the model's result has another form than when its structure was learned.")
        if before:
            self._check_buffers(before)
        if versions != [tensor._version for tensor in looked_at]:
            self._refuse_change(versions)
        if watched is not None and prints is not None:
            check_parameters(prints, fingerprint(self.model))
            times = Doubled.times
            with apart_from_heap():
                why = self._check_removal(value, structure, rows, tensors, watched)
            if why:
                structure = self.alone_from_now(structure, why)
            if why or Doubled.times > times:
                watched.restore()
                self.recorder.taps = []
                if structure.alone:
                    result, apart = self.run_apart(value, structure, rows)
                else:
                    result = self.listen(rows, structure.inputs, *value)
                tensors = list(tensors_in([result]))
            self._owed = False
            if trail is not None:
                self.footprints.learn(trail)
        self._last = structure
        edges = [None if each.grad_fn is None else GradientEdge(each.grad_fn, each.output_nr) for each in tensors]
        taps, self.recorder.taps = self.recorder.taps, []
        tested = self._studied or (watched is not None and self._went_back)
        result = self._kept(ModelCall(value, structure, rows, edges, apart, taps, tested, self._before), result)
        if structure.holding or structure.telling or structure.shared or apart is not None:
            telling = structure.telling | (self._told if apart is not None else set())
            withhold_attributes(self.model, structure.holding, telling, value, structure.volatile)
            result = without_asides(result, structure, apart)
        return result if isinstance(result, Tensor) else without_objects(result)

    def _followed(self, value: tuple[Any, Any], structure: Structure, rows: int, trail: Trail | None) -> Any:
        """All samples at once; the ``trail`` if something was done for the first time, which must be tested."""
        if trail is None:
            return self.listen(rows, structure.inputs, *value)
        chance, kept = same_chance(), self._before
        with followed(trail):
            result = self.listen(rows, structure.inputs, *value)
        if self._studied:
            self.footprints.learn(trail)
        elif rows > 1 and self.footprints.new(trail):
            chance()
            if kept is not None:
                kept.restore()
            return trail
        return result

    def _watched(
        self,
        value: tuple[Any, Any],
        given: Sequence[Tensor],
        structure: Structure,
        rows: int,
        before: Snapshot,
        trail: Trail | None,
    ) -> tuple[Any, Structure]:
        """All samples at once, watched by `Reads`: from a first reading on, the model runs one sample at a time.

        That something is read does not depend on a record, for nothing was read before it. Afterwards the way may.
        """
        samples = [tensor for tensor, dim in zip(given, structure.inputs, strict=True) if dim is not None]
        with Reads(samples, rows) as reads, followed(trail):
            result = self.listen(rows, structure.inputs, *value)
        why = reads.unknown(structure.reads)
        if not why:
            return result, structure
        before.restore()
        return None, self.alone_from_now(structure, why)

    def alone_from_now(self, structure: Structure, why: str) -> Structure:
        """From now on the model runs one sample at a time on what has this ``structure``."""
        self._tell_alone(why)
        self.recorder.taps = []
        known, alone = structure, replace(structure, alone=why)
        for table in (self.ways.known, self._quick):
            table.update({key: alone for key, each in table.items() if each is known})
        return alone

    def _tell_alone(self, why: str) -> None:
        self.meeting.tell(
            f"{why}: the model runs on one sample at a time, forward and backward, which is exact but slow"
        )

    def _kept(self, call: ModelCall, result: Any) -> Any:
        """Keep a call as long as the graph of its result is alive: nobody may ever record it."""
        alive = _Alive(self, call)
        self.made.append(call)

        def marked(tensor: Tensor) -> Tensor:
            if tensor.grad_fn is None:
                return tensor
            twin = tensor.view_as(tensor)
            node: Any = twin.grad_fn
            node.metadata["sordina"] = alive
            return twin

        return marked(result) if isinstance(result, Tensor) else changed(result, marked)

    def _structure(self, value: tuple[Any, Any], tensors: Sequence[Tensor]) -> Structure | None:
        due = self._studied = self.study.due()
        quick = self._quickly_told(value, tensors)
        if not due and quick is not None and (found := self._quick.get(quick)) is not None:
            return found
        sizes = [self.expected] if self.expected is not None else _likely_rows(tensors)
        if not sizes or not sizes[0]:
            return None
        before = len(self.ways.known)
        known = self.ways.structure(value, tensors, sizes, self.switches.way, due)
        if due or len(self.ways.known) > before:
            self._quick, self._studied = {}, True
        if quick is not None:
            self._quick[quick] = known
        return known

    def _quickly_told(self, value: tuple[Any, Any], tensors: Sequence[Tensor]) -> Any:
        """What a lone tensor looks like, the same for batches of any size: None if another size is the batch's too."""
        if value[1] or len(tensors) != 1 or len(value[0]) != 1 or tensors[0] is not value[0][0]:
            return None
        shape = tensors[0].shape
        if not shape or not shape[0] or self.expected not in (None, shape[0]) or shape[0] in shape[1:]:
            return None
        return shape[1:], tensors[0].dtype

    def _new_study(self, *how: Any) -> Study:
        return Study(self.model, self.run, self.listen, self.recorder, self.parameters, self.public_buffers, *how)

    def run_apart(self, value: tuple[Any, Any], structure: Structure, rows: int) -> tuple[Any, Apart]:
        """Each sample alone."""
        kept = KeptState(self.model, COUNTERS) if structure.counts else Attributes(self.model, self.public_buffers)
        again, run = kept.restore, Agreement(self.model, self.run, structure.volatile)
        found = self._muted(run_apart, run, value, structure.inputs, rows, structure.outputs, again)
        self._told = run.telling
        return found  # type: ignore[no-any-return]

    def _muted(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.recorder.muted += 1
        try:
            return work(*args, **kwargs)
        finally:
            self.recorder.muted -= 1

    def unheard(self, value: tuple[Any, Any]) -> list[Tensor]:
        """What the model says, and nobody hears."""
        self._running = True
        try:
            return list(tensors_in([self._muted(self.run, *value[0], **value[1])]))
        finally:
            self._running = False

    def listen(self, rows: int, dims: Dims, args: Any, kwargs: Any) -> Any:
        """All samples at once, with taps."""
        recorder = self.recorder
        if not recorder.learning and not recorder.tracing:
            return self.run(*args, **kwargs)
        recorder.rows = rows
        inputs = [x for x, dim in zip(tensors_in([args, kwargs]), dims, strict=True) if dim is not None]
        outer, recorder.tracer = recorder.tracer, Tracer(self.meeting.names.keys(), self.meeting, inputs, rows)
        try:
            with recorder.tracer as tracer:
                result = self.run(*args, **kwargs)
            if tracer.dynamic:
                recorder.dynamic = f"the shape of a tensor depends on values ({tracer.dynamic})"
            return result
        finally:
            recorder.tracer = outer

    def _check_buffers(self, before: Sequence[tuple[Any, int]]) -> None:
        for (buffers, key, name), (old, version) in zip(self._buffers, before, strict=True):
            now = buffers.get(key)
            if (now is not old or getattr(now, "_version", 0) != version) and name not in self.public_buffers:
                raise Unsupported(kept_words(name))

    def _refuse_change(self, versions: Sequence[int]) -> None:
        for tensor, version in zip(self._all, versions, strict=False):
            if tensor._version != version:
                name = next(name for name, each in self.model.named_parameters() if each is tensor)
                raise Unsupported(changed_words(name))
        raise Unsupported(
            "the forward pass changes its input in place: let it work on a copy (x = x * 2, not x.mul_(2))."
        )

    def _check_removal(
        self, value: tuple[Any, Any], structure: Structure, rows: int, tensors: Sequence[Tensor], before: Snapshot
    ) -> str:
        """Replace one sample by something very different: the others may not notice; at least every second time, nor
        may their gradients.

        Returns:
            why nobody can tell, and the model must run one sample at a time; empty otherwise.
        """

        def run(which: tuple[Any, Any]) -> list[Tensor]:
            if structure.alone:
                count = rows_in(found_in(which), structure.inputs)
                return list(tensors_in([self.run_apart(which, structure, count or rows)[0]]))
            return list(tensors_in([self._muted(self.run, *which[0], **which[1])]))

        seen, value = [tensor.detach() for tensor in tensors], changed(value, _cut_off)
        inputs, outputs = structure.inputs, structure.outputs
        mixes = others_change(self.model, run, value, inputs, outputs, rows, seen, before)
        if mixes is False and not structure.alone and torch.is_grad_enabled():
            self._went_back = not self._went_back or CHANCE.random() < 0.5
            if self._went_back:
                mixes = backward_mixes(self.model, run, value, inputs, outputs, rows, before)
        if not mixes and not structure.alone and (self._follow or CHANCE.random() < FOLLOWED):
            self._follow = False
            study = self._new_study(False, CHANCE.getrandbits(48))
            if not still_apart(study, value, structure, rows):
                raise Mixing(BEGAN)
        if mixes:
            raise Mixing(
                "samples mix: without one sample the model says something else of others, or of their gradients, so no "
                f"per-sample bound exists, and none holds for the steps since this began. {ADVICE}"
            )
        if (stirs := self.stirs()) and carried(
            self.model, lambda: run(value), stirs, before.generators, before.restore
        ):
            raise Mixing(CARRIED.format("model says"))
        return "" if mixes is False or structure.alone else "whether samples stay apart cannot be tested on this batch"


def _leaving_alone(run: Callable[..., Any], own: Iterable[Any]) -> Callable[..., Any]:
    """``run``, after which its arguments are as they were (`left_alone`); most have one tensor."""

    def calling(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor) or vars(args[0]):
            return left_alone(run, own, args, kwargs)
        try:
            return run(args[0])
        finally:
            for name in [name for name in vars(args[0]) if not name.startswith("_sordina")]:
                delattr(args[0], name)

    return calling


def _cut_off(tensor: Tensor) -> Tensor:
    """A tensor without the graph behind it, which an earlier call of the step may still need."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _likely_rows(tensors: Sequence[Tensor]) -> list[int]:
    """How many samples there may be, if nobody knows: the size of the first dimension, or else of the second."""
    first = next((tensor for tensor in tensors if tensor.dim()), None)
    return [] if first is None else list(dict.fromkeys(first.shape[:2]))


# Placing the taps in a model: layers with a rule are wrapped, all other parameters are left to a tracer.


def install(
    model: nn.Module,
    recorder: Recorder,
    parameters: Mapping[str, Tensor],
    tell: Callable[[str], None],
    public_buffers: frozenset[str],
    root: tuple[Callable[..., Any], Callable[..., Any]],
) -> tuple[list[nn.Module], Calls]:
    """Wrap what has a rule, and the model itself, for whose forward pass and for calling which ``root`` stands in.

    Returns:
        the wrapped modules, and what keeps the model's calls.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    remove(model.modules())
    layers: list[tuple[nn.Module, Callable[..., Any]]] = []
    loose, wrapped = set[str](), list[nn.Module]()
    for name, module in model.named_modules():
        if any(id(parameter) in names for parameter in module._parameters.values()):
            rule = rule_for(module)
            if rule is not None:
                layers.append((module, _layer(module, rule, name or type(module).__name__, recorder)))
            else:
                recorder.tracing = True
                loose.add(name)
    calls = Calls(model, recorder, FreeParameters(recorder, tell, names), parameters, public_buffers)
    for module in _above(model, loose):
        wrap(module, _traced_again(module.forward, recorder, calls.meeting), recorder)
        wrapped.append(module)
    for module, forward in layers:
        if module is model:
            calls.forward = forward
        else:
            wrap(module, forward, recorder)
    wrap(model, root[0], recorder, root[1])
    return [*wrapped, *(module for module, _ in layers), model], calls


def remove(modules: Iterable[nn.Module]) -> None:
    """Give modules their own forward pass back; an engine that listened to them is told."""
    for module in modules:
        owner = unwrap(module)
        if isinstance(owner, Recorder):
            owner.retired = True


def _above(model: nn.Module, names: Iterable[str]) -> Iterator[nn.Module]:
    """The modules of these names and all that hold them, but for the model itself."""
    held = {".".join(parts[:n]) for parts in (name.split(".") for name in names) for n in range(1, len(parts) + 1)}
    for name, module in model.named_modules():
        if name in held and module is not model:
            yield module


def _traced_again(original: Callable[..., Any], recorder: Recorder, meeting: FreeParameters) -> Callable[..., Any]:
    """A forward pass that is traced also where a checkpoint computes it again, in which the model takes no part."""

    @wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if recorder.tracer is not None or not again() or not recorder.listening:
            return original(*args, **kwargs)
        recorder.tracer = Tracer(meeting.names.keys(), meeting, (), recorder.rows)
        try:
            with recorder.tracer:
                return original(*args, **kwargs)
        finally:
            recorder.tracer = None

    return forward


def _layer(module: nn.Module, rule: Rule, name: str, recorder: Recorder) -> Callable[..., Any]:
    """The layer's forward pass, listened to."""
    original, terms, any_dim = module.forward, rule.terms, rule.any_dim

    @wraps(original)
    def plain(*args: Any, **kwargs: Any) -> Any:
        if terms is None or not recorder.listening:
            return original(*args, **kwargs)
        inputs = args if not kwargs else (*args, *kwargs.values())
        sources = inputs if len(inputs) == 1 else tuple([x for x in inputs if isinstance(x, Tensor)])
        tracer, batched = recorder.tracer, True
        if tracer is None or tracer.suspended:
            output = original(*args, **kwargs)
        else:
            batched = tracer.batched(sources)
            if not batched and not recorder.rows_of_constants(name, sources[0].shape[0], tracer.rows):
                return original(*args, **kwargs)
            output = tracer.inside(original, *args, **kwargs)
        recorder.tap(name, output, partial(_build, terms, module, args, kwargs), sources, any_dim, batched)
        return output

    @wraps(original)
    def in_pieces(*args: Any, **kwargs: Any) -> Any:
        tracer = recorder.tracer
        if rule.forward is None or not recorder.listening:
            return original(*args, **kwargs)
        if tracer is None or tracer.suspended:
            return rule.forward(module, partial(_tap, recorder, name), *args, **kwargs)
        if not tracer.batched(tensors_in([args, kwargs])):
            return original(*args, **kwargs)
        return tracer.inside(rule.forward, module, partial(_tap, recorder, name), *args, **kwargs)

    return plain if rule.forward is None else in_pieces


def _build(terms: Any, module: nn.Module, args: Any, kwargs: Any, b: Tensor, fold: Fold) -> Any:
    if kwargs or len(args) > 1:
        still = [x.detach() if isinstance(x, Tensor) else x for x in args]
        return terms(
            module, b, fold, *still, **{k: x.detach() if isinstance(x, Tensor) else x for k, x in kwargs.items()}
        )
    return terms(module, b, fold, args[0].detach())


def _tap(recorder: Recorder, name: str, part: str, *args: Any) -> None:
    recorder.tap(f"{name}.{part}", *args)
