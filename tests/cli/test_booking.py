"""A run that its user believes to be booked never runs unbooked: every command with a ledger refuses half of it."""

from __future__ import annotations

import sys

import pytest
import typer

from sordina.accounting.ledger import Ledger
from sordina.cli._options import booked_on
from sordina.cli.main import app, main
from sordina.privacy import Budget

SUBJECTS = {"train": ["digits"], "tune": ["digits"], "federate": ["synthetic"], "schema": [], "release": []}

SCHEMA = """
[columns.age]
kind = "number"
low = 0
high = 100

[columns.outcome]
kind = "category"
values = ["0", "1"]
"""


def booking_commands():
    root = typer.main.get_command(app)
    for name, command in root.commands.items():
        options = {one for parameter in command.params for one in parameter.opts}
        if "--dataset-budget" in options:
            yield name, command


def test_every_command_that_books_is_tried_here():
    assert {name for name, _ in booking_commands()} <= set(SUBJECTS)
    assert {"train", "tune"} <= {name for name, _ in booking_commands()}


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SORDINA_LEDGER", raising=False)
    Ledger("team.db").create("digits", Budget(3, 1e-5))


CASES = {
    "a ledger without a data set": ["--ledger", "team.db"],
    "a data set without a ledger": ["--dataset-budget", "digits"],
    "a ledger that is not there": ["--ledger", "absent.db", "--dataset-budget", "digits"],
    "a data set that is not there": ["--ledger", "team.db", "--dataset-budget", "nobody"],
}


@pytest.mark.parametrize("given", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("name", [name for name, _ in booking_commands()])
def test_half_a_booking_is_refused(ledger, tmp_path, monkeypatch, capsys, name, given):
    subject = list(SUBJECTS[name])
    if name == "schema":
        (tmp_path / "table.csv").write_text("age,outcome\n30,1\n")
        subject = ["table.csv", "--epsilon", "1"]
    if name == "release":
        (tmp_path / "table.csv").write_text("age,outcome\n30,1\n")
        (tmp_path / "table.toml").write_text(SCHEMA)
        subject = ["table.csv", "--schema", "table.toml", "--query", "count()", "--epsilon", "1"]
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(sys, "argv", ["sordina", name, *subject, *given])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_the_environment_names_a_ledger_as_an_option_does(ledger, monkeypatch):
    monkeypatch.setenv("SORDINA_LEDGER", "team.db")
    monkeypatch.setattr(sys, "argv", ["sordina", "train", "digits"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2


def test_both_or_neither(ledger):
    assert booked_on(None, None) is None
    assert booked_on("team.db", "digits").name == "team.db"
