"""Per-sample losses, whether model, loss and data go together, and scores on held-out data."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from sordina._renamed import renamed
from sordina.errors import InvalidInput, SordinaError
from sordina.gradients import Engine
from sordina.gradients._following import TOGETHER
from sordina.gradients._footprints import followed
from sordina.gradients._kept_state import COUNTERS, KeptState, keeps_nothing
from sordina.gradients._rehearsal import Attributes, Dims, aside, check_parameters, fingerprint, part
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients.removal import LossWatch, RemovalSchedule
from sordina.models.metrics import accuracy, class_scores, number_scores
from sordina.training.batches import Rows, as_rows, inputs_and_target
from sordina.training.loss_trials import FEW, MANY, LossTrials, memory_refusal

if TYPE_CHECKING:
    from sordina.training.loop import Private

# Per-sample losses: a mean over the batch hides who contributed what, so it is turned back or refused.

Loss = Callable[..., Tensor]
log = logging.getLogger(__name__)


def per_sample(loss: Loss) -> PerSample:
    """``loss`` with one value per sample.

    A function with a ``reduction`` argument (all of ``torch.nn.functional``) or a loss module gets ``"none"``; further
    dimensions, such as pixels or words, are averaged per sample. Any other function must return shape (B,) itself. A
    loss that pairs outputs with the targets of other samples, because their shapes broadcast, is refused, and so is one
    that remembers earlier batches. One that goes another way depending on numbers of the batch (``if output.mean() >
    0``) is computed on one sample at a time.

    >>> import torch
    >>> per_sample(torch.nn.functional.mse_loss)(torch.zeros(3, 4), torch.ones(3, 4))
    tensor([1., 1., 1.])
    """
    if isinstance(loss, nn.Module):
        if hasattr(loss, "reduction"):
            loss = copy.copy(loss)
            setattr(loss, "reduction", "none")  # noqa: B010 - nn.Module types its attributes as tensors
    elif "reduction" in _parameters(loss):
        loss = functools.partial(loss, reduction="none")

    return PerSample(loss)


class PerSample:
    """``loss`` with one value per sample, tried on made-up rows whenever it gets something new (`LossTrials`)."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self._tried: dict[Any, int] = {}
        self._apart: dict[Any, Dims] = {}
        """Forms of arguments that are computed on one sample at a time."""
        self._forms: dict[Any, tuple[set[int], set[int]]] = {}
        """By the form of arguments the numbers of rows that were seen, and the tensors that have no rows of samples."""
        self._stateful: tuple[LossTrials, RemovalSchedule] | None = None

    def __call__(self, output: Any, target: Any) -> Tensor:
        """The losses of the samples."""
        plain = isinstance(output, Tensor) and isinstance(target, Tensor) and output.ndim and target.ndim
        losses = self._of_tensors(output, target) if plain else self._of_others(output, target)
        if plain and not len(output) == len(target) == len(losses):
            raise LossTrials(self.loss, (output, target), (0, 0), True).refusal()
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    def anew(self) -> None:
        """Try the loss again as it is now: it does something that it never did; but what runs apart stays so."""
        self._tried = {kind: rows for kind, rows in self._tried.items() if kind in self._apart}

    @property
    def waiting(self) -> bool:
        """Whether arguments were seen of which one size of a batch does not tell which have rows of samples."""
        return any(len(counts) == 1 for counts, _ in self._forms.values())

    def _of_tensors(self, output: Tensor, target: Tensor) -> Tensor:
        kind = (output.shape[1:], target.shape[1:], output.dtype, target.dtype)
        self._try(kind, (output, target), (0, 0), len(output), plain=True)
        if kind in self._apart and len(output):
            return self._one_by_one((output, target), (0, 0))
        return _checked(self.loss(output, target))

    def _of_others(self, output: Any, target: Any) -> Tensor:
        """The losses first: their number is that of the samples."""
        tensors = list(tensors_in([output, target]))
        form = type(output), type(target), tuple((each.dtype, each.ndim) for each in tensors)
        kind = (form, tuple(each.shape[1:] for each in tensors))
        if kind in self._apart:
            return self._one_by_one((output, target), self._apart[kind])
        before = KeptState(self.loss, COUNTERS)
        losses = _checked(self.loss(output, target))
        rows = len(losses)
        counts, others = self._forms.setdefault(form, (set(), set()))
        counts.add(rows)
        others |= {place for place, each in enumerate(tensors) if each.shape[:1] != (rows,)}
        dims: Dims = tuple(None if place in others else 0 for place in range(len(tensors)))
        known = rows <= self._tried.get(kind, 0) and self._stateful is None
        if known or len(counts) == 1 or 0 not in dims:  # at one size something else may be as long as the batch
            return losses
        after = KeptState(self.loss, COUNTERS)
        before.restore()
        self._try(kind, (output, target), dims, rows, plain=False)
        if kind in self._apart:
            return self._one_by_one((output, target), dims)
        after.restore()
        return losses

    def _try(self, kind: Any, pair: tuple[Any, Any], dims: Dims, rows: int, plain: bool) -> None:
        """Refuse a loss that mixes samples, or remembers them; trials are nothing that the loss does by itself."""
        if self._stateful is not None and not LossWatch.checking and self._stateful[1].due():
            with followed(None):
                self._refuse_memory(self._stateful[0].at_present())
                if kind not in self._apart and self._stateful[0].brought_together().startswith(TOGETHER):
                    raise self._stateful[0].refusal()
        if rows > self._tried.get(kind, 0):
            with followed(None):
                self._try_new(kind, pair, dims, rows, plain)

    def _try_new(self, kind: Any, pair: tuple[Any, Any], dims: Dims, rows: int, plain: bool) -> None:
        """Find out whether it must run on one sample at a time, too."""
        trials = LossTrials(self.loss, pair, dims, plain)
        self._refuse_memory(trials)
        found = [trials.apart(count) for count in (FEW, trials.many())]
        if False in found:
            raise trials.refusal()
        why = trials.decided() or trials.by_chance() or trials.brought_together()
        if found[0] is None:
            if plain and pair[0].shape != pair[1].shape:
                raise trials.not_taken()
            why = why or ("it cannot be tried on made-up rows" if trials.can_be_split() else "")
        elif why and not plain and not trials.can_be_split():
            raise InvalidInput(f"the loss cannot be computed on one sample at a time, as it must be: {why}.")
        if why:
            log.warning("the loss is computed on one sample at a time: %s", why)
            self._apart[kind] = dims
        self._tried[kind] = max(MANY, 2 * rows)

    def _refuse_memory(self, trials: LossTrials) -> None:
        if name := trials.remembers():
            raise memory_refusal(name)
        if name is not None and self._stateful is None:
            self._stateful = trials, RemovalSchedule()

    def _one_by_one(self, pair: tuple[Any, Any], dims: Dims) -> Tensor:
        """The losses of batches of one, each from the same state: it counts calls by batches."""
        before, losses = KeptState(self.loss, COUNTERS), list[Tensor]()
        rows = next(len(each) for each, dim in zip(tensors_in([pair]), dims, strict=True) if dim == 0)
        for row in range(rows):
            before.restore()
            losses.append(_one_row(self.loss(*part(pair, dims, row))))
        return torch.cat(losses)


