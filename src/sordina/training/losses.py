"""Per-sample losses, whether model, loss and data go together, and scores on held-out data."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina._renamed import renamed
from sordina.errors import InvalidInput, SordinaError
from sordina.gradients import Engine
from sordina.gradients._reads import Company, Reads, settled
from sordina.gradients._rehearsal import Dims, aside, part
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients.removal import LossWatch
from sordina.models.metrics import accuracy, class_scores, number_scores
from sordina.training.batches import Rows, as_rows, inputs_and_target

# Per-sample losses: a mean over the batch hides who contributed what, so it is turned back or refused.

Loss = Callable[..., Tensor]
log = logging.getLogger(__name__)


def per_sample(loss: Loss) -> Loss:
    """``loss`` with one value per sample.

    A function with a ``reduction`` argument (all of ``torch.nn.functional``) or a loss module gets ``"none"``; further
    dimensions, such as pixels or words, are averaged per sample. Any other function must return shape (B,) itself. A
    loss that pairs outputs with the targets of other samples, because their shapes broadcast, is refused. One that goes
    another way depending on numbers of the batch (``if output.mean() > 0``) is computed on one sample at a time.

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

    tried: dict[Any, int] = {}
    apart: set[Any] = set()

    def each(output: Any, target: Tensor) -> Tensor:
        both = isinstance(output, Tensor) and isinstance(target, Tensor) and output.ndim and target.ndim
        if both:
            kind = (output.shape[1:], target.shape[1:], output.dtype, target.dtype)
            if len(output) > tried.get(kind, 0):
                for rows in (_ROWS, _tried_rows(output, target)):
                    _refuse_mixing(loss, output, target, rows)
                if why := _decided(loss, output, target):
                    log.warning("the loss is computed on one sample at a time: %s", why)
                    apart.add(kind)
                tried[kind] = max(_MANY, 2 * len(output))
        if both and kind in apart and len(output):
            single = [slice(row, row + 1) for row in range(len(output))]
            losses = torch.cat([_one_row(loss(output[row], target[row])) for row in single])
        else:
            losses = loss(output, target)
        if not isinstance(losses, Tensor) or losses.ndim == 0:
            raise InvalidInput(
                "the loss returned one number for the whole batch; privacy needs one per sample. Return shape (B,), "
                "for instance by reduction='none'."
            )
        if both and not len(output) == len(target) == len(losses):
            raise InvalidInput(_mixed(output, target))
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    return each


def _one_row(losses: Any) -> Tensor:
    """The loss of a batch of one."""
    return losses if isinstance(losses, Tensor) and losses.ndim else torch.as_tensor(losses).reshape(1)


def row_by_row(each: Loss) -> Loss:
    """``each`` (of `per_sample`), with a loss of NaN and no gradient for the rows on which it fails alone.

    Args:
        each: One value per sample. What it refuses as an error of ours is refused.
    """

    def losses(output: Tensor, target: Tensor) -> Tensor:
        try:
            return each(output, target)
        except SordinaError:
            raise
        except Exception:
            return torch.cat([alone(output[row : row + 1], target[row : row + 1]) for row in range(len(output))])

    def alone(output: Tensor, target: Tensor) -> Tensor:
        try:
            return each(output, target)
        except Exception:
            return output.reshape(1, -1).sum(1) * 0 + math.nan

    return losses


_ROWS, _MANY = 3, 1024
"""Rows on which every loss is tried: few, and many, because some look across a batch only if it is large."""
_LOUD = (lambda row: 1 - row / 2, lambda row: row * 1e3 + 1e2, lambda row: torch.full_like(row, math.nan))
"""What a row of numbers is changed to: another one, one that moves every statistic, one that is no number."""


