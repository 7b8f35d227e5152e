"""How the history is kept: two tables in any SQL database, one transaction per entry.

``sordina_entries`` holds the history, ``sordina_head`` one row with its length and last hash. Whoever appends has
read and checked the whole history and decided on it without any lock; then takes the write lock (SQLite: ``BEGIN
IMMEDIATE``; elsewhere: the lock that updating the head's row takes), looks whether the head is still the one that was
decided on, and only then writes: so two processes never decide on the same past, and the lock is held for milliseconds,
whatever the decision takes. ``sordina_pasts`` holds the composition of a data set's spends (`costs`): a convenience
that the chain binds, and that may be lost.

SQLite runs with its rollback journal and ``synchronous = EXTRA``: a process killed at any moment, or a power cut,
leaves the entry whole or absent, never half, and an entry that was reported is on the disk. (Network file systems
without proper locks are no place for a SQLite file; a team takes a server's URL.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection
from sqlalchemy.pool import NullPool

from sordina.accounting.ledger.entries import Entry, Head, History, link, unchain, without_secrets
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
_PASTS = sa.Table(
    "sordina_pasts",
    _TABLES,
    sa.Column("dataset", sa.String(200), primary_key=True),
    sa.Column("composed", sa.LargeBinary, nullable=False),
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
        self.timeout = timeout
        self._known: dict[str, Entry] = {}
        self._secrets = _secrets(url)
        self.name = without_secrets(str(url.database)) if self._sqlite else _shown(url)
        self._engine = self._connected(url.set(database=str(self._file)) if self._sqlite else url)

    def _connected(self, url: URL) -> sa.Engine:
        options: dict[str, Any] = {"connect_args": {"timeout": self.timeout}} if self._sqlite else {}
        try:
            with self._explained():
                engine = sa.create_engine(url, poolclass=NullPool, hide_parameters=True, **options)
        except ImportError as error:
            raise InvalidInput(
                f"cannot open the ledger {self.name}: its driver is missing ({error}). For PostgreSQL: "
                "pip install 'sordina[postgresql]', and a URL that begins with postgresql+psycopg://."
            ) from None
        if self._sqlite:
            sa.event.listen(engine, "connect", _prepare_sqlite)
            sa.event.listen(engine, "begin", _begin_sqlite)
        return engine

    def read(self) -> tuple[History, dict[str, bytes]]:
        """The whole history, checked against its chain, and the compositions stored beside it, unchecked."""
        self._require_file()
        with self._transaction(write=False) as connection:
            self._require_tables(connection)
            history = self._history(connection)
            pasts: dict[str, bytes] = {}
            if any(entry.past for entry in history.entries) and sa.inspect(connection).has_table(_PASTS.name):
                pasts = {row.dataset: row.composed for row in connection.execute(sa.select(_PASTS))}
            return history, pasts

    def found(self) -> None:
        """Make the tables if there are none yet."""
        with self._transaction(write=True) as connection:
            self._found(connection)

    def append(self, entry: Entry, decided_on: Head, past: bytes | None = None) -> bool:
        """Write ``entry``, unless the history has gone on since.

        Args:
            entry: What to write.
            decided_on: The end of the history that the entry was made for.
            past: The composition of the data set's spends up to the entry, if it holds its digest.

        Returns:
            False if another entry came first: nothing was written, and the decision has to be made again.
        """
        self._require_file()
        text = entry.text()
        after = Head(decided_on.count + 1, link(decided_on.hash, text))
        with self._transaction(write=True) as connection:
            self._require_tables(connection)
            connection.execute(sa.update(_HEAD).values(count=_HEAD.c.count))
            if _head(connection) != decided_on:
                return False
            connection.execute(sa.insert(_ENTRIES).values(id=after.count, entry=text, hash=after.hash))
            connection.execute(sa.update(_HEAD).values(count=after.count, hash=after.hash))
            if past is not None:
                _PASTS.create(connection, checkfirst=True)
                connection.execute(sa.delete(_PASTS).where(_PASTS.c.dataset == entry.dataset))
                connection.execute(sa.insert(_PASTS).values(dataset=entry.dataset, composed=past))
        return True

    def _history(self, connection: Connection) -> History:
        head = _head(connection)
        rows = connection.execute(sa.select(_ENTRIES.c.id, _ENTRIES.c.entry, _ENTRIES.c.hash).order_by(_ENTRIES.c.id))
        return unchain((tuple(row) for row in rows.all()), head, self._known)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        options: dict[str, Any] = {"sordina_write": write}
        if not self._sqlite:  # a writer sees what was committed while it waited for the lock, a reader one moment
            options["isolation_level"] = "READ COMMITTED" if write else "SERIALIZABLE"
        with self._explained(), self._engine.connect() as plain:
            connection = plain.execution_options(**options)
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(1000 * self.timeout)}")
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
            reason = without_secrets(reason, *self._secrets).rstrip(".")
            if "locked" in reason or "lock timeout" in reason:
                raise SordinaError(f"the ledger {self.name} is in use by another process; try again.") from None
            if "malformed" in reason:
                raise LedgerCorrupt(f"the file of the ledger {self.name} is damaged ({reason}).") from None
            raise InvalidInput(f"cannot use {self.name} as a ledger: {reason}.") from None


def _url(where: str | Path) -> URL:
    """``where`` as a URL; refuses what cannot outlive the process."""
    text = str(where)
    if not text.strip():
        raise InvalidInput("a ledger needs a file path or a database URL, got an empty text.")
    try:
        url = sa.make_url(text) if "://" in text else URL.create("sqlite", database=text)
    except (sa.exc.ArgumentError, ValueError):
        raise InvalidInput("not a database URL for a ledger; write e.g. sqlite:///ledger.db, or a path.") from None
    if url.get_backend_name() != "sqlite":
        return url
    path = url.database or ":memory:"
    if path == ":memory:" or path.startswith("file:"):
        raise InvalidInput(f"a ledger must outlive the process, so {path!r} will not do: give a plain file path.")
    if Path(path).is_dir():
        raise InvalidInput(f"{path} is a folder; a ledger is a file in one.")
    return url


def _secrets(url: URL) -> tuple[str, ...]:
    """What of ``url`` nobody may read: the password, and the values of all options, which may be passwords too."""
    values = [part for value in url.query.values() for part in ((value,) if isinstance(value, str) else value)]
    return tuple(text for text in (str(url.password or ""), *values) if len(text) > 2)


def _shown(url: URL) -> str:
    """``url`` without what nobody may read."""
    options = dict.fromkeys(url.query, "***")
    return without_secrets(url.set(query=options).render_as_string(hide_password=True), *_secrets(url))


def _head(connection: Connection) -> Head:
    heads = connection.execute(sa.select(_HEAD.c.count, _HEAD.c.hash)).all()
    if len(heads) != 1 or not isinstance(heads[0][0], int):
        raise LedgerCorrupt(f"the ledger must have exactly one head, but has {len(heads)}, or one that is no number.")
    return Head(heads[0][0], heads[0][1])


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Leave transactions to us, and survive a power cut after the journal is deleted."""
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous = EXTRA")


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("sordina_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
