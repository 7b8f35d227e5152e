"""Linear classifiers: logistic regression and support vector machines, by one of four methods.

==============  ====================================================================================================
method          what it is
==============  ====================================================================================================
``gradient``    private gradient steps (`sordina.estimators.gradient`): the default, and the best at most budgets
``objective``   objective perturbation with approximate minima (`sordina.estimators.perturbation`)
``output``      output perturbation: the minimum of a ridged loss, with noise (ibid.)
``functional``  functional mechanism: a polynomial with noisy coefficients (ibid.); logistic regression only
==============  ====================================================================================================

Columns are first moved to [0, 1]. Numbers get hats besides (piecewise linear functions of one column, `_basis`), so
that the model can bend where it pays: the knots are public, and how many there are depends on public facts alone.

The dual-variable perturbation of support vector machines that 004 section 4.4 describes (Zhang et al. 2019) is refused.
Its noise is scaled by a ratio of the records' own dual variables, so the scale is a function of the secret; there is
one dual variable per record, so neighbours do not even release vectors of the same length; and predictions need the
support vectors, which are records. Its sound counterpart perturbs what the dual variables are for, ``w = sum a_i s_i
x_i``, by a public bound on how far one record moves it: that is ``method="output"``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina.accounting import Gaussian
from sordina.accounting.ledger import Ledger
from sordina.clipping import Fixed, Policy, TypicalNorm
from sordina.errors import InvalidInput, Unsupported
from sordina.estimators._base import (
    Floats,
    checked_classes,
    checked_rows,
    limited,
    noise_for,
    scaled,
    warn_of_little,
)
from sordina.estimators._features import (
    ROWS_PER_HAT,
    FourierFeatures,
    HatFeatures,
    binned_features,
    knots_for,
    number_columns,
)
from sordina.estimators.gradient import PRECISIONS, GradientClassifier, ProbabilityMixin, travel_for
from sordina.estimators.perturbation import (
    FunctionalMechanism,
    LogisticLoss,
    MarginLoss,
    ObjectivePerturbation,
    OutputPerturbation,
    SmoothedHinge,
    shortened,
    signs_of,
)
from sordina.privacy import Budget
from sordina.training.learning_rates import AutomaticRate

METHODS = ("gradient", "objective", "output", "functional")
PLENTY = 400_000
"""Units times epsilon from which the trainer's default threshold is taken, for one below the usual norms makes
probabilities surer than they should be: seen on a made-up table of a million rows (log loss 0.606 -> 0.492), not looked
for below."""
_DUAL = (
    "dual-variable perturbation is not private: its noise is scaled by the records themselves, and its model is made "
    "of records. Take method='output', which perturbs the weights by a public bound, or 'gradient'."
)


class LinearClassifier(GradientClassifier):
    """What linear classifiers share; see the module."""

    threshold = 1.0
    least_batch = 256
    margin_loss: MarginLoss = LogisticLoss()

    def __init__(
        self,
        budget: Budget | tuple[float, float] | None = None,
        *,
        bounds: Any = None,
        method: str = "gradient",
        knots: int | None = None,
        alpha: float = 0.0,
        row_norm: float | None = None,
        epochs: float | None = None,
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
        self.method, self.knots, self.alpha, self.row_norm = method, knots, alpha, row_norm

    def fit(self, X: Any, y: Any, persons: Any = None, classes: Any = None) -> Any:
        """Fit within the budget.

        Args:
            X: Rows.
            y: Classes.
            persons: Whose row it is; the unit of privacy is then a person.
            classes: The public list of classes; None takes those of ``y``, which then count as public.
        """
        self._check()
        rows, y = checked_rows(self, X, y, with_target=True, dtype=PRECISIONS)
        self.classes_, codes = checked_classes(y, classes)
        unit_rows = scaled(rows, self.bounds_)
        units = len(rows) if persons is None else len(np.unique(persons))
        self._warn(units)
        module = self._module_for(rows.shape[1], units)
        if self.method == "gradient":
            self._train(module, self._loss, unit_rows, torch.from_numpy(codes), persons)
        else:
            self._perturb(unit_rows, codes, persons)
        return self

    def _module_for(self, width: int, units: int) -> nn.Module:
        self.knots_ = self._knots(width, units)
        return self._module(width)

    def _check(self) -> None:
        if self.method == "dual":
            raise Unsupported(_DUAL)
        if self.method not in METHODS:
            raise InvalidInput(f"no method is called {self.method!r}: choose {', '.join(METHODS)}.")
        if self.method == "functional" and not isinstance(self.margin_loss, LogisticLoss):
            raise Unsupported("the functional mechanism needs a loss with a Taylor polynomial; the hinge has none.")
        if not 0 <= self.alpha < math.inf:
            raise InvalidInput(f"alpha must be a number of at least 0, got {self.alpha}.")
        if self.row_norm is not None and not 0 < self.row_norm < math.inf:
            raise InvalidInput(f"row_norm must be positive, got {self.row_norm}.")
        knots = self.knots
        whole = knots is None or (isinstance(knots, (int, np.integer)) and not isinstance(knots, bool))
        if not whole or (knots is not None and (knots < 0 or knots == 1)):
            raise InvalidInput(f"knots must be 0 or a whole number of at least 2, got {knots!r}.")

    def _warn(self, units: int) -> None:
        """Say what is known to be wanting, before anything is spent."""

    def _knots(self, width: int, units: int) -> int:
        if self.knots is not None:
            return int(self.knots)
        columns = len(number_columns(getattr(self, "feature_names_in_", None), width))
        return knots_for(columns, units, self._budget().epsilon)

    def _perturb(self, unit_rows: Floats, codes: Any, persons: Any) -> None:
        rng = self._rng()
        kept, most, unit = limited(persons, self.rows_per_person, len(unit_rows), rng)
        features = self._features(unit_rows.shape[1])
        rows = unit_rows[kept].astype(np.float64) if features is None else _mapped(features, unit_rows[kept])
        rows = np.column_stack([rows, np.ones(len(rows))])
        bound = self._row_norm(unit_rows.shape[1]) if self.row_norm is None else float(self.row_norm)
        signs = signs_of(codes[kept], len(self.classes_))
        plan = self._plan(bound, len(signs), most, rows.shape)
        with self._spending(plan.event, unit, len(kept)):
            weights = plan.release(shortened(rows, bound), signs, rng)
        self.row_norm_ = bound
        if len(signs) == 1:
            weights = np.concatenate([np.zeros_like(weights), weights])
        head = "" if features is None else "1."
        self.weights_ = {
            f"{head}weight": weights[:, :-1].astype(np.float32), f"{head}bias": weights[:, -1].astype(np.float32),
        }  # fmt: skip

    def _plan(self, bound: float, problems: int, most: int, shape: tuple[int, ...]) -> Any:
        budget, alpha = self._budget(), float(self.alpha)
        if self.method == "functional":
            return FunctionalMechanism(bound, alpha, noise_for(budget, Gaussian), most)
        if self.method == "output":
            size = (int(shape[0]), int(shape[1]))
            return OutputPerturbation.within(budget, self.margin_loss, bound, problems, most, size, alpha)
        return ObjectivePerturbation.within(budget, self.margin_loss, bound, problems, alpha, most)

    def _clipping(self, units: int) -> Policy[Any]:
        return TypicalNorm() if units * self._budget().epsilon >= PLENTY else super()._clipping(units)

    def _learning_rate(self, units: int) -> AutomaticRate:
        return AutomaticRate(travel_for(units))

    def _row_norm(self, width: int) -> float:
        """A public bound on a row's norm: each number and each category adds 1 at most, hats of a number 1 more."""
        features = binned_features(getattr(self, "feature_names_in_", None), width, 2)
        hats = len(number_columns(getattr(self, "feature_names_in_", None), width)) if self.knots_ else 0
        return math.sqrt(len(features) + hats + 1)

    def _features(self, width: int) -> nn.Module | None:
        columns = number_columns(getattr(self, "feature_names_in_", None), width)
        return HatFeatures(columns, self.knots_) if self.knots_ and columns else None

    def _module(self, width: int) -> nn.Module:
        features: Any = self._features(width)
        if features is None:
            return _flat_start(width, len(self.classes_))
        return nn.Sequential(features, _flat_start(features.width(width), len(self.classes_)))

    @property
    def coef_(self) -> Floats:
        """Weights on the scaled columns and then on the hats; with two classes, of the second against the first."""
        return self._difference("weight")

    @property
    def intercept_(self) -> Floats:
        """Constants, as `coef_`."""
        return self._difference("bias")

    def _difference(self, name: str) -> Floats:
        found = next(value for key, value in self.weights_.items() if key.split(".")[-1] == name).astype(np.float64)
        answers: Floats = found[1:] - found[:1] if len(self.classes_) == 2 else found
        return answers