def _checked(losses: Any) -> Tensor:
    if not isinstance(losses, Tensor) or losses.ndim == 0:
        raise InvalidInput(
            "the loss returned one number for the whole batch; privacy needs one per sample. Return shape (B,), "
            "for instance by reduction='none'."
        )
    return losses


def _one_row(losses: Any) -> Tensor:
    """The loss of a batch of one."""
    return losses if isinstance(losses, Tensor) and losses.ndim else torch.as_tensor(losses).reshape(1)


def row_by_row(each: Loss) -> Loss:
    """``each`` (of `per_sample`), with a loss of NaN and no gradient for the rows on which it fails alone.

    Args:
        each: One value per sample. What it refuses as an error of ours is refused.
    """

    def losses(output: Any, target: Any) -> Tensor:
        try:
            return each(output, target)
        except SordinaError:
            raise
        except Exception:
            tensors = list(tensors_in([target, output]))
            rows = next((len(tensor) for tensor in tensors if tensor.ndim), 0)
            dims: Dims = tuple(0 if tensor.shape[:1] == (rows,) else None for tensor in tensors_in([output, target]))
            return torch.cat([alone(*part((output, target), dims, row)) for row in range(rows)])

    def alone(output: Any, target: Any) -> Tensor:
        try:
            return each(output, target)
        except Exception:
            first = next(tensor for tensor in tensors_in([output]) if tensor.shape[:1] == (1,))
            return first.reshape(1, -1).sum(1) * 0 + math.nan

    return losses


