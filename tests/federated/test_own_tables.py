"""Clients with tables of their own: one file a client, or a column that names the client."""

from __future__ import annotations

import csv
import json
import sys

import numpy as np
import pytest

import sordina as sd
from sordina.cli.main import main
from sordina.errors import InvalidInput
from sordina.federated.data import load

SCHEMA = """
target = "outcome"
groups = ["ward"]
[columns.age]
kind = "number"
low = 0
high = 100
optional = false
[columns.ward]
kind = "category"
values = ["A", "B"]
optional = false
[columns.outcome]
kind = "category"
values = ["well", "ill"]
"""


@pytest.fixture
def clients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    rng = np.random.default_rng(0)
    with (tmp_path / "all.csv").open("w", newline="") as whole:
        every = csv.writer(whole)
        every.writerow(["hospital", "age", "ward", "outcome"])
        for client in range(8):
            with (tmp_path / f"h{client}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["hospital", "age", "ward", "outcome"])
                for age in rng.integers(0, 100, 40).tolist():
                    row = [f"h{client}", age, "AB"[age % 2], "ill" if age > 50 else "well"]
                    writer.writerow(row)
                    every.writerow(row)
    return tmp_path


def sordina(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["sordina", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


def test_files_or_a_column_are_the_same_clients(clients):
    options = {"schema": SCHEMA_DICT, "test_share": 0.25}
    files = [str(clients / f"h{client}.csv") for client in range(8)]
    one = load("table", np.random.default_rng(1), files=files, **options)
    two = load("table", np.random.default_rng(1), files=[str(clients / "all.csv")], client_column="hospital", **options)
    assert len(one.train) == len(two.train) == 6
    assert len(one.validation) == 2
    for (x, y), (u, v) in zip(one.train, two.train, strict=True):
        assert (x == u).all()
        assert (y == v).all()


def test_no_row_of_a_client_that_trains_validates(clients):
    federation = load(
        "table", np.random.default_rng(0), files=[str(clients / "all.csv")], client_column="hospital",
        schema=SCHEMA_DICT,
    )  # fmt: skip
    rows = sum(len(y) for _, y in federation.train)
    assert rows == 40 * len(federation.train)
    assert rows + sum(len(y) for _, y in federation.validation) == 320


def test_federate_then_predict(clients, monkeypatch, capsys):
    files = [f"h{client}.csv" for client in range(8)]
    code, out, err = sordina(
        monkeypatch, capsys, "federate", *files, "--schema", "schema.toml", "--strategy", "fedavg",
        "--privacy", "central", "--epsilon", 50, "--delta", 1e-2, "--rounds", 20, "--seed", 0, "--out", "run", "--json",
    )  # fmt: skip
    assert code == 0, err
    facts = json.loads(out)
    assert facts["epsilon"] <= 50
    assert facts["validation_accuracy"] > 0.7
    code, _, err = sordina(monkeypatch, capsys, "predict", "run", "all.csv", "--out", "answers.csv")
    assert code == 0, err
    answers = list(csv.DictReader((clients / "answers.csv").read_text().splitlines()))
    truth = list(csv.DictReader((clients / "all.csv").read_text().splitlines()))
    assert np.mean([a["prediction"] == t["outcome"] for a, t in zip(answers, truth, strict=True)]) > 0.7
    assert sd.load("run").facts["epsilon"] == facts["epsilon"]
    code, out, _ = sordina(monkeypatch, capsys, "card", "run")
    assert code == 0
    assert "One client of the federation" in out


def test_a_client_column_that_the_schema_knows_is_no_feature(clients, monkeypatch, capsys):
    (clients / "named.toml").write_text(SCHEMA + '[columns.hospital]\nkind = "category"\nvalues = ["h0", "h1"]\n')
    code, _, err = sordina(
        monkeypatch, capsys, "federate", "all.csv", "--client-column", "hospital", "--schema", "named.toml",
        "--strategy", "fedavg", "--rounds", 2, "--seed", 0, "--out", "run",
    )  # fmt: skip
    assert code == 0, err
    code, _, err = sordina(monkeypatch, capsys, "predict", "run", "all.csv", "--out", "answers.csv")
    assert code == 0, err


@pytest.mark.parametrize(
    "words",
    [
        ["all.csv", "--schema", "schema.toml"],
        ["all.csv", "--client-column", "hospital"],
        ["all.csv", "--client-column", "nowhere", "--schema", "schema.toml"],
        ["h0.csv", "h1.csv", "--schema", "schema.toml", "--model", "oracle"],
        ["h0.csv", "h1.csv", "--schema", "schema.toml", "--test-share", "2"],
        ["synthetic", "--schema", "schema.toml"],
    ],
)
def test_bad_input_is_one_line(words, clients, monkeypatch, capsys):
    code, _, err = sordina(monkeypatch, capsys, "federate", *words, "--strategy", "fedavg")
    assert code == 2
    assert len(err.strip().splitlines()) == 1


def test_two_clients_cannot_spare_one_without_a_test_file(clients):
    with pytest.raises(InvalidInput, match="--test"):
        load("table", np.random.default_rng(0), files=["h0.csv"], client_column="hospital", schema=SCHEMA_DICT)


NUMBER = {"kind": "number", "low": 0, "high": 100, "optional": False}
SCHEMA_DICT = {
    "target": "outcome",
    "groups": ["ward"],
    "columns": {
        "age": NUMBER,
        "ward": {"kind": "category", "values": ["A", "B"], "optional": False},
        "outcome": {"kind": "category", "values": ["well", "ill"]},
    },
}


def test_groups_beside_three_classes_end_a_run_as_they_should(clients, monkeypatch, capsys):
    """Fairness is measured on a decision between two; a run with more classes was stopped by it, at its very end."""
    three = SCHEMA.replace('["well", "ill"]', '["well", "ill", "cured"]')
    (clients / "three.toml").write_text(three)
    (clients / "all.csv").write_text((clients / "all.csv").read_text().replace("A,well", "A,cured"))
    code, _, err = sordina(
        monkeypatch, capsys, "federate", "all.csv", "--client-column", "hospital", "--schema", "three.toml",
        "--strategy", "fedavg", "--rounds", 2, "--seed", 0, "--out", "run",
    )  # fmt: skip
    assert code == 0, err
