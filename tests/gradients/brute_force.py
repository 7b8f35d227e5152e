"""The oracle: what the engine answers, held against float64 autograd, one record at a time.

    verdict = judge(model, losses, batch)
    assert verdict.sound, verdict

``losses(model, batch)`` gives one loss per row, ``batch`` is a tensor or a tuple, list or dict of tensors whose first
dimension counts rows, and has at least one unit more than the largest size that is tried (the spare record of the
replacement). For every size a fresh engine is asked about the batch, about the batch without a record, and about the
batch with a record replaced; a second fresh engine meets the smaller batch first. Then:

- *truth*: the gradient of a record is that of its loss in a batch of one, by autograd in float64. A record whose loss
  or gradient is another one in company *mixes*: nothing is true of it, only the sensitivity counts.
- *norms* are at least the truth and not much more; *sums* with arbitrary weights are those of the truth;
- *removal sensitivity*: the change of each answer to the policy, in units of its bound. Also what each record adds by
  the engine's own arithmetic (a sum with a single weight), which says what float32 really does.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sordina.clipping import Fixed, arrange
from sordina.errors import SordinaError
from sordina.gradients import Engine
from sordina.privacy import Adjacency
from sordina.queries import VectorQuery

Losses = Callable[[nn.Module, Any], Tensor]
SLACK = 1e-5
"""By how much a sensitivity may exceed the bound."""
NEGLIGIBLE = 1e-15
"""Norms below it count as zero: squares underflow in float32, and no threshold is so small."""


class Outcome(Enum):
    """Ordered from best to worst: the worst of several trials is what counts."""

    EXACT = "exact"
    LOOSE = "loose"
    """Sound, but a norm is more than 1 % above the truth: such a record is clipped too much."""
    REFUSED = "refused"
    CRASHED = "crashed"
    """An error that is not Sordina's own."""
    ROUNDED = "rounded"
    """Wrong by rounding alone: PyTorch's own losses of such inputs depend on who else is there, those of others not."""
    WRONG = "WRONG"
    """A silent error: no refusal, and a norm, a sum or a sensitivity that is not true."""


@dataclass(frozen=True)
class Verdict:
    """What came of one model."""

    outcome: Outcome
    why: str = ""
    sensitivity: float = 0.0
    """The worst found, in units of the bound."""
    mixes: bool = False
    """Whether the oracle saw the loss of a record depend on other records."""
    told: tuple[str, ...] = ()
    """What the engine logged, such as that it goes one sample at a time."""

    @property
    def sound(self) -> bool:
        """Whether no silent error was seen, nor an error that is not Sordina's."""
        return self.outcome not in (Outcome.WRONG, Outcome.CRASHED)

    @property
    def answered(self) -> bool:
        """Whether the engine answered, and rightly."""
        return self.outcome in (Outcome.EXACT, Outcome.LOOSE)


