"""Training on a table under a budget: read, split, fit, keep, score.

**The split is a coin of each unit.** Which rows are kept for testing is drawn for each person (or row) alone, so one
more of them moves nobody else from one side to the other: the rows that are trained on are then neighbours too.
"""

from __future__ import annotations

import math
import secrets
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordina.accounting.ledger import Ledger
from sordina.datasets import Task
from sordina.errors import BudgetRefused, InvalidInput
from sordina.estimators.gradient import GradientEstimator
from sordina.estimators.model_file import pack
from sordina.estimators.table_model import TableModel, choose_model, facts_of, frame_of, kind_of, load, make_estimator
from sordina.fairness import measure
from sordina.models.metrics import calibration_error
from sordina.privacy import Budget, check_seed
from sordina.privacy_claim import PrivacyClaim
from sordina.progress import StagedProgress, silent_stages
from sordina.run_folder import FAIRNESS, RECIPE, SCORES, SPLIT, TABLE_MODEL, RunFolder, read_json
from sordina.tables import PreparedTable, Schema, feature_names, read_table
from sordina.tables.readers import refuse_scoring_on
from sordina.training.planning import PlanReport

FEW = 100
"""Units times epsilon below which no estimator learned anything on small parts of Adult's training rows."""


@dataclass(frozen=True)
class TableRun:
    """What training on a table gave.

    Args:
        model: The model.
        name: Which kind it is.
        why: Why this kind was taken.
        scores: On the test rows, if there were any; with those of the constant predictor.
    """

    model: TableModel
    name: str
    why: str
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SplitTable:
    """A table and which of its rows are trained on.

    Args:
        table: All rows.
        kept: Numbers of the rows to train on.
        held: The rows to score on, if any.
        seed: Of the coins that decided, if they did.
    """

    table: PreparedTable
    kept: NDArray[np.int64]
    held: PreparedTable | None = None
    seed: int | None = None

    @property
    def owners(self) -> NDArray[Any] | None:
        """Whose row each kept row is."""
        return None if self.table.owners is None else self.table.owners.numpy()[self.kept]

    @property
    def units(self) -> int:
        """How many rows, or persons, are trained on."""
        return len(self.kept) if self.owners is None else len(np.unique(self.owners))

    def fit(self, estimator: Any) -> Any:
        """Fit ``estimator`` on the kept rows.

        Args:
            estimator: From `make_estimator`.
        """
        table, kept = self.table, self.kept
        targets = table.dataset().tensors[1].numpy()
        targets = targets.astype(np.float64) if table.task is Task.REGRESSION else targets
        rows = table.inputs.numpy()
        options: dict[str, Any] = {} if self.owners is None else {"persons": self.owners}
        if table.task is Task.CLASSIFICATION:
            options["classes"] = np.arange(len(table.classes))
        rows = rows[kept] if len(kept) < len(table) else rows
        return estimator.fit(frame_of(rows, table.schema), targets[kept], **options)


def train_table(
    source: Any,
    schema: Schema | str | Path | dict[str, Any],
    budget: Budget,
    *,
    model: str = "auto",
    test: Any = None,
    test_share: float | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    ledger: Ledger | None = None,
    dataset_budget: str | None = None,
    seed: int | None = None,
    encoding: str = "utf-8",
    separator: str = ",",
    progress: StagedProgress = silent_stages,
) -> TableRun:
    """Train a model on a table under a budget.

    Args:
        source: Path of a CSV or Parquet file, or a frame.
        schema: What is public about it.
        budget: (epsilon, delta).
        model: "auto", or one of `MODELS`.
        test: Another table to score the model on.
        test_share: Part of the rows (of the persons) kept for scoring instead; each is by a coin of its own.
        folder: Where model and claim are kept; must be new.
        resume: Read what the run in ``folder`` came to; one that was stopped is told of, and cannot go on.
        ledger: Where the run is booked.
        dataset_budget: The ledger's name of the data set.
        seed: Makes the run repeatable, and not releasable.
        encoding: Of CSV files.
        separator: Between the fields of CSV files.
        progress: Told what is being done.
    """
    if resume:
        return finished(folder)
    public = check_request(schema, budget, ledger, dataset_budget, seed)
    split = read_split(source, public, test, test_share, seed, encoding, separator, progress)
    why = "as asked for"
    if model == "auto":
        model, why = choose_model(split.table.task, split.units, budget.epsilon)
    if split.units * budget.epsilon < FEW:
        why += f"; units x epsilon is below {FEW}: noise will most likely leave little more than a constant"
        progress(f"{split.units} units at epsilon {budget.epsilon:g} are too few to learn much")
    estimator = make_estimator(model, split.table, budget, ledger, dataset_budget, seed)

    def fit() -> TableModel:
        progress(f"fitting {model} on {len(split.kept)} rows")
        split.fit(estimator)
        return TableModel(estimator, split.table.schema, facts_of(estimator, split.units))

    asked = asked_for(source, schema, budget, test, test_share, seed, encoding, separator) | {"model": model}
    return keep(folder, fit, split, why, command_of(asked, "train"), dataset_budget, progress)