def _parameters(function: Loss) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def check_loss_learns_nothing(loss: Loss, model: nn.Module) -> None:
    """Refuse a loss with parameters of its own that would stay as they are.

    Args:
        loss: A module, or a method or a partial of one, or anything else.
        model: Whose parameters learn.
    """
    held: Any = loss
    while isinstance(held, (functools.partial, types.MethodType)):
        held = held.func if isinstance(held, functools.partial) else held.__self__
    if not isinstance(held, nn.Module):
        return
    own = {id(each) for each in model.parameters()}
    names = [name for name, each in held.named_parameters() if each.requires_grad and id(each) not in own]
    if names:
        raise InvalidInput(
            f"the loss has parameters of its own ({', '.join(names[:3])}), and only the model's learn: put the layers "
            "that hold them into the model, which then returns what the loss needs, or freeze them "
            "(loss.requires_grad_(False))."
        )


# Whether model, loss and data go together, found out before anything is reserved or drawn.
#
# Tried on made-up rows: zeros in the shapes and types of the data, then for whole numbers (labels, tokens)
# those that occur and tell most. A map-style data set is read through once. A label outside the model's range, a wrong
# width or type would otherwise stop the run at the step that draws it, and so tell when it was drawn. No value of the
# data is ever quoted.

_AT_ONCE, _PIECE, _FEW, _WIDEST = 256, 1 << 22, 64, 1 << 20
"""Items read at once, numbers looked at once; so many whole numbers are all tried; so far apart they are told apart."""


@torch.no_grad()
def check_takes(model: nn.Module, loss: Loss, rows: Rows) -> None:
    """Refuse data that ``model`` and ``loss`` cannot take.

    Args:
        model: The model; it is left as it was.
        loss: The loss, of one value per sample.
        rows: The data.
    """
    if not rows.size:
        return
    columns = rows.source if isinstance(rows.source, tuple) else _read_through(rows)
    if columns is None or any(isinstance(value, nn.UninitializedParameter) for value in model.parameters()):
        return
    each = per_sample(loss)
    with at_rest(model, each.loss):
        shapes = ", ".join(
            f"{tuple(column.shape[1:])} {str(column.dtype).removeprefix('torch.')}" for column in columns
        )
        zeros = [torch.zeros(2, *column.shape[1:], dtype=column.dtype, device=column.device) for column in columns]
        refused: Exception | None = None
        try:
            _try(model, each, zeros)
        except SordinaError:
            raise
        except Exception as error:
            refused = error
        if refused is None and not any(_whole(column) for column in columns):
            return
        try:  # zero may be no such number: the length of a sequence is at least one
            _try(model, each, _telling_rows(columns))
        except SordinaError:
            raise
        except Exception:
            if refused is not None:
                raise InvalidInput(
                    f"the model and the loss cannot take these data, whose rows are {shapes}: "
                    f"{' '.join(str(refused).split())}."
                ) from refused
            raise InvalidInput(
                "the data hold a label or another whole number outside the range that the model and the loss take: "
                "check the number of classes (or the size of the vocabulary) against the data."
            ) from None