@dataclass
class Judge:
    """One model under trial; `judge` is the short way to it."""

    model: nn.Module
    losses: Losses
    batch: Any
    clipping: Any = None
    rows_per_unit: int = 1
    microbatch: int | None = None
    """Units of a micro-batch."""
    all_records: bool = True
    """Remove every record in turn, not only one."""
    planted: bool = False
    """Whether it is known to mix, even if the batch at hand does not show it."""
    before: Callable[[nn.Module], None] | None = None
    """What the parameters are during a first batch, which nobody looks at: changes them in place."""
    rounding: float = 1e-8
    """By how much, relative to its length, a gradient in double precision may be off."""
    seed: int = 0
    untried: Losses | None = None
    """The same losses without the trials of `per_sample`, which cost time and say nothing of the truth."""
    worst: float = 0.0
    loose: float = 1.0
    mixes: bool = False
    mistakes: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def verdict(self, sizes: Sequence[int]) -> Verdict:
        """Try every size; the worst outcome counts."""
        with _heard(self.told):
            try:
                for size in sizes:
                    self.trial(size)
            except SordinaError as refusal:
                return self._wrong() or self._verdict(Outcome.REFUSED, str(refusal))
            except Exception as crash:
                return self._wrong() or self._verdict(Outcome.CRASHED, f"{type(crash).__name__}: {crash}")
        if wrong := self._wrong():
            return wrong
        if self.loose > 1.01:
            return self._verdict(Outcome.LOOSE, f"a norm is {self.loose:.4g} times the truth")
        return self._verdict(Outcome.EXACT)

    def _wrong(self) -> Verdict | None:
        """A silent error stays one, if a refusal comes later."""
        if self.mistakes:
            return self._verdict(Outcome.WRONG, self.mistakes[0])
        if self.worst > 1 + SLACK:
            return self._verdict(Outcome.WRONG, f"one record moves the clipped sum by {self.worst:.6g} bounds")
        return None

    def _verdict(self, outcome: Outcome, why: str = "") -> Verdict:
        return Verdict(outcome, why, self.worst, self.mixes, tuple(dict.fromkeys(self.told)))

    def trial(self, size: int) -> None:
        """A batch of ``size`` units: whole, with a record less, with a record replaced."""
        units = list(range(size))
        spare = units_in(self.batch, self.rows_per_unit) - 1
        if spare < size:
            raise ValueError("the batch needs one unit more than the largest size")
        truth = self._truth([*units, spare])
        if truth is None and size == 1:
            return
        mixes = self.planted or truth is None or self._mixes(units, truth)
        self.mixes |= mixes
        generator = torch.Generator().manual_seed(self.seed + size)
        removed = units if self.all_records else [int(torch.randint(size, (), generator=generator))]
        for policy in self._policies(units, None if mixes else truth):
            self._neighbours(units, spare, removed, policy, None if mixes else truth)

    def _neighbours(
        self, units: Sequence[int], spare: int, removed: Sequence[int], policy: Any, known: Truth | None
    ) -> None:
        allowed = self._rounding(known)
        with self._asked(policy) as asked:
            whole = asked.clipped(units, known)
            for unit in removed:
                less = [other for other in units if other != unit]
                if less:
                    self._moved(whole, asked.clipped(less, known), asked.bounds, 1, allowed)
                self._moved(whole, asked.clipped([*less, spare], known), asked.bounds, 2, allowed)
        self._added(asked)
        less = [unit for unit in units if unit != removed[0]] or [spare]
        with self._asked(policy) as asked:
            sums = asked.clipped(less, known)
            if len(less) < len(units):
                self._moved(whole, sums, asked.bounds, 1, allowed)
        self._added(asked)
        if asked.buffers != _buffers(self.model):
            with self._asked(policy) as other:
                other.clipped(units, known)
            if asked.buffers != other.buffers:
                self.mistakes.append("a buffer keeps what the records said")

    def _rounding(self, known: Truth | None) -> float:
        """How much right answers of a float32 model may differ between batches, relative to the largest clipped."""
        if known is None or not self._single:
            return 0.0
        return sum(min(2.0, known.rounding(unit)) for unit in known.vectors)

    def _asked(self, policy: Any) -> Asked:
        return Asked(
            copy.deepcopy(self.model),
            self.losses,
            self.batch,
            policy,
            self.rows_per_unit,
            self.microbatch,
            self.before,
            self.rounding,
        )

    def _added(self, asked: Asked) -> None:
        self.mistakes += asked.mistakes
        self.worst = max(self.worst, asked.worst)
        self.loose = max(self.loose, asked.loose)

    def _moved(self, one: list[Tensor], two: list[Tensor], bounds: Sequence[float], times: int, allowed: float) -> None:
        for a, b, bound in zip(one, two, bounds, strict=True):
            moved = float((a - b).norm()) / (times * bound)
            if math.isnan(moved):
                self.mistakes.append("the clipped sum is not a number")
                continue
            rounding = 4e-6 if self._single else 1e-12
            moved -= rounding * float(a.norm() + b.norm()) / (times * bound) + allowed
            self.worst = max(self.worst, moved)

    @property
    def _single(self) -> bool:
        return any(parameter.dtype != torch.float64 for parameter in self.model.parameters())

    def _truth(self, units: Sequence[int]) -> Truth | None:
        """Gradients of each unit on its own; None if the model cannot take a single row (batch norm)."""
        try:
            return Truth.of(self.model, self.untried or self.losses, self.batch, units, self.rows_per_unit)
        except Exception:
            return None

    def _mixes(self, units: Sequence[int], truth: Truth) -> bool:
        """Whether in company the loss or the gradient of a unit is another one than alone."""
        rows = rows_of(units, self.rows_per_unit)
        model = _double(self.model)
        losses = (self.untried or self.losses)(model, take(_doubled(self.batch), rows)).view(len(units), -1).sum(1)
        for place, unit in enumerate(units):
            gradient = _gradient(model, losses[place])
            if not _near(losses[place].detach(), truth.losses[unit], 1e-7):
                return True
            if bool(gradient.isfinite().all()) and not _near(gradient, truth.vectors[unit], 1e-6):
                return True  # in company autograd gives 0 * inf for everybody if it does for one: that is not mixing
        return False

    def _policies(self, units: Sequence[int], truth: Truth | None) -> list[Any]:
        """The given one, or a threshold in the middle of the norms; of those in company, three, if samples mix."""
        if self.clipping is not None:
            return [self.clipping]
        if truth is not None:
            vectors = list(truth.vectors.values())
        else:
            model = _double(self.model)
            rows = rows_of(units, self.rows_per_unit)
            losses = (self.untried or self.losses)(model, take(_doubled(self.batch), rows))
            vectors = [_gradient(model, loss) for loss in losses.view(len(units), -1).sum(1)]
        norms = torch.stack([vector.norm() for vector in vectors])
        norms = norms[norms.isfinite() & (norms > NEGLIGIBLE) & (norms < 1e30)]
        if not len(norms):
            return [Fixed(1.0)]
        middle, low, high = float(norms.median()), float(norms.min()), float(norms.max())
        return [Fixed(middle)] if truth is not None else [Fixed(middle), Fixed(low / 10), Fixed(high)]


