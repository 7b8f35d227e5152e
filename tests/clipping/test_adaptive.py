"""Adaptive thresholds converge, from both sides, and to where they should."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sordina.clipping import Fixed, Online, Quantile, Rails, Trailing, named
from sordina.errors import InvalidInput
from sordina.queries import Released, ScalarQuery, Scalars

SIZE, BATCH = 40, 400


def norms_of(rng: np.random.Generator) -> torch.Tensor:
    """Log-normal norms with median 2."""
    return torch.from_numpy(2 * np.exp(rng.standard_normal(BATCH)))


def simulate(policy, steps: int, nu: float = 1.0, seed: int = 0):
    """Vectors along a common direction, with log-normal norms; the engine's sums and the step's noise by hand."""
    rng, axis = np.random.default_rng(seed), torch.ones(SIZE, dtype=torch.float64) / math.sqrt(SIZE)
    state = policy.init(SIZE)
    from sordina.privacy import Adjacency

    for _ in range(steps):
        norms = norms_of(rng)
        answers, scales = [], []
        bounds = policy.bounds(state, Adjacency.ADD_REMOVE)
        for query, bound, share in zip(policy.ask(Scalars(norms), state), bounds, policy.split(nu), strict=True):
            scales.append(bound * share)
            if isinstance(query, ScalarQuery):
                answers.append(query.value.sum() + scales[-1] * rng.standard_normal())
            else:
                noise = torch.from_numpy(rng.standard_normal(SIZE))
                answers.append((query.own * norms).sum() * axis + scales[-1] * noise)
        state = policy.adapt(state, Released(tuple(answers), tuple(scales), float(BATCH)))
    return state


@pytest.mark.parametrize("initial", [1e-3, 1e3])
@pytest.mark.parametrize("gamma", [0.2, 0.5, 0.8])
def test_quantile_finds_its_quantile_from_both_sides(initial, gamma):
    state = simulate(Quantile(gamma, threshold=initial), 300)
    below = float((norms_of(np.random.default_rng(9)) <= state.threshold).double().mean())
    assert below == pytest.approx(gamma, abs=0.08)


@pytest.mark.parametrize("initial", [1e-3, 1e3])
def test_online_comes_between_its_rails_from_both_sides(initial):
    state = simulate(Online(threshold=initial), 300)
    clipped = float((norms_of(np.random.default_rng(9)) > state.threshold).double().mean())
    rails = Rails()
    assert rails.low - 0.05 <= clipped <= rails.high + 0.1


def test_online_goes_where_the_loss_says_between_the_rails():
    """All vectors agree, so a larger threshold always helps: C climbs to the lower rail and stays there."""
    state = simulate(Online(threshold=2.0, rails=Rails(0.05, 0.95)), 400)
    clipped = float((norms_of(np.random.default_rng(9)) > state.threshold).double().mean())
    assert clipped == pytest.approx(0.05, abs=0.04)


def test_the_thesis_rule_moves_by_its_constant_rate():
    state = simulate(Online.as_in_thesis(threshold=0.1), 101)
    assert math.isclose(state.threshold, 0.1 * math.exp(2.5e-3 * 100), rel_tol=1e-9)


@pytest.mark.parametrize("initial", [1e-2, 1e2])
def test_trailing_follows_the_size_of_released_means(initial):
    state = simulate(Trailing(threshold=initial), 60)
    mean = float(norms_of(np.random.default_rng(9)).mean())
    assert 0.5 * mean < state.threshold < 8 * mean


def test_names():
    assert named("fixed", 0.5) == Fixed(0.5)
    with pytest.raises(InvalidInput, match="choose one of"):
        named("median")
    with pytest.raises(InvalidInput, match="no threshold"):
        named("automatic", 1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Fixed(0), lambda: Fixed(-1), lambda: Fixed(math.inf), lambda: Quantile(1.5),
        lambda: Quantile(threshold=0),
        lambda: Online(threshold=-1), lambda: Online(memory=1.0), lambda: Online(inflation=0), lambda: Rails(0.9, 0.1),
        lambda: Trailing(window=0), lambda: Trailing(threshold=1e9), lambda: Quantile(rate=math.nan),
    ],
)  # fmt: skip
def test_bad_policies_are_refused(wrong):
    with pytest.raises(InvalidInput):
        wrong()


def test_running_means_of_large_models_in_sixteen_bits_say_the_same(monkeypatch):
    def moves():
        generator = torch.Generator().manual_seed(1)
        policy, gradient = Online(rails=None), torch.randn(1 << 21, generator=generator)
        state, seen = policy.init(len(gradient)), []
        for step in range(12):
            both = (gradient + torch.randn(len(gradient), generator=generator) for _ in range(2))
            g, q = both
            state = policy.adapt(state, Released((g, q * (-1) ** (step // 4)), (1.0, 1.0), 1.0))
            seen.append(state.threshold)
        return seen, state.derivative

    exact, whole = moves()
    monkeypatch.setattr("sordina.clipping.online.LARGE", 1000)
    short, half = moves()
    assert whole.dtype == torch.float32
    assert half.dtype == torch.bfloat16
    assert short == exact
    assert len(set(exact)) > 4
    assert float((half.float() - whole).norm()) < 0.02 * float(whole.norm())
