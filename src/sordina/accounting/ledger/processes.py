"""Which process made a reservation, and whether it still runs: told for processes of this machine only."""

from __future__ import annotations

import os
import socket
from enum import Enum
from pathlib import Path


class Life(str, Enum):
    """What is known of the process that made a reservation."""

    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


def this_process() -> str:
    """This process: its host, its number, and when it started, so that another of the same number is not taken for it.

    >>> life_of(this_process())
    <Life.RUNNING: 'running'>
    """
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}"


def life_of(process: str) -> Life:
    """Whether the process that `this_process` told of still runs.

    Args:
        process: What was recorded; empty for a reservation that no running process holds.
    """
    host, _, rest = process.partition("/")
    number, _, started = rest.partition("/")
    if host != socket.gethostname() or not number.isdigit():
        return Life.UNKNOWN
    found = _started(int(number))
    return Life.RUNNING if found and found == started else Life.ENDED


def _started(number: int) -> str:
    """When a process started, in the system's own units; empty if it does not run."""
    try:
        text = Path(f"/proc/{number}/stat").read_text()
        state, *rest = text.rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    except (OSError, IndexError):
        pass
    if Path("/proc/self").exists():
        return ""
    try:
        os.kill(number, 0)
    except (OSError, OverflowError):
        return ""
    return "there"
