"""Every kill point of every write: a process dies before, in the middle of, or after its k-th change of a disk.

`storm` runs an action again and again. The k-th time it dies at the k-th change, in one of three ways (before it, with
half of the bytes written, after it); then the survivor resumes, without a kill, and the caller checks what is left. The
kill is an exception that nothing catches, raised inside the operating system's own calls: open files close, locks go,
and no code of ours runs after it, as with a power cut.
"""

import contextlib
import os
from dataclasses import dataclass


class PowerCut(BaseException):
    """Not an Exception: no handler of ours may see it."""


@dataclass
class Meter:
    """Counts changes, and cuts the power at one of them."""

    deadly: int | None = None
    manner: str = "before"
    seen: int = 0
    dead: bool = False

    def change(self, do, half=None):
        """One change of the disk."""
        if self.dead:
            raise PowerCut
        if self.seen == self.deadly:
            self.dead = True
            if self.manner == "after":
                do()
            elif self.manner == "half" and half is not None:
                half()
            raise PowerCut
        self.seen += 1
        return do()


@contextlib.contextmanager
def interposed(meter, root):
    """All changes below ``root`` by ``os.write``, ``os.replace`` and ``os.unlink`` pass by the meter."""
    write, rename, unlink = os.write, os.replace, os.unlink
    where = str(root)

    def ours(path):
        return str(path).startswith(where)

    def handle_of(handle):
        try:
            return os.readlink(f"/proc/self/fd/{handle}")
        except OSError:
            return ""

    def writing(handle, data):
        if not ours(handle_of(handle)):
            return write(handle, data)
        return meter.change(lambda: write(handle, data), lambda: write(handle, bytes(data)[: len(data) // 2]))

    def renaming(source, target, **options):
        if not ours(target):
            return rename(source, target, **options)
        return meter.change(lambda: rename(source, target, **options))

    def unlinking(path, **options):
        if not ours(path):
            return unlink(path, **options)
        return meter.change(lambda: unlink(path, **options))

    os.write, os.replace, os.unlink = writing, renaming, unlinking
    try:
        yield
    finally:
        os.write, os.replace, os.unlink = write, rename, unlink


def points(action, root):
    """How many changes ``action`` makes below ``root``."""
    meter = Meter()
    with interposed(meter, root):
        action()
    return meter.seen


def killed(action, root, deadly, manner):
    """Whether ``action`` was killed at change ``deadly``; False if it ended before."""
    meter = Meter(deadly, manner)
    with interposed(meter, root):
        try:
            action()
        except PowerCut:
            return True
    return False
