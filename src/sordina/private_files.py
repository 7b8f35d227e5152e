"""Files that only their owner may read, written whole or not at all, and never through a trap.

A run's folder may lie where others can write, or hold leftovers of a crash: symbolic links, pipes and folders in the
way are refused (a pipe would hang the reader), and every refusal is one line that names the file. What is written is
on the disk when the call returns, file and folder entry both.

=================  ====================================================================================
`make_folder`      a folder of mode 0700, durable
`write`            bytes, or what a callable writes into an open file: temporary file, sync, rename, sync
`append`           add bytes to a file, synced
`read`             the bytes of a regular file
`exclusive`        an operating system's lock on a file; it dies with the process that holds it
=================  ====================================================================================
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeAlias

from sordina.errors import InvalidInput

Content: TypeAlias = bytes | Callable[[BinaryIO], object]
"""Bytes, or a callable that writes them into a file opened for it."""
_TEMPORARY = ".part"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
"""What a system says of a lock that another holds."""
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


class FolderInUse(InvalidInput):
    """A lock that another holds."""


def make_folder(path: Path) -> None:
    """Make ``path`` and what is missing above it, for its owner only; a folder that is there stays as it is.

    Args:
        path: The folder. A file, pipe or dangling link in its place is refused.
    """
    with explained("make the folder", path):
        if path.is_dir():
            return
        missing = [path, *(parent for parent in path.parents if not parent.exists())]
        for folder in reversed(missing):
            _unless_there(folder)
            sync_folder(folder.parent)


def write(path: Path, content: Content) -> None:
    """Put ``content`` at ``path``: a reader sees the old file or the new one, also after a power cut.

    Args:
        path: The file; a link, pipe or folder of that name is refused.
        content: Bytes, or a callable that is given a binary file to write to.
    """
    temporary = path.with_name(path.name + _TEMPORARY)
    with explained("write", path):
        _refuse_trap(path)
        _unlink(temporary)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600)
        with _WatchedFile(handle, "wb") as raw:
            _fill(raw, content)
            os.fsync(handle)
        os.replace(temporary, path)
        sync_folder(path.parent)


def append(path: Path, content: bytes) -> None:
    """Add ``content`` to the end of ``path`` and wait until it is on the disk.

    Args:
        path: The file; made for its owner only if it is missing.
        content: What to add. If this raises, any part of it may have been written.
    """
    with explained("write", path):
        _refuse_trap(path)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NO_LINK, 0o600)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)


def open_to_append(path: Path) -> TextIO:
    """The file ``path`` open for more lines of text, unsynced: for what a run could do without.

    Args:
        path: The file; made for its owner only if it is missing.
    """
    with explained("write", path):
        _refuse_trap(path)
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NO_LINK, 0o600), "a", encoding="utf-8")


def read(path: Path, *, at_most: int | None = None, follow: bool = True) -> bytes:
    """The bytes of ``path``.

    Args:
        path: A regular file, or a link to one; a pipe or folder is refused at once instead of waited for.
        at_most: Refuse a larger file.
        follow: Whether ``path`` may be a link; refused otherwise.
    """
    with explained("read", path):
        if not follow and path.is_symlink():
            raise InvalidInput(f"{path} is a symbolic link.")
        handle = os.open(path, os.O_RDONLY | _NO_WAIT | (0 if follow else _NO_LINK))
        with os.fdopen(handle, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise InvalidInput(f"{path} is not a regular file.")
            if at_most is not None and facts.st_size > at_most:
                raise InvalidInput(f"{path} is larger than the {at_most} bytes that such a file may have.")
            return file.read()


def sha256(path: Path) -> str:
    """The SHA-256 of the file at ``path``, in hexadecimal."""
    with explained("read", path), os.fdopen(os.open(path, os.O_RDONLY | _NO_WAIT), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInput(f"{path} is not a regular file.")
        return _digest(file)


def remove(path: Path) -> None:
    """Take the file at ``path`` away, if it is there, durably."""
    with explained("remove", path):
        _unlink(path)
        sync_folder(path.parent)


def exclusive(path: Path) -> BinaryIO:
    """Lock the file at ``path`` for as long as the returned file is open; `FolderInUse` if it is locked already.

    Another process and a second call in this process are refused alike. The lock is the operating system's, so it ends
    with the process, however that ends; a lock file that lies around locks nothing.

    Args:
        path: The lock file, made if it is missing.
    """
    with explained("lock", path):
        _refuse_trap(path)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600), "r+b", buffering=0)
    try:
        _lock(file)
    except OSError as error:
        if error.errno not in _HELD:
            file.close()
            raise InvalidInput(
                f"cannot lock {path}: {error.strerror}. Choose a folder on a disk that has locks."
            ) from error
        holder = file.read(40).decode(errors="replace").strip()
        file.close()
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise FolderInUse(f"{path.parent} is in use by {who}: wait for it to end, or choose another folder.") from error
    with explained("lock", path):
        file.truncate(0)
        file.write(f"{os.getpid()}\n".encode())
    return file


if sys.platform == "win32":

    def _lock(file: BinaryIO) -> None:
        import msvcrt

        file.seek(1 << 30)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        file.seek(0)
else:

    def _lock(file: BinaryIO) -> None:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync_folder(path: Path) -> None:
    """Wait until the names in the folder ``path`` are on the disk, where the system can say so."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn what the operating system complains about into one line (exit code 2).

    Args:
        doing: The verb, for "cannot ... PATH".
        path: What it was done to.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InvalidInput(f"cannot {doing} {path}: {reason}.") from error


def _unless_there(folder: Path) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise


def _unlink(path: Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _refuse_trap(path: Path) -> None:
    """Refuse to write where something other than a regular file lies."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a special file"
        raise InvalidInput(f"cannot write {path}: {kind} is in the way. Move it away, or choose another folder.")


class _WatchedFile(io.FileIO):
    """A file that remembers why a write failed: who writes through C code may get another error for it."""

    failure: OSError | None = None

    def write(self, content: Any) -> int:
        """Write what fits."""
        try:
            return os.write(self.fileno(), content)
        except OSError as error:
            self.failure = error
            raise


def _fill(raw: _WatchedFile, content: Content) -> None:
    file = io.BufferedWriter(raw, 1 << 20)
    try:
        if isinstance(content, bytes):
            file.write(content)
        else:
            content(file)
        file.flush()
    except Exception:
        if raw.failure is not None:
            raise raw.failure from None
        raise
    finally:
        if raw.failure is None:
            file.detach()


def _digest(file: BinaryIO) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()
