"""The account a client keeps of its own leakage, in measures that add up over all its runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

from sordina import private_files
from sordina.accounting import ApproximateDP, Composed, Event, Gaussian, PoissonSampled, Repeated, accountant
from sordina.errors import BudgetRefused, InvalidInput
from sordina.privacy import Adjacency, format_up
from sordina.run_folder import read_json

# The account a client keeps of its own leakage; it lives with the client and outlives its process.
#
# Costs add up (theorem 3 of 000; errata 5). They are kept as exact fractions: six participations at 2/5 are 12/5,
# neither above nor below a limit of 2.4. A client charges its account *before* anything leaves it, so a crash can only
# over-report.


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


# What a client has revealed over all the runs it took part in, in measures that add up.
#
# Runs differ in noise, radius and length, so a limit per run, per noise multiplier or per radius is no limit. These
# sums do not depend on any of them:
#
# ===================  =================================================  ======================================
# measure              one participation adds                             all of them together are
# ===================  =================================================  ======================================
# ``gaussian``         ``1 / z^2`` for noise of z times the sensitivity   one Gaussian with ``z = sum^-1/2``
#                      of a whole client (local privacy)                  (`accounting.gaussian`)
# ``record``           the same, where only a *record* is hidden          as above, for one record
# ``sampled``          steps of DP-SGD at the client, by sampling rate    their composition, by the accountant
#                      and noise, where only a *record* is hidden
# ``per_distance``     ``n / (nu R)``: epsilon per unit of distance       models d apart are told apart by at
#                      (metric privacy, public radius R)                  most ``sum d``
# ``heuristic``        ``n / nu`` at the paper's secret radius            no bound (errata 4), but counted
# ``clear``            1 where nothing is hidden from the server          no bound
# ``failure``          the chance that what hides it fails, by draws      a part of the client's delta
#                      that do not depend on data
# ===================  =================================================  ======================================

_SUMS = ("gaussian", "record", "per_distance", "heuristic", "clear", "failure")
_LATER = {"failure"}
"""Sums that older accounts do not have."""
Steps: TypeAlias = tuple[float, float, int]
"""Sampling rate, noise multiplier, and how many such steps."""
_FINEST = 10**24
"""A sum whose denominator grows beyond is rounded up to a multiple of its inverse, so that accounts stay small."""


@dataclass(frozen=True)
class Leakage:
    """Sums over participations; see the head of this file.

    >>> twice = Leakage(gaussian=Fraction(1, 4)) + Leakage(gaussian=Fraction(3, 4))
    >>> once = accountant("pld").epsilon(Gaussian(1.0), 1e-5, Adjacency.REPLACE_ONE)
    >>> twice.gaussian, math.isclose(twice.epsilon(1e-5), once, rel_tol=1e-9)
    (Fraction(1, 1), True)
    """

    gaussian: Fraction = Fraction()
    record: Fraction = Fraction()
    per_distance: Fraction = Fraction()
    heuristic: Fraction = Fraction()
    clear: Fraction = Fraction()
    failure: Fraction = Fraction()
    sampled: tuple[Steps, ...] = ()

    def __add__(self, other: Leakage) -> Leakage:
        sums = {name: _short(getattr(self, name) + getattr(other, name)) for name in _SUMS}
        steps: dict[tuple[float, float], int] = {}
        for rate, noise, count in (*self.sampled, *other.sampled):
            steps[rate, noise] = steps.get((rate, noise), 0) + count
        return Leakage(**sums, sampled=tuple((rate, noise, count) for (rate, noise), count in sorted(steps.items())))

    def epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` of all participations under Gaussian noise, for what each of them hides.

        Args:
            delta: The client's own delta, over everything.
        """
        total = self.gaussian + self.record
        parts: list[Event] = [
            Repeated(PoissonSampled(rate, Gaussian(noise)), count) for rate, noise, count in self.sampled
        ]
        if total:
            parts.append(Gaussian(math.nextafter(math.nextafter(1 / math.sqrt(float(total)), 0.0), 0.0)))
        if self.failure >= exact(delta):
            return math.inf
        if not parts:
            return 0.0
        if self.failure:
            parts.append(ApproximateDP(0.0, math.nextafter(float(self.failure), 1.0)))
        adjacency = Adjacency.ADD_REMOVE if self.sampled else Adjacency.REPLACE_ONE
        return accountant("pld").epsilon(Composed(tuple(parts)) if len(parts) > 1 else parts[0], delta, adjacency)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        sums: dict[str, Any] = {name: str(getattr(self, name)) for name in _SUMS}
        return sums | ({"sampled": [list(one) for one in self.sampled]} if self.sampled else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Leakage:
        """What `to_dict` wrote; anything else raises ValueError, KeyError or TypeError."""
        old = dict.fromkeys(_LATER, "0")
        values: dict[str, Any] = {name: Fraction(str((old | dict(data))[name])) for name in _SUMS}
        sampled = tuple(_steps(*one) for one in data.get("sampled", ()))
        if any(value < 0 for value in values.values()):
            raise ValueError("a negative leakage")
        return cls(**values, sampled=sampled)


def _steps(rate: Any, noise: Any, count: Any) -> Steps:
    """As an account tells them; anything that is no such step raises ValueError."""
    if not (0 < float(rate) <= 1 and 0 < float(noise) < math.inf and int(count) == count >= 1):
        raise ValueError("steps that cannot be")
    return float(rate), float(noise), int(count)


def _short(value: Fraction) -> Fraction:
    return value if value.denominator <= _FINEST else Fraction(math.ceil(value * _FINEST), _FINEST)
