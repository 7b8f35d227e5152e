"""The engine: listens to a model's forward pass and answers for every unit from one backward pass.

Each layer's input is kept with the *edge* of its output in the autograd graph. One call of ``torch.autograd.grad`` then
asks for the gradients of those outputs only: autograd skips every weight gradient (which nobody asked for) and
everything below the first layer. Norms and weighted sums follow from inputs and output gradients by the rules in
``layers``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from sordina._memory import apart_from_heap
from sordina.errors import InvalidInput, Unsupported
from sordina.gradients._asides import WithheldObject
from sordina.gradients._calls import install, remove
from sordina.gradients._footprints import MOST_TESTS
from sordina.gradients._hooks import Gathering, Recorder, Tap, hooked, leads_to, loss_graph, untapped, used_outside
from sordina.gradients._rehearsal import Attributes, aside
from sordina.gradients._tracing import changed, found_in
from sordina.gradients._way_back import ModelCall, WayBack
from sordina.gradients.checks import check
from sordina.gradients.layout import Layout, Parts, check_same_layout, layouts, trainable, widen
from sordina.gradients.losses_apart import check_losses_apart
from sordina.gradients.one_by_one import Apart, BackwardPiece, Backwards, SamplePlacement, as_in_company, folded
from sordina.gradients.removal import RemovalSchedule
from sordina.gradients.structure import Key
from sordina.gradients.tape import GhostTape, full_precision, names_of, terms_of
from sordina.gradients.terms import Term

log = logging.getLogger(__name__)
CHAINED = (
    "the model is called on something computed from its own results, and runs on one sample at a time, so that the way "
    "back from the second call to the first is cut: make both calls inside of the model's forward pass."
)
RETIRED = "this engine was closed, or another one was made for its model: use the new one."


class Engine:
    """Per-unit norms, projections and weighted sums of gradients, from one forward and one backward pass.

    >>> import torch
    >>> model = nn.Linear(3, 2)
    >>> with Engine(model) as engine:
    ...     losses = model(torch.ones(5, 3)).square().sum(1)
    ...     tape = engine.record(losses)
    >>> tape.scalars().norms.shape
    torch.Size([5])
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[Sequence[str]] | None = None,
        public_buffers: Collection[str] = (),
    ) -> None:
        """Listen to ``model``.

        Args:
            model: what is trained.
            groups: names of parameters that are clipped together; left out, all in one group.
            public_buffers: names of buffers that a forward pass may change because what they hold does not depend on
                the data, such as a count of steps. Any other buffer that changes is refused.
        """
        if problems := check(model):
            raise Unsupported(str(problems[0]))
        self.model = model
        self._layouts = layouts(model, groups)
        self._public_buffers = frozenset(public_buffers)
        self._told: set[str] = set()
        self._loss_checks, self._checked, self._loss_graphs = RemovalSchedule(), False, set[int]()
        self.stirs: Callable[[], Sequence[Callable[[], Any]]] = list
        """Gives what may be done before a call, such as to read other rows, and may not matter for it."""
        self.on_call: Callable[[], None] | None = None
        """Called whenever the model is, before it runs."""
        self._install()

    def _install(self) -> None:
        self._parameters = trainable(self.model)
        self._recorder = Recorder(self.model)
        self._parts, self._names = Parts(self.model), names_of(self._parameters)
        self._like: Tensor | None = None
        self._wrapped, self._calls = install(
            self.model,
            self._recorder,
            self._parameters,
            self._tell,
            self._public_buffers,
            (self._forward, self._called),
        )
        self._calls.stirs = self.stirs
        self._back = WayBack(self._calls)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward pass."""
        if self.on_call is not None:
            self.on_call()
        if not self._recorder.retired and not self._parts.same():
            self._renew()
        return self._calls(*args, **kwargs)

    def _called(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """The model is called: what its hooks do is part of what it does."""
        if self.on_call is not None:
            self.on_call()
        if self._recorder.retired or not hooked(self.model):
            return call(*args, **kwargs)
        if not self._parts.same():
            self._renew()
        return self._calls(*args, whole=call, **kwargs)

    def _renew(self) -> None:
        """Listen to what the model consists of now, if that can be trained as before."""
        shapes = {name: shape for layout in self._layouts for name, shape, _ in layout}
        check_same_layout(self.model, shapes)
        self.clear()
        remove(self._wrapped)
        self._install()

    def ready(self, trained: Sequence[Sequence[Tensor]] = ()) -> None:
        """Refuse, before anything is spent, what would not be trained as the engine was made to.

        Args:
            trained: the parameters that somebody will give gradients to, group by group.
        """
        if self._recorder.retired:
            raise InvalidInput(RETIRED)
        if not self.model.training:
            raise InvalidInput("the model is in evaluation mode, in which nothing is recorded: call model.train().")
        if not self._parts.same():
            self._renew()
        refuse_watched(self._parameters.items())
        for layout, members in zip(self._layouts, trained, strict=False):
            for name, parameter in zip(layout.names, members, strict=True):
                if self._parameters[name] is not parameter:
                    raise InvalidInput(
                        f"parameter {name!r} is another tensor than the one that is trained (a layer was replaced, or "
                        "load_state_dict(assign=True) called): make the optimiser and the private object anew."
                    )

    def layout(self, group: int = 0) -> Layout:
        """Names, shapes and slices of a group's flat vectors."""
        return self._layouts[group]

    def unflatten(self, vector: Tensor, group: int = 0) -> dict[str, Tensor]:
        """A flat vector of a group as views by parameter name."""
        return self._layouts[group].unflatten(vector)

    @property
    def group_names(self) -> list[tuple[str, ...]]:
        """Which parameters are clipped together."""
        return [tuple(layout.names) for layout in self._layouts]

    @property
    def groups(self) -> int:
        """How many groups of parameters."""
        return len(self._layouts)

    def clear(self) -> None:
        """Forget forward passes that will not be recorded."""
        self._recorder.taps, self._calls.made = [], []

    def close(self) -> None:
        """Leave the model as it was found."""
        if not self._recorder.retired:
            remove(self._wrapped)
        self.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def expect(self, rows: int) -> None:
        """Say how many samples the next call of the model will have: otherwise its arguments must tell.

        Args:
            rows: The number of samples, which will be the number of losses.
        """
        self._calls.expected = rows

    def read_beside(self, stirs: Callable[[], Sequence[Callable[[], Any]]]) -> None:
        """Try whether a call depends on what is done before it.

        Args:
            stirs: Gives what may be done, such as to read other rows, and may not matter.
        """
        self._calls.stirs = self.stirs = stirs

    def demand_tests(self) -> None:
        """Have samples of the next call, and its losses, tested for certain."""
        self._loss_checks.force()
        self._calls.demand_tests()

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Calls of the model in here are not recorded."""
        self._recorder.muted += 1
        try:
            yield
        finally:
            self._recorder.muted -= 1

    def rehearse(self, losses: Callable[[], Tensor], rows: int) -> None:
        """Refuse, before anything is spent, a model or a loss of which it cannot be seen that samples stay apart.

        Args:
            losses: Calls the model on made-up rows, and gives their losses.
            rows: How many they are.
        """
        self.expect(rows)
        with aside(self.model):
            self.record(losses())
        self._loss_checks, self._checked, self._loss_graphs = RemovalSchedule(), False, set[int]()
        self._calls.removal = RemovalSchedule()

    def record(self, losses: Tensor, rows_per_unit: int = 1) -> GhostTape:
        """One backward pass from per-row losses (B,); rows of one unit are consecutive, ``rows_per_unit`` each."""
        check_losses(losses)
        if self._recorder.retired:
            raise InvalidInput(RETIRED)
        if not self._parts.same():
            raise InvalidInput(
                "the model's parameters are other ones than when it was called (functional_call, or a layer replaced "
                "since): call the model with the parameters that are trained, and record before they change."
            )
        rows = len(losses)
        if rows_per_unit < 1 or rows % rows_per_unit:
            raise InvalidInput(f"{rows} rows cannot be split into units of {rows_per_unit} rows: pad the last unit.")
        units = rows // rows_per_unit
        try:
            with full_precision(losses.device.type), _without_anomalies():
                terms = self._terms(losses, units, rows_per_unit) if units else {}
        finally:
            self.clear()
        return GhostTape(self._layouts, terms, units, self._empty())

    def _empty(self) -> Tensor:
        """An empty tensor like the answers."""
        first, like = next(iter(self._parameters.values())), self._like
        if like is None or like.dtype != first.dtype or like.device != first.device:
            like = self._like = widen(first.detach().new_empty(0))
        return like

    def _terms(self, losses: Tensor, units: int, rows_per_unit: int) -> dict[str, Term]:
        calls = self._calls.made
        if not calls:
            raise InvalidInput(
                "the losses were not computed by calling the model that the engine listens to, in training mode and "
                "with gradients: call model(...) itself, not its parts, before each record."
            )
        self.clear()
        graph = loss_graph(losses, calls)
        new = graph not in self._loss_graphs and len(self._loss_graphs) < MOST_TESTS
        if self._loss_checks.due() or new or any(call.structure.unclear for call in calls):
            with apart_from_heap():
                check_losses_apart(losses, calls, probes=1 if self._checked else 3)
            self._checked = True
            self._loss_graphs.add(graph)
        if outside := used_outside(losses, calls, self._names):
            raise Unsupported(
                f"parameter {outside[0]!r} is used outside of the model's forward pass, or the losses use something of "
                "the model that it does not return (an attribute, a result changed in place), so nobody sees whose "
                "gradient it gets: move this use into the model, and return what the losses need."
            )
        rows = units * rows_per_unit
        fits = all(call.rows == rows and call.structure.fits(call.taps, rows) for call in calls)
        fits = fits and not untapped(calls, self._names)
        if units == 1 and not any(call.apart for call in calls):
            alone = Backwards([BackwardPiece([losses], [torch.ones_like(losses)])], self._parameters, heard=True)
            if not fits:
                return alone.terms()
            gradients = alone.unit(0)
            company = self._together(losses, calls, 1, rows_per_unit)
            kinds = {name: parameter.dtype for name, parameter in self._parameters.items()}
            return {name: as_in_company(each, company.get(name), kinds[name]) for name, each in gradients.items()}
        if fits:
            return self._together(losses, calls, units, rows_per_unit)
        return self._one_by_one(losses, calls, rows_per_unit)

    def _together(self, losses: Tensor, calls: Sequence[ModelCall], units: int, rows_per_unit: int) -> dict[str, Term]:
        """All samples at once, by the rules of the layers."""
        taps: list[Tap] = []
        places: dict[Key, SamplePlacement | None] = {}
        passed: set[Key] = set()
        for number, call in enumerate(calls):
            structure, mark = call.structure, f" of call {number + 1}" if number else ""
            same = structure.taps.keys() == {tap.key for tap in call.taps if tap.build}
            taps += [tap._replace(key=_of_call(tap.key, mark)) for tap in call.taps] if mark else call.taps
            places |= {_of_call(key, mark): place for key, place in structure.taps.items()}
            passed |= {_of_call(key, mark) for key in structure.passed} if same else set()
        # PyTorch's own modules without hooks do nothing on the way back that could be switched
        trail = None if self._calls.switches.plain else self._back.footprints.trail()
        found = terms_of(losses, taps, places, passed, self._parameters, self._names, units, rows_per_unit, trail)
        if trail is not None and trail.whole and self._back.went(trail, calls):
            self._loss_checks.force()  # the way back through the losses is tested in the next step
        return found

    def _one_by_one(self, losses: Tensor, calls: Sequence[ModelCall], rows_per_unit: int) -> dict[str, Term]:
        """Each sample alone, from the gradients of the model's results on."""
        edges = [edge for call in calls for edge in call.edges]
        asked: list[Any] = [edge for edge in edges if edge is not None]
        with Gathering():  # on the way to a call whose result is another's argument
            found = iter(torch.autograd.grad(losses, asked, torch.ones_like(losses), allow_unused=True))
        gradients = iter([None if edge is None else next(found) for edge in edges])
        pieces = [BackwardPiece() for _ in losses]
        mixed = any(call.apart for call in calls)
        after = Attributes(self.model, self._public_buffers)
        earlier: set[Any] = set()
        for call in calls:
            own = [next(gradients) for _ in call.edges]
            chained = leads_to(found_in(call.value), earlier)
            if chained and mixed:
                raise Unsupported(CHAINED)
            earlier |= {edge.node for edge in call.edges if edge is not None}
            if call.rows != len(losses):
                raise InvalidInput(f"the model was called on {call.rows} samples, but there are {len(losses)} losses.")
            apart = call.apart or self._again_apart(call, mixed, chained)
            for piece, more in zip(pieces, apart.pieces(own), strict=True):
                piece.outputs.extend(more.outputs)
                piece.gradients.extend(more.gradients)
        after.restore()  # who runs again counts nothing
        return Backwards(folded(pieces, rows_per_unit), self._parameters).terms()

    def _again_apart(self, call: ModelCall, mixed: bool, chained: bool) -> Apart:
        """A call once more, on each sample alone; where others of its step ran so (``mixed``), so will it from now on.

        For what is drawn by chance is drawn anew. If it is ``chained``, earlier calls have their gradient already.
        """
        if mixed:
            self._calls.alone_from_now(call.structure, "another call of the same step is made one sample at a time")
        value = changed(call.value, lambda each: each.detach()) if chained else call.value
        return self._calls.run_apart(value, call.structure, call.rows)[1]

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            log.warning(message)


