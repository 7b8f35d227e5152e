"""Scalars, numpy arrays and torch tensors in; the same kind out.

A value is *opened* into a numpy array together with a function that closes the answer again. Torch is only touched when
a tensor is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput

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
