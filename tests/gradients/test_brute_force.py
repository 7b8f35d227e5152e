"""The oracle sees every kind of silent error: each is planted in an engine that is right otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.gradients import brute_force
from tests.gradients.brute_force import Outcome, judge
from torch import nn

from sordina.clipping import Automatic, Fixed, PerLayer
from sordina.errors import Unsupported
from sordina.gradients import Engine, GhostTape
from sordina.gradients.explicit import MatrixTape


def squares(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().flatten(1).sum(1)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_an_honest_engine_is_exact(kind):
    verdict = judge(network().to(kind), squares, draw(6, 4).to(kind), sizes=(1, 2, 4, 5))
    assert verdict.outcome is Outcome.EXACT, verdict
    assert 0.5 < verdict.sensitivity <= 1 + 1e-6


def test_users_micro_batches_and_policies():
    for clipping in (Automatic(0.3), PerLayer(Fixed(0.5))):
        verdict = judge(network(), squares, draw(12, 4), clipping=clipping, rows_per_unit=2, microbatch=2)
        assert verdict.outcome is Outcome.EXACT, verdict


class Planted:
    """An engine with a fault."""

    def __init__(self, model: nn.Module, groups: Any = None) -> None:
        self.engine = Engine(model, groups)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def record(self, losses: torch.Tensor, rows_per_unit: int = 1) -> Any:
        return PlantedTape(self.engine.record(losses, rows_per_unit), self)


class PlantedTape:
    def __init__(self, tape: GhostTape, engine: Planted) -> None:
        self.tape, self.engine = tape, engine

    def scalars(self, direction: Any = None, group: int = 0) -> Any:
        return self.engine.scalars(self.tape.scalars(direction, group))

    def contract(self, queries: Any, direction: Any = None, group: int = 0) -> Any:
        return self.engine.sums(self.tape.contract(queries, direction, group))


class SmallNorms(Planted):
    def scalars(self, scalars: Any) -> Any:
        return replace(scalars, norms=scalars.norms * (1 - 1e-4))

    def sums(self, sums: Any) -> Any:
        return sums


class LargeNorms(SmallNorms):
    def scalars(self, scalars: Any) -> Any:
        return replace(scalars, norms=scalars.norms * 1.1)


class Zeros(Planted):
    def scalars(self, scalars: Any) -> Any:
        return replace(scalars, norms=scalars.norms * 0)

    def sums(self, sums: Any) -> Any:
        return [total * 0 for total in sums]


class Exchanged(SmallNorms):
    """The norms of samples are taken for one another."""

    def scalars(self, scalars: Any) -> Any:
        return replace(scalars, norms=scalars.norms.flip(0))


class Left(SmallNorms):
    """Does not clean up."""

    def scalars(self, scalars: Any) -> Any:
        return scalars

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (SmallNorms, Outcome.WRONG),
        (LargeNorms, Outcome.LOOSE),
        (Zeros, Outcome.WRONG),
        (Exchanged, Outcome.WRONG),
        (Left, Outcome.WRONG),
    ],
)
def test_a_planted_fault_is_seen(fault, outcome, monkeypatch):
    monkeypatch.setattr(brute_force, "Engine", fault)
    assert judge(network(), squares, draw(6, 4)).outcome is outcome


class AutogradEngine:
    """Clips what autograd gives for the loss of each sample in its batch, and never asks whether samples mix."""

    def __init__(self, model: nn.Module, groups: Any = None) -> None:
        self.inner = Engine(model, groups)
        self.inner.close()
        self.model, self.layout = model, self.inner.layout

    def close(self) -> None:
        pass

    def record(self, losses: torch.Tensor, rows_per_unit: int = 1) -> Any:
        rows = [torch.cat([g.flatten() for g in self._gradients(loss)]) for loss in losses]
        return MatrixTape(torch.stack(rows))

    def _gradients(self, loss: torch.Tensor) -> Any:
        return torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True)


class BatchStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.layer(x)
        with torch.no_grad():
            largest = hidden.abs().max()
        return hidden / largest


def test_mixing_without_a_gradient_is_seen(monkeypatch):
    monkeypatch.setattr(brute_force, "Engine", AutogradEngine)
    torch.manual_seed(0)
    assert judge(network(), squares, draw(6, 4)).outcome is Outcome.EXACT
    verdict = judge(BatchStatistics().double(), squares, draw(6, 4))
    assert verdict.outcome is Outcome.WRONG
    assert verdict.mixes
    assert verdict.sensitivity > 1.01


def test_a_refusal_is_not_an_error(monkeypatch):
    def refuse(model: nn.Module, groups: Any = None) -> Any:
        raise Unsupported("no.")

    monkeypatch.setattr(brute_force, "Engine", refuse)
    assert judge(network(), squares, draw(6, 4)).outcome is Outcome.REFUSED


def test_any_other_error_is_a_crash(monkeypatch):
    def crash(model: nn.Module, groups: Any = None) -> Any:
        raise RuntimeError("no.")

    monkeypatch.setattr(brute_force, "Engine", crash)
    assert judge(network(), squares, draw(6, 4)).outcome is Outcome.CRASHED