class LogisticRegression(ProbabilityMixin, LinearClassifier):
    """Logistic regression under a budget; several classes by softmax (``gradient``) or each against the others.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns; ``(0, 1)`` after `sordina.tables.Prepare`.
        method: "gradient", "objective", "output" or "functional"; see the module for the proofs.
        knots: Knots of a number's hats, which let it bend; 0 for none, from public facts if None.
        alpha: Ridge on scaled columns, for the methods that take no steps.
        row_norm: Public bound on the norm of a scaled row, for the same; longer rows are shortened. From the number of
            columns if None.
        epochs: Passes over the rows, on average; from the number of rows if None.
        batch_size: Expected size of a batch; from the number of rows if None.
        rows_per_person: With ``persons`` in `fit`: how many rows of one person count (in a step, for ``gradient``).
        ledger: Where the fit is booked, with ``dataset_budget``.
        dataset_budget: The ledger's name of the data set.
        random_state: A seed makes the fit repeatable, and not releasable.
    """


class LinearSVC(LinearClassifier):
    """A linear support vector machine under a budget, on a smoothed hinge (multi-class for ``gradient``).

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns; ``(0, 1)`` after `sordina.tables.Prepare`.
        method: "gradient", "objective" or "output"; see the module for the proofs, and for what "dual" is refused for.
        knots: Knots of a number's hats, which let it bend; 0 for none, from public facts if None.
        alpha: Ridge on scaled columns, for the methods that take no steps.
        row_norm: Public bound on the norm of a scaled row, for the same; longer rows are shortened. From the number of
            columns if None.
        epochs: Passes over the rows, on average; from the number of rows if None.
        batch_size: Expected size of a batch; from the number of rows if None.
        rows_per_person: With ``persons`` in `fit`: how many rows of one person count (in a step, for ``gradient``).
        ledger: Where the fit is booked, with ``dataset_budget``.
        dataset_budget: The ledger's name of the data set.
        random_state: A seed makes the fit repeatable, and not releasable.
    """

    margin_loss: MarginLoss = SmoothedHinge()

    @staticmethod
    def _loss(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Huber's hinge of the margin to the best other class: 0 from margin 1.5 on, linear below 0.5."""
        own = outputs.gather(1, targets[:, None])[:, 0]
        others = outputs.scatter(1, targets[:, None], -math.inf).amax(1)
        gap = 1.5 - (own - others)
        losses = torch.where(gap <= 0, torch.zeros_like(gap), torch.where(gap < 1, gap.square() / 2, gap - 0.5))
        return losses if reduction == "none" else losses.mean()


class SVC(LinearSVC):
    """A support vector machine with an RBF kernel, through random Fourier features drawn without looking.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns; ``(0, 1)`` after `sordina.tables.Prepare`.
        gamma: Of the kernel ``exp(-gamma |x - x'|^2)`` on scaled columns; ``1 / columns`` if None.
        n_components: Number of random features.
        method: "gradient", "objective" or "output", as of `LinearSVC`.
        alpha: Ridge on the random features, for the methods that take no steps.
        epochs: Passes over the rows, on average; from the number of rows if None.
        batch_size: Expected size of a batch; from the number of rows if None.
        rows_per_person: With ``persons`` in `fit`: how many rows of one person count (in a step, for ``gradient``).
        ledger: Where the fit is booked, with ``dataset_budget``.
        dataset_budget: The ledger's name of the data set.
        random_state: A seed makes the fit repeatable, and not releasable.
    """

    knots = None
    row_norm = None
    least_batch = 64

    def __init__(
        self,
        budget: Budget | tuple[float, float] | None = None,
        *,
        bounds: Any = None,
        gamma: float | None = None,
        n_components: int = 200,
        method: str = "gradient",
        alpha: float = 0.0,
        epochs: float | None = None,
        batch_size: int | None = None,
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | None = None,
    ) -> None:
        self.budget, self.bounds, self.method, self.alpha, self.epochs = budget, bounds, method, alpha, epochs
        self.batch_size, self.rows_per_person, self.ledger = batch_size, rows_per_person, ledger
        self.dataset_budget, self.random_state = dataset_budget, random_state
        self.gamma, self.n_components = gamma, n_components

    def _warn(self, units: int) -> None:
        """On Adult's rows it stayed at the constant below this."""
        warn_of_little(units, self._budget().epsilon, ROWS_PER_HAT * self.n_components)

    def _knots(self, width: int, units: int) -> int:
        return 0

    def _learning_rate(self, units: int) -> AutomaticRate:
        return AutomaticRate()  # longer first steps were not better here, on digits

    def _clipping(self, units: int) -> Policy[Any]:
        return Fixed(self.threshold)  # nothing else was tried here

    def _row_norm(self, width: int) -> float:
        """``sqrt(2 / D)`` times D cosines, and the constant."""
        return math.sqrt(3)

    def _features(self, width: int) -> nn.Module:
        gamma = 1 / width if self.gamma is None else self.gamma
        if not (0 < gamma < math.inf):
            raise InvalidInput(f"gamma must be positive, got {gamma}.")
        if isinstance(self.n_components, bool) or self.n_components < 1:
            raise InvalidInput(f"n_components must be at least 1, got {self.n_components}.")
        return FourierFeatures(width, int(self.n_components), gamma)


def _flat_start(width: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(width, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _mapped(features: nn.Module, rows: Floats) -> Floats:
    with torch.no_grad():
        mapped: Floats = features(torch.from_numpy(rows).float()).numpy().astype(np.float64)
    return mapped