@dataclass(frozen=True)
class Truth:
    """By unit the loss and the flat gradient, in float64, and how far the model's own precision is from it.

    A model may be chaotic in its own precision: so the gap is the largest of several right computations, alone, in
    company, and with the input moved by a rounding.
    """

    losses: dict[int, Tensor]
    vectors: dict[int, Tensor]
    gaps: dict[int, float]

    @classmethod
    def of(cls, model: nn.Module, losses: Losses, batch: Any, units: Sequence[int], rows_per_unit: int) -> Truth:
        """One forward and one backward pass per row."""
        wide, double, own = _double(model), _doubled(batch), copy.deepcopy(model)
        found = cls({}, {}, {})
        for unit in units:
            rows = rows_of([unit], rows_per_unit)
            alone = [losses(wide, take(double, [row])).sum() for row in rows]
            found.losses[unit] = torch.stack(alone).sum().detach()
            found.vectors[unit] = torch.stack([_gradient(wide, loss) for loss in alone]).sum(0)
            found.gaps[unit] = 0.0
        if all(parameter.dtype == torch.float64 for parameter in model.parameters()):
            return found
        for seed in range(4):
            moved = batch if seed < 2 else _moved(batch, seed)
            company = losses(own, take(moved, rows_of(units, rows_per_unit))) if seed else None
            for place, unit in enumerate(units):
                rows = rows_of([unit], rows_per_unit)
                if company is None:
                    single = [_gradient(own, losses(own, take(moved, [row])).sum()) for row in rows]
                else:
                    places = range(place * rows_per_unit, (place + 1) * rows_per_unit)
                    single = [_gradient(own, company[row]) for row in places]
                gap = float((torch.stack(single).sum(0) - found.vectors[unit]).norm())
                if company is None:
                    found.gaps[unit] = gap
                elif math.isfinite(gap + found.gaps[unit]):
                    found.gaps[unit] = max(found.gaps[unit], gap)
        return found

    def error(self, unit: int, exact: bool, rounding: float = 1e-8) -> float:
        """How far another right computation of the unit's gradient may be away; in double precision by ``rounding``."""
        size = float(self.vectors[unit].norm())
        if exact:
            return rounding * size + 1e-11
        return 2e-3 * size + 100 * self.gaps[unit] + 1e-6

    def rounding(self, unit: int) -> float:
        """How far float32 is from the truth, relative to the gradient, with room for another order of sums."""
        size = float(self.vectors[unit].norm())
        if not math.isfinite(size) or not math.isfinite(self.gaps[unit]):
            return 2.0
        return 100 * self.gaps[unit] / max(size, 1e-30)


