"""What a client has revealed over all the runs it took part in, in measures that add up.

Runs differ in noise, radius and length, so a limit per run, per noise multiplier or per radius is no limit. These sums
do not depend on any of them:

===================  =================================================  ======================================
measure              one participation adds                             all of them together are
===================  =================================================  ======================================
``gaussian``         ``1 / z^2`` for noise of z times the sensitivity   one Gaussian with ``z = sum^-1/2``
                     of a whole client (local privacy)                  (`accounting.gaussian`)
``record``           the same, where only a *record* is hidden          as above, for one record
``per_distance``     ``n / (nu R)``: epsilon per unit of distance       models d apart are told apart by at
                     (metric privacy, public radius R)                  most ``sum d``
``heuristic``        ``n / nu`` at the paper's secret radius            no bound (errata 4), but counted
``clear``            1 where nothing is hidden from the server          no bound
===================  =================================================  ======================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from sordina.accounting import Gaussian, accountant
from sordina.types import Adjacency

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

    def __add__(self, other: Leakage) -> Leakage:
        sums = {one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        return Leakage(**{name: _short(value) for name, value in sums.items()})

    def epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` of all participations under Gaussian noise, for what each of them hides.

        Args:
            delta: The client's own delta, over everything.
        """
        total = self.gaussian + self.record
        if not total:
            return 0.0
        multiplier = math.nextafter(math.nextafter(1 / math.sqrt(float(total)), 0.0), 0.0)
        return accountant("pld").epsilon(Gaussian(multiplier), delta, Adjacency.REPLACE_ONE)

    def to_dict(self) -> dict[str, str]:
        """Plain data."""
        return {one.name: str(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Leakage:
        """What `to_dict` wrote; anything else raises ValueError, KeyError or TypeError."""
        values = {one.name: Fraction(str(data[one.name])) for one in fields(cls)}
        if any(value < 0 for value in values.values()):
            raise ValueError("a negative leakage")
        return cls(**values)


def _short(value: Fraction) -> Fraction:
    return value if value.denominator <= _FINEST else Fraction(math.ceil(value * _FINEST), _FINEST)
