"""Places further off where a forward pass may leave something for a loss to read."""

from __future__ import annotations

import ctypes
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from tests.gradients.aside_cases import Called, change, large_last
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sordina.errors import Unsupported


class Single:
    """There is one."""

    instance: Any = None

    def __new__(cls) -> Any:
        cls.instance = cls.instance or super().__new__(cls)
        return cls.instance


class Storage:
    current: Any = None
    large = False

    @staticmethod
    def get() -> Any:
        return Storage.current


Storage.current = Storage()
SCALE: ContextVar[Tensor] = ContextVar("scale")
POOL = ThreadPoolExecutor(1)


class Leaving(Called):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.shared, self.number = name, multiprocessing.Value("d"), ctypes.c_double()

    def forward(self, x: Tensor) -> Tensor:
        LEFT[self.name][0](self, x.detach().abs().max())
        return self.net(x)


LEFT: dict[str, tuple[Callable[[Any, Tensor], object], Callable[[Any], Any]]] = {
    "singleton": (lambda m, scale: setattr(Single(), "scale", scale), lambda m: Single().scale),
    "storage": (lambda m, scale: setattr(Storage.get(), "scale", scale), lambda m: Storage.get().scale),
    "truth of a class": (
        lambda m, scale: setattr(Storage, "large", bool(scale > 50)),
        lambda m: 1e4 if Storage.large else 1,
    ),
    "context variable": (lambda m, scale: SCALE.set(scale), lambda m: SCALE.get()),
    "future": (lambda m, scale: setattr(m, "future", POOL.submit(lambda: scale)), lambda m: m.future.result()),
    "shared number": (lambda m, scale: setattr(m.shared, "value", float(scale)), lambda m: m.shared.value),
    "number of C": (lambda m, scale: setattr(m.number, "value", float(scale)), lambda m: m.number.value),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_loss_cannot_use_what_is_left_there(name: str) -> None:
    """Moved the sum by 2.4 bounds."""

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x) / LEFT[name][1](model), y, reduction="none")

    with pytest.raises(Unsupported):
        change(Leaving(name), *large_last(), losses)


def test_a_class_that_is_named_stays_as_it_is() -> None:
    class Kind:
        scale = torch.tensor(2.0)

    class Naming(Called):
        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) * Kind.scale

    assert change(Naming(), *large_last()) < 1.00001
    assert type(Kind.scale) is Tensor
