"""A person with a CSV of their own: draft a schema, complete it privately, train, predict, read the card."""

from __future__ import annotations

import csv
import json
import sys

import numpy as np
import pytest

import sordina as sd
from sordina.cli.main import main
from sordina.datasets import Task
from sordina.errors import InvalidInput
from sordina.estimators.table_model import choose_model, load
from sordina.estimators.table_run import plan_table, train_table

pytestmark = pytest.mark.filterwarnings("ignore::sordina.estimators.UnbookedFits")
SCHEMA = """
target = "outcome"
person = "patient"
rows_per_person = 2

[columns.patient]
kind = "person"
[columns.age]
kind = "number"
low = 0
high = 100
[columns.ward]
kind = "category"
values = ["A", "B"]
[columns.outcome]
kind = "category"
values = ["well", "ill"]
optional = false
"""


def write_patients(path, rows=1200, seed=0):
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", "age", "ward", "outcome"])
        for row in range(rows):
            age = int(rng.integers(0, 100))
            ill = age > 50 if rng.random() < 0.95 else age <= 50
            writer.writerow(
                [
                    f"p{row // 2}",
                    age if rng.random() > 0.02 else "",
                    rng.choice(["A", "B", "C"]),
                    "ill" if ill else "well",
                ]
            )
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SORDINA_LEDGER", raising=False)
    write_patients(tmp_path / "patients.csv")
    (tmp_path / "patients.toml").write_text(SCHEMA)
    return tmp_path


