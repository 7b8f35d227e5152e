"""What a model is called with: a forward pass may write into it, and a loss finds nothing of a batch there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.gradients.aside_cases import ROWS, Called, change, large_last
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sordina.errors import Unsupported
from sordina.gradients import Engine
from sordina.gradients._arguments import left_alone


class Leaving(Called):
    """Leaves the largest value of a batch where its caller finds it."""

    def __init__(self, leave: Callable[[Tensor, Any], object]) -> None:
        super().__init__()
        self.leave = leave

    def forward(self, x: Tensor, given: Any = None) -> Tensor:
        self.leave(x, given)
        return self.net(x)


def largest(x: Tensor) -> Tensor:
    return x.detach().abs().max()


def closure() -> tuple[Callable[[Tensor], None], dict[str, Tensor]]:
    got: dict[str, Tensor] = {}

    def keep(scale: Tensor) -> None:
        got["scale"] = scale

    return keep, got


@dataclass
class Batch:
    scale: Any = None


def on_tensor(model: nn.Module, x: Tensor) -> Any:
    x = x.clone()
    return model(x), x.scale


def given(make: Callable[[], Any], read: Callable[[Any], Any]) -> Callable[[nn.Module, Tensor], Any]:
    def called(model: nn.Module, x: Tensor) -> Any:
        each = make()
        return model(x, each[0] if isinstance(each, tuple) else each), read(each)

    return called


def appended(model: nn.Module, x: Tensor) -> Any:
    got: list[Tensor] = []
    return model(x, got.append), got[-1]


CASES: dict[str, tuple[Callable[[Tensor, Any], object], Callable[[nn.Module, Tensor], Any]]] = {
    "tensor": (lambda x, _: setattr(x, "scale", largest(x)), on_tensor),
    "object": (
        lambda x, given: setattr(given, "scale", largest(x)),
        given(SimpleNamespace, lambda each: each.scale),
    ),
    "dataclass": (
        lambda x, given: setattr(given, "scale", largest(x)),
        given(Batch, lambda each: each.scale),
    ),
    "dictionary": (
        lambda x, given: given.update(scale=largest(x)),
        given(dict, lambda each: each["scale"]),
    ),
    "list in an object": (
        lambda x, given: given.items.append(largest(x)),
        given(lambda: SimpleNamespace(items=[]), lambda each: each.items[-1]),
    ),
    "method": (lambda x, given: given(largest(x)) if given else None, appended),
    "closure": (
        lambda x, given: given(largest(x)),
        given(closure, lambda each: each[1]["scale"]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_finds_nothing_of_a_batch_in_the_arguments(name: str) -> None:
    """Moved the sum by 2.4 bounds."""
    leave, called = CASES[name]

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        result, scale = called(model, x)
        return cross_entropy(result / scale, y, reduction="none")

    with pytest.raises((AttributeError, KeyError, IndexError, TypeError)):
        change(Leaving(leave), *large_last(), losses)


class Once(Called):
    """Leaves something the first time only, and uses it: of one sample, or one trial, for the next."""

    def forward(self, x: Tensor, given: Any) -> Tensor:
        if not hasattr(given, "scale"):
            given.scale = largest(x)
        return self.net(x / given.scale)


def test_trials_do_not_see_what_others_left_in_the_arguments() -> None:
    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x, SimpleNamespace()), y, reduction="none")

    with pytest.raises(Unsupported, match="samples mix"):
        change(Once(), *large_last(), losses)


class Written(Called):
    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        batch["logits"] = self.net(batch["x"])
        return batch


class Appended(Called):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        hidden: Any = batch.setdefault("hidden", [])
        hidden.append(self.net[0](batch["x"]))
        return self.net[2](hidden[-1].relu())


class Popped(Called):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.net(batch.pop("x"))


class Overwritten(Called):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        batch["x"] = batch["x"] / 2
        return self.net(batch["x"])


@pytest.mark.parametrize("kind", [Written, Appended, Popped, Overwritten])
def test_a_forward_pass_may_write_into_the_dictionary_that_it_is_given(kind: type[Called]) -> None:
    """Crashed, or was refused as if samples mixed."""

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        batch = {"x": x}
        result = model(batch)
        assert list(batch) == ["x"]
        assert batch["x"] is x
        return cross_entropy(result["logits"] if isinstance(result, dict) else result, y, reduction="none")

    expected = change(Called(), *large_last())
    if kind is not Overwritten:
        assert change(kind(), *large_last(), losses) == pytest.approx(expected, rel=1e-4)
    assert change(kind(), *large_last(), losses) < 1.00001


def test_generators_of_random_numbers_move_on() -> None:
    options = {"draw": Random(0)}
    one, two = (left_alone(lambda options: options["draw"].random(), (), (options,), {}) for _ in range(2))
    assert one != two


def test_what_a_caller_put_on_a_tensor_stays() -> None:
    model, x = Called(), torch.ones(ROWS, 6)
    x.note = ["a"]  # type: ignore[attr-defined]
    with Engine(model) as engine:
        engine.record(model(x).square().sum(1)).scalars()
    assert x.note == ["a"]  # type: ignore[attr-defined]