def _tried_rows(output: Tensor, target: Tensor) -> int:
    """So many rows, or twice those there are if that is more, as far as memory allows."""
    wide = max(1, output[:1].numel(), target[:1].numel())
    return max(_ROWS, min(max(_MANY, 2 * len(output)), _PIECE // (16 * wide)))


def _mixed(output: Tensor, target: Tensor) -> str:
    if output.shape[1:] == target.shape[1:]:
        return (
            "the loss of one sample depends on other samples, or on how many there are: leave out what looks across "
            "the batch, and divide by no size of a batch (the mean over the expected batch is taken afterwards)."
        )
    return (
        f"the loss of one sample depends on other samples when outputs are {_shape(output)} and targets "
        f"{_shape(target)}: either shapes that broadcast pair every output with every target (give both the same "
        "shape, for instance by targets[:, None] or outputs.squeeze(1)), or something looks across the batch or at its "
        "size (leave it out)."
    )


def _refuse_mixing(loss: Loss, output: Tensor, target: Tensor, rows: int) -> None:
    """Try ``loss`` on made-up rows, in these shapes: changing one row may change the loss of that row alone.

    What the loss cannot be tried on (it knows more about its targets than we do) must agree in shape instead.
    """
    outputs, classes = _made_up(output, None, rows), _classes(output, target)
    try:
        try:
            targets = _made_up(target, classes and max(2, classes), rows).flip(0)
            before = _tried(loss, outputs, targets)
        except Exception:
            targets = _made_up(target, classes, rows).flip(0)
            before = _tried(loss, outputs, targets)
    except Exception as error:
        if output.shape != target.shape:
            raise InvalidInput(
                f"the loss cannot take outputs {_shape(output)} with targets {_shape(target)}: "
                f"{' '.join(str(error).split())}."
            ) from error
        return
    if before.ndim == 0:
        return
    if len(before) != rows or not _kept(loss, outputs, targets, before):
        raise InvalidInput(_mixed(output, target))


def _decided(loss: Loss, output: Tensor, target: Tensor) -> str:
    """Where numbers of the batch that Python reads decide what ``loss`` does; empty if none do."""

    def company(rows: int, classes: int | None) -> Company:
        pair = _made_up(output, None, rows), _made_up(target, classes, rows).flip(0)
        return pair, pair, rows

    def same(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
        return torch.allclose(one[0], two[0], 1e-4, 1e-4) if one[0].shape == two[0].shape else False

    few, many = (next(rows for rows in sizes if rows not in (*output.shape, *target.shape)) for sizes in _UNLIKE)
    classes = _classes(output, target)
    for limit in dict.fromkeys([classes and max(2, classes), classes]):
        with suppress(Exception):
            both = company(few, limit), company(many, limit)
            return settled(lambda pair: [_tried(loss, *pair)], both, same, lambda: company(many, 1))[1]
    with torch.no_grad(), torch.random.fork_rng(devices=[]), Reads((output, target), len(output)) as reads:
        try:
            loss(output, target)
        except Exception:
            return ""  # what it does not take is dealt with row by row
    return reads.unknown()


_UNLIKE = (3, 5, 7, 11, 13, 17, 19), (4, 6, 8, 9, 10, 12, 14)
"""Numbers of rows to try a loss with, of which one is no other size of its arguments."""


def _kept(loss: Loss, outputs: Tensor, targets: Tensor, before: Tensor) -> bool:
    """Whether the losses stay ``before`` when another row changes, and when there are fewer rows."""
    rows = len(before)
    for row in range(rows) if rows == _ROWS else (rows // 2,):
        rest = [other for other in range(rows) if other != row]
        for twins in _twins(outputs, targets, row):
            try:
                after = _tried(loss, *twins)
            except Exception:
                continue  # a value that the loss does not take: that it says so is dealt with row by row
            if after.shape != before.shape or not torch.equal(after[rest], before[rest]):
                return False
    if not _kept_among_equals(loss, outputs, targets, before):
        return False
    fewer = rows - rows // 3
    try:
        after = _tried(loss, outputs[:fewer], targets[:fewer])
    except Exception:
        return True
    tolerance = 1e-4 if before.dtype in (torch.float32, torch.float64) else 3e-2
    return after.shape == before[:fewer].shape and torch.allclose(after, before[:fewer], tolerance, tolerance)


def _kept_among_equals(loss: Loss, outputs: Tensor, targets: Tensor, before: Tensor) -> bool:
    """Whether a row's loss stays ``before`` among rows that all have a very small, or a very large one.

    One row does not move a median, or a quantile, but all others do.
    """
    row, rows = len(before) // 2, len(before)
    try:
        for factor, extreme in product((100, -100), (torch.argmin, torch.argmax)):
            other = int(extreme(_tried(loss, outputs * factor, targets)))
            where = torch.full((rows,), other, device=outputs.device)
            company, goals = (outputs * factor)[where], targets[where]
            company[row], goals[row] = outputs[row], targets[row]
            after = _tried(loss, company, goals)
            if after.shape != before.shape or not torch.equal(after[row], before[row]):
                return False
    except Exception:
        return True  # values that the loss does not take
    return True


def _twins(outputs: Tensor, targets: Tensor, row: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The same with another ``row`` of outputs or of targets."""
    for change in _LOUD if outputs.is_floating_point() or outputs.is_complex() else _LOUD[:1]:
        yield _with_row(outputs, row, change), targets
    for change in _LOUD if targets.is_floating_point() or targets.is_complex() else _LOUD[:1]:
        yield outputs, _with_row(targets, row, change)


def _tried(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The losses, NaN as a number, from the same random numbers every time.

    Only generators that are put back are seeded: `torch.manual_seed` would leave a public seed in all others, and takes
    longer than most losses.
    """
    devices = [outputs.get_device()] if outputs.is_cuda else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for generator in (torch.default_generator, *(torch.cuda.default_generators[device] for device in devices)):
            generator.manual_seed(0)
        return loss(outputs, targets).nan_to_num()


def _classes(output: Tensor, target: Tensor) -> int | None:
    """How many classes whole-number targets may name: the width of the outputs."""
    if target.is_floating_point() or target.dtype is torch.bool:
        return None
    return output.shape[1] if output.ndim > 1 else 2


def _made_up(like: Tensor, classes: int | None, rows: int) -> Tensor:
    """Rows in the shape and type of ``like``: probabilities if they are numbers, else the first classes."""
    shape = (rows, *like.shape[1:])
    count = math.prod(shape)
    if like.is_floating_point() or like.is_complex():
        return torch.linspace(0.15, 0.85, count, dtype=torch.float64).to(like.dtype).to(like.device).view(shape)
    return (torch.arange(count) % max(1, min(2, classes or 2))).to(like.dtype).to(like.device).view(shape)


def _with_row(values: Tensor, row: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """``values`` with another ``row``, of the same kind; ``change`` is what is done to numbers."""
    other = values.clone()
    if values.is_floating_point() or values.is_complex():
        other[row] = change(values[row])
    else:
        other[row] = other[row].max() - other[row] if other[row].numel() > 1 else values.max() - other[row]
    return other


def _shape(values: Tensor) -> str:
    return "(n" + "".join(f", {size}" for size in values.shape[1:]) + ("," if values.ndim == 1 else "") + ")"


def _parameters(function: Loss) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


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
    with _at_rest(model):
        shapes = ", ".join(
            f"{tuple(column.shape[1:])} {str(column.dtype).removeprefix('torch.')}" for column in columns
        )
        zeros = [torch.zeros(2, *column.shape[1:], dtype=column.dtype, device=column.device) for column in columns]
        refused: Exception | None = None
        try:
            _try(model, loss, zeros)
        except SordinaError:
            raise
        except Exception as error:
            refused = error
        if refused is None and not any(_whole(column) for column in columns):
            return
        try:  # zero may be no such number: the length of a sequence is at least one
            _try(model, loss, _telling_rows(columns))
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
                column[:] = [_telling(torch.cat([*column, _telling(tensor)]))]
    if _tensors(rows.pattern) is None:
        return None
    return tuple(
        _in_rows(column[0], shape) if column else torch.zeros(2, *shape, dtype=kind)
        for column, (shape, kind) in zip(found, form, strict=True)
    )


def _try(model: nn.Module, loss: Loss, columns: Sequence[Tensor]) -> None:
    inputs, target = inputs_and_target(tuple(columns))
    try:
        per_sample(loss)(model(*inputs), target)
    except RuntimeError:
        with torch.enable_grad():  # there are models that take a derivative inside
            per_sample(loss)(model(*inputs), target)


def _whole(column: Tensor) -> bool:
    return not (column.is_floating_point() or column.is_complex() or column.dtype is torch.bool)


def _telling(column: Tensor) -> Tensor:
    """The whole numbers in ``column``, or those of them that are out of range if any is: the least and the largest.

    Between a number that stands for "ignore me" (-100, 255) and the classes there may be others, so the second least,
    the second largest and the neighbours of zero are among them.
    """
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
        _in_rows(_telling(column), column.shape[1:]) if _whole(column) and column.numel() else column[:0]
        for column in columns
    ]
    rows = max(2, *(len(column) for column in made))
    return [
        column[torch.arange(rows) % len(column)].to(like.device) if len(column)
        else torch.zeros(rows, *like.shape[1:], dtype=like.dtype, device=like.device)
        for column, like in zip(made, columns, strict=True)
    ]  # fmt: skip


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
def _at_rest(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and afterwards as it was; no random number of the user's is used up."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


# Losses of a batch in which some rows cannot be computed: they add nothing, and nothing stops.
#
# A loss may refuse a value (`torch.nn.functional.binary_cross_entropy` refuses what is not a number), a model may
# refuse a token. An error at the step that draws such a record would tell when it was drawn, and often quote it. So
# the batch is computed again with the rows that fail alone replaced by zeros, whose losses then count nothing. What
# fails on zeros too is a fault of model or loss, which depends on released weights only, and is told.


class FailingRows:
    """The losses of a batch, zero for the rows that cannot be computed.

    Args:
        model: What ``losses`` calls.
        losses: From a batch to one loss per row.
        engine: Listens to the model, if anybody does.
    """

    def __init__(self, model: nn.Module, losses: Callable[[Any], Tensor], engine: Engine | None) -> None:
        self.model, self.losses, self.engine = model, losses, engine

    def __call__(self, batch: Any) -> Tensor:
        """The losses of ``batch``."""
        try:
            return self.losses(batch)
        except SordinaError:
            raise
        except Exception as error:
            return self._without_failing(batch, error)

    def _without_failing(self, batch: Any, error: Exception) -> Tensor:
        tensors = list(tensors_in([batch]))
        rows = next((len(tensor) for tensor in tensors if tensor.dim()), 0)
        dims: Dims = tuple(0 if tensor.shape[:1] == (rows,) else None for tensor in tensors)
        failing = [row for row in range(rows) if self._fails(part(batch, dims, row))]
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

        losses = self.losses(changed(batch, blank))
        return losses.index_fill(0, where.to(losses.device), 0.0)

    def _fails(self, row: Any) -> bool:
        for gradients in (False, True):
            unheard = nullcontext() if self.engine is None else self.engine.unheard()
            with torch.set_grad_enabled(gradients), aside(self.model), unheard:
                try:
                    self.losses(row)
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
