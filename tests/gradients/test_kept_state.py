"""What objects of the user's keep between two calls, compared and put back."""

from __future__ import annotations

import functools
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordina.gradients._kept_state import KeptState, differing, kept_state


class Plain:
    common: list[float] = []  # noqa: RUF012 - a state that objects share is what is looked at

    def __init__(self) -> None:
        self.calls, self.mean, self.bank = 0, torch.zeros(2), deque[float](maxlen=3)
        self.array, self.table, self.layer = np.zeros(2), {"a": [0.0]}, Layer()

    def __call__(self, values: Tensor) -> Tensor:
        self.calls += 1
        return values


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.note: Any = None
        self.register_buffer("running", torch.zeros(2))


def in_tensor(holder: Plain) -> None:
    holder.mean += 1


def in_deque(holder: Plain) -> None:
    holder.bank.append(1.0)


def in_array(holder: Plain) -> None:
    holder.array[0] = 1


def in_table(holder: Plain) -> None:
    holder.table["a"].append(1.0)


def in_buffer(holder: Plain) -> None:
    holder.layer.running += 1


def in_attribute(holder: Plain) -> None:
    holder.layer.note = 0.5


def in_class(holder: Plain) -> None:
    holder.common.append(1.0)


def anew(holder: Plain) -> None:
    holder.fresh = torch.ones(2)  # type: ignore[attr-defined]


WRITES = {
    in_tensor: "mean", in_deque: "bank", in_array: "array", in_table: "table", in_buffer: "buffer layer.running",
    in_attribute: "layer.note", in_class: "common", anew: "fresh",
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
def test_what_is_kept_is_named_and_put_back(write: Any) -> None:
    holder = Plain()
    before, kept = kept_state(holder), KeptState(holder)
    assert not differing(before, kept_state(holder))
    write(holder)
    assert differing(before, kept_state(holder)) == WRITES[write]
    kept.restore()
    assert not differing(before, kept_state(holder))


def test_state_is_found_behind_functions_methods_and_partials() -> None:
    holder, seen = Plain(), list[float]()

    def closure(values: Tensor) -> Tensor:
        seen.append(1.0)
        return holder(values)

    for function in (closure, holder.__call__, functools.partial(holder), functools.partial(closure)):
        before, kept = kept_state(function), KeptState(function)
        function(torch.ones(1))
        assert differing(before, kept_state(function))
        kept.restore()
        assert not differing(before, kept_state(function))
    assert (holder.calls, seen) == (0, [])


def test_parameters_and_hooks_are_no_state() -> None:
    layer = Layer()
    before = kept_state(layer)
    with torch.no_grad():
        layer.inner.weight += 1
    layer.register_forward_hook(lambda *_: None)
    assert not differing(before, kept_state(layer.eval()))
    assert "buffer running" in kept_state(layer.forward)


def test_numbers_by_the_thousand_do_not_hide_what_else_is_kept():
    holder = SimpleNamespace(mean=[1.0], words={f"word {number}": number for number in range(60_000)})
    before = KeptState(holder)
    holder.mean[0] = 2.0
    before.restore()
    assert holder.mean == [1.0]
