"""What every mechanism can be asked, and the checks they share."""

from __future__ import annotations

import math
import numbers
from enum import Enum
from typing import Any, Protocol, TypeVar

import numpy as np

from sordina import randomness
from sordina.accounting.events import Event
from sordina.errors import InvalidInput
from sordina.types import Guarantee

Word = TypeVar("Word", bound=Enum)


class Mechanism(Protocol):
    """Public parameters in fields, the secret in an argument."""

    @property
    def guarantee(self) -> Guarantee:
        """What one release guarantees, with adjacency, unit and trust."""
        ...

    def event(self) -> Event:
        """What one release is to an accountant."""
        ...

    def error_bound(self, confidence: float, size: int = 1) -> float:
        """A bound that the error of a release of ``size`` parts keeps with at least this probability."""
        ...

    def release(self, value: Any, rng: np.random.Generator | None = None) -> Any:
        """The private answer. Without ``rng`` the noise comes from a secure stream of its own."""
        ...


def number(name: str, value: object) -> float:
    """``value`` as a float, if it is a real number (a bool is none)."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise InvalidInput(f"{name} must be a number, got {value!r}.")
    return float(value)


def whole(name: str, value: object, least: int = 1) -> int:
    """``value`` as an int, if it is one and at least ``least``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral) or int(value) < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, got {value!r}.")
    return int(value)


def word(name: str, kind: type[Word], value: object) -> Word:
    """``value`` as a member of ``kind``."""
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(str(member.value) for member in kind)
        raise InvalidInput(f"{name} must be one of {known}; got {value!r}.") from error


def settle(mechanism: object, **values: object) -> None:
    """Store checked values in a frozen dataclass, from its ``__post_init__``."""
    for name, value in values.items():
        object.__setattr__(mechanism, name, value)


def source(rng: np.random.Generator | None) -> np.random.Generator:
    """The given generator, or a fresh secure one."""
    if rng is None:
        return randomness.secure()
    if not isinstance(rng, np.random.Generator):
        raise InvalidInput(
            f"rng must be a numpy Generator, got {rng!r}. For a seed, pass sordina.randomness.seeded(seed)."
        )
    return rng


def check_confidence(confidence: float) -> float:
    """Return ``confidence`` if it lies strictly between 0 and 1, else refuse it."""
    if not 0 < number("confidence", confidence) < 1:
        raise InvalidInput(f"confidence must lie strictly between 0 and 1, got {confidence}.")
    return float(confidence)


def tail(confidence: float, size: int) -> float:
    """The chance each of ``size`` independent errors may have to be large, when none is with ``confidence``.

    Solves ``(1 - p)^size = confidence`` for p.

    >>> round(tail(0.99, 1), 4)
    0.01
    """
    return -math.expm1(math.log(check_confidence(confidence)) / whole("size", size))
