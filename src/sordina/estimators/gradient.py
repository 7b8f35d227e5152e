"""Networks trained by private gradient steps, and what every estimator that takes such steps shares.

All of them are `sordina.Trainer` with a network or a linear model (`sordina.estimators.linear_classifiers`): the proof
is the trainer's (per-sample gradients clipped to a public threshold, Gaussian noise, Poisson sampling, PLD accounting,
add/remove neighbours). Nothing is searched: the threshold is fixed or found privately, the step length is found from
released values, batch size and epochs follow from the number of rows, which counts as public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordina.accounting import Event
from sordina.accounting.ledger import Ledger
from sordina.clipping import Fixed, Policy, TypicalNorm
from sordina.errors import InvalidInput, Unsupported
from sordina.estimators._base import (
    Floats,
    PrivateEstimator,
    checked_classes,
    checked_rows,
    fitted_rows,
    scaled,
    scaled_targets,
    warn_of_delta,
    warn_unbooked,
)
from sordina.plan import Plan, make_plan
from sordina.privacy import Budget
from sordina.sampling import Users
from sordina.training import Trainer
from sordina.training.learning_rates import AutomaticRate
from sordina.training.planning import PlanReport, plan_report
from sordina.training.trainer import make_schedule

PRECISIONS = (np.float64, np.float32)
"""Of rows that are trained on in single precision anyway: those of a prepared table are not copied into doubles."""
_ROWS_AT_ONCE = 65_536
_MOST_DRAWN = 4_000_000
"""Rows drawn in a fit of a linear model, unless 400 steps need more; chosen on made-up tables."""


class GradientEstimator(PrivateEstimator):
    """Stores the options, trains ``self._module`` and keeps its weights as arrays."""

    threshold = 0.5
    least_batch = 64

    def __init__(
        self,
        budget: Budget | tuple[float, float] | None = None,
        *,
        bounds: Any = None,
        epochs: float | None = 10.0,
        batch_size: int | None = None,
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | None = None,
    ) -> None:
        self.budget, self.bounds, self.epochs, self.batch_size = budget, bounds, epochs, batch_size
        self.rows_per_person, self.ledger, self.dataset_budget = rows_per_person, ledger, dataset_budget
        self.random_state = random_state

    def _train(self, module: nn.Module, loss: Any, rows: Floats, targets: Tensor, persons: Any) -> None:
        if self.random_state is not None and not isinstance(self.random_state, (int, np.integer)):
            raise InvalidInput("random_state must be a whole number or None: networks are seeded by a number.")
        if math.isinf(self._budget().epsilon):
            raise InvalidInput("a private estimator needs a finite epsilon: without privacy, use scikit-learn itself.")
        users = _users(persons, self.rows_per_person, len(rows))
        units = len(rows) if users is None else len(users)
        ledger = Ledger(self.ledger) if isinstance(self.ledger, str) else self.ledger
        if (ledger is None) != (self.dataset_budget is None):
            raise InvalidInput("a ledger and the name of its data set (dataset_budget) go together.")
        batch_size, epochs = self._schedule(units)
        trainer = Trainer(
            module, loss, self._budget(),
            clipping=self._clipping(units),
            batch_size=batch_size,
            epochs=epochs,
            learning_rate=self._learning_rate(units),
            users=users,
            ledger=ledger,
            dataset_budget=self.dataset_budget,
            seed=None if self.random_state is None else int(self.random_state),
        )  # fmt: skip
        run = trainer.fit(TensorDataset(torch.from_numpy(rows.astype(np.float32, copy=False)), targets))
        warn_of_delta(run.warning)
        self.guarantee_, self.cost_ = run.guarantee, run.guarantee.epsilon
        self.event_, self.releasable_ = run.plan.event(run.steps), self.random_state is None
        if ledger is None:
            warn_unbooked(self.event_, self._budget().delta)
        self.weights_ = {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}

    def planned_event(self, units: int) -> Event:
        """What a fit on ``units`` rows (or persons) will be to an accountant.

        Args:
            units: The public number of rows, or of persons.
        """
        return self._plan_of(units).event()

    def plan_report(self, names: Sequence[str], units: int, outputs: int) -> PlanReport:
        """What the budget can buy on such a table, from public facts; nothing is fitted or spent.

        Args:
            names: Of the columns that a row has.
            units: The public number of rows, or of persons.
            outputs: How many classes there are; 1 for a number.
        """
        if getattr(self, "method", "gradient") != "gradient":
            raise Unsupported("only what is trained by gradient steps has steps to plan.")
        blank: Any = clone(self)
        blank.feature_names_in_, blank.classes_ = np.asarray(names, dtype=object), np.arange(outputs)
        parameters = blank._module_for(len(names), units).parameters()
        weights = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        return plan_report(self._plan_of(units), weights, units, linear=(len(names) + 1) * outputs)

    def _plan_of(self, units: int) -> Plan:
        batch_size, epochs = self._schedule(units)
        sampler, steps = make_schedule(
            units, batch_size=batch_size, epochs=epochs, steps=None, sampling="poisson", population=None
        )
        return make_plan(self._budget(), sampler, steps)

    def _module_for(self, width: int, units: int) -> nn.Module:
        """The module of a fit on ``units`` units."""
        return self._module(width)

    def _schedule(self, units: int) -> tuple[int, float]:
        """Batch size and passes, where they are not stated from the public number of ``units``."""
        batch_size = self.batch_size or batch_size_for(units, self.least_batch)
        return batch_size, epochs_for(units, batch_size) if self.epochs is None else self.epochs

    def _clipping(self, units: int) -> Policy[Any]:
        """Fixed, which small tables under much noise bear best with a linear model."""
        return Fixed(self.threshold)

    def _learning_rate(self, units: int) -> AutomaticRate:
        """The rule of the step length; it may depend on public facts and on what was released."""
        return AutomaticRate()

    def _outputs(self, X: Any) -> Floats:
        rows = fitted_rows(self, X, PRECISIONS)
        module = self._module(rows.shape[1])
        module.load_state_dict({name: torch.from_numpy(value) for name, value in self.weights_.items()})
        inputs = torch.from_numpy(scaled(rows, self.bounds_).astype(np.float32, copy=False))
        with torch.no_grad():
            outputs = torch.cat([module(part) for part in torch.split(inputs, _ROWS_AT_ONCE)])
        answers: Floats = outputs.numpy().astype(np.float64)
        return answers

    def _module(self, width: int) -> nn.Module:
        raise NotImplementedError


class ProbabilityMixin:
    """Probabilities of the classes from their scores."""

    _outputs: Any

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the classes.

        Args:
            X: Rows.
        """
        outputs = self._outputs(X)
        odds = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        shares: Floats = odds / odds.sum(axis=1, keepdims=True)
        return shares


