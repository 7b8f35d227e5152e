"""`sordina release` as a user types it: answers, plan, refusals with their exit codes, one line each."""

from __future__ import annotations

import json
import sys

import pytest

from sordina import Budget, Ledger
from sordina.cli.main import main

SCHEMA = """
person = "patient"
rows_per_person = 2
[columns.patient]
kind = "person"
[columns.age]
kind = "number"
low = 0
high = 110
[columns.ward]
kind = "category"
values = ["A", "B", "C"]
[columns.note]
kind = "text"
"""
ROWS = "".join(f"p{row // 2},{20 + row % 60},{'ABC'[row % 3]},n{row % 2}\n" for row in range(600))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SORDINA_LEDGER", raising=False)
    (tmp_path / "p.csv").write_text("patient,age,ward,note\n" + ROWS)
    (tmp_path / "p.toml").write_text(SCHEMA)
    Ledger(tmp_path / "book.db").create("patients", Budget(1, 1e-6), unit="user")
    return tmp_path


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["sordina", "release", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


GOOD = ("p.csv", "--schema", "p.toml", "--query", "mean(age) by ward", "--query", "count", "--epsilon", "0.7")
BOOKED = (*GOOD, "--ledger", "book.db", "--dataset-budget", "patients")


def test_a_release_is_booked_recorded_and_not_repeated(folder, monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys, *BOOKED, "--json", "--out", "first")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["epsilon"] <= 0.7
    assert [one["query"] for one in facts["answers"]] == ["mean(age) by ward", "count"]
    assert json.loads((folder / "first" / "answers.json").read_text())["answers"] == facts["answers"]
    ledger = Ledger(folder / "book.db")
    assert 0.69 < ledger.spent("patients") <= 0.7
    code, out, err = run(monkeypatch, capsys, *BOOKED, "--json")
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert ledger.spent("patients") <= 0.7


def test_a_plan_reads_and_spends_nothing(folder, monkeypatch, capsys):
    (folder / "p.csv").write_text("patient,age,ward,note\nbroken\n")
    code, out, _ = run(monkeypatch, capsys, *BOOKED, "--plan", "--rows", "600", "--json")
    facts = json.loads(out)
    assert code == 0
    assert len(facts["plan"]) == 2
    assert all(one["error"] > 0 for one in facts["plan"])
    assert Ledger(folder / "book.db").spent("patients") == 0
    code, out, _ = run(monkeypatch, capsys, *GOOD, "--plan")
    assert code == 0
    assert "--rows" in out


def test_what_a_person_reads(folder, monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys, *GOOD, "--seed", "1", "--equal-error")
    assert code == 0
    assert "per user" in out
    assert "NOT TO BE PUBLISHED" in err


def test_a_delta_is_said_to_protect_nobody_or_for_how_many_it_is_meant(folder, monkeypatch, capsys):
    _, out, _ = run(monkeypatch, capsys, *GOOD, "--rows", "600", "--delta", "0.01", "--out", "loose")
    assert "WARNING: delta 0.01 is not below 1/600" in " ".join(out.split())
    assert "WARNING" in json.loads((folder / "loose" / "privacy.json").read_text())["caveats"][-1]
    _, out, _ = run(monkeypatch, capsys, *GOOD, "--delta", "1e-6", "--json")
    assert "suits far fewer than 1,000,000 users" in json.loads(out)["statement"]


def test_a_bar_shows_where_a_terminal_is_and_never_with_json(folder, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, err = run(monkeypatch, capsys, *GOOD)
    assert code == 0
    assert "table and questions" in err
    assert "100%" in err
    assert "table and questions" not in out
    code, out, err = run(monkeypatch, capsys, *GOOD, "--json")
    assert (code, err) == (0, "")
    json.loads(out)


BAD = {
    "no file": ["nowhere.csv", *GOOD[1:]],
    "a folder": [".", *GOOD[1:]],
    "no schema": ["p.csv", "--schema", "nowhere.toml", *GOOD[3:]],
    "a schema that is none": ["p.csv", "--schema", "p.csv", *GOOD[3:]],
    "no query": ["p.csv", "--schema", "p.toml", "--epsilon", "1"],
    "no epsilon": list(GOOD[:-2]),
    "epsilon zero": [*GOOD[:-1], "0"],
    "epsilon infinite": [*GOOD[:-1], "inf"],
    "epsilon nan": [*GOOD[:-1], "nan"],
    "epsilon no number": [*GOOD[:-1], "much"],
    "delta one": [*GOOD, "--delta", "1"],
    "delta negative": [*GOOD, "--delta", "-1"],
    "a query that is none": [*GOOD, "--query", "drop table"],
    "an unknown column": [*GOOD, "--query", "mean(height)"],
    "a person's column": [*GOOD, "--query", "count by patient"],
    "a mean of words": [*GOOD, "--query", "mean(ward)"],
    "code": [*GOOD, "--query", "count where __import__('os').system('x')"],
    "a value nobody listed": [*GOOD, "--query", "count where ward == 'Z'"],
    "groups at no delta": [*GOOD, "--delta", "0", "--query", "count by note"],
    "too many quantiles": [*GOOD, "--query", "quantiles(age, 2)"],
    "another person": [*GOOD, "--person", "nobody"],
    "no rows of a person": [*GOOD, "--rows-per-person", "0"],
    "rows": [*GOOD, "--rows", "-3"],
    "too few weights": [*GOOD, "--weight", "1"],
    "a negative weight": [*GOOD, "--weight", "1", "--weight", "-1"],
    "weights and equal error": [*GOOD, "--weight", "1", "--weight", "2", "--equal-error"],
    "confidence": [*GOOD, "--confidence", "1.5"],
    "ledger alone": [*GOOD, "--ledger", "book.db"],
    "data set alone": [*GOOD, "--dataset-budget", "patients"],
    "no such ledger": [*GOOD, "--ledger", "nowhere.db", "--dataset-budget", "patients"],
    "no such data set": [*GOOD, "--ledger", "book.db", "--dataset-budget", "others"],
    "seed": [*GOOD, "--seed", "-1"],
    "encoding": [*GOOD, "--encoding", "klingon"],
    "separator": [*GOOD, "--separator", ";"],
    "a folder in use": [*GOOD, "--out", "."],
    "a file for a folder": [*GOOD, "--out", "p.csv"],
    "unknown option": [*GOOD, "--loudness", "3"],
    "an escape": [*GOOD, "--query", "count where ward == '\x1b[31m'"],
    "a damaged file": ["broken.csv", *GOOD[1:]],
    "an empty file": ["empty.csv", *GOOD[1:]],
    "two columns of a name": ["twice.csv", *GOOD[1:]],
    "columns missing": ["less.csv", *GOOD[1:]],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_spends_nothing(name, folder, monkeypatch, capsys):
    (folder / "broken.csv").write_text("patient,age,ward,note\np1,3\n")
    (folder / "empty.csv").write_text("")
    (folder / "twice.csv").write_text("patient,age,age,ward,note\n")
    (folder / "less.csv").write_text("patient,ward,note\np1,A,x\n")
    words = BAD[name]
    if "--ledger" not in words and "--dataset-budget" not in words:
        words = [*words, "--ledger", "book.db", "--dataset-budget", "patients"]
    code, out, err = run(monkeypatch, capsys, *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert "\x1b[31m" not in err.replace("\x1b[31msordina", "")
    assert Ledger(folder / "book.db").spent("patients") == 0


def test_the_budget_of_another_unit_is_refused(folder, monkeypatch, capsys):
    Ledger(folder / "book.db").create("rows", Budget(1, 1e-6), unit="record")
    code, _, err = run(monkeypatch, capsys, *GOOD, "--ledger", "book.db", "--dataset-budget", "rows")
    assert code == 2
    assert "per record" in err


def test_there_are_enough_of_them():
    assert len(BAD) >= 40
