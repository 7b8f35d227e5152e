"""The folder of a run on a table: a refusal leaves it unused, what was paid for is kept, a kill is told."""

from __future__ import annotations

import shutil

import numpy as np
import pandas
import pytest
from sklearn.base import clone

import sordina as sd
from sordina.errors import BudgetRefused, InvalidInput
from sordina.estimators import GaussianNB, RandomForestClassifier, table_run
from sordina.estimators.table_model import load
from sordina.estimators.table_run import train_table

pytestmark = pytest.mark.filterwarnings("ignore::sordina.estimators.UnbookedFits")
NUMBER = {"kind": "number", "low": 0, "high": 1}
SCHEMA = {"target": "y", "columns": {"a": NUMBER, "b": NUMBER, "y": {"kind": "category", "values": ["u", "v"]}}}
X = np.random.default_rng(0).random((60, 2))
TABLE = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.where(X[:, 0] > 0.5, "u", "v")})


@pytest.fixture
def options(tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(2, 1e-5))
    return {"ledger": ledger, "dataset_budget": "people", "folder": tmp_path / "run", "model": "forest"}


def test_a_refused_budget_leaves_the_folder_unused(options):
    with pytest.raises(BudgetRefused):
        train_table(TABLE, SCHEMA, sd.Budget(9, 1e-5), **options)
    assert train_table(TABLE, SCHEMA, sd.Budget(1, 1e-5), **options).model.facts["epsilon"] <= 1


def test_a_model_that_was_paid_for_is_kept_where_scoring_fails(options, monkeypatch):
    def failing(*_):
        raise RuntimeError("no score")

    monkeypatch.setattr(table_run, "_scores", failing)
    with pytest.raises(RuntimeError, match="no score"):
        train_table(TABLE, SCHEMA, sd.Budget(1, 1e-5), test_share=0.2, **options)
    assert options["ledger"].spent("people") > 0.9
    assert len(load(options["folder"]).predict(TABLE)["prediction"]) == 60


def test_a_stopped_fit_stays_reserved_and_says_so(options, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RandomForestClassifier, "_tree", stopped)
    with pytest.raises(KeyboardInterrupt):
        train_table(TABLE, SCHEMA, sd.Budget(1, 1e-5), **options)
    assert options["ledger"].spent("people") > 0.9
    with pytest.raises(InvalidInput, match="counts as spent"):
        train_table(TABLE, SCHEMA, sd.Budget(1, 1e-5), **options)


def test_clones_share_the_ledger(options):
    ledger = options["ledger"]
    assert clone(GaussianNB((1, 1e-5), bounds=(0, 1), ledger=ledger, dataset_budget="people")).ledger is ledger


def test_a_killed_fit_is_told_and_not_to_be_resumed(options, monkeypatch, tmp_path):
    """Killed, so that nothing could be tidied up: the folder says that it is spent, and what to do."""

    def killed(*_):
        shutil.copytree(options["folder"], tmp_path / "after")
        return fit(*_)

    fit = table_run.SplitTable.fit
    monkeypatch.setattr(table_run.SplitTable, "fit", killed)
    train_table(TABLE, SCHEMA, sd.Budget(1, 1e-5), **options)
    with pytest.raises(InvalidInput, match=r"cannot be resumed: it was interrupted.*another folder"):
        train_table(TABLE, SCHEMA, sd.Budget(1, 1e-5), **(options | {"folder": tmp_path / "after"}))


def test_a_delta_that_excludes_nothing_is_said_wherever_the_claim_is(options, capsys):
    with pytest.warns(sd.estimators.LooseDelta, match="not below 1/60"):
        run = train_table(TABLE, SCHEMA, sd.Budget(1, 0.1), folder=options["folder"])
    assert "WARNING: delta 0.1 is not below 1/60" in run.model.facts["statement"]
    with pytest.warns(sd.estimators.LooseDelta):
        GaussianNB((1, 0.1), bounds=(0, 1)).fit(X, X[:, 0] > 0.5)


def test_a_seeded_run_says_so_in_its_claim(options):
    facts = train_table(TABLE, SCHEMA, sd.Budget(1, 1e-5), seed=1, folder=options["folder"]).model.facts
    assert "do not release" in facts["statement"]
    assert not facts["releasable"]