def _of_call(key: Key, mark: str) -> Key:
    """A key that is another one in every call of a step."""
    return (key[0] + mark, key[1])


def refuse_watched(parameters: Iterable[tuple[str, Tensor]]) -> None:
    """A hook on a parameter would be shown gradients before they are clipped and noised.

    Args:
        parameters: What is trained, by name.
    """
    for name, each in parameters:
        if each._backward_hooks:
            raise Unsupported(
                f"parameter {name!r} has a hook (wandb.watch, or one of your own) that is shown its gradient before it "
                "is clipped and noised: remove it."
            )


def _without_anomalies() -> AbstractContextManager[Any]:
    """PyTorch's anomaly mode would stop at a record whose gradient is not finite, and so tell that it was drawn."""
    return torch.autograd.set_detect_anomaly(False) if torch.is_anomaly_enabled() else nullcontext()


def check_losses(losses: Any, batch: int | None = None) -> Tensor:
    """Refuse anything but one loss per sample.

    Args:
        losses: What the loss function returned.
        batch: How many samples there were.
    """
    if isinstance(losses, WithheldObject):
        losses()  # says why
    if not isinstance(losses, Tensor):
        raise InvalidInput(f"losses must be a tensor with one loss per sample, got {type(losses).__name__}.")
    if losses.dim() == 0:
        raise InvalidInput("the loss is a single number: per-sample losses are needed, use reduction='none'.")
    if losses.dim() != 1:
        raise InvalidInput(f"losses must have shape (B,), got {tuple(losses.shape)}: reduce each sample to one number.")
    if batch is not None and len(losses) != batch:
        raise InvalidInput(f"{len(losses)} losses for {batch} samples: return exactly one loss per sample.")
    if len(losses) and not losses.requires_grad:
        raise InvalidInput("the losses have no graph: run the forward pass with gradients enabled.")
    return losses
