"""The typical norm is found from far away, once, at the price of a few steps' precision; then the threshold stays."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sordina.clipping import TypicalNorm, arrange
from sordina.errors import InvalidInput
from sordina.gradients.explicit import MatrixTape
from sordina.plan import make_plan
from sordina.privacy import Adjacency, Budget
from sordina.private_step import PrivateStep
from sordina.queries import Released, Scalars
from sordina.sampling import Poisson

BATCH = 256


def search(policy: TypicalNorm, norms: torch.Tensor, nu: float, steps: int, seed: int = 0):
    """The states of a run in which the norms do not change."""
    rng, state, states = np.random.default_rng(seed), policy.init(3), []
    for _ in range(steps):
        scales = [
            bound * share
            for bound, share in zip(policy.bounds(state, Adjacency.ADD_REMOVE), policy.split_at(nu, state), strict=True)
        ]
        queries = policy.ask(Scalars(norms), state)
        answers = [torch.zeros(3)]
        if len(queries) > 1:
            answers.append(queries[1].value.sum() + scales[1] * rng.normal())
        state = policy.adapt(state, Released(tuple(answers), tuple(scales), float(BATCH)))
        states.append(state)
    return states


@pytest.mark.parametrize("scale", [1e-3, 1e-2, 1.0, 1e2, 1e4])
def test_the_scale_is_found_from_far_away(scale):
    norms = scale * torch.exp(0.4 * torch.randn(BATCH, generator=torch.Generator().manual_seed(0)))
    last = search(TypicalNorm(), norms, nu=2.0, steps=10)[-1]
    assert last.found
    assert TypicalNorm().current_threshold(last) == pytest.approx(scale, rel=0.4)


def test_an_ordinary_scale_is_found_in_few_steps_and_then_kept():
    norms = torch.full((BATCH,), 3.0)
    states = search(TypicalNorm(), norms, nu=1.0, steps=30)
    assert states[2].found
    assert len({state.log_norm for state in states[2:]}) == 1
    later = search(TypicalNorm(), norms / 1000, nu=1.0, steps=30)
    assert later[2].found


def test_under_more_noise_the_search_is_longer_and_ends():
    quiet, loud = (search(TypicalNorm(), torch.full((BATCH,), 3.0), nu, steps=12) for nu in (0.5, 60.0))
    first = [next(number for number, state in enumerate(states) if state.found) for states in (quiet, loud)]
    assert first[0] < first[1] <= 9
    assert all(math.isfinite(state.log_norm) for state in loud)


def test_samples_without_a_gradient_or_without_a_number_are_borne():
    policy = TypicalNorm()
    queries = policy.ask(Scalars(torch.tensor([0.0, math.inf, math.nan, 2.0])), policy.init(3))
    assert queries[1].value.tolist()[1:3] == [0, 0]
    assert queries[1].value[0] == -policy.init(3).below


def test_where_half_of_the_gradients_vanish_the_other_half_is_typical():
    """Inputs so large that a first guess is certain: it had found a threshold four hundred times too low."""
    norms = torch.cat([torch.full((BATCH // 2,), 300.0), torch.full((BATCH // 2,), 1e-12)])
    last = search(TypicalNorm(), norms, nu=1.0, steps=10)[-1]
    assert last.found
    assert 15 < TypicalNorm().current_threshold(last) < 400


def test_a_policy_whose_split_becomes_too_cheap_is_refused_before_it_adds_noise():
    class Cheap(TypicalNorm):
        def split_at(self, noise_multiplier, state):
            return super().split_at(noise_multiplier * (0.5 if state.step else 1.0), state)

    plan = make_plan(Budget(1.0, 1e-5), Poisson(4, 100), 10)
    (part,) = arrange(Cheap(), ["w"])
    step = PrivateStep(plan, [part], [3])
    rng = np.random.default_rng(0)
    step.absorb(MatrixTape(torch.randn(4, 3)))
    step.finish(torch.zeros(1), rng)
    step.absorb(MatrixTape(torch.randn(4, 3)))
    with pytest.raises(InvalidInput, match="does not add up"):
        step.finish(torch.zeros(1), rng)


@pytest.mark.parametrize("field", ["multiple", "threshold", "doubt", "precise"])
def test_nonsense_is_refused(field):
    with pytest.raises(InvalidInput):
        TypicalNorm(**{field: -1.0})