def _read_through(rows: Rows) -> tuple[Tensor, ...] | None:
    """Read a map-style data set once, so that no item can stop the run at the step that draws it.

    Returns:
        Of every column the whole numbers that tell most, in rows, or two rows of zeros; None if the items are no
        tensors: then only the user's model can judge them.
    """
    form = [(tensor.shape[1:], tensor.dtype) for tensor in tensors_in([rows.pattern])]
    found: list[list[Tensor]] = [[] for _ in form]
    for start in range(0, rows.size, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, rows.size))
        tensors = list(tensors_in([rows.take_or_refuse(numbers)]))
        for column, tensor in zip(found, tensors, strict=True):
            if _whole(tensor) and tensor.numel():
                told = _by_place if _table(tensor) and rows.collate is default_collate else _telling
                column[:] = [told(torch.cat([*column, told(tensor)]))]
    if _tensors(rows.pattern) is None:
        return None
    return tuple(
        torch.zeros(2, *shape, dtype=kind)
        if not column
        else _in_rows(column[0], shape)
        if column[0].dim() == 1
        else column[0]
        for column, (shape, kind) in zip(found, form, strict=True)
    )


def _try(model: nn.Module, each: Loss, columns: Sequence[Tensor]) -> None:
    inputs, target = inputs_and_target(tuple(columns))
    try:
        each(model(*inputs), target)
    except RuntimeError:
        with torch.enable_grad():  # there are models that take a derivative inside
            each(model(*inputs), target)


def _whole(column: Tensor) -> bool:
    return not (column.is_floating_point() or column.is_complex() or column.dtype is torch.bool)


def _telling(column: Tensor) -> Tensor:
    """The whole numbers in ``column``, or those of them that are out of range if any is: the least and the largest.

    Between a number that stands for "ignore me" (-100, 255) and the classes there may be others, so the second least,
    the second largest and the neighbours of zero are among them.
    """
    if column.dtype in (torch.uint16, torch.uint32, torch.uint64):  # for which torch can hardly do anything
        return _telling(column.to(torch.int64)).to(column.dtype)
    least, most = (int(value) for value in column.aminmax())
    if most - least < _WIDEST:
        seen = torch.zeros(most - least + 1, dtype=torch.bool)
        flat = column.reshape(-1)
        for start in range(0, len(flat), _PIECE):
            seen[flat[start : start + _PIECE].to(torch.int64).cpu() - least] = True
        values = seen.nonzero().flatten() + least
    else:
        flat = column.reshape(-1).to(torch.int64).cpu()
        inside = flat[(flat > least) & (flat < most)]
        parts = [part for part in (inside, inside[inside < 0], inside[inside >= 0]) if len(part)]
        values = torch.tensor(sorted({least, most, *(int(one) for part in parts for one in part.aminmax())}))
    if len(values) > _FEW:
        zero = int((values < 0).sum())
        places = [0, 1, zero - 1, zero, zero + 1, len(values) - 2, len(values) - 1]
        values = values[sorted({min(max(place, 0), len(values) - 1) for place in places})]
    return values.to(column.dtype)


def _telling_rows(columns: Sequence[Tensor]) -> list[Tensor]:
    """Rows whose whole numbers are those that tell most; everything else is zero."""
    made = [
        (_by_place(column) if _table(column) else _in_rows(_telling(column), column.shape[1:]))
        if _whole(column) and column.numel()
        else column[:0]
        for column in columns
    ]
    rows = max(2, *(len(column) for column in made))
    return [
        column[torch.arange(rows) % len(column)].to(like.device) if len(column)
        else torch.zeros(rows, *like.shape[1:], dtype=like.dtype, device=like.device)
        for column, like in zip(made, columns, strict=True)
    ]  # fmt: skip


