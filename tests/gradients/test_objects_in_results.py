"""Objects that a model returns: nobody knows whose samples are in them."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from tests.gradients.aside_cases import ROWS, Called, change, large_last
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn.functional import cross_entropy

from sordina.errors import Unsupported
from sordina.gradients import Engine
from sordina.queries import VectorQuery


class Box:
    def __init__(self, scale: Any) -> None:
        self.scale = scale


@dataclass
class Both:
    logits: Tensor
    scale: Tensor | None = None

    @cached_property
    def chances(self) -> Tensor:
        return self.logits.softmax(1)


@dataclass
class Slotless:
    logits: Tensor


@dataclass(slots=True)
class Slotted:
    logits: Tensor


class MoreSlots(Slotted):
    __slots__ = ("scale",)


class Named(NamedTuple):
    logits: Tensor
    scale: Tensor


class Easy(dict[str, Any]):
    """A dictionary whose items are its attributes."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__ = self


class Ordered(OrderedDict[str, Any]):
    """Made in a way of its own."""

    def __init__(self, *, logits: Tensor, scale: Tensor) -> None:
        super().__init__(logits=logits, scale=scale)
        self.logits, self.scale = logits, scale


@dataclass
class Summed:
    logits: Tensor

    def __post_init__(self) -> None:
        self.total = self.logits.sum(1)


def with_attribute(value: Any, scale: Tensor) -> Any:
    object.__setattr__(value, "scale", scale)
    return value


def constant(scale: Tensor) -> Callable[[], Tensor]:
    return lambda: scale


OBJECTS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], Any]]] = {
    "namespace": (lambda out, s: (out, SimpleNamespace(scale=s)), lambda r: r[1].scale),
    "number in a namespace": (lambda out, s: (out, SimpleNamespace(scale=s.item())), lambda r: r[1].scale),
    "own class": (lambda out, s: (out, Box(s)), lambda r: r[1].scale),
    "closure": (lambda out, s: (out, constant(s)), lambda r: r[1]()),
    "partial": (lambda out, s: (out, partial(torch.clone, s)), lambda r: r[1]()),
    "iterator": (lambda out, s: (out, iter([s])), lambda r: next(iter(r[1]))),
    "distribution": (lambda out, s: (out, Normal(s, 1.0, validate_args=False)), lambda r: r[1].mean),
    "attribute of a dataclass": (lambda out, s: with_attribute(Slotless(out), s), lambda r: r.scale),
    "slot of a dataclass": (lambda out, s: with_attribute(MoreSlots(out), s), lambda r: r.scale),
    "attribute of a mapping": (lambda out, s: with_attribute(UserDict(logits=out), s), lambda r: r.scale),
    "missing item": (lambda out, s: defaultdict(constant(s), logits=out), lambda r: r["scale"]),
}


def logits_of(result: Any) -> Tensor:
    if isinstance(result, tuple):
        return result[0]
    return result["logits"] if isinstance(result, (dict, UserDict)) else result.logits


class Returning(Called):
    """Returns the largest value of a batch, hidden in something."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Any:
        return OBJECTS[self.name][0](self.net(x), x.detach().abs().max().clamp(min=50))


@pytest.mark.parametrize("name", OBJECTS)
def test_a_loss_cannot_use_what_an_object_in_a_result_holds(name: str) -> None:
    """Values of the whole batch reached the loss (2.5 C)."""

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        result = model(x)
        return cross_entropy(logits_of(result) / OBJECTS[name][1](result), y, reduction="none")

    with pytest.raises(Unsupported, match=r"an object .* return what the loss needs as tensors"):
        change(Returning(name), *large_last(), losses)


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_may_be_there_if_nobody_uses_it(name: str) -> None:
    """As caches of transformers are."""

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(logits_of(model(x)), y, reduction="none")

    assert change(Returning(name), *large_last(), losses) < 1.00001


class ReturningOnly(Called):
    def forward(self, x: Tensor) -> Any:
        return Categorical(logits=self.net(x))


def test_a_model_that_returns_nothing_but_an_object_is_told_what_to_return() -> None:
    with pytest.raises(Unsupported, match=r"an object \(Categorical\)"):
        change(ReturningOnly(), *large_last(), lambda model, x, y: -model(x).log_prob(y))


class ReturningSummed(Called):
    def forward(self, x: Tensor) -> Any:
        return Summed(self.net(x))


def test_losses_that_are_withheld_are_named_as_such() -> None:
    model = ReturningSummed()
    with Engine(model) as engine, pytest.raises(Unsupported, match=r"an object \(Summed.total\)"):
        engine.record(model(large_last()[0]).total)


LOOKED_INTO: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], Tensor]]] = {
    "dataclass": (lambda out, w: Both(out, w), lambda r: r.logits * r.scale),
    "computed in a dataclass": (lambda out, w: Both(out * w), lambda r: r.chances),
    "dataclass with slots": (lambda out, w: Slotted(out * w), lambda r: r.logits),
    "named tuple": (lambda out, w: Named(out, w), lambda r: r.logits * r[1]),
    "attributes that are items": (lambda out, w: Easy(logits=out, scale=w), lambda r: r.logits * r["scale"]),
    "ordered": (lambda out, w: Ordered(logits=out, scale=w), lambda r: r.logits * r["scale"]),
    "UserDict": (lambda out, w: UserDict(logits=out, scale=w), lambda r: r["logits"] * r["scale"]),
    "nested": (lambda out, w: {"a": [out, (w, {"b": 3.0})], "c": torch.float64}, lambda r: r["a"][0] * r["a"][1][0]),
}


class Looked(Called):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Any:
        out, weights = self.net(x), x.detach()[:, :1].sigmoid()
        return LOOKED_INTO[self.name][0](out, weights)


class LookedAlone(Looked):
    """Runs one sample at a time: everybody had the first one's object."""

    def forward(self, x: Tensor) -> Any:
        try:
            return super().forward(x)
        except IndexError:
            return None


@pytest.mark.parametrize("kind", [Looked, LookedAlone])
@pytest.mark.parametrize("name", LOOKED_INTO)
def test_what_is_looked_into_may_be_used(kind: type[Looked], name: str) -> None:
    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(LOOKED_INTO[name][1](model(x)), y, reduction="none")

    model, (x, _), y = kind(name), large_last(), torch.arange(ROWS) % 2
    parameters = list(model.parameters())
    rows = [torch.autograd.grad(losses(model, x[i : i + 1], y[i : i + 1]).sum(), parameters) for i in range(ROWS)]
    with Engine(model) as engine:
        for _ in range(2):
            tape = engine.record(losses(model, x, y))
            found = torch.stack(tape.contract([VectorQuery(own) for own in torch.eye(ROWS)]))
    expected = torch.stack([torch.cat([each.flatten() for each in row]) for row in rows])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_outputs_of_transformers_are_looked_into() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Classifier(Called):
        def forward(self, x: Tensor, extra: str = "") -> Any:
            scale = x.detach().abs().max().clamp(min=50)
            result = outputs.SequenceClassifierOutput(logits=self.net(x))
            if extra:
                object.__setattr__(result, extra, scale)
            return result

    def losses(model: nn.Module, x: Tensor, y: Tensor, extra: str = "") -> Tensor:
        result = model(x, extra)
        return cross_entropy(result.logits / (getattr(result, extra) if extra else 1), y, reduction="none")

    assert change(Classifier(), *large_last(), losses) < 1.00001
    for extra in ("scale", "hidden_states"):
        with pytest.raises(Unsupported):
            change(Classifier(), *large_last(), partial(losses, extra=extra))