@dataclass(frozen=True)
class TablePlan:
    """What a budget can buy on a table, from its schema and a public number of units; no row is read for it.

    Args:
        model: The kind of model.
        why: Why this kind.
        units: How many rows, or persons, would be trained on.
        verdict: In a sentence.
        report: For models that take gradient steps: the plan of these.
    """

    model: str
    why: str
    units: int
    verdict: str
    report: PlanReport | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        told = {"model": self.model, "why": self.why, "units": self.units}
        return told | ({"verdict": self.verdict} if self.report is None else self.report.to_dict())

    def __str__(self) -> str:
        return f"{self.model}, {self.why}. {self.verdict if self.report is None else self.report}"


def plan_table(
    schema: Schema | str | Path | dict[str, Any],
    budget: Budget,
    *,
    model: str = "auto",
    units: int | None = None,
    test_share: float | None = None,
) -> TablePlan:
    """What `train_table` could come to, said from public facts before a row is read.

    Args:
        schema: What is public about the table.
        budget: (epsilon, delta).
        model: "auto", or one of `MODELS`.
        units: The public number of rows, or of persons; None takes the schema's ``rows``.
        test_share: Part of them kept for scoring.
    """
    public = check_request(schema, budget, None, None, None)
    units = public.rows if units is None else units
    if units is None:
        raise InvalidInput(
            "a plan needs to know about how many rows (or persons) there are, and does not count them: state rows = N "
            "in the schema, or --rows N, if that is public."
        )
    if units < 1 or (test_share is not None and not 0 < test_share < 1):
        raise InvalidInput("a plan needs at least one row, and a test share between 0 and 1.")
    units = max(1, round(units * (1 - (test_share or 0.0))))
    names = feature_names(public)
    blank = PreparedTable(public, torch.zeros(0, len(names)), owners=None if public.person is None else torch.zeros(0))
    why = "as asked for"
    if model == "auto":
        model, why = choose_model(blank.task, units, budget.epsilon)
    estimator = make_estimator(model, blank, budget, None, None, None)
    if isinstance(estimator, GradientEstimator):
        report = estimator.plan_report(names, units, len(blank.classes) or 1)
        return TablePlan(model, why, units, report.verdict, report)
    found = units * budget.epsilon
    if found < FEW:
        verdict = f"Next to nothing can be learnt: units x epsilon is {found:.4g}, below {FEW}."
    else:
        verdict = (
            f"Units x epsilon is {found:.4g}; from {FEW} on models of tables learn something. A {model} model takes no "
            "gradient steps, so there is no more to plan: logistic, svm and network models have a plan."
        )
    return TablePlan(model, why, units, verdict)


def check_request(
    schema: Any, budget: Budget, ledger: Ledger | None, dataset_budget: str | None, seed: int | None
) -> Schema:
    """The complete schema, after everything that is wrong before a row is read has been refused."""
    if (ledger is None) != (dataset_budget is None):
        raise InvalidInput("a ledger and the name of its data set go together: state both, or neither.")
    if math.isinf(budget.epsilon):
        raise InvalidInput("a model of a table needs a finite epsilon: without privacy, use scikit-learn itself.")
    if seed is not None:
        check_seed(seed)
    return Schema.load(schema).complete()