_TABLE = 64
"""Up to so many whole numbers in a row, each may be a category with a range of its own."""


def _table(column: Tensor) -> bool:
    return column.dim() == 2 and column.shape[1] <= _TABLE


def _by_place(column: Tensor) -> Tensor:
    """Rows in which each place has whole numbers of its own that tell most."""
    found = [_telling(column[:, place]) for place in range(column.shape[1])]
    rows = max(2, *map(len, found))
    return torch.stack([values[torch.arange(rows) % len(values)] for values in found], 1)


def _in_rows(values: Tensor, shape: torch.Size) -> Tensor:
    """``values``, over and over, in as few rows of ``shape`` as hold them all."""
    width = max(1, shape.numel())
    rows = max(2, -(-len(values) // width))
    return values[torch.arange(rows * width) % len(values)].view(rows, *shape)


def _tensors(batch: Any) -> tuple[Tensor, ...] | None:
    """The tensors of a collated batch; None if it is anything else, which only the user's model can judge."""
    parts = (batch,) if isinstance(batch, Tensor) else tuple(batch) if isinstance(batch, (tuple, list)) else ()
    return parts if parts and all(isinstance(part, Tensor) for part in parts) else None


@contextmanager
def at_rest(model: nn.Module, loss: Loss) -> Iterator[None]:
    """The model in evaluation mode, and afterwards it and the loss as they were; no random number is used up."""
    kept, before = KeptState(loss), fingerprint(model)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with aside(model):  # what begins by its first batch begins by one
            yield
        check_parameters(before, fingerprint(model))
    finally:
        kept.restore()
        for module, mode in modes:
            module.training = mode


# Losses of a batch in which some rows cannot be computed: they add nothing, and nothing stops.
#
# A loss may refuse a value (`torch.nn.functional.binary_cross_entropy` refuses what is not a number), a model may
# refuse a token. An error at the step that draws such a record would tell when it was drawn, and often quote it. So
# the batch is computed again with the rows that fail alone replaced by zeros, whose losses then count nothing. What
# fails on zeros too is a fault of model or loss, which depends on released weights only, and is told.


class FailingRows:
    """The losses of a batch, zero for the rows that cannot be computed, there or on the way back.

    Args:
        model: What ``losses`` calls.
        losses: From a batch to one loss per row.
        engine: Listens to the model, if anybody does.
        loss: What of ``losses`` may keep a state, which counts a batch once, as that of the model does.
    """

    def __init__(
        self, model: nn.Module, losses: Callable[[Any], Tensor], engine: Engine | None, loss: Loss | None = None
    ) -> None:
        self.model, self.losses, self.engine, self.loss = model, losses, engine, loss
        self._counts = [name for name, each in model.named_buffers() if each.numel() == 1]
        self._keeps_nothing = keeps_nothing(loss)

    def __call__(self, batch: Any) -> Tensor:
        """The losses of ``batch``."""
        before = self.kept()
        try:
            return self.losses(batch)
        except SordinaError:
            raise
        except Exception as error:
            return self._without_failing(batch, error, before)

    def step(self, private: Private, batch: Any, losses: Tensor) -> None:
        """Give a run the ``losses`` of ``batch``; rows on whose way back the model fails count nothing.

        Args:
            private: What takes them.
            batch: What was drawn.
            losses: One per row.
        """
        try:
            private.step(losses)
        except SordinaError:
            raise
        except Exception as error:
            del losses
            after = self.kept()
            again = self._without_failing(batch, error, after, back=True)
            after()  # the batch is counted once
            private.step(again)

    def kept(self) -> Callable[[], None]:
        """What puts back what the loss and the model keep now."""
        loss = None if self._keeps_nothing else KeptState(self.loss, COUNTERS)
        model = Attributes(self.model, self._counts)

        def restore() -> None:
            if loss is not None:
                loss.restore()
            model.restore()

        return restore

    def _without_failing(self, batch: Any, error: Exception, restore: Callable[[], None], back: bool = False) -> Tensor:
        tensors = list(tensors_in([batch]))
        rows = next((len(tensor) for tensor in tensors if tensor.dim()), 0)
        dims: Dims = tuple(0 if tensor.shape[:1] == (rows,) else None for tensor in tensors)
        failing = [row for row in range(rows) if self._fails(part(batch, dims, row), restore, back)]
        if not failing:
            raise error
        if self.engine is not None and torch.is_grad_enabled() and not LossWatch.checking:
            self.engine.clear()
        places, where = iter(dims), torch.tensor(failing)
        other = next((row for row in range(rows) if row not in failing), None)

        def blank(tensor: Tensor) -> Tensor:
            """With another row in the place of those that fail; zeros if all do, and the loss counts for none."""
            if next(places) is None:
                return tensor
            index = where.to(tensor.device)
            if other is None:
                return tensor.index_fill(0, index, 0)
            return tensor.index_copy(0, index, tensor[other].expand(len(failing), *tensor.shape[1:]))

        restore()
        losses = self.losses(changed(batch, blank))
        return losses.index_fill(0, where.to(losses.device), 0.0)

    def _fails(self, row: Any, restore: Callable[[], None], back: bool) -> bool:
        for gradients in (True,) if back else (False, True):
            restore()
            unheard = nullcontext() if self.engine is None else self.engine.unheard()
            with torch.set_grad_enabled(gradients), aside(self.model), unheard:
                try:
                    losses = self.losses(row)
                    if back:
                        trained = [each for each in self.model.parameters() if each.requires_grad]
                        torch.autograd.grad(losses.sum(), trained, allow_unused=True)
                except SordinaError:
                    raise
                except Exception:
                    continue  # without gradients models fail that take a derivative inside
                return False
        return True


# Scores on held-out data, without noise: the guarantee does not cover these rows.


@torch.no_grad()
@renamed(batch="batch_size")
def evaluate(model: nn.Module, loss: Loss, data: Any, batch_size: int = 1000) -> dict[str, float]:
    """Mean loss; of classes accuracy, AUC and others, of numbers RMSE and R2, beside the best constant answer.

    Args:
        data: Held-out rows, which the guarantee does not cover.
        batch_size: Rows at once.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.eye_(model.weight)
    >>> x = torch.eye(2)
    >>> evaluate(model, nn.functional.cross_entropy, (x, torch.tensor([0, 1])))["accuracy"]
    1.0
    """
    rows, each = as_rows(data), per_sample(loss)
    if not rows.size:
        raise InvalidInput("the validation data are empty.")
    kept = KeptState(each.loss)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    losses = 0.0
    outputs, targets = [], []
    for start in range(0, rows.size, batch_size):
        inputs, target = inputs_and_target(rows.take(np.arange(start, min(start + batch_size, rows.size))))
        output = model(*inputs)
        losses += float(each(output, target).double().sum())
        if isinstance(output, torch.Tensor) and isinstance(target, torch.Tensor):
            outputs.append(output.cpu())
            targets.append(target.cpu())
    kept.restore()
    for module, mode in modes:
        module.training = mode
    return {"loss": losses / rows.size} | _quality(outputs, targets)


def _quality(outputs: list[Tensor], targets: list[Tensor]) -> dict[str, float]:
    """What `sordina.models.metrics` says of classes, or of one number a row; nothing of anything else."""
    if not outputs or outputs[0].ndim > 2 or targets[0].ndim > 2:
        return {}
    output, target = torch.cat(outputs), torch.cat(targets)
    if output.ndim == 2 and target.ndim == 1 and not target.is_floating_point():
        named = bool(((target >= 0) & (target < max(2, output.shape[1]))).all())
        return class_scores(output, target) if named else {"accuracy": accuracy(output, target)}
    one = target.is_floating_point() and output.shape == target.shape and target[0].numel() == 1
    return number_scores(output, target) if one else {}
