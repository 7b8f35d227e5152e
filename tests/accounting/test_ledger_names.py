"""One name, one data set, however its letters are composed; and no secret of an address is ever shown."""

from __future__ import annotations

import json
import sqlite3
import sys
import unicodedata
from contextlib import closing

import pytest

from sordina.accounting import PureDP
from sordina.accounting.ledger import Ledger
from sordina.accounting.ledger.entries import GENESIS, link
from sordina.cli.main import main
from sordina.errors import InvalidInput
from sordina.privacy import Budget
from sordina.reports import reading, rendering

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


def test_two_spellings_of_a_name_are_one_data_set(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create(DECOMPOSED, Budget(2, 1e-5), accountant="basic")
    with pytest.raises(InvalidInput, match="already holds"):
        ledger.create(COMPOSED, Budget(2, 1e-5))
    ledger.reserve(COMPOSED, PureDP(1.0), what="a").settle()
    ledger.reserve(DECOMPOSED, PureDP(0.5), what="b")
    assert ledger.spent(DECOMPOSED) == ledger.spent(COMPOSED) == pytest.approx(1.5)
    assert len(ledger.history(DECOMPOSED)) == len(ledger.history(COMPOSED)) == 4
    assert [terms.name for terms in ledger.budgets()] == [COMPOSED]


def respell(path, names):
    """Write the names of create entries as an older version would have, and the hashes with them."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TRIGGER sordina_no_update")
        previous = GENESIS
        for number, text in database.execute("SELECT id, entry FROM sordina_entries ORDER BY id").fetchall():
            entry = json.loads(text)
            entry["dataset"] = names.get(entry["dataset"], entry["dataset"])
            text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
            previous = link(previous, text)
            database.execute("UPDATE sordina_entries SET entry = ?, hash = ? WHERE id = ?", (text, previous, number))
        database.execute("UPDATE sordina_head SET hash = ?", (previous,))


def test_an_old_ledger_is_found_by_both_spellings(tmp_path):
    path = tmp_path / "ledger.db"
    Ledger(path).create("old", Budget(2, 1e-5), accountant="basic")
    Ledger(path).reserve("old", PureDP(1.0), what="a")
    respell(path, {"old": DECOMPOSED})
    ledger = Ledger(path)
    assert ledger.spent(COMPOSED) == ledger.spent(DECOMPOSED) == pytest.approx(1)
    ledger.reserve(COMPOSED, PureDP(0.5), what="b").settle()
    assert ledger.spent(DECOMPOSED) == pytest.approx(1.5)
    with pytest.raises(InvalidInput, match="already holds"):
        ledger.create(COMPOSED, Budget(2, 1e-5))
    ledger.verify()


def test_an_old_ledger_with_both_spellings_is_ambiguous(tmp_path):
    path = tmp_path / "ledger.db"
    for name in ("one", "two"):
        Ledger(path).create(name, Budget(2, 1e-5), accountant="basic")
    open_one = Ledger(path).reserve("one", PureDP(1.0), what="a")
    respell(path, {"one": COMPOSED, "two": DECOMPOSED})
    ledger = Ledger(path)
    for spelling in (COMPOSED, DECOMPOSED):
        with pytest.raises(InvalidInput, match="composed in different ways"):
            ledger.reserve(spelling, PureDP(0.1), what="b")
    assert len(ledger.statements()) == 2
    ledger.settle(open_one.id)
    ledger.verify()


SECRET = "hunter2-\u00e9t\u00e9"
ADDRESSES = {
    "a password": f"postgresql+nodriver://ada:{SECRET}@localhost:1/books",
    "an option": f"postgresql+nodriver://ada@localhost:1/books?password={SECRET}&sslmode=require",
    "a slash too few": f"postgresql:/ada:{SECRET}@localhost/books",
    "a password with an at sign": f"postgresql+nodriver://ada:p@{SECRET}@localhost:1/books",
    "not a number": f"postgresql://ada:{SECRET}@localhost:port/books",
    "no such database": f"oracle9://ada:{SECRET}@localhost/books",
}
COMMANDS = [
    ["report", "run"],
    ["ledger", "show"],
    ["ledger", "show", "--json"],
    ["ledger", "create", "x", "--epsilon", "1", "--delta", "0"],
    ["ledger", "verify"],
    ["train", "digits", "--dataset-budget", "x"],
]


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES.keys())
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_secret_of_an_address_is_not_told(tmp_path, monkeypatch, capsys, address, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SORDINA_LEDGER", raising=False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    monkeypatch.setattr(sys, "argv", ["sordina", *command, "--ledger", address])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    told = "".join(capsys.readouterr())
    for file in tmp_path.rglob("*"):
        if file.is_file():
            told += file.read_text()
    assert "hunter2" not in unicodedata.normalize("NFC", told)


def test_a_report_says_which_ledger_without_its_secrets(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    Ledger(tmp_path / "ledger.db").create("patients", Budget(2, 1e-5))
    monkeypatch.setattr(Ledger, "name", property(lambda self: "postgresql://ada:***@host/books"))
    facts = reading.report([tmp_path / "run"], ledger=str(tmp_path / "ledger.db"))
    rendering.write(facts, tmp_path / "out")
    for file in (tmp_path / "out").iterdir():
        assert "ada:***@host" in file.read_text()
        assert "ledger.db" not in file.read_text()