@dataclass
class Asked:
    """An engine on a model of its own, and what one record added to its answers."""

    model: nn.Module
    losses: Losses
    batch: Any
    policy: Any
    rows_per_unit: int
    microbatch: int | None
    before: Callable[[nn.Module], None] | None = None
    rounding: float = 1e-8
    worst: float = 0.0
    loose: float = 1.0
    mistakes: list[str] = field(default_factory=list)

    def __enter__(self) -> Asked:
        names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        self.parts = arrange(self.policy, names)
        self.found = _state(self.model)
        self.engine = Engine(self.model, [part.names for part in self.parts])
        if self.before is not None:
            self._warm_up(self.before)
        self.exact = all(parameter.dtype == torch.float64 for parameter in self.model.parameters())
        states = [part.policy.init(self.engine.layout(group).size) for group, part in enumerate(self.parts)]
        self.states = states
        self.bounds = [
            bound
            for part, state in zip(self.parts, states, strict=True)
            for bound in part.policy.bounds(state, Adjacency.ADD_REMOVE)
        ]
        return self

    def _warm_up(self, before: Callable[[nn.Module], None]) -> None:
        """A batch with other parameters: what the engine learns from it may not last."""
        kept = [parameter.detach().clone() for parameter in self.model.parameters()]
        with torch.no_grad():
            before(self.model)
        units = range(units_in(self.batch, self.rows_per_unit))
        losses = self.losses(self.model, take(self.batch, rows_of(units, self.rows_per_unit)))
        self.engine.record(losses, self.rows_per_unit).scalars()
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), kept, strict=True):
                parameter.copy_(value)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.engine.close()
        self.buffers = _buffers(self.model)
        if kind is None and _state(self.model) != self.found:
            self.mistakes.append("the model was not left as it was found")

    def clipped(self, units: Sequence[int], truth: Truth | None) -> list[Tensor]:
        """The answers to the policy's queries over ``units``, in float64; held against the truth if there is one."""
        size = self.microbatch or len(units)
        totals: list[Tensor] | None = None
        for start in range(0, len(units), size):
            part = list(units[start : start + size])
            answers = self._piece(part, truth)
            totals = answers if totals is None else [a + b for a, b in zip(totals, answers, strict=True)]
        assert totals is not None
        return totals

    def _piece(self, units: Sequence[int], truth: Truth | None) -> list[Tensor]:
        rows = rows_of(units, self.rows_per_unit)
        tape = self.engine.record(self.losses(self.model, take(self.batch, rows)), self.rows_per_unit)
        answers = []
        for group, (part, state) in enumerate(zip(self.parts, self.states, strict=True)):
            direction = part.policy.direction(state)
            scalars = tape.scalars(direction, group)
            queries = part.policy.ask(scalars, state)
            answers += [answer.double() for answer in tape.contract(queries, direction, group)]
            own = [query.own for query in queries if isinstance(query, VectorQuery)]
            bounds = part.policy.bounds(state, Adjacency.ADD_REMOVE)
            self._hold(tape, group, units, scalars.norms, own[0], bounds[0], direction is None, truth)
        if any(parameter.grad is not None for parameter in self.model.parameters()):
            self.mistakes.append("a parameter's .grad was set")
        return answers

    def _hold(
        self,
        tape: Any,
        group: int,
        units: Sequence[int],
        norms: Tensor,
        own: Tensor,
        bound: float,
        plain: bool,
        truth: Truth | None,
    ) -> None:
        """What each unit adds by the engine's arithmetic, against its norm, its bound and the truth."""
        if norms.shape != (len(units),):
            self.mistakes.append(f"{len(units)} units, but {len(norms)} norms")
            return
        picks = list(torch.eye(len(units), dtype=own.dtype))
        finite = norms.isfinite()
        picks = [pick * finite for pick in picks]
        vectors = torch.stack(tape.contract([VectorQuery(pick) for pick in picks], None, group)).double()
        sizes = vectors.norm(dim=1)
        where = self._where(group)
        largest = float(sizes[finite].max()) if bool(finite.any()) else 0.0
        for place, unit in enumerate(units):
            if not bool(finite[place]):
                self._silent(unit, float(own[place]), truth, where)
                continue
            norm, size = float(norms[place]), float(sizes[place])
            if truth is not None:
                self._true(unit, vectors[place], norm, truth, where)
            if norm < size * (1 - (2e-6 if not self.exact else 1e-9)) - NEGLIGIBLE:
                self.mistakes.append(f"unit {unit} adds {size:.8g} but its norm is said to be {norm:.8g}")
            if plain:
                self.worst = max(self.worst, float(own[place]) * size / bound)
            if norm > 1e-4 * largest and norm > NEGLIGIBLE:
                self.loose = max(self.loose, norm / max(size, 1e-300))
        self._linear(
            tape,
            group,
            vectors,
            norms.double(),
            own,
            truth and [truth.error(unit, self.exact, self.rounding) for unit in units],
        )

    def _linear(
        self, tape: Any, group: int, vectors: Tensor, norms: Tensor, own: Tensor, errors: list[float] | None
    ) -> None:
        """A sum with arbitrary weights is the sum of its parts, as exactly as the parts are known."""
        finite = norms.isfinite()
        weights = torch.linspace(0.3, -1.1, len(vectors), dtype=own.dtype) * finite
        total = tape.contract([VectorQuery(weights)], None, group)[0].double()
        expected = weights.double() @ vectors
        doubt = norms.nan_to_num(0, 0, 0) * (1e-9 if self.exact else 1e-4) + (norms - vectors.norm(dim=1)).clamp_min(0)
        doubt += torch.tensor(errors or [0.0] * len(doubt), dtype=torch.float64).nan_to_num(0, 0, 0)
        allowed = float(weights.double().abs() @ doubt.nan_to_num(0, 0, 0))
        if not float((total - expected).norm()) <= allowed + 1e-30:
            self.mistakes.append("a weighted sum is not the sum of its parts")

    def _silent(self, unit: int, own: float, truth: Truth | None, where: Tensor) -> None:
        """A norm that is not finite needs a reason, and a coefficient of zero."""
        if own != 0:
            self.mistakes.append(f"unit {unit} has no finite norm but a coefficient of {own}")
        if truth is not None and self.exact and bool(truth.vectors[unit][where].isfinite().all()):
            self.mistakes.append(f"unit {unit} has no finite norm, though its gradient is finite")

    def _true(self, unit: int, vector: Tensor, norm: float, truth: Truth, where: Tensor) -> None:
        expected = truth.vectors[unit][where]
        size = float(expected.norm())
        if not math.isfinite(size) or not math.isfinite(truth.gaps[unit]):
            return
        error = truth.error(unit, self.exact, self.rounding)
        if not float((vector - expected).norm()) <= error:
            self.mistakes.append(
                f"the gradient of unit {unit} is {float((vector - expected).norm()):.3g} away from autograd's, "
                f"which has norm {size:.6g}"
            )
        if norm < size * (1 - 1e-6) - error:
            self.mistakes.append(f"the norm of unit {unit} is {norm:.8g}, the truth is {size:.8g}")

    def _where(self, group: int) -> Tensor:
        """The places of a group's values in the flat vector of all trainable parameters."""
        starts, start = {}, 0
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                starts[name] = torch.arange(start, start + parameter.numel())
                start += parameter.numel()
        return torch.cat([starts[name] for name in self.parts[group].names])


