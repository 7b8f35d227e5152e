"""The account a client keeps of its own leakage; it lives with the client and outlives its process.

Costs add up (theorem 3 of 000; errata 5). They are kept as exact fractions: six participations at 2/5 are 12/5,
neither above nor below a limit of 2.4. A client charges its account *before* anything leaves it, so a crash can only
over-report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from sordina import private_files
from sordina.errors import BudgetRefused, InvalidInput
from sordina.run_folder import read_json
from sordina.types import format_up


def exact(value: float | Fraction) -> Fraction:
    """The number a person wrote: 0.4 is 2/5, not the nearest binary fraction.

    >>> exact(2.4) == 6 * exact(0.4)
    True
    """
    if isinstance(value, Fraction):
        return value
    if not math.isfinite(value):
        raise InvalidInput(f"a leakage must be finite, got {value}.")
    return Fraction(repr(float(value)))


@dataclass
class ClientAccount:
    """What one client has leaked, and the most it is willing to leak (None: no limit).

    >>> account = ClientAccount(limit=exact(0.8))
    >>> account.charge(exact(0.4)); account.charge(exact(0.4))
    >>> account.allows(exact(0.4)), float(account.spent), account.participations
    (False, 0.8, 2)
    """

    limit: Fraction | None = None
    spent: Fraction = field(default_factory=Fraction)
    participations: int = 0
    path: Path | None = field(default=None, compare=False)
    """Where the account is kept; every charge is written there before it counts."""

    @classmethod
    def kept(cls, path: Path, limit: Fraction | None = None) -> ClientAccount:
        """The account at ``path``, or a new one there; a ``limit`` given now replaces the one on file."""
        account = cls.load(path) if path.exists() else cls(limit)
        account.limit, account.path = (limit if limit is not None else account.limit), path
        return account

    def allows(self, cost: Fraction) -> bool:
        """Whether one more participation at ``cost`` stays within the limit."""
        return self.limit is None or self.spent + cost <= self.limit

    def charge(self, cost: Fraction) -> None:
        """Write down a participation that is about to happen; refuses one the limit forbids."""
        if cost < 0:
            raise InvalidInput(f"a leakage is never negative, got {float(cost)}.")
        if not self.allows(cost):
            raise BudgetRefused(
                f"this participation leaks {format_up(float(cost))} and would pass the client's limit of "
                f"{float(self.limit or 0):.4g} ({format_up(float(self.spent))} leaked so far): withhold the update."
            )
        self.spent += cost
        self.participations += 1
        if self.path is not None:
            self.save(self.path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        limit = None if self.limit is None else str(self.limit)
        return {"limit": limit, "spent": str(self.spent), "participations": self.participations}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ClientAccount:
        """What `to_dict` wrote; anything else raises ValueError, KeyError, TypeError or ZeroDivisionError."""
        limit = None if data["limit"] is None else Fraction(data["limit"])
        account = cls(limit, Fraction(data["spent"]), int(data["participations"]))
        if account.spent < 0 or account.participations < 0:
            raise ValueError("a negative leakage")
        return account

    def save(self, path: Path) -> None:
        """Write the account, for its owner only, so that a crash leaves the old or the new one."""
        private_files.write(path, json.dumps(self.to_dict()).encode())

    @classmethod
    def load(cls, path: Path) -> ClientAccount:
        """Read an account; a damaged one is refused, since a fresh start would forget what was leaked."""
        try:
            return cls.from_dict(read_json(path))
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise InvalidInput(f"{path} is not a client account ({error}); restore it, do not start afresh.") from error