class GradientClassifier(ClassifierMixin, GradientEstimator):
    """What classifiers by gradient steps share."""

    def fit(self, X: Any, y: Any, persons: Any = None, classes: Any = None) -> Any:
        """Fit within the budget.

        Args:
            X: Rows.
            y: Classes.
            persons: Whose row it is; the unit of privacy is then a person.
            classes: The public list of classes; None takes those of ``y``, which then count as public.
        """
        rows, y = checked_rows(self, X, y, with_target=True, dtype=PRECISIONS)
        self.classes_, codes = checked_classes(y, classes)
        unit_rows = scaled(rows, self.bounds_)
        self._train(self._module(rows.shape[1]), self._loss, unit_rows, torch.from_numpy(codes), persons)
        return self

    @staticmethod
    def _loss(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction=reduction)

    def decision_function(self, X: Any) -> Floats:
        """Scores of the classes; with two classes, of the second.

        Args:
            X: Rows.
        """
        outputs = self._outputs(X)
        answers: Floats = outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs
        return answers

    def predict(self, X: Any) -> Any:
        """The likeliest class of each row.

        Args:
            X: Rows.
        """
        best = self._outputs(X).argmax(axis=1)
        return self.classes_[best]


class MLPClassifier(ProbabilityMixin, GradientClassifier):
    """A network with one hidden layer (or more) for classes, by the private trainer.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns; ``(0, 1)`` after `sordina.tables.Prepare`.
        hidden_layer_sizes: Width of each hidden layer.
        epochs: Passes over the rows, on average.
        batch_size: Expected size of a batch; from the number of rows if None.
        rows_per_person: With ``persons`` in `fit`: how many rows of one person count in a step.
        ledger: Where the fit is booked, with ``dataset_budget``.
        dataset_budget: The ledger's name of the data set.
        random_state: A seed makes the fit repeatable, and not releasable.
    """

    def __init__(
        self,
        budget: Budget | tuple[float, float] | None = None,
        *,
        bounds: Any = None,
        hidden_layer_sizes: tuple[int, ...] = (32,),
        epochs: float = 10.0,
        batch_size: int | None = None,
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | None = None,
    ) -> None:
        super().__init__(
            budget, bounds=bounds, epochs=epochs, batch_size=batch_size, rows_per_person=rows_per_person,
            ledger=ledger, dataset_budget=dataset_budget, random_state=random_state,
        )  # fmt: skip
        self.hidden_layer_sizes = hidden_layer_sizes

    def _clipping(self, units: int) -> Policy[Any]:
        """The trainer's default: a threshold below the usual norms makes a network surer than it should be."""
        return TypicalNorm()

    def _module(self, width: int) -> nn.Module:
        return _network(width, self.hidden_layer_sizes, len(self.classes_), self.random_state)


