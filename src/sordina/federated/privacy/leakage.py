"""What a client has revealed over all the runs it took part in, in measures that add up.

Runs differ in noise, radius and length, so a limit per run, per noise multiplier or per radius is no limit. These sums
do not depend on any of them:

===================  =================================================  ======================================
measure              one participation adds                             all of them together are
===================  =================================================  ======================================
``gaussian``         ``1 / z^2`` for noise of z times the sensitivity   one Gaussian with ``z = sum^-1/2``
                     of a whole client (local privacy)                  (`accounting.gaussian`)
``record``           the same, where only a *record* is hidden          as above, for one record
``sampled``          steps of DP-SGD at the client, by sampling rate    their composition, by the accountant
                     and noise, where only a *record* is hidden
``per_distance``     ``n / (nu R)``: epsilon per unit of distance       models d apart are told apart by at
                     (metric privacy, public radius R)                  most ``sum d``
``heuristic``        ``n / nu`` at the paper's secret radius            no bound (errata 4), but counted
``clear``            1 where nothing is hidden from the server          no bound
===================  =================================================  ======================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from sordina.accounting import Composed, Event, Gaussian, PoissonSampled, Repeated, accountant
from sordina.types import Adjacency

_SUMS = ("gaussian", "record", "per_distance", "heuristic", "clear")
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
        if not parts:
            return 0.0
        adjacency = Adjacency.ADD_REMOVE if self.sampled else Adjacency.REPLACE_ONE
        return accountant("pld").epsilon(Composed(tuple(parts)) if len(parts) > 1 else parts[0], delta, adjacency)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        sums: dict[str, Any] = {name: str(getattr(self, name)) for name in _SUMS}
        return sums | ({"sampled": [list(one) for one in self.sampled]} if self.sampled else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Leakage:
        """What `to_dict` wrote; anything else raises ValueError, KeyError or TypeError."""
        values: dict[str, Any] = {name: Fraction(str(data[name])) for name in _SUMS}
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
