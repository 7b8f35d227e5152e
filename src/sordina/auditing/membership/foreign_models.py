"""Models of any making as attacks see them: scikit-learn estimators, functions, modules with a loss of their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordina.auditing.membership.shadows import PlainTraining, Shadows, ask_augmented, draw_halves, fresh
from sordina.auditing.membership.target import Samples, confidence, evaluating, noise
from sordina.auditing.scores import FloatArray
from sordina.errors import InvalidInput, SordinaError, Unsupported
from sordina.progress import Progress, silent

LEAST = 1e-12
"""Probabilities are taken to lie this far from 0 and 1: a forest says 1 where it means nearly."""


@dataclass(frozen=True)
class PredictorTarget:
    """A model that gives probabilities of classes, or numbers, for rows.

    Args:
        predict: From rows to (N, classes) probabilities, (N,) probabilities of class 1, or (N,) numbers.
        rows: From inputs to what ``predict`` takes; None: a numpy array.
        estimator: A scikit-learn estimator that can be cloned and fitted again: shadow models of it.
        regression: Whether the predictions are numbers.
        known: The label that each column of probabilities is about; None: the column's number.
    """

    predict: Callable[[Any], Any]
    rows: Callable[[Tensor], Any] | None = None
    estimator: Any = None
    regression: bool = False
    known: tuple[float, ...] | None = None

    @property
    def model(self) -> NoReturn:
        """There is no module."""
        raise Unsupported("this model is no torch module: attacks that look inside cannot be run on it.")

    def losses(self, samples: Samples) -> FloatArray:
        """Cross-entropy, or squared error."""
        if self.regression:
            predicted = np.asarray(self._ask(samples), dtype=np.float64).reshape(len(samples), -1)
            errors: FloatArray = ((predicted - _truth(samples).reshape(predicted.shape)) ** 2).mean(axis=1)
            return errors
        losses: FloatArray = np.logaddexp(0.0, -self.confidences(samples))
        return losses

    def confidences(self, samples: Samples) -> FloatArray:
        """``log(p / (1 - p))`` of the truth; minus the loss of a regression."""
        if self.regression:
            return -self.losses(samples)
        given = np.asarray(self._ask(samples), dtype=np.float64)
        table = np.column_stack([1 - given, given]) if given.ndim == 1 or given.shape[1] == 1 else given
        if (
            len(table) != len(samples)
            or not np.isfinite(table).all()
            or (table < -1e-6).any()
            or (table > 1 + 1e-6).any()
        ):
            raise InvalidInput("the model's answers are not probabilities, one row per sample: give predict_proba.")
        labels = torch.from_numpy(self._columns(samples))
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < table.shape[1]:
            raise InvalidInput(f"the model knows {table.shape[1]} classes, but the labels go beyond them.")
        odds: FloatArray = confidence(torch.from_numpy(np.log(np.clip(table, LEAST, 1.0))), labels).numpy()
        return odds

    def noisy_losses(self, samples: Samples, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Losses with noise on every number of the input."""
        if not samples.inputs.is_floating_point():
            raise Unsupported("noise needs rows of numbers: leave the attack noisy out.")
        return self.losses(Samples(samples.inputs + noise(samples.inputs, sigma, rng), samples.labels))

    def retrained(self, samples: Samples, recipe: PlainTraining, rng: np.random.Generator) -> PredictorTarget:
        """A clone of the estimator, fitted on ``samples``: a shadow model.

        Args:
            samples: What it is fitted on.
            recipe: Not used: an estimator knows how it is fitted.
            rng: Not used.
        """
        if self.estimator is None:
            raise Unsupported("shadow models of a mere function cannot be trained: use attacks that need none.")
        from sklearn.base import clone

        made = clone(self.estimator)
        classes = getattr(self.estimator, "classes_", None)
        truth = _truth(samples) if classes is None else np.asarray(classes)[self._columns(samples)]
        made.fit(self._rows(samples), truth)
        return replace(self, predict=_aligned(made, classes) if not self.regression else made.predict, estimator=made)

    def _rows(self, samples: Samples) -> Any:
        return samples.inputs.numpy() if self.rows is None else self.rows(samples.inputs)

    def _columns(self, samples: Samples) -> NDArray[np.int64]:
        """Which column of the probabilities is that of the truth."""
        truth = _truth(samples)
        if self.known is None:
            columns: NDArray[np.int64] = truth.astype(np.int64)
            return columns
        agree = truth[:, None] == np.asarray(self.known)[None, :]
        if not agree.any(axis=1).all():
            raise InvalidInput(f"the model knows {len(self.known)} classes, but the labels go beyond them.")
        columns = agree.argmax(axis=1).astype(np.int64)
        return columns

    def _ask(self, samples: Samples) -> Any:
        """What the model answers; a failure's own words may quote a row, so they are not repeated."""
        rows = self._rows(samples)
        try:
            with warnings.catch_warnings():
                # An audit holds rows without the names of their columns, which scikit-learn mentions at every question.
                warnings.filterwarnings("ignore", message="X does not have valid feature names")
                return self.predict(rows)
        except (SordinaError, Warning):
            raise
        except Exception as error:
            raise InvalidInput(f"the model failed on the rows it was given ({type(error).__name__}).") from error