def judge(
    model: nn.Module,
    losses: Losses,
    batch: Any,
    *,
    clipping: Any = None,
    rows_per_unit: int = 1,
    microbatch: int | None = None,
    sizes: Sequence[int] = (1, 2, 5),
    all_records: bool = True,
    planted: bool = False,
    before: Callable[[nn.Module], None] | None = None,
    rounding: float = 1e-8,
    untried: Losses | None = None,
) -> Verdict:
    """Hold the engine on a copy of ``model`` against brute force; add the feature width to ``sizes`` where it matters.

    A model that is known to mix (``planted``) has no truth to be held against, only its sensitivity. It
    should be tried on two records or more: alone, no record mixes. ``before`` changes the parameters in place for a
    first batch, as training does: gates that are still shut, heads that are still zero. A gradient in double precision
    may be off by ``rounding`` of its length. ``untried`` are the losses for the oracle.
    """
    judged = Judge(
        model, losses, batch, clipping, rows_per_unit, microbatch, all_records, planted, before, rounding,
        untried=untried,
    )  # fmt: skip
    return judged.verdict(sizes)


def take(batch: Any, rows: Sequence[int]) -> Any:
    """Some rows of every tensor in ``batch``."""
    return tree_map(lambda value: value[list(rows)] if isinstance(value, Tensor) else value, batch)


