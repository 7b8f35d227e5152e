"""How the history is kept: two tables in any SQL database, one transaction per entry.

``sordina_entries`` holds the history, ``sordina_head`` one row with its length and last hash. Whoever appends first
takes the write lock (SQLite: ``BEGIN IMMEDIATE``; elsewhere: the lock that updating the head's row takes), reads and
checks the whole history, decides, and commits; so two processes never decide on the same past. SQLite runs with its
rollback journal and ``synchronous = EXTRA``: a process killed at any moment, or a power cut, leaves the entry whole or
absent, never half, and an entry that was reported is on the disk. (Network file systems without proper locks are no
place for a SQLite file; a team takes a server's URL.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection
from sqlalchemy.pool import NullPool

from sordina.accounting.ledger.entries import Entry, Head, History, link, unchain
from sordina.errors import InvalidInput, LedgerCorrupt, SordinaError

_TABLES = sa.MetaData()
_ENTRIES = sa.Table(
    "sordina_entries",
    _TABLES,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("entry", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
_HEAD = sa.Table(
    "sordina_head",
    _TABLES,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
_APPEND_ONLY = {
    "sqlite": [
        f"CREATE TRIGGER sordina_no_{verb.lower()} BEFORE {verb} ON sordina_entries "
        "BEGIN SELECT RAISE(ABORT, 'the ledger''s history is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE FUNCTION sordina_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the ledger''s history is append-only'; END $$",
        "CREATE TRIGGER sordina_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON sordina_entries "
        "FOR EACH STATEMENT EXECUTE FUNCTION sordina_append_only()",
    ],
}
"""Guards against accidents, where the database has them; against intent there is the chain."""


class Store:
    """A history in the database at ``where``: a path to a SQLite file, or any SQLAlchemy URL."""

    def __init__(self, where: str | Path, timeout: float) -> None:
        url = _url(where)
        self._sqlite = url.get_backend_name() == "sqlite"
        self._file = Path(str(url.database)).absolute() if self._sqlite else None
        self._timeout = timeout
        self.name = str(url.database) if self._sqlite else url.render_as_string(hide_password=True)
        self._engine = self._connected(url.set(database=str(self._file)) if self._sqlite else url)

    def _connected(self, url: URL) -> sa.Engine:
        options: dict[str, Any] = {"connect_args": {"timeout": self._timeout}} if self._sqlite else {}
        try:
            with self._explained():
                engine = sa.create_engine(url, poolclass=NullPool, hide_parameters=True, **options)
        except ImportError as error:
            raise InvalidInput(f"cannot open the ledger {self.name}: its driver is missing ({error}).") from error
        if self._sqlite:
            sa.event.listen(engine, "connect", _prepare_sqlite)
            sa.event.listen(engine, "begin", _begin_sqlite)
        return engine

    def read(self) -> History:
        """The whole history, checked against its chain."""
        self._require_file()
        with self._transaction(write=False) as connection:
            self._require_tables(connection)
            return _history(connection)

    def append(self, decide: Callable[[History], Entry], *, found: bool = False) -> Entry:
        """Write the entry that ``decide`` makes of the history, or nothing if it raises; ``found`` begins a ledger."""
        if not found:
            self._require_file()
        with self._transaction(write=True) as connection:
            if found:
                self._found(connection)
            self._require_tables(connection)
            connection.execute(sa.update(_HEAD).values(count=_HEAD.c.count))
            history = _history(connection)
            entry = decide(history)
            text = entry.text()
            after = Head(history.next_id, link(history.head.hash, text))
            connection.execute(sa.insert(_ENTRIES).values(id=after.count, entry=text, hash=after.hash))
            connection.execute(sa.update(_HEAD).values(count=after.count, hash=after.hash))
        return entry

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        options: dict[str, Any] = {"sordina_write": write}
        if not self._sqlite:  # a writer sees what was committed while it waited for the lock, a reader one moment
            options["isolation_level"] = "READ COMMITTED" if write else "SERIALIZABLE"
        with self._explained(), self._engine.connect() as plain:
            connection = plain.execution_options(**options)
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(1000 * self._timeout)}")
                yield connection

    def _require_file(self) -> None:
        if self._file and not self._file.exists():
            raise InvalidInput(f"there is no ledger at {self.name}. Make one with `sordina ledger create`.")

    def _require_tables(self, connection: Connection) -> None:
        if not self._exists(connection):
            raise InvalidInput(f"there is no ledger in {self.name}. Make one with `sordina ledger create`.")

    def _exists(self, connection: Connection) -> bool:
        """Whether the ledger's tables are there; half of them is a broken ledger."""
        tables = set(sa.inspect(connection).get_table_names())
        ours = tables & {_ENTRIES.name, _HEAD.name}
        if len(ours) == 1:
            raise LedgerCorrupt(f"the ledger {self.name} has lost one of its two tables.")
        if not ours and tables and self._sqlite:
            raise InvalidInput(f"{self.name} is a database, but not a ledger. Give the ledger a file of its own.")
        return bool(ours)

    def _found(self, connection: Connection) -> None:
        """Make the tables if there are none yet."""
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('sordina ledger'))")
        if self._exists(connection):
            return
        _TABLES.create_all(connection)
        for statement in _APPEND_ONLY.get(connection.dialect.name, []):
            connection.exec_driver_sql(statement)
        connection.execute(sa.insert(_HEAD).values(id=1, count=0, hash=Head().hash))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what a database complains about into one sentence."""
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            reason = " ".join(str(getattr(error, "orig", None) or error).split())
            if "locked" in reason or "lock timeout" in reason:
                raise SordinaError(f"the ledger {self.name} is in use by another process; try again.") from error
            if "malformed" in reason:
                raise LedgerCorrupt(f"the file of the ledger {self.name} is damaged ({reason}).") from error
            raise InvalidInput(f"cannot use {self.name} as a ledger: {reason}.") from error


def _url(where: str | Path) -> URL:
    """``where`` as a URL; refuses what cannot outlive the process."""
    text = str(where)
    if not text.strip():
        raise InvalidInput("a ledger needs a file path or a database URL, got an empty text.")
    try:
        url = sa.make_url(text) if "://" in text else URL.create("sqlite", database=text)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise InvalidInput("not a database URL for a ledger; write e.g. sqlite:///ledger.db, or a path.") from error
    if url.get_backend_name() != "sqlite":
        return url
    path = url.database or ":memory:"
    if path == ":memory:" or path.startswith("file:"):
        raise InvalidInput(f"a ledger must outlive the process, so {path!r} will not do: give a plain file path.")
    if Path(path).is_dir():
        raise InvalidInput(f"{path} is a folder; a ledger is a file in one.")
    return url


def _history(connection: Connection) -> History:
    heads = connection.execute(sa.select(_HEAD.c.count, _HEAD.c.hash)).all()
    if len(heads) != 1 or not isinstance(heads[0][0], int):
        raise LedgerCorrupt(f"the ledger must have exactly one head, but has {len(heads)}, or one that is no number.")
    rows = connection.execute(sa.select(_ENTRIES.c.id, _ENTRIES.c.entry, _ENTRIES.c.hash).order_by(_ENTRIES.c.id))
    return unchain(((row.id, row.entry, row.hash) for row in rows), Head(heads[0][0], heads[0][1]))


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Leave transactions to us, and survive a power cut after the journal is deleted."""
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous = EXTRA")


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("sordina_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
