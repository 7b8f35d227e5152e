"""What every mechanism can be asked, the checks they share, and the arrays they take and give."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sordina import random
from sordina.accounting.events import Event
from sordina.errors import InvalidInput
from sordina.privacy import Guarantee

# What every mechanism can be asked, and the checks they share.

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
        return random.secure()
    if not isinstance(rng, np.random.Generator):
        raise InvalidInput(f"rng must be a numpy Generator, got {rng!r}. For a seed, pass sordina.random.seeded(seed).")
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


# Scalars, numpy arrays and torch tensors in; the same kind out.
#
# A value is *opened* into a numpy array together with a function that closes the answer again. Torch is only touched
# when a tensor is given.

Close = Callable[[NDArray[Any]], Any]


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a torch tensor, without importing torch."""
    return type(value).__module__.split(".")[0] == "torch"


def open_floats(value: Any) -> tuple[NDArray[np.float64], Close]:
    """A finite real value as float64. Floating types come back as they were, integers as floats."""
    if is_tensor(value):
        array, close = _open_tensor(value)
    else:
        array = _as_array(value)
        dtype = array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)
        close = _closer(value, dtype)
    if array.dtype.kind not in "iuf":
        raise InvalidInput(f"only real numbers can be released with this mechanism, got {array.dtype}.")
    floats = array.astype(np.float64)
    if not np.isfinite(floats).all():
        raise InvalidInput("the value holds NaN or infinity, and no noise hides those: clip or drop them first.")
    return floats, close


def open_integers(value: Any) -> tuple[NDArray[np.int64], Close]:
    """An integer value as int64; anything else, also a float that happens to be whole, is refused."""
    array = value.detach().cpu().numpy() if is_tensor(value) else _as_array(value)
    if array.dtype.kind not in "iu":
        raise InvalidInput(f"this mechanism answers integer queries only, got {array.dtype}: round or cast first.")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise InvalidInput("integers beyond 64 signed bits are not supported.")
    close = _tensor_closer(value, None) if is_tensor(value) else _closer(value, np.dtype(np.int64))
    return array.astype(np.int64), close


def _as_array(value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InvalidInput(f"not an array of numbers: {error}.") from error


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """``array`` in ``dtype``, kept inside its range: float16 noise of 1e5 becomes the largest float16, not infinity."""
    if dtype.kind == "f" and dtype.itemsize < array.dtype.itemsize:
        limit = float(np.finfo(dtype).max)
        array = np.clip(array, -limit, limit)
    return array.astype(dtype, copy=False)


def _closer(value: Any, dtype: np.dtype[Any]) -> Close:
    def close(answer: NDArray[Any]) -> Any:
        answer = _cast(answer, dtype)
        if isinstance(value, np.generic):
            return answer[()]
        return answer if isinstance(value, np.ndarray) or answer.ndim else answer.item()

    return close


def _open_tensor(value: Any) -> tuple[NDArray[Any], Close]:
    import torch

    if value.is_complex() or value.dtype == torch.bool:
        raise InvalidInput(f"only real numbers can be released with this mechanism, got {value.dtype}.")
    dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
    return value.detach().cpu().double().numpy(), _tensor_closer(value, dtype)


def _tensor_closer(value: Any, dtype: Any) -> Close:
    def close(answer: NDArray[Any]) -> Any:
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(answer)).reshape(value.shape)
        if dtype is not None and dtype != tensor.dtype:
            limit = torch.finfo(dtype).max
            tensor = tensor.clamp(-limit, limit).to(dtype)
        return tensor.to(value.device)

    return close
