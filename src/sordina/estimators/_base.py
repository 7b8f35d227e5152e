"""What every private estimator shares: checked inputs, public bounds, contribution of a person, and paying for a fit.

Constructors only store. `fit` checks everything that can be wrong, then reserves, then computes, then settles.

**Bounds are public.** They come from the caller (``bounds``, ``target_bounds``; rows of `sordina.tables.Prepare` lie in
[0, 1]) and are never read off the rows; values outside are moved to the nearest bound. The list of classes and the
number of columns count as public.

**Persons.** ``fit(..., persons=ids)`` makes the unit a person: at most ``rows_per_person`` rows of each are kept, drawn
at random, and every sensitivity is multiplied by that number.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_is_fitted, check_X_y

from sordina.accounting import Composed, Event, Gaussian, accountant, noise_multiplier
from sordina.accounting.ledger import Ledger
from sordina.errors import InvalidInput
from sordina.mechanisms.exact import DyadicGrid, floored_gaussian
from sordina.privacy import Adjacency, Budget, Guarantee, Unit, delta_warning, format_up
from sordina.tables.prepare import PreparedRows

Floats = NDArray[np.float64]
_UNBOOKED: list[Event] = []
_COUNTING = [True]


class UnbookedFits(UserWarning):
    """Several private fits in one process, none of them in a ledger: together they cost more than each."""


class LooseDelta(UserWarning):
    """A delta of one in the number of people or more, which excludes next to nothing."""


class LittleData(UserWarning):
    """So few rows for the budget that noise will most likely drown what they say."""


def warn_of_little(units: int, epsilon: float, needed: float) -> None:
    """Say, before anything is spent, that ``units`` at ``epsilon`` are few.

    Args:
        units: The public number of rows, or of persons.
        epsilon: Of the budget.
        needed: Units times epsilon from which this estimator was seen to learn.
    """
    if units * epsilon < needed:
        warnings.warn(
            f"{units} units at epsilon {epsilon:g} are few for this estimator (units x epsilon below {needed:g}): "
            "it may come to little more than a constant. Take LogisticRegression, fewer components, or more rows.",
            LittleData,
            stacklevel=4,
        )


def warn_of_delta(words: str | None) -> None:
    """Say ``words``, if there are any.

    Args:
        words: What `sordina.privacy.delta_warning` found.
    """
    if words:
        warnings.warn(words.removeprefix("WARNING: "), LooseDelta, stacklevel=5)


class PrivateEstimator(BaseEstimator):
    """The common part of all private estimators; see the module.

    Attributes:
        guarantee_: What the fit guarantees.
        event_: What the fit is to an accountant.
        cost_: Its epsilon at the budget's delta.
        bounds_: The bounds that columns are scaled by: those stated, or (0, 1) for rows that `Prepare` made.
        releasable_: False where the noise can be repeated by whoever knows ``random_state``; a fact of the fit.
    """

    releasable_: bool
    bounds_: Any

    budget: Budget | tuple[float, float] | None
    ledger: Ledger | str | None
    dataset_budget: str | None
    random_state: int | np.random.Generator | None

    def _budget(self) -> Budget:
        budget = self.budget
        if isinstance(budget, Budget):
            return budget
        if isinstance(budget, Sequence) and len(budget) == 2:
            return Budget(*budget)
        raise InvalidInput("budget must be a Budget, such as sordina.Budget(epsilon=1, delta=1e-5).")

    def _rng(self) -> np.random.Generator:
        from sordina import random

        if isinstance(self.random_state, np.random.Generator):
            return self.random_state
        return random.generator(self.random_state)

    def planned_event(self, units: int) -> Event:
        """What a fit on ``units`` rows (or persons) will be to an accountant, or something that costs as much.

        Args:
            units: The public number of rows, or of persons.
        """
        return Gaussian(noise_for(self._budget(), Gaussian))

    @contextmanager
    def _spending(self, event: Event, unit: Unit, rows: int) -> Iterator[None]:
        """Reserve ``event``, let the caller compute, settle; without a ledger, warn of what fits cost together.

        Args:
            event: What the fit is to an accountant.
            unit: Whose presence it hides.
            rows: How many rows take part.
        """
        budget = self._budget()
        warn_of_delta(delta_warning(budget.delta, rows, str(unit) if unit is Unit.RECORD else "row"))
        if (self.ledger is None) != (self.dataset_budget is None):
            raise InvalidInput("a ledger and the name of its data set (dataset_budget) go together.")
        epsilon = accountant("pld").epsilon(event, budget.delta, Adjacency.ADD_REMOVE)
        if self.ledger is None or self.dataset_budget is None:
            warn_unbooked(event, budget.delta)
            yield
        else:
            book = self.ledger if isinstance(self.ledger, Ledger) else Ledger(self.ledger)
            what = f"fit of {type(self).__name__}"
            with book.reserve(self.dataset_budget, event, what=what, unit=unit) as reservation:
                yield
                reservation.settle()
        self.event_ = event
        self.releasable_ = self.random_state is None
        self.cost_ = epsilon
        self.guarantee_ = Guarantee(epsilon, budget.delta, Adjacency.ADD_REMOVE, unit)

    def _more_tags(self) -> dict[str, Any]:
        return {"non_deterministic": True}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


def forget_unbooked() -> None:
    """Start counting fits without a ledger anew, for example on another data set."""
    _UNBOOKED.clear()


@contextmanager
def uncounted() -> Iterator[None]:
    """Fits in here are not counted one by one: the caller counts, or books, all of them as one."""
    before, _COUNTING[0] = _COUNTING[0], False
    try:
        yield
    finally:
        _COUNTING[0] = before


def warn_unbooked(event: Event, delta: float) -> None:
    """Count a fit that no ledger knows, and from the second on say what they cost together.

    Args:
        event: What the fit is to an accountant.
        delta: At which delta to say it.
    """
    if not _COUNTING[0]:
        return
    _UNBOOKED.append(event)
    if len(_UNBOOKED) < 2:
        return
    try:
        together = accountant("pld").epsilon(Composed(tuple(_UNBOOKED)), min(delta, 1.0), Adjacency.ADD_REMOVE)
    except InvalidInput:
        together = math.inf
    warnings.warn(
        f"{len(_UNBOOKED)} private fits in this process, none in a ledger: on the same people they cost epsilon "
        f"{format_up(together, 3)} together at delta {format_up(delta)}. Pass ledger= and dataset_budget=, or call "
        "sordina.estimators.forget_unbooked() when the data set changes.",
        UnbookedFits,
        stacklevel=4,
    )


def noise_for(budget: Budget, make_event: Any) -> float:
    """The least noise multiplier with which ``make_event(multiplier)`` keeps ``budget``.

    Args:
        budget: What the fit may cost.
        make_event: From a noise multiplier to the event of the whole fit.
    """
    if math.isinf(budget.epsilon):
        raise InvalidInput("a private estimator needs a finite epsilon: without privacy, use scikit-learn itself.")
    return noise_multiplier(make_event, budget)


def add_noise(total: Floats, sensitivity: float, multiplier: float, rng: np.random.Generator) -> Floats:
    """``total`` with Gaussian noise of ``multiplier`` times ``sensitivity``, exact on a public grid.

    Args:
        total: What is to be released.
        sensitivity: Its largest L2 change when one unit is added or removed.
        multiplier: Noise per unit of sensitivity.
        rng: Source of randomness.
    """
    grid = DyadicGrid.under(multiplier * sensitivity)
    units = grid.units((sensitivity + math.sqrt(total.size) * grid.step) * multiplier)
    noise = floored_gaussian(units, total.size, rng)
    return grid.add(grid.round(np.array(total, dtype=np.float64)), noise)


def fitted_rows(estimator: PrivateEstimator, X: Any, dtype: Any = np.float64) -> Any:
    """Rows to predict for, checked against those of the fit.

    Args:
        estimator: Must have been fitted.
        X: Rows.
        dtype: As of `checked_rows`.
    """
    check_is_fitted(estimator, "guarantee_")
    return checked_rows(estimator, X, reset=False, dtype=dtype)[0]


def checked_rows(
    estimator: PrivateEstimator,
    X: Any,
    y: Any = None,
    *,
    reset: bool = True,
    with_target: bool = False,
    dtype: Any = np.float64,
) -> tuple[Any, Any]:
    """``X`` (and ``y``) as scikit-learn checks them, names of columns remembered.

    Args:
        estimator: Whose ``feature_names_in_`` and ``n_features_in_`` are set or compared.
        X: Rows.
        y: Targets, or None.
        reset: True in ``fit``, false in ``predict``.
        with_target: Whether targets must be there.
        dtype: Of the rows; of a list, the first unless the rows are of another of it.
    """
    if with_target and y is None:
        raise InvalidInput(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    prepared = isinstance(X, PreparedRows)
    X = X.frame() if prepared else X
    if reset:
        stated = getattr(estimator, "bounds", None)
        estimator.bounds_ = (0.0, 1.0) if stated is None and prepared else stated
    try:
        from sklearn.utils.validation import validate_data
    except ImportError:  # scikit-learn before 1.6
        rows = estimator._validate_data(X, reset=reset, dtype=dtype)
        if y is not None:
            rows, y = check_X_y(rows, y, dtype=dtype)
        return check_array(rows, dtype=dtype), y
    if y is None:
        return validate_data(estimator, X, reset=reset, dtype=dtype), None
    rows, y = validate_data(estimator, X, y, reset=reset, dtype=dtype)
    return rows, y


def scaled(rows: Any, bounds: Any) -> Any:
    """``rows`` clipped to ``bounds`` and moved to [0, 1], column by column, in their own precision.

    Args:
        rows: One row per record.
        bounds: ``(low, high)``, numbers or one number per column.
    """
    low, high = _limits("bounds", bounds, rows.shape[1])
    moved = np.clip(rows, low.astype(rows.dtype), high.astype(rows.dtype))
    if (low != 0).any() or (high != 1).any():
        moved -= low  # in place: a million rows are copied once
        moved /= high - low
    return moved


def scaled_targets(targets: Floats, bounds: Any) -> tuple[Floats, float, float]:
    """``targets`` clipped to ``bounds`` and moved to [-1/2, 1/2]; with middle and width, to move answers back.

    Args:
        targets: One number per record.
        bounds: ``(low, high)``.
    """
    (low,), (high,) = _limits("target_bounds", bounds, 1)
    return (np.clip(targets, low, high) - low) / (high - low) - 0.5, (low + high) / 2, high - low


def _limits(name: str, bounds: Any, width: int) -> tuple[Floats, Floats]:
    if bounds is None:
        raise InvalidInput(
            f"{name} is missing: state (low, high) from what you know without the data, or (0, 1) after "
            "sordina.tables.Prepare. A bound read off the rows would be outside the budget."
        )
    try:
        low, high = (np.broadcast_to(np.asarray(one, np.float64), (width,)) for one in bounds)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be (low, high), numbers or one number per column ({width}).") from None
    with np.errstate(over="ignore", invalid="ignore"):
        width_is_finite = bool(np.isfinite(high - low).all())
    if not (np.isfinite(low).all() and np.isfinite(high).all() and width_is_finite and (low < high).all()):
        raise InvalidInput(f"{name} must be finite, and so their distance, with low below high in every column.")
    return low, high


def limited(
    persons: Any, rows_per_person: int | None, size: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], int, Unit]:
    """Which rows count, how many a unit may have, and what the unit is.

    Args:
        persons: Whose row it is, one id per row; None if every row is another person.
        rows_per_person: How many rows of one person count.
        size: Number of rows.
        rng: Draws the rows that are kept.
    """
    if persons is None:
        if rows_per_person is not None:
            raise InvalidInput("rows_per_person needs persons: fit(X, y, persons=ids).")
        return np.arange(size), 1, Unit.RECORD
    ids = np.asarray(persons)
    if ids.shape != (size,):
        raise InvalidInput(f"persons must name one person per row ({size}), got shape {ids.shape}.")
    most = 1 if rows_per_person is None else rows_per_person
    if isinstance(most, bool) or not isinstance(most, (int, np.integer)) or most < 1:
        raise InvalidInput("rows_per_person must be a whole number of at least 1.")
    order = rng.permutation(size)
    _, codes = np.unique(ids.astype(str), return_inverse=True)
    shuffled = codes[order]
    by_person = np.argsort(shuffled, kind="stable")
    starts = np.flatnonzero(np.diff(shuffled[by_person], prepend=-1))
    place = np.arange(size) - np.repeat(starts, np.diff(np.append(starts, size)))
    return np.sort(order[by_person[place < most]]), int(most), Unit.USER


def checked_classes(y: Any, classes: Any = None) -> tuple[Any, NDArray[np.int64]]:
    """The classes and the code of each row.

    Args:
        y: Class labels.
        classes: The public list of classes; None takes those of ``y``, which then count as public.
    """
    from sklearn.utils.multiclass import check_classification_targets

    check_classification_targets(y)
    found, codes = np.unique(y, return_inverse=True)
    if classes is not None:
        listed = np.unique(np.asarray(classes))
        if not np.isin(found, listed).all():
            raise InvalidInput("the targets hold a class that is not in the list of classes.")
        found, codes = listed, np.searchsorted(listed, found)[codes]
    classes = found
    if len(classes) < 2:
        raise InvalidInput("a classifier needs at least two classes; the targets hold one class only.")
    return classes, codes.astype(np.int64)
