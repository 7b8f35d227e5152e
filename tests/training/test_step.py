from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from sordina.accounting import Gaussian, PoissonSampled
from sordina.clipping import FallingNorm, Fixed, Online, PerLayer, Quantile, Sector, TypicalNorm, arrange
from sordina.errors import InvalidInput, Unsupported
from sordina.gradients.explicit import MatrixTape
from sordina.private_step import PrivateStep


def matrix(rows: int, size: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(plan, policy, tapes, seed=0):
    step = PrivateStep(plan, arrange(policy, ["w"]), [6])
    for tape in tapes:
        step.absorb(tape)
    return step, step.finish(torch.zeros(1, dtype=torch.float64), np.random.default_rng(seed))


@pytest.mark.parametrize(
    "policy", [Fixed(0.5), Quantile(), Online(), Online.as_in_thesis(), TypicalNorm(), FallingNorm()], ids=repr
)
def test_micro_batches_give_what_one_batch_gives(plan, policy):
    vectors = matrix(12)
    _, (whole,) = run(plan, policy, [MatrixTape(vectors)])
    _, (pieces,) = run(plan, policy, [MatrixTape(vectors[:5]), MatrixTape(vectors[5:6]), MatrixTape(vectors[6:])])
    for one, other in zip(whole.answers, pieces.answers, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("policy", [Fixed(0.5), Quantile(), Online(), TypicalNorm(), FallingNorm()], ids=repr)
def test_the_event_is_derived_from_the_noise_that_is_added(plan, policy):
    for clipping in (policy, PerLayer(policy)):
        step = PrivateStep(
            plan, arrange(clipping, ["a.w", "b.w", "b.bias"]), [3] * (2 if clipping is not policy else 1)
        )
        event = step.event()
        assert isinstance(event, PoissonSampled)
        assert isinstance(event.event, Gaussian)
        assert event.rate == 0.2
        assert event.event.noise_multiplier == pytest.approx(plan.noise_multiplier, rel=1e-12)


@dataclass(frozen=True)
class Generous(Fixed):
    """A policy with a second query whose noise was forgotten in the split."""

    def split(self, noise_multiplier):
        return (noise_multiplier / 10,)


def test_noise_that_does_not_add_up_to_the_plan_is_refused(plan):
    with pytest.raises(InvalidInput, match="does not add up"):
        PrivateStep(plan, arrange(Generous(1.0), ["w"]), [6])


def test_an_empty_batch_is_a_legal_step(plan):
    step, (answer,) = run(plan, Online(), [])
    assert [tuple(a.shape) for a in answer.answers] == [(6,), (6,), ()]
    assert answer.answers[0].abs().max() > 0
    assert step.states[0].step == 1


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_vector_that_is_not_finite_adds_nothing(plan, bad):
    vectors = matrix(3)
    vectors[1, 2] = bad
    _, (answer,) = run(plan, Online(), [MatrixTape(vectors)])
    _, (without,) = run(plan, Online(), [MatrixTape(vectors[[0, 2]])])
    for one, other in zip(answer.answers[:2], without.answers[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("policy", [Fixed(1.0), Online(), Quantile(), TypicalNorm(), FallingNorm()], ids=repr)
@pytest.mark.parametrize("victim", [0, 3, 6])
def test_a_sample_whose_sum_overflows_adds_nothing_and_stops_nothing(plan, policy, victim):
    vectors = matrix(7)
    rest = [row for row in range(7) if row != victim]
    _, (answer,) = run(plan, policy, [Overflowing(vectors, victim)])
    _, (without,) = run(plan, policy, [MatrixTape(vectors[rest])])
    torch.testing.assert_close(answer.answers[0], without.answers[0], rtol=1e-12, atol=1e-12)


class Overflowing(MatrixTape):
    """A tape on which the sum over one sample overflows although its norm does not."""

    def __init__(self, vectors, victim):
        super().__init__(vectors)
        object.__setattr__(self, "victim", victim)

    def contract(self, queries, direction=None, group=0):
        hit = any(float(query.own[self.victim]) != 0 for query in queries if hasattr(query, "own"))
        return [answer * torch.inf if hit else answer for answer in super().contract(queries, direction, group)]


def test_sector_needs_replace_one_before_anything_runs(plan):
    with pytest.raises(Unsupported, match="replace-one"):
        PrivateStep(plan, arrange(Sector(), ["w"]), [6])


def test_the_state_changes_only_after_the_noise_is_drawn(plan):
    step = PrivateStep(plan, arrange(Quantile(threshold=0.1), ["w"]), [6])
    step.absorb(MatrixTape(matrix(4)))
    assert step.thresholds == [0.1]
    step.absorb(MatrixTape(matrix(4, seed=1)))
    assert step.thresholds == [0.1]
    step.finish(torch.zeros(1, dtype=torch.float64), np.random.default_rng(0))
    assert step.thresholds != [0.1]
