"""Bad input to the ledger, by API and by command line: one line, the right exit code, nothing written."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing

import pytest

from sordina.accounting import Composed, PureDP
from sordina.accounting.ledger import Ledger
from sordina.cli.main import main
from sordina.errors import InvalidInput
from sordina.privacy import Budget

HEAD = "0" * 64


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """Holds *patients* with 9 of 10 settled as entry 3, and 0.5 reserved as entry 4: where commands look."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SORDINA_LEDGER", raising=False)
    ledger = Ledger("sordina-ledger.db")
    ledger.create("patients", Budget(10, 1e-5), accountant="basic")
    ledger.reserve("patients", PureDP(9.0), what="a").settle()
    ledger.reserve("patients", PureDP(0.5), what="b")
    return ledger


@pytest.fixture
def sordina(monkeypatch, capsys):
    """Run a command; returns exit code, standard output and standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sordina", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    return run


API = {
    "an unknown data set": lambda book: book.reserve("nobody", PureDP(1.0), what="x"),
    "a second account": lambda book: book.create("patients", Budget(1, 1e-5)),
    "an infinite budget": lambda book: book.create("new", Budget(float("inf"), 1e-5)),
    "a budget that is a number": lambda book: book.create("new", 3.0),
    "an unknown accountant": lambda book: book.create("new", Budget(1, 1e-5), accountant="abacus"),
    "an unknown adjacency": lambda book: book.create("new", Budget(1, 1e-5), adjacency="next-door"),
    "an unknown unit": lambda book: book.create("new", Budget(1, 1e-5), unit="household"),
    "an empty name": lambda book: book.create("  ", Budget(1, 1e-5)),
    "a name of two lines": lambda book: book.create("a\nb", Budget(1, 1e-5)),
    "an endless name": lambda book: book.create("a" * 201, Budget(1, 1e-5)),
    "no purpose": lambda book: book.reserve("patients", PureDP(0.1), what=""),
    "an event that is an epsilon": lambda book: book.reserve("patients", 0.1, what="x"),
    "an event that is a dictionary": lambda book: book.reserve("patients", {"kind": "PureDP"}, what="x"),
    "an event that holds none": lambda book: book.reserve("patients", Composed((0.1,)), what="x"),
    "settling nobody's reservation": lambda book: book.settle(99),
    "settling an account": lambda book: book.settle(1),
    "settling twice": lambda book: book.settle(2),
    "settling with no event": lambda book: book.settle(4, "all"),
    "releasing nobody's reservation": lambda book: book.release(99, why="x"),
    "releasing what was settled": lambda book: book.release(2, why="x"),
    "releasing without a reason": lambda book: book.release(4, why=" "),
    "taking up what was settled": lambda book: book.reservation(2),
    "the statement of nobody": lambda book: book.statement("nobody"),
    "the history of nobody": lambda book: book.history("nobody"),
    "half a head": lambda book: book.verify("abc"),
}


@pytest.mark.parametrize("act", API.values(), ids=API.keys())
def test_the_api_refuses(ledger, act):
    before = ledger.verify()
    with pytest.raises(InvalidInput) as caught:
        act(ledger)
    assert "\n" not in str(caught.value)
    assert ledger.verify() == before


CLI = {
    "an unknown data set": (2, ["show", "nobody"]),
    "an unknown history": (2, ["history", "nobody"]),
    "a second account": (2, ["create", "patients", "--epsilon", 1, "--delta", 1e-5]),
    "a negative budget": (2, ["create", "new", "--epsilon", -1, "--delta", 1e-5]),
    "an infinite budget": (2, ["create", "new", "--epsilon", "inf", "--delta", 1e-5]),
    "no number": (2, ["create", "new", "--epsilon", "nan", "--delta", 1e-5]),
    "delta of one": (2, ["create", "new", "--epsilon", 1, "--delta", 1]),
    "an unknown accountant": (2, ["create", "new", "--epsilon", 1, "--delta", 1e-5, "--accountant", "abacus"]),
    "a malformed url": (2, ["show", "--ledger", "://"]),
    "an unknown database": (2, ["show", "--ledger", "oracle9://x"]),
    "a database in memory": (2, ["show", "--ledger", "sqlite://"]),
    "a folder": (2, ["show", "--ledger", "."]),
    "no file": (2, ["show", "--ledger", "absent.db"]),
    "no folder": (2, ["create", "x", "--epsilon", 1, "--delta", 0, "--ledger", "absent/ledger.db"]),
    "an empty file name": (2, ["show", "--ledger", ""]),
    "over budget": (3, ["reserve", "patients", "--what", "x", "--event", '{"kind": "PureDP", "epsilon": 2.0}']),
    "no noise": (2, ["reserve", "patients", "--what", "x"]),
    "negative noise": (2, ["reserve", "patients", "--what", "x", "--noise-multiplier", -1]),
    "a rate of two": (2, ["reserve", "patients", "--what", "x", "--noise-multiplier", 1, "--sample-rate", 2]),
    "minus one steps": (2, ["reserve", "patients", "--what", "x", "--noise-multiplier", 1, "--steps", -1]),
    "noise and event": (2, ["reserve", "patients", "--what", "x", "--noise-multiplier", 1, "--event", "{}"]),
    "an event that is no json": (2, ["reserve", "patients", "--what", "x", "--event", "PureDP(1)"]),
    "an event of no kind": (2, ["reserve", "patients", "--what", "x", "--event", "{}"]),
    "an event that is a list": (2, ["reserve", "patients", "--what", "x", "--event", "[1]"]),
    "other neighbours": (
        2,
        ["reserve", "patients", "--what", "x", "--noise-multiplier", 9, "--adjacency", "replace-one"],
    ),
    "settling twice": (2, ["settle", 2]),
    "settling by steps alone": (2, ["settle", 4, "--steps", 3]),
    "settling over the budget": (3, ["settle", 4, "--event", '{"kind": "PureDP", "epsilon": 2.0}']),
    "releasing an account": (2, ["release", 1, "--why", "x"]),
    "releasing without a reason": (2, ["release", 4, "--why", ""]),
    "half a head": (2, ["verify", "--head", "abc"]),
    "a head that is not there": (1, ["verify", "--head", HEAD]),
}


@pytest.mark.parametrize(("code", "arguments"), CLI.values(), ids=CLI.keys())
def test_the_command_line_says_why_in_one_line(ledger, sordina, tmp_path, code, arguments):
    before, files = ledger.verify(), sorted(tmp_path.iterdir())
    got, out, err = sordina("ledger", *arguments)
    assert got == code, err
    assert out == ""
    assert err.startswith("sordina: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == files
    recorded = 1 if "This is recorded" in err else 0
    assert ledger.verify().count == before.count + recorded


@pytest.mark.parametrize("arguments", [["create", "new"], ["release", "4"], ["settle", "four"], ["forget"]])
def test_a_command_that_does_not_parse_ends_with_2(ledger, sordina, arguments):
    code, out, err = sordina("ledger", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


def other_file(kind):
    if kind == "text":
        with open("other.db", "w") as file:
            file.write("name,age\n" * 500)
    elif kind == "empty":
        open("other.db", "w").close()
    else:
        with closing(sqlite3.connect("other.db")) as database, database:
            database.execute("CREATE TABLE customers (name)")


@pytest.mark.parametrize("command", [["show"], ["create", "new", "--epsilon", 1, "--delta", 0]])
@pytest.mark.parametrize("kind", ["text", "database"])
def test_a_file_that_is_no_ledger_is_left_alone(ledger, sordina, kind, command):
    other_file(kind)
    with open("other.db", "rb") as file:
        before = file.read()
    code, _, err = sordina("ledger", *command, "--ledger", "other.db")
    assert (code, err.count("\n")) == (2, 1)
    with open("other.db", "rb") as file:
        assert file.read() == before


def test_an_empty_file_becomes_a_ledger_only_by_create(ledger, sordina):
    other_file("empty")
    assert sordina("ledger", "show", "--ledger", "other.db")[0] == 2
    assert sordina("ledger", "create", "new", "--epsilon", 1, "--delta", 1e-5, "--ledger", "other.db")[0] == 0
    assert sordina("ledger", "show", "--ledger", "other.db")[0] == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_ledger_can_be_read_and_not_written(ledger, sordina, tmp_path):
    os.chmod("sordina-ledger.db", 0o444)
    os.chmod(tmp_path, 0o555)
    try:
        assert sordina("ledger", "verify")[0] == 0
        code, _, err = sordina("ledger", "release", 4, "--why", "x")
        assert (code, err.count("\n")) == (2, 1)
    finally:
        os.chmod(tmp_path, 0o755)


def test_a_whole_life_by_command_line(ledger, sordina, monkeypatch):
    monkeypatch.setenv("SORDINA_LEDGER", "sqlite:///other.db")

    def answer(*arguments, code=0):
        got, out, err = sordina("ledger", *arguments, "--json")
        assert (got, err) == (code, "")
        return json.loads(out)

    terms = answer("create", "images", "--epsilon", 3, "--delta", 1e-5, "--unit", "user", "--accountant", "rdp")
    assert terms == {
        "name": "images", "epsilon": 3.0, "delta": 1e-5,
        "adjacency": "add-remove", "unit": "user", "accountant": "rdp",
    }  # fmt: skip
    noise = ("--noise-multiplier", 2, "--sample-rate", 0.01)
    one = answer("reserve", "images", "--what", "one", "--unit", "user", *noise, "--steps", 1000)
    two = answer("reserve", "images", "--what", "two", "--unit", "user", *noise, "--steps", 1000)
    [before] = answer("show")["datasets"]
    assert [spend["what"] for spend in before["open"]] == ["one", "two"]
    answer("settle", one["id"], *noise, "--steps", 10)
    answer("release", two["id"], "--why", "never ran")
    [after] = answer("show", "images")["datasets"]
    assert 0 < after["spent"] < before["spent"]
    assert after["remaining"] == pytest.approx(3 - after["spent"])
    assert (after["settled"], after["released"], after["open"]) == (1, 1, [])
    kinds = [entry["kind"] for entry in answer("history", "images")["entries"]]
    assert kinds == ["create", "reserve", "reserve", "settle", "release"]
    verdict = answer("verify")
    assert (verdict["valid"], verdict["entries"]) == (True, 5)
    assert answer("verify", "--head", verdict["head"]) == verdict


def test_tables_show_names_as_they_are(ledger, sordina):
    ledger.create("[bold]x[/bold]", Budget(1, 1e-5))
    for command in (["show"], ["history"]):
        code, out, err = sordina("ledger", *command)
        assert (code, err) == (0, "")
        assert "[bold]" in out


def test_verify_answers_in_json_even_when_it_fails(ledger, sordina):
    with closing(sqlite3.connect("sordina-ledger.db")) as database, database:
        database.execute("UPDATE sordina_head SET count = 9")
    code, out, err = sordina("ledger", "verify", "--json")
    assert code == 1
    assert json.loads(out)["valid"] is False
    assert "cut off" in err