def units_in(batch: Any, rows_per_unit: int) -> int:
    """How many units ``batch`` has."""
    return len(next(leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))) // rows_per_unit


def rows_of(units: Sequence[int], rows_per_unit: int) -> list[int]:
    """The rows of ``units``, which lie next to one another."""
    return [unit * rows_per_unit + row for unit in units for row in range(rows_per_unit)]


def _double(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def _doubled(batch: Any) -> Any:
    return tree_map(
        lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, batch
    )


def _gradient(model: nn.Module, loss: Tensor) -> Tensor:
    """Flat, in float64, zero where the loss does not depend on a parameter."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not loss.requires_grad:
        return torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    pairs = zip(parameters, gradients, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).double().flatten() for p, g in pairs])


def _near(one: Tensor, two: Tensor, tolerance: float) -> bool:
    if not bool(one.isfinite().all()) or not bool(two.isfinite().all()):
        return bool(one.isfinite().all()) == bool(two.isfinite().all())
    return float((one - two).norm()) <= tolerance * float(two.norm()) + 1e-9


def _state(model: nn.Module) -> list[Any]:
    """What an engine may not leave behind: a forward of its own, hooks, another kind of module or parameter."""
    return [
        (
            name,
            type(module),
            module.__dict__.get("forward"),
            *[_ours(hooks) for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)],
            [(key, id(parameter)) for key, parameter in module._parameters.items()],
        )
        for name, module in model.named_modules()
    ]


def _ours(hooks: Mapping[int, Any]) -> int:
    """How many hooks are the engine's; some models hang hooks on themselves when they first run."""
    return sum(str(getattr(hook, "__module__", "")).startswith("sordina") for hook in hooks.values())


def _buffers(model: nn.Module) -> list[bytes]:
    return [buffer.detach().cpu().numpy().tobytes() for buffer in model.buffers()]


def _moved(batch: Any, seed: int) -> Any:
    """Numbers moved by about a rounding of single precision."""
    generator = torch.Generator().manual_seed(seed)

    def change(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return value * (1 + 1e-7 * torch.randn(value.shape, generator=generator).to(value))

    return tree_map(change, batch)


class _heard(logging.Handler):
    """Collects what the engine logs."""

    def __init__(self, told: list[str]) -> None:
        super().__init__(logging.INFO)
        self.told = told

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())

    def __enter__(self) -> _heard:
        logging.getLogger("sordina.gradients").addHandler(self)
        return self

    def __exit__(self, *error: Any) -> None:
        logging.getLogger("sordina.gradients").removeHandler(self)