def sordina(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["sordina", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


@pytest.mark.parametrize("model", ["logistic", "boosted", "forest", "network", "svm"])
def test_train_predict_and_card(model, folder, monkeypatch, capsys):
    code, out, err = sordina(
        monkeypatch, capsys, "train", "patients.csv", "--schema", "patients.toml", "--epsilon", 8, "--model", model,
        "--test-share", 0.25, "--out", "run", "--json",
    )  # fmt: skip
    assert code == 0, err
    facts = json.loads(out)
    assert facts["epsilon"] <= 8
    assert facts["unit"] == "user"
    assert facts["accuracy"] > facts["constant_accuracy"] + 0.1
    code, _, err = sordina(monkeypatch, capsys, "predict", "run", "patients.csv", "--out", "answers.csv")
    assert code == 0, err
    rows = list(csv.DictReader((folder / "answers.csv").read_text().splitlines()))
    assert len(rows) == 1200
    assert rows[0]["patient"] == "p0"
    assert {row["prediction"] for row in rows} == {"well", "ill"}
    code, out, _ = sordina(monkeypatch, capsys, "card", "run")
    assert code == 0
    assert "One person" in out
    model_in_python = sd.load("run")
    assert model_in_python.predict("patients.csv")["prediction"].tolist() == [row["prediction"] for row in rows]
    with pytest.raises(InvalidInput, match="holds a run"):
        train_table("patients.csv", "patients.toml", sd.Budget(1, 1e-5), folder="run")


def test_numbers_are_predicted_in_their_own_unit(folder, monkeypatch, capsys):
    schema = SCHEMA.replace('target = "outcome"', 'target = "age"').replace(
        "high = 100", "high = 100\noptional = false"
    )
    (folder / "patients.csv").write_text((folder / "patients.csv").read_text().replace(",,", ",50,"))
    (folder / "ages.toml").write_text(schema)
    for model in ("linear", "boosted", "forest"):
        run = train_table(
            "patients.csv", "ages.toml", sd.Budget(20, 1e-5), model=model, test_share=0.3, folder=f"run-{model}"
        )
        assert run.scores["rmse"] < run.scores["constant_rmse"]
        answers = load(f"run-{model}").predict("patients.csv")["prediction"]
        assert answers.min() >= 0
        assert 30 < answers.max() <= 130


def test_the_ledger_and_the_private_schema(folder, monkeypatch, capsys):
    assert (
        sordina(
            monkeypatch,
            capsys,
            "ledger",
            "create",
            "patients",
            "--epsilon",
            3,
            "--delta",
            1e-5,
            "--unit",
            "user",
            "--ledger",
            "L.db",
        )[0]
        == 0
    )
    booked = ("--ledger", "L.db", "--dataset-budget", "patients")
    code, _, err = sordina(
        monkeypatch,
        capsys,
        "schema",
        "patients.csv",
        "--target",
        "outcome",
        "--person",
        "patient",
        "--epsilon",
        1,
        *booked,
        "--out",
        "found.toml",
    )
    assert code == 0, err
    code, _, err = sordina(
        monkeypatch,
        capsys,
        "train",
        "patients.csv",
        "--schema",
        "found.toml",
        "--epsilon",
        1.5,
        *booked,
        "--out",
        "run",
    )
    assert code == 0, err
    assert 1.5 < sd.Ledger("L.db").spent("patients") <= 2.6
    code, _, err = sordina(
        monkeypatch, capsys, "train", "patients.csv", "--schema", "found.toml", "--epsilon", 3, *booked, "--out", "more"
    )
    assert code == 3, err


BAD = {
    "no schema": ["train", "patients.csv"],
    "a schema for a named data set": ["train", "digits", "--schema", "patients.toml"],
    "an option that does not fit": ["train", "patients.csv", "--schema", "patients.toml", "--learning-rate", "1"],
    "no such file": ["train", "nowhere.csv", "--schema", "patients.toml"],
    "no such schema": ["train", "patients.csv", "--schema", "nowhere.toml"],
    "no such model": ["train", "patients.csv", "--schema", "patients.toml", "--model", "oracle"],
    "a model for numbers": ["train", "patients.csv", "--schema", "patients.toml", "--model", "linear"],
    "no test share": ["train", "patients.csv", "--schema", "patients.toml", "--test-share", "2"],
    "infinite epsilon": [
        "train",
        "patients.csv",
        "--schema",
        "patients.toml",
        "--epsilon",
        "inf",
        "--model",
        "boosted",
    ],
    "predict from nothing": ["predict", "nowhere", "patients.csv"],
    "predict from a schema": ["predict", "patients.toml", "patients.csv"],
    "card of nothing": ["card", "nowhere"],
    "schema of nothing": ["schema", "nowhere.csv"],
    "schema without a target": ["schema", "patients.csv", "--target", "x"],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case, folder, monkeypatch, capsys):
    code, _, err = sordina(monkeypatch, capsys, *BAD[case])
    assert code == 2
    assert len(err.strip().splitlines()) == 1


def test_a_tampered_model_is_refused(folder):
    train_table("patients.csv", "patients.toml", sd.Budget(8, 1e-5), model="boosted", folder="run")
    path = folder / "run" / "model.safetensors"
    content = bytearray(path.read_bytes())
    path.write_bytes(bytes(content[:-1]))
    with pytest.raises(InvalidInput):
        load("run")
    with pytest.raises(InvalidInput):
        load(path)
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InvalidInput, match="another model"):
        load("run")


def test_auto_does_not_look():
    assert choose_model(Task.CLASSIFICATION, 32561, 8.0)[0] == "boosted"
    assert choose_model(Task.CLASSIFICATION, 32561, 1.0)[0] == "logistic"
    assert choose_model(Task.REGRESSION, 500, 1.0)[0] == "linear"


def test_audit_report_and_resume_of_a_run(folder, monkeypatch, capsys):
    schema = SCHEMA.replace("rows_per_person = 2", 'rows_per_person = 2\ngroups = ["ward"]')
    (folder / "grouped.toml").write_text(schema)
    words = ("train", "patients.csv", "--schema", "grouped.toml", "--epsilon", 8, "--model", "boosted")
    code, first, err = sordina(monkeypatch, capsys, *words, "--test-share", 0.4, "--out", "run", "--json")
    assert code == 0, err
    code, again, _ = sordina(monkeypatch, capsys, *words, "--out", "run", "--json", "--resume")
    assert code == 0
    assert json.loads(again)["accuracy"] == json.loads(first)["accuracy"]
    code, out, err = sordina(monkeypatch, capsys, "audit", "membership", "run", "--seed", 0, "--json")
    assert code == 0, err
    assert {one["attack"] for one in json.loads(out)["results"]} == {"loss", "noisy"}
    code, out, err = sordina(monkeypatch, capsys, "report", "run", "--json")
    assert code == 0, err
    facts = json.loads(out)["runs"][0]
    assert facts["command"].startswith("sordina train patients.csv --schema grouped.toml")
    assert facts["accuracy"] == json.loads(first)["accuracy"]
    assert "Privacy card" in (folder / "run" / "report.html").read_text()
    code, out, _ = sordina(monkeypatch, capsys, "card", "run", "--json")
    card = json.loads(out)
    assert card["contribution"].startswith("At most 2 rows")
    assert len(card["attacks"]) == 2
    assert {one["name"] for one in card["utility_by_group"]["groups"]} >= {"A", "B"}


def test_a_run_that_kept_nobody_out_is_not_audited(folder, monkeypatch, capsys):
    train_table("patients.csv", "patients.toml", sd.Budget(8, 1e-5), model="forest", folder="run")
    code, _, err = sordina(monkeypatch, capsys, "audit", "membership", "run")
    assert code == 2
    assert "--test-share" in err


def test_tuning_chooses_a_kind_of_model_within_the_budget(folder, monkeypatch, capsys):
    ledger = sd.Ledger(folder / "L.db")
    ledger.create("patients", sd.Budget(9, 1e-4), unit="user")
    code, out, err = sordina(
        monkeypatch, capsys, "tune", "patients.csv", "--schema", "patients.toml", "--epsilon", 8, "--model",
        "logistic,forest", "--metric", "log_loss", "--test-share", 0.2, "--out", "found", "--ledger", "L.db",
        "--dataset-budget", "patients",
        "--json",
    )  # fmt: skip
    assert code == 0, err
    facts = json.loads(out)
    assert facts["model"] in ("logistic", "forest")
    assert 7 < facts["epsilon"] <= 8
    assert facts["accuracy"] > facts["constant_accuracy"] + 0.1
    assert facts["log_loss"] < facts["constant_log_loss"]
    assert facts["auc"] > 0.6
    assert 0 < facts["calibration_error"] < 0.3
    assert 6 < ledger.spent("patients") <= 8
    assert load("found").facts["epsilon"] == facts["epsilon"]
    code, _, err = sordina(monkeypatch, capsys, "tune", "patients.csv", "--schema", "patients.toml", "--runs", 3)
    assert code == 2
    assert "--runs" in err
    for words, told in (
        (("--metric", "auc"), "sum over rows"),
        (("--metric", "log_loss", "--model", "svm"), "no prob"),
    ):
        code, _, err = sordina(monkeypatch, capsys, "tune", "patients.csv", "--schema", "patients.toml", *words)
        assert code == 2
        assert told in err


@pytest.mark.parametrize("metric", ["accuracy", "log_loss"])
def test_a_row_moves_the_score_of_a_choice_by_at_most_one_and_up(metric):
    from types import SimpleNamespace

    from sordina.estimators.table_run import rows_of
    from sordina.estimators.table_search import _score
    from sordina.tables import read_table

    age, ill = {"kind": "number", "low": 0, "high": 100}, {"kind": "category", "values": ["n", "y"]}
    table = read_table(write_patients_frame(), {"columns": {"age": age, "ill": ill}, "target": "ill"})

    def sure(rows):
        chances = np.asarray(rows)[:, 0] > 0.5
        return np.stack([1.0 - chances, chances], 1)

    model = SimpleNamespace(predict_proba=sure, predict=lambda rows: sure(rows).argmax(1))
    scores = [_score(model, rows_of(table, np.arange(count)), metric) for count in range(1, 120)]
    moves = np.diff(scores)
    assert moves.min() >= 0
    assert 0.9 < moves.max() <= 1


def test_the_split_is_a_coin_of_each_unit():
    from sordina.estimators.table_run import tested_rows
    from sordina.tables import read_table

    table = read_table(write_patients_frame(), {"columns": {"age": {"kind": "number", "low": 0, "high": 100}}})
    shorter = read_table(write_patients_frame()[:-1], {"columns": {"age": {"kind": "number", "low": 0, "high": 100}}})
    assert (tested_rows(table, 0.3, 5)[:-1] == tested_rows(shorter, 0.3, 5)).all()


def write_patients_frame():
    import pandas

    return pandas.DataFrame({"age": np.arange(500) % 100, "ill": ["n", "y"] * 250})


# What a budget can buy on a table, before a row is read.


def test_a_plan_of_a_table_reads_its_schema_and_no_row(tmp_path, capsys, monkeypatch):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    words = ["sordina", "train", str(tmp_path / "nowhere.csv"), "--schema", str(tmp_path / "schema.toml"), "--plan"]

    def said(*more):
        monkeypatch.setattr(sys, "argv", [*words, *more])
        code = 0
        try:
            code = main() or 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        return code, capsys.readouterr()

    code, out = said("--epsilon", "1", "--rows", "1000", "--json")
    facts = json.loads(out.out)
    assert code == 0
    assert facts["model"] == "logistic"
    assert facts["population"] == 1000
    assert facts["verdict"]
    assert facts["steps"] > 0
    code, out = said("--epsilon", "1", "--rows", "20", "--model", "boosted")
    assert code == 0
    assert "Next to nothing" in out.out
    code, out = said("--epsilon", "1", "--rows", "2000", "--model", "boosted")
    assert "takes no gradient steps" in out.out
    code, out = said("--epsilon", "1")
    assert code == 2
    assert "rows = N in the schema" in out.err
    code, out = said("--epsilon", "1", "--rows", "9", "--views", "2")
    assert code == 2
    assert "--views does not go with" in out.err


def test_a_plan_of_a_table_has_the_weights_and_steps_of_the_fit(tmp_path):
    path = write_patients(tmp_path / "patients.csv")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    for kind in ("logistic", "svm", "network"):
        budget = sd.Budget(1, 1e-5)
        planned = plan_table(tmp_path / "schema.toml", budget, model=kind, units=600)
        run = train_table(path, tmp_path / "schema.toml", budget, model=kind, seed=0)
        assert planned.report is not None
        assert planned.report.weights == sum(one.size for one in run.model.estimator.weights_.values())
        assert planned.report.steps == run.model.estimator.event_.count
