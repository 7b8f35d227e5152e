"""A write-ahead journal of steps: what may have been spent is on disk before it is spent.

Before a block of steps the journal says how far the run may now go. A run that is killed, at whatever moment, resumes
knowing an upper bound on the steps whose results somebody may have seen; these count as spent, so the whole costs
what was planned and never more than was booked.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from sordina.errors import InvalidInput

BLOCK = 25


class Journal:
    """Claims of steps in a file, one JSON line each, synced to disk."""

    def __init__(self, path: Path, claimed: int = 0) -> None:
        self.path = path
        self.claimed = claimed

    @classmethod
    def open(cls, path: Path) -> Journal:
        """The journal at ``path``; a torn last line (a crash while writing) is ignored: its step was not taken."""
        lines = path.read_text().splitlines() if path.exists() else []
        return cls(path, max((_claimed(line) for line in lines), default=0))

    def claim(self, step: int, last: int) -> None:
        """Make sure ``step`` is claimed; claims a block ahead, but not beyond ``last``."""
        if step <= self.claimed:
            return
        if step > last:
            raise InvalidInput(f"step {step} lies beyond the plan's {last}.")
        self.claimed = min(step + BLOCK - 1, last)
        with self.path.open("a") as file:
            file.write(json.dumps({"claimed": self.claimed}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _claimed(line: str) -> int:
    try:
        return int(json.loads(line)["claimed"])
    except (ValueError, KeyError, TypeError):
        return 0
