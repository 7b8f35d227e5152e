"""What goes on beside a forward pass: errors caught, what calling does, where data is kept, what reaches the loss."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Generator
from typing import Any

import pytest
import torch
from tests.gradients.aside_cases import ROWS, Called, change, large_last, usual_losses
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sordina.errors import InvalidInput, Unsupported
from sordina.gradients import Engine
from sordina.gradients._catching import catching
from sordina.gradients.structure import Mixing
from sordina.training.losses import per_sample

# Errors that are caught.


def embedded(embedding: nn.Embedding, words: Tensor) -> Tensor:
    try:
        return embedding(words)
    except IndexError:
        return torch.zeros(*words.shape, 8)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.out = nn.Embedding(50, 8), nn.Linear(8, 2)

    def embed(self, words: Tensor) -> Tensor:
        return self.embedding(words)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.embed(words).mean(1))


class InHelper(Words):
    def embed(self, words: Tensor) -> Tensor:
        return embedded(self.embedding, words)


class InMethod(Words):
    def embed(self, words: Tensor) -> Tensor:
        try:
            return self.embedding(words)
        except IndexError:
            return torch.zeros(*words.shape, 8)


class Suppressing(Words):
    def embed(self, words: Tensor) -> Tensor:
        found = torch.zeros(*words.shape, 8)
        with contextlib.suppress(IndexError):
            found = self.embedding(words)
        return found


class Decorated(Words):
    @torch.autocast("cpu", enabled=False)
    def forward(self, words: Tensor) -> Tensor:
        return self.out(embedded(self.embedding, words).mean(1))


class Returning(Words):
    def embed(self, words: Tensor) -> Tensor:
        found = torch.zeros(*words.shape, 8)
        try:
            found = self.embedding(words)
        finally:
            return found  # noqa: B012


class Quiet:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> bool:
        return True


class Managed(Words):
    def embed(self, words: Tensor) -> Tensor:
        found = torch.zeros(*words.shape, 8)
        with Quiet():
            found = self.embedding(words)
        return found


@pytest.mark.parametrize("kind", [InHelper, InMethod, Suppressing, Decorated, Returning, Managed])
def test_errors_caught_on_the_way_decide_for_nobody_else(kind: type[Words]) -> None:
    words = torch.randint(50, (ROWS, 5), generator=torch.Generator().manual_seed(0))
    unknown = words.clone()
    unknown[-1, 0] = 50
    assert change(kind(), words, unknown) < 1.00001


class Loading(Words):
    """Errors are caught where no forward pass comes by."""

    def __init__(self) -> None:
        try:
            super().__init__()
        finally:
            pass

    def load(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self.load_state_dict(torch.load(path))


def test_errors_caught_elsewhere_are_no_reason() -> None:
    assert catching(Words(), Loading(), cross_entropy, nn.TransformerEncoderLayer(4, 2)) == ""


def test_errors_caught_in_a_hook_are_seen() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].register_forward_hook(lambda module, given, result: embedded(module, given))
    assert "embedded" in catching(model)


INSTALLED = """
from torch import nn, full_like

def looked_up(table, words):
    try:
        return table(words)
    except IndexError:  # something is missing
        return table(full_like(words, 0))