def read_split(
    source: Any, schema: Schema, test: Any, test_share: float | None, seed: int | None, encoding: str, separator: str,
    progress: StagedProgress = silent_stages,
) -> SplitTable:  # fmt: skip
    """Read a table and decide which rows are trained on.

    Args:
        source: Path of a CSV or Parquet file, or a frame.
        schema: What is public about it.
        test: Another table to score on.
        test_share: Part of the units kept for scoring instead.
        seed: Of the coins; drawn if None.
        encoding: Of CSV files.
        separator: Between the fields of CSV files.
        progress: Told what is being done.
    """
    if test is not None and test_share is not None:
        raise InvalidInput("state a test table or a test share, not both.")
    if test is not None:
        refuse_scoring_on(source, test)
    if test_share is not None and not 0 < test_share < 1:
        raise InvalidInput(f"the test share must lie between 0 and 1, got {test_share}.")
    progress("reading the table")
    table = read_table(source, schema, encoding=encoding, separator=separator)
    held = None if test is None else read_table(test, schema, encoding=encoding, separator=separator)
    if test_share is None:
        return SplitTable(table, np.arange(len(table)), held)
    seed = secrets.randbits(62) if seed is None else seed
    tested = tested_rows(table, test_share, seed)
    if tested.all() or not tested.any():
        raise InvalidInput("the table is too small for this test share: one of the two parts is empty.")
    return SplitTable(table, np.flatnonzero(~tested), rows_of(table, np.flatnonzero(tested)), seed)


def tested_rows(table: PreparedTable, share: float, seed: int) -> NDArray[np.bool_]:
    """Which rows are kept for testing: a coin for each unit, in the order in which they first occur.

    Args:
        table: All rows.
        share: The coin's chance.
        seed: Of the coins.
    """
    owners = np.arange(len(table)) if table.owners is None else table.owners.numpy()
    coins = np.random.default_rng(seed).random(int(owners.max()) + 1)
    tested: NDArray[np.bool_] = coins[owners] < share
    return tested


def rows_of(table: PreparedTable, rows: NDArray[np.int64]) -> PreparedTable:
    """Some rows of a table.

    Args:
        table: All rows.
        rows: Their numbers.
    """
    targets = None if table.targets is None else table.targets[rows]
    owners = None if table.owners is None else table.owners[rows]
    groups = {name: codes[rows] for name, codes in table.groups.items()}
    return PreparedTable(table.schema, table.inputs[rows], targets, owners, table.persons, groups)


def asked_for(
    source: Any, schema: Any, budget: Budget, test: Any, test_share: float | None, seed: int | None,
    encoding: str, separator: str,
) -> dict[str, Any]:  # fmt: skip
    """What a run was asked for, as plain data; frames have no path."""
    path = str(source) if isinstance(source, (str, Path)) else None
    return {
        "dataset": path, "schema": str(schema) if isinstance(schema, (str, Path)) else None,
        "epsilon": budget.epsilon, "delta": budget.delta,
        "test": str(test) if isinstance(test, (str, Path)) else None, "test_share": test_share, "seed": seed,
        "encoding": encoding, "separator": separator,
    }  # fmt: skip


def command_of(asked: Mapping[str, Any], command: str) -> dict[str, Any]:
    """``asked`` with the command that asks for it again, where files say what was read.

    Args:
        asked: From `asked_for`.
        command: "train" or "tune".
    """
    if asked["dataset"] is None or asked["schema"] is None:
        return dict(asked)
    words = ["sordina", command, str(asked["dataset"])]
    for name, value in asked.items():
        if name != "dataset" and value is not None and (name, value) not in (("encoding", "utf-8"), ("separator", ",")):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return {**asked, "command": shlex.join(words)}


def keep(
    folder: Path | str | None, fit: Callable[[], TableModel], split: SplitTable, why: str,
    asked: Mapping[str, Any], dataset_budget: str | None, progress: StagedProgress = silent_stages,
) -> TableRun:  # fmt: skip
    """Fit, and with a folder keep the model, its claim, what was asked for and the scores.

    Args:
        folder: Where; None keeps nothing.
        fit: Pays, and gives the model.
        split: Rows to train and to score on.
        why: Why this kind.
        asked: What the run was asked for.
        dataset_budget: The ledger's name of the data set.
        progress: Told what is being done.
    """
    if folder is None:
        return _scored(fit(), split, why)
    settings = {**asked, "schema": split.table.schema.to_dict(), "units": split.units, "dataset_budget": dataset_budget}
    with RunFolder.begin(folder, "table", settings, resumable=False) as kept_folder:
        try:
            fitted = fit()
        except (InvalidInput, BudgetRefused):
            kept_folder.forget()
            raise
        except BaseException:
            kept_folder.close_failed(
                f"the run in {folder} was stopped and cannot be resumed: what it reserved counts as spent (`sordina "
                "ledger show`). Begin a new one in another folder."
            )
            raise
        kept_folder.write_json(RECIPE, {key: value for key, value in asked.items() if value is not None})
        kept_folder.write_json(SPLIT, {"seed": split.seed})
        kept_folder.finish(
            pack(fitted.estimator, fitted.schema, fitted.facts),
            PrivacyClaim.from_dict(fitted.facts),
            name=TABLE_MODEL,
        )
        progress("scoring")
        run = _scored(fitted, split, why)
        kept_folder.write_json(SCORES, {"model": run.name, "why": run.why, **run.scores})
        fair = group_scores(fitted, split.held)
        if fair:
            kept_folder.write_json(FAIRNESS, fair)
    return run


