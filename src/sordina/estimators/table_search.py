"""A choice among kinds of model on a table, under one budget for all of it.

Every kind is fitted on the rows that are not held out, each within an equal part of the budget; the one that is right
on the most held-out units (one row each), or has the least log loss, is chosen by the exponential mechanism, with a
tenth of epsilon. Of the others nothing is kept or told. Which units are held out is a coin of each.

**Accounting** (add/remove). A unit is in the fits or in the choice; all are composed nevertheless, which costs a little
and needs no further argument. Before anything is fitted, the epsilon of each fit is found with which the events that
are planned keep the budget; what is claimed in the end is computed from the events that ran. A score changes by at
most one when a unit comes or goes, and never falls when it comes: the exponential mechanism is monotonic there. What a
row adds is between 0 and 1: 1 if its class is right; for the log loss 1 less its loss over ``2 ln(classes)``, that of a
model that knows nothing twice over, which is as much as counts; for regression 1 less its squared error over the
squared width of the target, by which `rmse` and `r2` put models in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordina import random
from sordina.accounting import Composed, Event, PureDP, accountant
from sordina.accounting.ledger import Ledger
from sordina.datasets import Task
from sordina.errors import InvalidInput
from sordina.estimators._base import PrivateEstimator, uncounted, warn_unbooked
from sordina.estimators.table_model import MODELS, TableModel, facts_of, frame_of, make_estimator
from sordina.estimators.table_run import (
    SplitTable,
    TableRun,
    asked_for,
    check_request,
    command_of,
    keep,
    read_split,
    rows_of,
    tested_rows,
)
from sordina.mechanisms import Exponential
from sordina.privacy import Adjacency, Budget, Guarantee, Unit
from sordina.progress import StagedProgress, silent_stages
from sordina.tables import PreparedTable, Schema

CHOICE_SHARE = 0.1
"""Part of epsilon that pays for the choice."""
USUAL = {Task.CLASSIFICATION: ("logistic", "boosted"), Task.REGRESSION: ("linear", "boosted")}
"""What is tried unless the caller says."""


def tune_table(
    source: Any,
    schema: Schema | str | Path | dict[str, Any],
    budget: Budget,
    *,
    models: Sequence[str] = (),
    hold_out: float = 0.1,
    metric: str | None = None,
    test: Any = None,
    test_share: float | None = None,
    folder: Path | str | None = None,
    ledger: Ledger | None = None,
    dataset_budget: str | None = None,
    seed: int | None = None,
    encoding: str = "utf-8",
    separator: str = ",",
    progress: StagedProgress = silent_stages,
) -> TableRun:
    """Fit several kinds of model and keep the one that does best on held-out units, within one budget.

    Args:
        source: Path of a CSV or Parquet file, or a frame.
        schema: What is public about it.
        budget: (epsilon, delta) of the whole search.
        models: Kinds to try; two that fit the task if empty.
        hold_out: Part of the training units that the choice is made on.
        metric: By what the best is best: accuracy (the default) or log_loss; for numbers rmse or r2, which agree.
        test: Another table to score the chosen model on.
        test_share: Part of the units kept for scoring instead.
        folder: Where model and claim are kept; must be new.
        ledger: Where the search is booked.
        dataset_budget: The ledger's name of the data set.
        seed: Makes the search repeatable, and not releasable.
        encoding: Of CSV files.
        separator: Between the fields of CSV files.
        progress: Told what is being done.
    """
    public = check_request(schema, budget, ledger, dataset_budget, seed)
    if not 0 < hold_out < 1:
        raise InvalidInput(f"the held-out part must lie between 0 and 1, got {hold_out}.")
    split = read_split(source, public, test, test_share, seed, encoding, separator, progress)
    names = tuple(dict.fromkeys(models)) or USUAL[split.table.task]
    metric = _metric(metric, split.table, names)
    rng = random.generator(seed)
    training, judged = _held_out(split, hold_out, rng)
    estimators, plan = plan_fits(
        lambda each: [make_estimator(name, split.table, each, None, None, seed) for name in names],
        budget,
        training.units,
    )
    unit = Unit.RECORD if split.table.owners is None else Unit.USER

    def search() -> TableModel:
        scores = []
        for name, estimator in zip(names, estimators, strict=True):
            progress(f"fitting {name} on {len(training.kept)} rows")
            with uncounted():
                training.fit(estimator)
            scores.append(_score(estimator, judged, metric))
        best = 0 if len(names) == 1 else _choice(budget, unit).release(np.array(scores), rng)
        return _claimed(estimators, best, split, budget, unit)

    asked = asked_for(source, schema, budget, test, test_share, seed, encoding, separator) | {
        "model": ",".join(names), "metric": metric,
    }  # fmt: skip
    asked = command_of(asked, "tune")

    def fit() -> TableModel:
        return _booked(search, plan, budget, unit, f"search over {len(names)} kinds of model", ledger, dataset_budget)

    why = f"chosen among {', '.join(names)} on held-out units by {metric}"
    return keep(folder, fit, split, why, asked, dataset_budget, progress)


def _booked(
    search: Callable[[], TableModel],
    plan: Event,
    budget: Budget,
    unit: Unit,
    what: str,
    ledger: Ledger | None,
    dataset_budget: str | None,
) -> TableModel:
    """The model that ``search`` finds, paid for in the ledger if there is one."""
    if ledger is None or dataset_budget is None:
        model = search()
        warn_unbooked(model.estimator.event_, budget.delta)
        return model
    with ledger.reserve(dataset_budget, plan, what=what, unit=unit) as reservation:
        model = search()
        reservation.settle()
    return model


def plan_fits(make: Callable[[Budget], list[PrivateEstimator]], budget: Budget, units: int) -> tuple[list[Any], Event]:
    """Estimators whose fits and choice together keep ``budget``, each with the same epsilon, and their event.

    Args:
        make: The estimators, given what each may cost.
        budget: Of the whole search.
        units: The public number of rows, or of persons, that each is fitted on.
    """
    if budget.delta == 0:
        raise InvalidInput("a search over models needs a delta above 0.")

    def planned(epsilon: float) -> tuple[list[PrivateEstimator], Event]:
        estimators = make(Budget(epsilon, budget.delta / 2))
        choice = () if len(estimators) == 1 else (PureDP(CHOICE_SHARE * budget.epsilon),)
        return estimators, Composed((*(one.planned_event(units) for one in estimators), *choice))

    count = len(make(budget))
    low, high = 0.9 * (1 - CHOICE_SHARE) * budget.epsilon / count, budget.epsilon
    for _ in range(7):
        middle = (low + high) / 2
        spent = accountant("pld").epsilon(planned(middle)[1], budget.delta, Adjacency.ADD_REMOVE)
        low, high = (middle, high) if spent <= budget.epsilon else (low, middle)
    estimators, event = planned(low)
    if accountant("pld").epsilon(event, budget.delta, Adjacency.ADD_REMOVE) > budget.epsilon:
        raise InvalidInput("this budget is too small for a search over so many models: try fewer.")
    return estimators, event


def _choice(budget: Budget, unit: Unit) -> Exponential:
    return Exponential(1.0, CHOICE_SHARE * budget.epsilon, monotonic=True, unit=unit)


def _held_out(split: SplitTable, share: float, rng: np.random.Generator) -> tuple[SplitTable, PreparedTable]:
    """The rows to fit on, and one row of each held-out unit."""
    judged = np.zeros(len(split.table), bool)
    judged[split.kept] = tested_rows(split.table, share, int(rng.integers(2**62)))[split.kept]
    fitted = np.setdiff1d(split.kept, np.flatnonzero(judged))
    rows = np.flatnonzero(judged)
    if split.table.owners is not None:
        order = rng.permutation(len(rows))
        rows = rows[order][np.unique(split.table.owners.numpy()[rows][order], return_index=True)[1]]
    if not len(rows) or not len(fitted):
        raise InvalidInput("the table is too small for this held-out part: one of the two parts is empty.")
    return SplitTable(split.table, fitted), rows_of(split.table, rows)


METRICS = {Task.CLASSIFICATION: ("accuracy", "log_loss"), Task.REGRESSION: ("rmse", "r2")}
"""By what the best may be best; the first unless the caller says."""


def _metric(wanted: str | None, table: PreparedTable, names: Sequence[str]) -> str:
    """What was ``wanted``, if a private choice by it is possible."""
    known = METRICS[table.task]
    if wanted is not None and wanted not in known:
        raise InvalidInput(
            f"a private choice among models for {table.task} goes by {' or '.join(known)}, got {wanted!r}: what is no "
            "sum over rows (auc, balanced_accuracy) one row may change by a lot."
        )
    if wanted == "log_loss":
        silent = [name for name in names if not hasattr(MODELS.get(name, {}).get(table.task), "predict_proba")]
        if silent and all(name in MODELS for name in names):
            raise InvalidInput(f"a {silent[0]} model gives no probabilities, so it has no log loss: leave it out.")
    return wanted or known[0]


def _score(estimator: Any, judged: PreparedTable, metric: str) -> float:
    """How many rows are answered rightly, or how well: each adds a number in [0, 1]."""
    rows = frame_of(judged.inputs.numpy(), judged.schema)
    truth = judged.dataset().tensors[1].numpy()
    if metric == "log_loss":
        chances = np.asarray(estimator.predict_proba(rows))[np.arange(len(truth)), truth]
        losses = -np.log(np.clip(np.nan_to_num(chances, nan=0.0), 1e-12, 1.0))
        return float(np.sum(1 - np.minimum(losses / (2 * np.log(len(judged.classes))), 1.0)))
    found = np.asarray(estimator.predict(rows))
    if judged.task is Task.REGRESSION:
        return float(np.sum(1 - np.minimum((np.clip(found, 0, 1) - truth) ** 2, 1.0)))
    return float(np.sum(found == truth))


def _claimed(estimators: list[Any], best: int, split: SplitTable, budget: Budget, unit: Unit) -> TableModel:
    """The chosen model, with the claim of the whole search."""
    estimator = estimators[best]
    choice = () if len(estimators) == 1 else (_choice(budget, unit).event(),)
    estimator.event_ = Composed((*(one.event_ for one in estimators), *choice))
    epsilon = accountant("pld").epsilon(estimator.event_, budget.delta, Adjacency.ADD_REMOVE)
    estimator.guarantee_ = Guarantee(epsilon, budget.delta, Adjacency.ADD_REMOVE, unit)
    estimator.cost_ = epsilon
    return TableModel(estimator, split.table.schema, facts_of(estimator, split.units))