def _aligned(estimator: Any, classes: Any) -> Callable[[Any], FloatArray]:
    """Probabilities in the order of ``classes``, also if the clone did not see them all."""

    def predict(rows: Any) -> FloatArray:
        given = np.asarray(estimator.predict_proba(rows), dtype=np.float64)
        if classes is None or len(estimator.classes_) == len(classes):
            return given
        table = np.zeros((len(given), len(classes)))
        table[:, np.searchsorted(classes, estimator.classes_)] = given
        return table

    return predict


def predictor_target(
    model: Any,
    *,
    regression: bool = False,
    rows: Callable[[Tensor], Any] | None = None,
    known: Sequence[float] | None = None,
) -> PredictorTarget:
    """The target of a scikit-learn model, or of a function that gives probabilities or numbers.

    Args:
        model: Has ``predict_proba``, ``decision_function`` or ``predict``, or is called itself.
        regression: Whether the targets are numbers.
        rows: From inputs to what the model takes.
        known: The label that each of the model's classes stands for; the classes themselves, where they are numbers,
            if left out.
    """
    order = _known(model) if known is None else tuple(known)
    fitted = model if hasattr(model, "fit") and hasattr(model, "get_params") else None
    if regression and hasattr(model, "predict"):
        return PredictorTarget(model.predict, rows, fitted, regression=True)
    if hasattr(model, "predict_proba"):
        return PredictorTarget(model.predict_proba, rows, fitted, known=order)
    if hasattr(model, "decision_function"):
        return PredictorTarget(lambda x: _softmax(np.asarray(model.decision_function(x))), rows, known=order)
    if callable(model):
        return PredictorTarget(model, rows, regression=regression)
    raise InvalidInput(
        f"cannot attack a {type(model).__name__}: give a torch.nn.Module, a model with predict_proba, or a function "
        "from rows to probabilities."
    )


def _known(model: Any) -> tuple[float, ...] | None:
    """The classes of a fitted scikit-learn model, where they are numbers."""
    classes = np.asarray(getattr(model, "classes_", ()))
    if classes.ndim != 1 or not len(classes) or classes.dtype.kind not in "biuf":
        return None
    return tuple(float(value) for value in classes)


def _softmax(scores: FloatArray) -> FloatArray:
    table = np.column_stack([np.zeros(len(scores)), scores]) if scores.ndim == 1 else scores
    exponents = np.exp(table - table.max(axis=1, keepdims=True))
    probabilities: FloatArray = exponents / exponents.sum(axis=1, keepdims=True)
    return probabilities