class MLPRegressor(RegressorMixin, GradientEstimator):
    """A network with one hidden layer (or more) for numbers, by the private trainer.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns; ``(0, 1)`` after `sordina.tables.Prepare`.
        target_bounds: Public ``(low, high)`` of the target.
        hidden_layer_sizes: Width of each hidden layer.
        epochs: Passes over the rows, on average.
        batch_size: Expected size of a batch; from the number of rows if None.
        rows_per_person: With ``persons`` in `fit`: how many rows of one person count in a step.
        ledger: Where the fit is booked, with ``dataset_budget``.
        dataset_budget: The ledger's name of the data set.
        random_state: A seed makes the fit repeatable, and not releasable.
    """

    def __init__(
        self,
        budget: Budget | tuple[float, float] | None = None,
        *,
        bounds: Any = None,
        target_bounds: Any = None,
        hidden_layer_sizes: tuple[int, ...] = (32,),
        epochs: float = 10.0,
        batch_size: int | None = None,
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | None = None,
    ) -> None:
        super().__init__(
            budget, bounds=bounds, epochs=epochs, batch_size=batch_size, rows_per_person=rows_per_person,
            ledger=ledger, dataset_budget=dataset_budget, random_state=random_state,
        )  # fmt: skip
        self.target_bounds, self.hidden_layer_sizes = target_bounds, hidden_layer_sizes

    def fit(self, X: Any, y: Any, persons: Any = None) -> MLPRegressor:
        """Fit within the budget.

        Args:
            X: Rows.
            y: Targets.
            persons: Whose row it is; the unit of privacy is then a person.
        """
        rows, y = checked_rows(self, X, y, with_target=True)
        unit_rows = scaled(rows, self.bounds_)
        answers, self.middle_, self.width_ = scaled_targets(np.asarray(y, np.float64), self.target_bounds)
        targets = torch.from_numpy(answers.astype(np.float32))[:, None]
        self._train(self._module(rows.shape[1]), _squares, unit_rows, targets, persons)
        return self

    def _module(self, width: int) -> nn.Module:
        return _network(width, self.hidden_layer_sizes, 1, self.random_state)

    def predict(self, X: Any) -> Floats:
        """Predicted targets.

        Args:
            X: Rows.
        """
        outputs = np.clip(self._outputs(X)[:, 0], -0.5, 0.5)
        answers: Floats = self.middle_ + self.width_ * outputs
        return answers


def batch_size_for(units: int, least: int = 64) -> int:
    """A batch size from the public number of units: about 64 steps a pass, not too small and not too large.

    Args:
        units: Number of rows, or of persons.
        least: The smallest batch, where there are as many units.
    """
    return int(min(max(least, units // 64), 4096, max(units, 1)))


def epochs_for(units: int, batch_size: int) -> float:
    """Passes of a linear model over the rows: 40, but from 400 to 2560 steps, and fewer where that is millions of rows.

    Args:
        units: Number of rows, or of persons.
        batch_size: Expected size of a batch.
    """
    step = batch_size / max(units, 1)
    most = max(400.0, min(2560.0, _MOST_DRAWN / batch_size))
    return max(1.0, min(max(40.0, 400 * step), most * step))


def travel_for(units: int) -> float:
    """How far noise alone may move the weights of a linear model, from the public number of units.

    The automatic rate starts from steps of one length in units of the noise. It then grows where gradients agree; but
    with few rows it cannot see that they do, keeps its first length and hardly leaves the start. So the fewer rows, the
    longer the first step. Chosen on subsets of Adult's training rows and of scikit-learn's digits.

    Args:
        units: Number of rows, or of persons.
    """
    return min(max(1.5, 20 * math.sqrt(1000 / max(units, 1))), 20.0)


def _network(width: int, hidden: Any, outputs: int, seed: Any) -> nn.Module:
    sizes = list(hidden) if isinstance(hidden, (list, tuple)) else [hidden]
    if not sizes or any(isinstance(one, bool) or not isinstance(one, (int, np.integer)) or one < 1 for one in sizes):
        raise InvalidInput(f"hidden_layer_sizes must be whole numbers of at least 1, got {hidden!r}.")
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0 if seed is None else int(seed))
        for size in sizes:
            layers += [nn.Linear(width, int(size)), nn.Tanh()]
            width = int(size)
        layers.append(nn.Linear(width, outputs))
    return nn.Sequential(*layers)


def _squares(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return nn.functional.mse_loss(outputs, targets, reduction=reduction)


def _users(persons: Any, rows_per_person: int | None, size: int) -> Users | None:
    if persons is None:
        if rows_per_person is not None:
            raise InvalidInput("rows_per_person needs persons: fit(X, y, persons=ids).")
        return None
    ids = np.asarray(persons)
    if ids.shape != (size,):
        raise InvalidInput(f"persons must name one person per row ({size}), got shape {ids.shape}.")
    return Users(ids.astype(str), 1 if rows_per_person is None else rows_per_person)
