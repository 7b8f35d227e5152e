"""The engine: watches a model's forward pass and answers for every unit from one backward pass.

Forward hooks keep each layer's input and the *edge* of its output in the autograd graph. One call of
``torch.autograd.grad`` then asks for the gradients of those outputs only: autograd skips every weight gradient (which
nobody asked for) and everything below the first layer. Norms and weighted sums follow from inputs and output
gradients by the rules in ``layers``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sordina.errors import InvalidInput, Unsupported
from sordina.gradients.check import check, check_losses
from sordina.gradients.graph import Replay, escaping
from sordina.gradients.layers import Fold, Rule, rule_for
from sordina.gradients.layers.fold import LOW_PRECISION
from sordina.gradients.layout import Layout, layouts
from sordina.gradients.tape import GhostTape
from sordina.gradients.terms import Term, combine

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """One call of a layer with a rule: what went in, and where its output lies in the graph."""

    name: str
    module: nn.Module
    rule: Rule
    input: Tensor
    version: int
    shape: torch.Size
    edge: GradientEdge


def tap(output: Tensor) -> GradientEdge:
    """Where an output's gradient passes, whatever is later done to the output in place.

    An in-place operation on a view rewrites the graph above the view's base, so the base is tapped where it is the same
    values in another shape.
    """
    base = output._base
    if base is not None and base.grad_fn is not None and base.numel() == output.numel() and output.is_contiguous():
        return get_gradient_edge(base)
    return get_gradient_edge(output)


class Engine:
    """Per-unit norms, projections and weighted sums of gradients, from one forward and one backward pass.

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
        self._names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._calls: list[Call] = []
        self._told: set[str] = set()
        self._handles = [self._watch(name, module) for name, module in model.named_modules() if self._ruled(module)]

    def _ruled(self, module: nn.Module) -> bool:
        own = any(id(parameter) in self._names for parameter in module._parameters.values())
        return own and rule_for(module) is not None

    def _watch(self, name: str, module: nn.Module) -> Any:
        rule = rule_for(module)
        assert rule is not None

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if isinstance(output, Tensor) and output.requires_grad and output.grad_fn is not None:
                source = args[0] if args else kwargs["input"]
                self._calls.append(Call(name, module, rule, source, source._version, output.shape, tap(output)))

        return module.register_forward_hook(hook, with_kwargs=True, prepend=True)

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
        self._calls = []

    def close(self) -> None:
        """Remove all hooks from the model."""
        for handle in self._handles:
            handle.remove()
        self.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def record(self, losses: Tensor, rows_per_unit: int = 1) -> GhostTape:
        """One backward pass from per-row losses (B,); rows of one unit are consecutive, ``rows_per_unit`` each."""
        calls, self._calls = self._calls, []
        check_losses(losses)
        rows = losses.shape[0]
        if rows_per_unit < 1 or rows % rows_per_unit:
            raise InvalidInput(f"{rows} rows cannot be split into units of {rows_per_unit} rows: pad the last unit.")
        units = rows // rows_per_unit
        like = next(iter(self._parameters.values())).new_empty(0)
        like = like.float() if like.dtype in LOW_PRECISION else like
        terms = self._terms(losses, calls, Fold(units, rows_per_unit)) if units else {}
        return GhostTape(self._layouts, terms, units, like)

    def _terms(self, losses: Tensor, calls: list[Call], fold: Fold) -> dict[str, Term]:
        escaped = {
            self._names[key] for key in escaping(losses, ((c.edge, c.input) for c in calls), self._parameters.values())
        }
        for name in escaped - self._told:
            log.warning("parameter %r has no rule: its gradients take one backward pass per sample", name)
            self._told.add(name)
        gradients = (
            torch.autograd.grad(
                losses, [c.edge for c in calls], torch.ones_like(losses), retain_graph=bool(escaped), allow_unused=True
            )
            if calls
            else ()
        )
        parts: dict[str, list[Term]] = {}
        with torch.no_grad():
            for call, gradient in zip(calls, gradients, strict=True):
                if gradient is None:
                    continue
                if call.input._version != call.version:
                    raise Unsupported(f"the input of layer {call.name!r} was changed in place: sordina.fix(model).")
                for local, term in call.rule.terms(call.module, call.input.detach(), gradient.view(call.shape), fold):
                    parameter = call.module._parameters[local]
                    parts.setdefault(self._names[id(parameter)], []).append(term)
        per_unit = losses if fold.rows == 1 else losses.view(fold.units, fold.rows).sum(1)
        terms = {name: combine(found, self._parameters[name].numel()) for name, found in parts.items()}
        return terms | {name: Replay(per_unit, self._parameters[name]) for name in escaped}