@dataclass(frozen=True)
class LossTarget:
    """A module with a loss of its own, and inputs of any form: samples are numbers of rows.

    Args:
        model: The module.
        loss: ``loss(outputs, *rest)``, one value per row or a mean that is asked row by row.
        columns: Tensors of one length: what the module takes, then what the loss takes.
        inputs: How many of them the module takes, or their names.
        batch_size: Rows in one forward pass.
    """

    model: nn.Module
    loss: Callable[..., Tensor]
    columns: tuple[Tensor, ...]
    inputs: int | tuple[str, ...]
    batch_size: int = 256

    def losses(self, samples: Samples) -> FloatArray:
        """The loss of each row."""
        with evaluating(self.model):
            parts = [self._ask(part.inputs) for part in samples.batches(self.batch_size)]
        return torch.cat(parts).double().numpy()

    def confidences(self, samples: Samples) -> FloatArray:
        """Minus the loss."""
        return -self.losses(samples)

    def noisy_losses(self, samples: Samples, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Losses with noise on the inputs that are real."""
        count = self.inputs if isinstance(self.inputs, int) else len(self.inputs)
        rows = samples.inputs
        moved = tuple(
            torch.index_copy(column, 0, rows, column[rows] + noise(column[rows], sigma, rng))
            if index < count and column.is_floating_point()
            else column
            for index, column in enumerate(self.columns)
        )
        if all(new is old for new, old in zip(moved, self.columns, strict=True)):
            raise Unsupported("noise needs real inputs: leave the attack noisy out.")
        return replace(self, columns=moved).losses(samples)

    def retrained(self, samples: Samples, recipe: PlainTraining, rng: np.random.Generator) -> LossTarget:
        """The module with new weights, trained on ``samples``: a shadow model.

        Args:
            samples: Numbers of the rows.
            recipe: How it is trained.
            rng: Draws weights and batches.
        """
        made = fresh(self.model, int(rng.integers(2**31)))
        shadow = replace(self, model=made)
        optimizer = recipe.build_optimizer(list(made.parameters()))
        made.train()
        for batch in recipe.batches(len(samples), rng):
            optimizer.zero_grad()
            torch.autograd.backward(shadow._loss(samples.inputs[batch]).mean())
            optimizer.step()
        made.eval()
        return shadow

    def _ask(self, rows: Tensor) -> Tensor:
        values = self._loss(rows)
        if values.numel() == len(rows):
            return values.reshape(len(rows))
        if values.dim() == 0:
            return torch.stack([self._loss(rows[place : place + 1]).reshape(()) for place in range(len(rows))])
        raise InvalidInput(f"the loss gave {tuple(values.shape)} for {len(rows)} rows: one value per row is wanted.")

    def _loss(self, rows: Tensor) -> Tensor:
        given = [column[rows] for column in self.columns]
        if isinstance(self.inputs, int):
            output = self.model(*given[: self.inputs])
            return self.loss(output, *given[self.inputs :])
        output = self.model(**dict(zip(self.inputs, given, strict=False)))
        return self.loss(getattr(output, "logits", output), *given[len(self.inputs) :])


def retrain_shadows(
    target: Any,
    samples: Samples,
    recipe: PlainTraining,
    rng: np.random.Generator,
    count: int = 16,
    progress: Progress = silent,
) -> Shadows:
    """Shadow models of a target that knows how to be trained again, on random halves of ``samples``.

    Args:
        target: Has ``retrained(samples, recipe, rng)``.
        samples: The rows that will be asked about.
        recipe: How a module is trained.
        rng: Draws the halves.
        count: How many.
        progress: Told of every one.
    """
    inside = draw_halves(count, len(samples), rng)
    shadows = []
    for index, row in enumerate(inside):
        shadows.append(target.retrained(samples.take(row), recipe, rng))
        progress(index + 1, count)
    losses = np.stack([shadow.losses(samples) for shadow in shadows])
    confidences = np.stack([shadow.confidences(samples) for shadow in shadows])
    return Shadows(inside, losses, confidences, queries=ask_augmented(shadows, samples))


def loss_target(
    model: nn.Module, loss: Callable[..., Tensor] | None, members: Any, non_members: Any
) -> tuple[LossTarget, Samples, Samples]:
    """The target of a module with its own loss or several inputs, and its rows by number.

    Args:
        model: The module.
        loss: As in training; None takes the cross-entropy of the outputs' logits.
        members: ``(x, ..., y)``, or a mapping of named tensors with ``labels`` (as `transformers` has them).
        non_members: The same.
    """
    if isinstance(members, Mapping) and isinstance(non_members, Mapping):
        names = tuple(name for name in members if name != "labels")
        if "labels" not in members or set(members) != set(non_members):
            raise InvalidInput("members and non-members must hold the same names, one of them labels.")
        parts = [[one[name] for name in (*names, "labels")] for one in (members, non_members)]
        inputs: int | tuple[str, ...] = names
    else:
        parts = [list(members), list(non_members)]
        inputs = len(parts[0]) - 1
    if len(parts[0]) != len(parts[1]) or len(parts[0]) < 2:
        raise InvalidInput("members and non-members must hold the same tensors: inputs first, targets last.")
    columns = tuple(
        torch.cat([torch.as_tensor(first), torch.as_tensor(second)]) for first, second in zip(*parts, strict=True)
    )
    if len({len(column) for column in columns}) != 1:
        raise InvalidInput("the tensors of members and non-members must have one length each.")
    inside = len(torch.as_tensor(parts[0][-1]))
    numbers = torch.arange(len(columns[-1]))
    target = LossTarget(model, loss or _cross_entropy, columns, inputs)
    return target, Samples(numbers[:inside]), Samples(numbers[inside:])


def _cross_entropy(outputs: Any, labels: Tensor) -> Tensor:
    logits = getattr(outputs, "logits", outputs)
    return nn.functional.cross_entropy(logits, labels.long(), reduction="none")


def _truth(samples: Samples) -> Any:
    if samples.labels is None:
        raise InvalidInput("this model is attacked with labelled samples: give (inputs, labels).")
    return samples.labels.numpy()
