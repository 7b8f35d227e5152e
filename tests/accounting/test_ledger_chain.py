"""An altered history is detected, whatever the alteration; and what cannot be detected is pinned down too."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing

import pytest

from sordina.accounting import PureDP
from sordina.accounting.ledger import Ledger
from sordina.accounting.ledger.entries import GENESIS, link
from sordina.errors import LedgerCorrupt
from sordina.privacy import Budget


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A ledger of six entries: create, two settled runs, one open reservation."""
    path = tmp_path_factory.mktemp("original") / "ledger.db"
    ledger = Ledger(path)
    ledger.create("patients", Budget(10, 1e-5), accountant="basic")
    for run in ("a", "b"):
        ledger.reserve("patients", PureDP(1.0), what=run).settle()
    ledger.reserve("patients", PureDP(1.0), what="c")
    assert ledger.verify().count == 6
    return path


@pytest.fixture
def path(original, tmp_path):
    return shutil.copy(original, tmp_path / "ledger.db")


def tamper(path, *statements, guarded=False):
    with closing(sqlite3.connect(path)) as database, database:
        if not guarded:
            database.execute("DROP TRIGGER sordina_no_update")
            database.execute("DROP TRIGGER sordina_no_delete")
        for statement in statements:
            database.execute(*statement) if isinstance(statement, tuple) else database.execute(statement)


def edited(path, number, **changes):
    """The text of entry ``number`` after ``changes``."""
    with closing(sqlite3.connect(path)) as database:
        [text] = database.execute("SELECT entry FROM sordina_entries WHERE id = ?", (number,)).fetchone()
    return json.dumps(json.loads(text) | changes, sort_keys=True, separators=(",", ":"))


def rewrite(path, texts):
    """What an owner of the database who knows the scheme can do: a new history, consistent in itself."""
    rows, previous = [], GENESIS
    for number, text in enumerate(texts, start=1):
        previous = link(previous, text)
        rows.append((number, text, previous))
    tamper(path, "DELETE FROM sordina_entries", ("UPDATE sordina_head SET count = ?, hash = ?", (len(rows), previous)))
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("INSERT INTO sordina_entries VALUES (?, ?, ?)", rows)


@pytest.mark.parametrize("statement", ["UPDATE sordina_entries SET entry = ''", "DELETE FROM sordina_entries"])
def test_the_database_itself_refuses_updates_and_deletions(path, statement):
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        tamper(path, statement, guarded=True)
    Ledger(path).verify()


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize(
    "changes",
    [{"who": "mallory@lab"}, {"time": "2020-01-01T00:00:00.000+00:00"}, {"what": "x"}, {"dataset": "others"},
     {"event": {"kind": "PureDP", "epsilon": 0.1}}, {"epsilon": 99.0, "delta": 1e-5}, {"kind": "release"},
     {"adjacency": "replace-one"}, {"unit": "user"}, {"accountant": "pld"}, {"id": 99}],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_an_edited_field_of_any_entry_is_detected(path, number, changes):
    tamper(path, ("UPDATE sordina_entries SET entry = ? WHERE id = ?", (edited(path, number, **changes), number)))
    with pytest.raises(LedgerCorrupt, match=f"entry {number} does not match its hash"):
        Ledger(path).verify()


@pytest.mark.parametrize("number", range(1, 6))
def test_a_deleted_entry_is_detected(path, number):
    tamper(path, f"DELETE FROM sordina_entries WHERE id = {number}")
    with pytest.raises(LedgerCorrupt, match=f"entry {number} is missing"):
        Ledger(path).verify()


@pytest.mark.parametrize("number", range(1, 6))
def test_a_deletion_hidden_by_renumbering_is_detected(path, number):
    moved = [f"UPDATE sordina_entries SET id = {later - 1} WHERE id = {later}" for later in range(number + 1, 7)]
    tamper(path, f"DELETE FROM sordina_entries WHERE id = {number}", *moved)
    with pytest.raises(LedgerCorrupt, match=f"entry {number} does not match its hash"):
        Ledger(path).verify()


def test_a_cut_off_end_is_detected(path):
    tamper(path, "DELETE FROM sordina_entries WHERE id > 4")
    with pytest.raises(LedgerCorrupt, match="ends after entry 4, but 6 were recorded"):
        Ledger(path).verify()


@pytest.mark.parametrize("columns", ["entry", "entry, hash"])
def test_two_swapped_entries_are_detected(path, columns):
    swap = [f"UPDATE sordina_entries SET id = {a} WHERE id = {b}" for a, b in ((99, 2), (2, 4), (4, 99))]
    if columns == "entry":
        swap += [
            "CREATE TEMP TABLE hashes AS SELECT id, hash FROM sordina_entries",
            "UPDATE sordina_entries SET hash = (SELECT hash FROM hashes WHERE hashes.id = 6 - sordina_entries.id)"
            " WHERE id IN (2, 4)",
        ]
    tamper(path, *swap)
    with pytest.raises(LedgerCorrupt, match="entry 2 does not match its hash"):
        Ledger(path).verify()


@pytest.mark.parametrize("honest_hash", [True, False])
def test_an_inserted_entry_is_detected(path, honest_hash):
    head = Ledger(path).verify()
    text = edited(path, 6, id=7)
    tamper(
        path, ("INSERT INTO sordina_entries VALUES (7, ?, ?)", (text, link(head.hash, text) if honest_hash else "0"))
    )
    with pytest.raises(LedgerCorrupt, match="entry 7"):
        Ledger(path).verify()


def test_an_inserted_entry_in_the_middle_is_detected(path):
    moved = [f"UPDATE sordina_entries SET id = {later + 1} WHERE id = {later}" for later in range(6, 2, -1)]
    text = edited(path, 2, id=3)
    with closing(sqlite3.connect(path)) as database:
        [previous] = database.execute("SELECT hash FROM sordina_entries WHERE id = 2").fetchone()
    tamper(path, *moved, ("INSERT INTO sordina_entries VALUES (3, ?, ?)", (text, link(previous, text))))
    with pytest.raises(LedgerCorrupt, match="entry 4 does not match its hash"):
        Ledger(path).verify()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sordina_head SET count = 5",
        "UPDATE sordina_head SET count = 'many'",
        "UPDATE sordina_head SET hash = 'x'",
        "DELETE FROM sordina_head",
        "INSERT INTO sordina_head SELECT 2, count, hash FROM sordina_head",
        "DROP TABLE sordina_head",
        "DROP TABLE sordina_entries",
    ],
)
def test_a_tampered_head_or_a_lost_table_is_detected(path, statement):
    tamper(path, statement)
    with pytest.raises(LedgerCorrupt):
        Ledger(path).verify()


