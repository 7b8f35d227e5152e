"""What a client has revealed over all the runs it took part in, in measures that add up.

Runs differ in noise, radius and length, so a limit per run, per noise multiplier or per radius is no limit. These sums
do not depend on any of them:

===================  =================================================  ======================================
measure              one participation adds                             all of them together are
===================  =================================================  ======================================
``gaussian``         ``1 / z^2`` for noise of z times the sensitivity   one Gaussian with ``z = sum^-1/2``
                     of a whole client (local privacy)                  (`accounting.gaussian`)
``record``           the same, where only a *record* is hidden          as above, for one record
``sampled``          Renyi divergences at `ORDERS`, where only a        the same divergences
                     *record* is hidden by DP-SGD at the client
``per_distance``     ``n / (nu R)``: epsilon per unit of distance       models d apart are told apart by at
                     (metric privacy, public radius R)                  most ``sum d``
``heuristic``        ``n / nu`` at the paper's secret radius            no bound (errata 4), but counted
``clear``            1 where nothing is hidden from the server          no bound
===================  =================================================  ======================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from sordina.accounting import Event, Gaussian, accountant
from sordina.accounting.normal import normal_form
from sordina.accounting.rdp import curve, epsilon_from
from sordina.types import Adjacency

ORDERS = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0, 128.0)
"""Of ``sampled``: written into accounts, so never changed."""
_SUMS = ("gaussian", "record", "per_distance", "heuristic", "clear")

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
    sampled: tuple[Fraction, ...] = ()

    @classmethod
    def of_event(cls, event: Event) -> Leakage:
        """What an event that hides a record costs, in divergences.

        Args:
            event: What ran, such as steps of DP-SGD; add/remove neighbours.
        """
        found = curve(normal_form(event), Adjacency.ADD_REMOVE, np.array(ORDERS))
        return cls(sampled=tuple(_short(Fraction(math.nextafter(float(one), math.inf))) for one in found))

    def __add__(self, other: Leakage) -> Leakage:
        sums = {name: _short(getattr(self, name) + getattr(other, name)) for name in _SUMS}
        both = [one.sampled for one in (self, other) if one.sampled]
        return Leakage(**sums, sampled=tuple(_short(sum(pair, Fraction())) for pair in zip(*both, strict=True)))

    def epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` of all participations under Gaussian noise, for what each of them hides.

        Args:
            delta: The client's own delta, over everything.
        """
        total = self.gaussian + self.record
        if self.sampled:
            orders = np.array(ORDERS)
            divergences = np.array([float(one) for one in self.sampled]) + orders * float(total) / 2
            return epsilon_from(orders, np.nextafter(divergences, np.inf), delta)
        if not total:
            return 0.0
        multiplier = math.nextafter(math.nextafter(1 / math.sqrt(float(total)), 0.0), 0.0)
        return accountant("pld").epsilon(Gaussian(multiplier), delta, Adjacency.REPLACE_ONE)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        sums: dict[str, Any] = {name: str(getattr(self, name)) for name in _SUMS}
        return sums | ({"sampled": [str(one) for one in self.sampled]} if self.sampled else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Leakage:
        """What `to_dict` wrote; anything else raises ValueError, KeyError or TypeError."""
        values: dict[str, Any] = {name: Fraction(str(data[name])) for name in _SUMS}
        sampled = _divergences(data.get("sampled", ()))
        if any(value < 0 for value in (*values.values(), *sampled)):
            raise ValueError("a negative leakage")
        return cls(**values, sampled=sampled)


def _divergences(told: Sequence[Any]) -> tuple[Fraction, ...]:
    if len(told) not in (0, len(ORDERS)):
        raise ValueError("divergences at other orders")
    return tuple(Fraction(str(one)) for one in told)


def _short(value: Fraction) -> Fraction:
    return value if value.denominator <= _FINEST else Fraction(math.ceil(value * _FINEST), _FINEST)