class Categories(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(50, 8), nn.Linear(8, 2)

    def forward(self, words):
        return self.out(looked_up(self.table, words.clamp(max=49)).mean(1))
"""


def installed(package: str) -> Any:
    """The model of a package that seems to have been installed."""
    module = types.ModuleType(package)
    module.__file__ = f"/site-packages/{package.replace('.', '/')}.py"
    exec(INSTALLED, module.__dict__)
    sys.modules[package] = module
    torch.manual_seed(1)
    return module.Categories()


def test_errors_caught_in_the_package_that_a_model_comes_from_are_seen() -> None:
    """All of site-packages was left out (1.7 C)."""
    words = torch.randint(50, (ROWS, 5), generator=torch.Generator().manual_seed(0))
    missing = words.clone()
    missing[-1, 0] = -1
    assert change(installed("company_models"), words, missing) < 1.00001


def test_errors_caught_in_a_known_library_show_in_what_is_missing() -> None:
    model = installed("timm.of_a_test")
    assert catching(model) == ""
    with Engine(model), pytest.raises(Mixing):
        model(torch.randint(50, (ROWS, 5)))


def out(path: str) -> int | None:
    """No part of any model."""
    try:
        return int(path)
    except ValueError:
        return None


def test_a_function_with_the_name_of_an_attribute_is_not_what_a_model_calls() -> None:
    assert catching(Words()) == ""


# What a model does when it is called.


class Imputing(Called):
    def __call__(self, x: Tensor) -> Tensor:
        missing = x == -1
        return super().__call__(torch.where(missing, x.masked_fill(missing, 0).mean(0), x))


class Standardising(Called):
    def __call__(self, x: Tensor) -> Tensor:
        return nn.Module.__call__(self, (x - x.mean(0)) / (x.std(0, correction=0) + 1e-5))


class Doubling(Called):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(2 * x)


def test_what_a_model_does_when_it_is_called_is_part_of_it() -> None:
    assert change(Imputing(), *large_last()) < 1.00001
    with pytest.raises(Unsupported, match="samples mix"):
        change(Standardising(), *large_last())


def test_a_model_that_is_called_in_its_own_way_may_run_on_all_samples() -> None:
    model = Doubling()
    with Engine(model) as engine:
        engine.record(usual_losses(model, large_last()[0], torch.arange(ROWS) % 2)).scalars()
        assert engine._calls._last is not None
        assert engine._calls._last.alone == ""


# Where a model, or a loss, may keep data.


class OnParameter(Called):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.net[0].weight
        weight.seen = 0.9 * getattr(weight, "seen", torch.ones(6)) + 0.1 * x.detach().abs().amax(0)
        return self.net(x)


def average() -> Generator[float, float, None]:
    mean = 0.0
    while True:
        mean = 0.9 * mean + 0.1 * (yield mean)


class InGenerator(Called):
    def __init__(self) -> None:
        super().__init__()
        self.average = average()
        next(self.average)

    def forward(self, x: Tensor) -> Tensor:
        self.average.send(float(x.detach().mean()))
        return self.net(x)


class BySend(InGenerator):
    def __init__(self) -> None:
        super().__init__()
        self.average = self.average.send

    def forward(self, x: Tensor) -> Tensor:
        self.average(float(x.detach().mean()))
        return self.net(x)


@pytest.mark.parametrize("kind", [OnParameter, InGenerator, BySend])
def test_data_kept_on_a_parameter_or_in_a_generator_are_found(kind: type[Called]) -> None:
    model = kind()
    with Engine(model), pytest.raises(Unsupported, match=r"keeps data between batches, in '.*(seen|average)'"):
        model(large_last()[0])


@pytest.mark.parametrize("number", [False, True])
def test_data_that_a_hook_keeps_are_found(number: bool) -> None:
    """Nobody looked into hooks."""
    seen, model = {"calls": 0, "mean": 0.0}, Called()

    def hook(module: nn.Module, given: Any, result: Tensor) -> Tensor | None:
        mean = result.detach().mean()
        seen["mean"] = 0.9 * seen["mean"] + 0.1 * (mean.item() if number else mean)
        seen["calls"] += 1
        return result + seen["mean"] if seen["calls"] > 1000 else None

    model.net[0].register_forward_hook(hook)
    with Engine(model), pytest.raises(Unsupported, match=r"keeps data between batches, in '.*hooks"):
        model(large_last()[0])


class InObject(Called):
    """A running mean, a number, inside of an object: once it was not a number, nobody saw it change."""

    def __init__(self) -> None:
        super().__init__()
        self.box = types.SimpleNamespace(calls=0, mean=0.0)

    def forward(self, x: Tensor) -> Tensor:
        self.box.mean = 0.9 * self.box.mean + 0.1 * x.detach().mean().item()
        self.box.calls += 1
        return self.net(x) * (self.box.mean if self.box.calls > 1000 else 1)


def test_a_number_kept_in_an_object_is_found_whatever_rows_were_tried_before() -> None:
    model = InObject()
    with Engine(model), pytest.raises(Unsupported, match=r"keeps data between batches, in 'box.mean'"):
        model(large_last()[0])


class Noting(Called):
    def forward(self, x: Tensor) -> Tensor:
        self.net[0].weight.used = True
        return self.net(x)


def test_a_constant_on_a_parameter_is_no_data() -> None:
    assert change(Noting(), *large_last()) < 1.00001


@pytest.mark.parametrize("place", ["tensor", "generator"])
def test_a_loss_that_keeps_data_in_such_places_is_refused(place: str) -> None:
    anchor, means = torch.zeros(2), average()
    next(means)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        mean = float(output.detach().mean())
        if place == "tensor":
            anchor.seen = 0.9 * getattr(anchor, "seen", 0.0) + mean  # type: ignore[attr-defined]
        else:
            means.send(mean)
        return cross_entropy(output + anchor, target, reduction="none")

    with pytest.raises(InvalidInput, match="keeps data between batches"):
        per_sample(loss)(torch.randn(6, 2, requires_grad=True), torch.arange(6) % 2)


# What is compiled.


class Guarded(Called):
    def forward(self, x: Tensor) -> Tensor:
        missing = x == -1
        return self.net(x.masked_fill(missing, 0) if bool(missing.any()) else x)


def test_a_compiled_model_that_cannot_be_followed_is_named_as_such() -> None:
    model = torch.compile(Guarded(), backend="eager")
    with Engine(model), pytest.raises(Unsupported, match="compile it after training"):
        model(large_last()[0])


@pytest.mark.parametrize("first", [True, False])
def test_a_model_that_is_compiled_in_place_runs_as_it_is_while_it_is_trained(first: bool) -> None:
    """PyTorch compiled the engine with it."""
    model, (x, _), calls = Called(), large_last(), list[int]()

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    if first:
        model.compile(backend=backend)
    with Engine(model) as engine:
        if not first:
            model.compile(backend=backend)
        engine.record(usual_losses(model, x, torch.arange(ROWS) % 2)).scalars()
        assert engine._calls._last is not None
        assert engine._calls._last.alone == ""
    assert not calls
    model(x)
    assert calls


# What a model hands to the loss beside its results per sample.


class Largest(Called):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), x.abs().max()


class Flag(Called):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": self.net(x), "missing": bool((x == -1).any())}


class Number(Called):
    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        return self.net(x), x.max().item()


class Attribute(Called):
    missing = False

    def forward(self, x: Tensor) -> Tensor:
        self.missing = bool((x == -1).any())
        return self.net(x)


class HeldTensor(Called):
    def forward(self, x: Tensor) -> Tensor:
        self.largest = x.detach().abs().max()
        return self.net(x)


def first_of(result: Any) -> Tensor:
    if isinstance(result, dict):
        return result["logits"]
    return result if isinstance(result, Tensor) else result[0]


def tempered(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    result = model(x)
    scale = model.largest.clamp(min=50) if isinstance(model, HeldTensor) else result[1].clamp(min=50)
    return cross_entropy(first_of(result) / scale, y, reduction="none")


def plain_losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(first_of(model(x)), y, reduction="none")


@pytest.mark.parametrize("kind", [Largest, HeldTensor])
def test_a_loss_cannot_use_a_tensor_of_the_whole_batch(kind: type[Called]) -> None:
    with pytest.raises(Unsupported, match="samples mix"):
        change(kind(), *large_last(), tempered)


@pytest.mark.parametrize("kind", [Largest, HeldTensor])
def test_a_tensor_of_the_whole_batch_may_be_there_if_nobody_uses_it(kind: type[Called]) -> None:
    assert change(kind(), *large_last(), plain_losses) < 1.00001


@pytest.mark.parametrize("kind", [Flag, Number, Attribute])
def test_values_of_python_that_depend_on_samples_are_refused(kind: type[Called]) -> None:
    with pytest.raises(Unsupported, match="samples mix"):
        change(kind(), *large_last(), plain_losses)


class Tempered(Called):
    """Hands on what is nobody's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> dict[str, Any]:
        self.calls = getattr(self, "calls", 0) + 1
        return {"logits": self.net(x), "scale": self.scale * 3, "name": "tempered", "width": x.shape[1]}


def test_what_is_nobodys_may_be_used() -> None:
    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        result = model(x)
        return cross_entropy(result["logits"] / result["scale"].item() / result["width"], y, reduction="none")

    assert change(Tempered(), *large_last(), losses) < 1.00001


class LossInside(Called):
    """As models of Hugging Face do: the mean loss is one of the results."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": cross_entropy(logits, y), "logits": logits}


def test_a_mean_loss_computed_inside_the_model_is_withheld_and_harms_nobody() -> None:
    model, (x, _), y = LossInside(), large_last(), torch.arange(ROWS) % 2
    each = per_sample(lambda result, target: cross_entropy(result["logits"], target, reduction="none"))
    with Engine(model) as engine:
        for rows in (ROWS, ROWS - 1):
            result = model(x[:rows], y[:rows])
            assert engine.record(each(result, y[:rows])).scalars().norms.shape == (rows,)
        with pytest.raises(Unsupported, match="not one per sample"):
            result["loss"].item()
    assert model(x, y)["loss"].item() > 0