def test_a_history_that_no_ledger_could_have_written_is_detected(path):
    texts = [edited(path, number) for number in range(1, 7)]
    rewrite(path, [*texts[:3], edited(path, 3, id=4)])
    with pytest.raises(LedgerCorrupt, match=r"entry 4 .* is settled already"):
        Ledger(path).verify()


def test_nothing_is_spent_on_an_altered_history(path):
    tamper(path, ("UPDATE sordina_entries SET entry = ? WHERE id = 2", (edited(path, 2, who="mallory@lab"),)))
    ledger = Ledger(path)
    with closing(sqlite3.connect(path)) as database:
        before = list(database.iterdump())
    for act in (
        lambda: ledger.reserve("patients", PureDP(0.1), what="x"),
        lambda: ledger.settle(6),
        lambda: ledger.release(6, why="x"),
        lambda: ledger.create("others", Budget(1, 1e-5)),
        lambda: ledger.spent("patients"),
        lambda: ledger.history(),
    ):
        with pytest.raises(LedgerCorrupt):
            act()
    with closing(sqlite3.connect(path)) as database:
        assert list(database.iterdump()) == before


def test_a_noted_head_shows_a_history_rewritten_as_a_whole(path):
    noted = Ledger(path).verify().hash
    rewrite(path, [edited(path, 1), edited(path, 2), edited(path, 3)])
    ledger = Ledger(path)
    ledger.verify()  # consistent in itself: without a noted head, undetectable
    with pytest.raises(LedgerCorrupt, match="does not contain the noted head"):
        ledger.verify(noted)


def test_a_noted_head_shows_an_older_copy_put_back(path, tmp_path):
    shutil.copy(path, tmp_path / "old.db")
    Ledger(path).reserve("patients", PureDP(1.0), what="d")
    noted = Ledger(path).verify().hash
    shutil.copy(tmp_path / "old.db", path)
    Ledger(path).verify()
    with pytest.raises(LedgerCorrupt, match="does not contain the noted head"):
        Ledger(path).verify(noted)


def test_a_history_that_went_on_still_contains_the_noted_head(path):
    noted = Ledger(path).verify().hash
    Ledger(path).settle(6)
    assert Ledger(path).verify(noted).count == 7


def test_a_damaged_file_is_reported(path):
    data = bytearray(path.read_bytes())
    data[4096:8192] = b"\xff" * 4096
    path.write_bytes(data)
    with pytest.raises(LedgerCorrupt):
        Ledger(path).verify()
