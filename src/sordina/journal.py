"""A write-ahead journal: what may be spent is on the disk before it is spent.

One JSON line a record, each with a check sum of its own, so that a record is read whole or known to be unreadable. A
record always begins a line: what a crash or a full disk left of an earlier one never swallows the next. And what cannot
be read counts as spent: an unreadable stretch stands for as many claims as it could have held, of the largest size.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from sordina import private_files
from sordina.errors import InvalidInput

__all__ = ["BLOCK", "Journal"]


BLOCK = 25
"""No claim goes further than this many steps beyond the one before."""
_SHORTEST = 40
"""Bytes of the shortest record: an unreadable stretch holds no more records than fit into it."""
_CHECK = "check"


class Journal:
    """Claims of steps (or rounds) in a file. Only the holder of the folder's lock may write to it.

    Args:
        path: The file.
        claimed: Up to which step somebody may have gone, counting what could not be read.
        unreadable: How many stretches of the file could not be read.
    """

    def __init__(self, path: Path, claimed: int = 0, unreadable: int = 0) -> None:
        self.path = path
        self.claimed = claimed
        self.unreadable = unreadable

    @classmethod
    def open(cls, path: Path, *, block: int = BLOCK) -> Journal:
        """The journal at ``path``, or an empty one if there is no such file.

        Args:
            path: The file.
            block: The most steps that one claim in it went beyond the one before.
        """
        claimed, unreadable = 0, 0
        for line in private_files.read(path).split(b"\n") if path.exists() else []:
            if not line:
                continue
            record = unpack(line)
            if record is None:
                unreadable += 1
                claimed += block * (1 + len(line) // _SHORTEST)
            else:
                claimed = max(claimed, int(record.get("claimed", 0)))
        return cls(path, claimed, unreadable)

    def claim(self, step: int, last: int, *, block: int = BLOCK) -> None:
        """Make sure ``step`` is claimed, on the disk, before it is taken.

        Args:
            step: The step about to be taken.
            last: The plan's last step; nothing beyond it is claimed.
            block: How many steps to claim at once, at most `BLOCK`: fewer lose less in a crash, more write less often.
        """
        if step > last:
            raise InvalidInput(f"step {step} lies beyond the plan's {last}.")
        if step <= self.claimed:
            return
        ahead = min(step + max(1, min(block, BLOCK)) - 1, last)
        self.append({"claimed": ahead})
        self.claimed = ahead

    def append(self, record: dict[str, Any]) -> None:
        """Write ``record`` and wait until it is on the disk.

        Args:
            record: Plain data; ``claimed`` is read back as a claim.
        """
        private_files.append(self.path, (b"" if self._at_line_start() else b"\n") + pack(record))

    def _at_line_start(self) -> bool:
        try:
            with self.path.open("rb") as file:
                return not file.seek(0, 2) or (file.seek(-1, 2) >= 0 and file.read(1) == b"\n")
        except FileNotFoundError:
            return True


def pack(record: dict[str, Any]) -> bytes:
    """``record`` as one line that says whether it is whole.

    >>> unpack(pack({"claimed": 25}).rstrip())
    {'claimed': 25}
    >>> unpack(pack({"claimed": 25})[:-3]) is None
    True
    """
    return json.dumps({**record, _CHECK: _check(record)}).encode() + b"\n"


def unpack(line: bytes) -> dict[str, Any] | None:
    """The record in ``line``, or None if it is not whole."""
    try:
        record = json.loads(line)
        told = record.pop(_CHECK)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if isinstance(record, dict) and told == _check(record) else None


def _check(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
