"""The engine: listens to a model's forward pass and answers for every unit from one backward pass.

Each layer's input is kept with the *edge* of its output in the autograd graph. One call of ``torch.autograd.grad`` then
asks for the gradients of those outputs only: autograd skips every weight gradient (which nobody asked for) and
everything below the first layer. Norms and weighted sums follow from inputs and output gradients by the rules in
``layers``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from types import TracebackType

from torch import Tensor, nn

from sordina.errors import InvalidInput, Unsupported
from sordina.gradients.capture import Recorder, Tap
from sordina.gradients.check import check, check_losses
from sordina.gradients.graph import Replay
from sordina.gradients.harvest import harvest
from sordina.gradients.install import install, remove
from sordina.gradients.layers import Fold
from sordina.gradients.layers.fold import widen
from sordina.gradients.layout import Layout, layouts
from sordina.gradients.learn import Plan, learn
from sordina.gradients.tape import GhostTape, full_precision
from sordina.gradients.terms import Term
from sordina.gradients.total import combine

log = logging.getLogger(__name__)
PATIENCE = 5
"""How many batches may leave a doubt about the model's structure before it is taken as it looks."""


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

    def __init__(self, model: nn.Module, groups: Sequence[Sequence[str]] | None = None) -> None:
        if problems := check(model):
            raise Unsupported(str(problems[0]))
        self.model = model
        self._layouts = layouts(model, groups)
        self._parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._like = widen(next(iter(self._parameters.values())).detach().new_empty(0))
        self._known = Plan({}, frozenset(), frozenset(), certain=True)
        self._doubts = 0
        self._told: set[str] = set()
        self._recorder = Recorder(model)
        self._wrapped = install(model, self._recorder, self._parameters, self._tell)

    def layout(self, group: int = 0) -> Layout:
        """Names, shapes and slices of a group's flat vectors."""
        return self._layouts[group]

    def unflatten(self, vector: Tensor, group: int = 0) -> dict[str, Tensor]:
        """A flat vector of a group as views by parameter name."""
        return self._layouts[group].unflatten(vector)

    @property
    def groups(self) -> int:
        """How many groups of parameters."""
        return len(self._layouts)

    def clear(self) -> None:
        """Forget forward passes that will not be recorded."""
        self._recorder.taps, self._recorder.inputs = [], []

    def close(self) -> None:
        """Leave the model as it was found."""
        remove(self._wrapped)
        self.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def record(self, losses: Tensor, rows_per_unit: int = 1) -> GhostTape:
        """One backward pass from per-row losses (B,); rows of one unit are consecutive, ``rows_per_unit`` each."""
        check_losses(losses)
        rows = len(losses)
        if rows_per_unit < 1 or rows % rows_per_unit:
            raise InvalidInput(f"{rows} rows cannot be split into units of {rows_per_unit} rows: pad the last unit.")
        units = rows // rows_per_unit
        try:
            with full_precision(losses.device.type):
                terms = self._terms(losses, units, rows_per_unit) if units else {}
        finally:
            self.clear()
        return GhostTape(self._layouts, terms, units, self._like)

    def _terms(self, losses: Tensor, units: int, rows: int) -> dict[str, Term]:
        plan, names = self._plan(losses), self._names
        folds = {dim: Fold(units, rows, dim) for dim in set(plan.dims.values()) if dim is not None}
        taps = [tap for tap in self._recorder.taps if tap.build and plan.dims[tap.key] is not None]
        self.clear()

        def build(tap: Tap, gradient: Tensor) -> Iterable[tuple[Tensor, Term]]:
            return _built(tap, gradient, folds[plan.dims[tap.key] or 0])

        found: dict[str, list[Term]] = {}
        for parameter, term in harvest(losses, taps, plan.passed, build, retain=bool(plan.escaped)):
            found.setdefault(names[id(parameter)], []).append(term)
        terms = {
            name: parts[0] if len(parts) == 1 else combine(parts, self._parameters[name].numel())
            for name, parts in found.items()
        }
        if plan.escaped:
            per_unit = losses if rows == 1 else losses.view(units, rows).sum(1)
            terms |= {name: Replay(per_unit, self._parameters[name]) for name in plan.escaped}
        return terms

    def _plan(self, losses: Tensor) -> Plan:
        recorder, known = self._recorder, self._known
        if not recorder.learning and all(tap.key in known.dims for tap in recorder.taps):
            return known
        plan = learn(losses, recorder.taps, recorder.inputs, self._parameters)
        known_free = len(recorder.free)
        recorder.free |= {tap.label for tap in recorder.taps if not tap.batched and plan.dims[tap.key] is None}
        if len(recorder.free) > known_free:
            return plan
        for name in sorted(plan.escaped):
            self._tell(f"parameter {name!r} is used in a way no rule covers: one backward pass per sample")
        self._doubts += not plan.certain
        if plan.certain or self._doubts >= PATIENCE:
            recorder.learning = False
            escaped, passed = known.escaped | plan.escaped, plan.passed | (known.passed - plan.dims.keys())
            self._known = Plan({**known.dims, **plan.dims}, escaped, passed, certain=True)
        return plan

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            log.warning(message)


def _built(tap: Tap, gradient: Tensor, fold: Fold) -> Iterable[tuple[Tensor, Term]]:
    if not tap.intact():
        raise Unsupported(
            f"an input of {tap.label!r} was changed in place before the backward pass: sordina.fix(model)."
        )
    if tap.shape[fold.dim] != fold.units * fold.rows:
        raise InvalidInput(
            f"{tap.label!r} saw {tap.shape[fold.dim]} samples, but there are {fold.units * fold.rows} losses."
        )
    assert tap.build is not None
    return tap.build(gradient if gradient.shape == tap.shape else gradient.view(tap.shape), fold)
