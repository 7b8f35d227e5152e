"""`sordina collect`: from a plan to answers to estimates, booked; and bad input in one line that quotes nobody."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shlex
import sys

import pytest

from sordina.accounting.ledger import Ledger
from sordina.cli import main as cli
from sordina.privacy import Budget


def sordina(line):
    """Exit code, standard output and standard error of ``sordina line``."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["sordina", *shlex.split(line)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        sys.argv = before
    return left.value.code, out.getvalue(), err.getvalue()


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    """3000 people, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    with open("people.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["person", "drug", "age"])
        rows.writerows([place, ("a", "a", "b", "c")[place % 4], 20 + place % 41] for place in range(3000))
    return tmp_path


def test_from_a_plan_to_estimates():
    assert sordina("collect plan --values a,b,c --epsilon 4 --people 3000 --out question.json")[0] == 0
    assert sordina("collect randomize people.csv --column drug --question question.json --out answers.csv")[0] == 0
    code, out, _ = sordina("collect estimate answers.csv --consistent --out shares.csv --json")
    assert code == 0
    found = {line["value"]: line["estimate"] for line in json.loads(out)["estimates"]}
    assert found["a"] == pytest.approx(0.5, abs=0.06)
    assert sum(found.values()) == pytest.approx(1)
    with open("shares.csv", newline="") as file:
        assert [row["value"] for row in csv.DictReader(file)] == ["a", "b", "c"]


@pytest.mark.parametrize("protocol", ["grr", "oue", "olh", "hadamard"])
def test_every_protocol_survives_its_file(protocol):
    asked = f"--values a,b,c --epsilon 5 --protocol {protocol} --seed 1"
    assert sordina(f"collect randomize people.csv --column drug {asked} --out answers.csv")[0] == 0
    first = json.loads(sordina("collect estimate answers.csv --json")[1])["estimates"][0]
    assert first["estimate"] == pytest.approx(0.5, abs=0.1)


def test_a_number_and_texts_nobody_listed():
    assert sordina("collect randomize people.csv --column age --range 0,100 --epsilon 4 --seed 1 --out age.csv")[0] == 0
    mean = json.loads(sordina("collect estimate age.csv --json")[1])["estimates"][0]
    assert mean["low"] <= 40 <= mean["high"]
    assert sordina("collect randomize people.csv --column drug --texts 3 --epsilon 4 --seed 1 --out texts.csv")[0] == 0
    texts = json.loads(sordina("collect estimate texts.csv --json")[1])["estimates"]
    assert {line["value"] for line in texts} == {"a", "b", "c"}


def test_answers_are_booked_and_refused():
    book = Ledger("ledger.db")
    book.create("people", Budget(1.5, 1e-6), adjacency="replace-one", unit="user")
    asked = "collect randomize people.csv --column drug --values a,b,c --epsilon 1 --protocol grr"
    where = "--ledger ledger.db --dataset-budget people"
    assert sordina(f"{asked} --out one.csv {where}")[0] == 0
    assert book.spent("people") == pytest.approx(1.0)
    code, _, error = sordina(f"{asked} --out two.csv {where}")
    assert code == 3
    assert len(error.strip().splitlines()) == 1
    cheap = asked.replace("--epsilon 1", "--epsilon 0.4")
    assert sordina(f"{cheap} --out three.csv --shuffle {where}")[0] == 0
    assert book.spent("people") < 1.2


def test_a_shuffled_plan_lies_less_and_names_the_protocol_it_is_for():
    plain = json.loads(sordina("collect plan --values 16 --epsilon 0.5 --people 20000 --json")[1])
    mixed = json.loads(sordina("collect plan --values 16 --epsilon 0.5 --people 20000 --shuffled --json")[1])
    assert mixed["error"] < plain["error"] / 4
    assert mixed["epsilon"] > 3
    assert mixed["shuffled"] == {"epsilon": 0.5, "delta": 1e-6}


BAD = [
    "plan --epsilon 1 --people 10",
    "plan --values 1 --epsilon 1 --people 10",
    "plan --values a,a --epsilon 1 --people 10",
    "plan --values 4 --epsilon 0 --people 10",
    "plan --values 4 --epsilon nan --people 10",
    "plan --values 4 --epsilon 1 --people 0",
    "plan --values 4 --epsilon 1 --people 10 --protocol rappor",
    "plan --range 5 --epsilon 1 --people 10",
    "plan --range 9,1 --epsilon 1 --people 10",
    "plan --values 4 --range 0,1 --epsilon 1 --people 10",
    "plan --texts 90 --epsilon 1 --people 10",
    "plan --values 99999999999 --epsilon 1 --people 10",
    "plan --values 4 --epsilon 1 --people 10 --shuffled --delta 2",
    "randomize people.csv --column drug --out answers.csv",
    "randomize nowhere.csv --column drug --values a,b,c --epsilon 1 --out answers.csv",
    "randomize people.csv --column disease --values a,b,c --epsilon 1 --out answers.csv",
    "randomize people.csv --column drug --values a,b --epsilon 1 --out answers.csv",
    "randomize people.csv --column drug --range 0,1 --epsilon 1 --out answers.csv",
    "randomize people.csv --column drug --question people.csv --out answers.csv",
    "randomize people.csv --column drug --question nowhere.json --out answers.csv",
    "randomize people.csv --column drug --values a,b,c --epsilon 1 --out answers.csv --dataset-budget people",
    "randomize people.csv --column drug --values a,b,c --epsilon 1 --seed -1 --out answers.csv",
    "estimate people.csv",
    "estimate people.csv --question nowhere.json",
    "estimate bad.csv",
    "estimate bad.csv --confidence 1",
    "estimate empty.csv --question bad.csv.question.json",
]


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line(line, table):
    question = '{"format": 1, "epsilon": 1.0, "values": ["a", "b"], "protocol": "grr"}'
    (table / "bad.csv.question.json").write_text(question)
    (table / "bad.csv").write_text("answer\n0\nmetformin\n")
    (table / "empty.csv").write_text("answer\n")
    code, out, error = sordina(f"collect {line}")
    assert (code, out) == (2, "")
    assert len(error.strip().splitlines()) == 1
    assert "metformin" not in error
    assert "'c'" not in error
    assert not (table / "answers.csv").exists()
