"""A process that dies, or a disk that is full, at the n-th thing it does to the disk: without a process.

Everything Sordina writes goes through `sordina.private_files` and the ledger's `Store`. Here both count what they are
asked for. At the chosen moment a `Killed` is raised, a write leaves its first half, and from then on nothing reaches
the disk any more: handlers of exceptions run, as they would not in a killed process, but cannot change anything.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sordina import private_files
from sordina.accounting.ledger.store import Store
from sordina.errors import InvalidInput


class Killed(BaseException):
    """The end of a simulated process."""


class Disk:
    """Counts what is done; dies, or is full, at number ``at`` (from 1; 0 never)."""

    def __init__(self, at: int = 0, *, full: bool = False) -> None:
        self.at, self.full = at, full
        self.done, self.dead = 0, False

    def touch(self) -> bool:
        """Count one thing; true at the moment of death."""
        if self.dead:
            self._end()
        self.done += 1
        self.dead = self.done == self.at
        return self.dead

    def _end(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise Killed

    def before(self) -> None:
        """Something that happens or not."""
        if self.touch():
            self._end()


class _System:
    """``os`` with a disk that counts."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, handle: int, content: Any) -> int:
        if self._disk.touch():
            os.write(handle, bytes(content)[: len(content) // 2])
            self._disk._end()
        return os.write(handle, content)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            self._disk.before()
        return os.open(path, flags, mode)

    def fsync(self, handle: int) -> None:
        self._disk.before()
        os.fsync(handle)

    def replace(self, source: Any, target: Any) -> None:
        self._disk.before()
        os.replace(source, target)

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        self._disk.before()
        os.mkdir(path, mode)

    def unlink(self, path: Any) -> None:
        if os.path.lexists(path):
            self._disk.before()
        os.unlink(path)


@contextmanager
def dying(disk: Disk) -> Iterator[Disk]:
    """Everything inside uses ``disk``."""
    append = Store.append

    def counted(store: Store, *args: Any, **options: Any) -> Any:
        try:
            disk.before()
            entry = append(store, *args, **options)
            disk.before()
        except OSError as error:
            raise InvalidInput(f"cannot use {store.name} as a ledger: database or disk is full.") from error
        return entry

    private_files.os, Store.append = _System(disk), counted  # type: ignore[assignment,method-assign]
    try:
        yield disk
    finally:
        private_files.os, Store.append = os, append  # type: ignore[method-assign]