def finished(folder: Path | str | None) -> TableRun:
    """What the finished run in ``folder`` came to.

    Args:
        folder: Its folder.
    """
    from sordina.run_folder import FolderState, state_of

    if folder is None:
        raise InvalidInput("to resume a run, name its folder (--out).")
    condition = state_of(Path(folder))
    if condition.state is not FolderState.FINISHED:
        raise InvalidInput(
            condition.why
            or f"the run in {folder} was stopped before its model was kept: a fit of a table is not resumed half-way, "
            "and what it reserved counts as spent (`sordina ledger show`). Begin a new one in another folder."
        )
    model = load(folder)
    path = Path(folder) / SCORES
    scores = read_json(path) if path.is_file() else {}
    name, why = str(scores.pop("model", "")), str(scores.pop("why", "found in the folder"))
    return TableRun(model, name, why, scores)


def _scored(model: TableModel, split: SplitTable, why: str) -> TableRun:
    return TableRun(model, kind_of(model.estimator), why, {} if split.held is None else _scores(model, split.held))


def _scores(model: TableModel, held: PreparedTable) -> dict[str, float]:
    """Scores on test rows, beside those of the best constant answer."""
    from sklearn import metrics

    rows, truth = frame_of(held.inputs.numpy(), held.schema), held.dataset().tensors[1].numpy()
    estimator: Any = model.estimator
    if held.task is Task.REGRESSION:
        column = held.schema[held.schema.target or ""]
        width = (column.high or 0.0) - (column.low or 0.0)
        errors = width * (np.asarray(estimator.predict(rows)) - truth)
        constant = width * float(np.std(truth))
        rmse = float(np.sqrt(np.mean(errors**2)))
        r2 = 1 - rmse**2 / constant**2 if constant else 0.0
        return {"rows": float(len(truth)), "rmse": rmse, "r2": r2, "constant_rmse": constant}
    found = np.asarray(estimator.predict(rows))
    shares = np.bincount(truth, minlength=len(held.classes)) / len(truth)
    scores = {
        "rows": float(len(truth)),
        "accuracy": float(np.mean(found == truth)),
        "balanced_accuracy": float(metrics.balanced_accuracy_score(truth, found)),
        "constant_accuracy": float(shares.max()),
    }
    if hasattr(estimator, "predict_proba"):
        chances = np.clip(estimator.predict_proba(rows), 1e-12, 1.0)
        scores["log_loss"] = float(-np.mean(np.log(chances[np.arange(len(truth)), truth])))
        scores["constant_log_loss"] = float(-np.sum(shares[shares > 0] * np.log(shares[shares > 0])))
        scores["calibration_error"] = calibration_error(torch.from_numpy(chances).log(), torch.from_numpy(truth))
        if len(held.classes) == 2 and 0 < shares[0] < 1:
            scores["auc"] = float(metrics.roc_auc_score(truth, chances[:, 1]))
    return scores


def group_scores(model: TableModel, held: PreparedTable | None) -> dict[str, Any]:
    """How the groups of the first protected attribute fare on the test rows, for a decision between two classes.

    Args:
        model: The model.
        held: Rows to score on, if any.
    """
    from dataclasses import asdict

    if held is None or not held.groups or len(model.classes) != 2:
        return {}
    name, codes = next(iter(held.groups.items()))
    estimator: Any = model.estimator
    found = np.asarray(estimator.predict(frame_of(held.inputs.numpy(), held.schema)))
    names = (*held.schema[name].values, "other", "missing")
    fair = measure(held.dataset().tensors[1].numpy(), found, codes.numpy(), names=names)
    return {"attribute": name, **asdict(fair)}
