"""Noise at the client: for a whole client, or for every record of it."""

import math

import numpy as np
import pytest
import torch

from sordina.accounting import Gaussian, Repeated, accountant
from sordina.errors import InvalidInput
from sordina.federated.algorithms.fedavg import ClippedGradient
from sordina.federated.losses import mse
from sordina.federated.messages import ClientResult
from sordina.federated.objective import flat_parameters, of_module
from sordina.federated.population import Population, RowOrder
from sordina.federated.privacy.local import Local, RecordNoise
from sordina.federated.privacy.placement import Facts, clipped_rows
from sordina.privacy import Adjacency, Budget, Unit


def outcome(rows, bound=None):
    vectors = torch.as_tensor(rows, dtype=torch.float64)
    return ClientResult(vectors, torch.ones(len(vectors)), record_bound=bound)


def test_the_noise_fits_the_largest_distance_between_two_clipped_updates():
    local = Local(clip=0.5, noise_multiplier=3.0, delta=1e-5, participations=1)
    rows = torch.zeros(2000, 50, dtype=torch.float64)
    rows[:, 0] = 1e30
    sealed = local.seal(outcome(rows), None, np.random.default_rng(0)).vectors
    assert float(sealed[:, 1:].std()) == pytest.approx(2 * 0.5 * 3.0, rel=4 / math.sqrt(2 * sealed[:, 1:].numel()))
    assert float(sealed[:, 0].mean()) == pytest.approx(0.5, abs=5 * 3.0 / math.sqrt(2000))


def test_participations_compose_within_the_budget():
    local = Local.within(Budget(3.0, 1e-5), clip=1.0, participations=6)
    spent = accountant("pld").epsilon(Repeated(Gaussian(local.noise_multiplier), 6), 1e-5, Adjacency.REPLACE_ONE)
    assert 0.99 * 3 <= spent <= 3
    statement = local.statement(Facts(100, 5, 6))
    assert statement.epsilon == pytest.approx(spent)
    assert local.statement(Facts(100, 5, 3)).epsilon < spent
    assert local.cost(5) == 1


def test_a_record_is_hidden_by_noise_of_its_own_bound():
    noise = RecordNoise.within(Budget(0.8, 1e-5), participations=20)
    sealed = noise.seal(outcome(torch.zeros(100, 400), bound=0.01), None, np.random.default_rng(0)).vectors
    assert float(sealed.std()) == pytest.approx(noise.noise_multiplier * 0.01, rel=4 / math.sqrt(2 * sealed.numel()))
    statement = noise.statement(Facts(20, 5, 20))
    assert 0.99 * 0.8 <= statement.epsilon <= 0.8
    assert statement.unit is Unit.RECORD


def test_record_noise_refuses_work_that_bounds_no_record():
    with pytest.raises(InvalidInput, match="ClippedGradient"):
        RecordNoise.within(Budget(1.0, 1e-5), 1).seal(outcome([[1.0]]), None, np.random.default_rng(0))


def few_large_and_many_small(size):
    """What a linear model on counted words gets: in single precision the small entries vanish beside the large."""
    vector = torch.full((size,), 2.6e-4)
    vector[:64] = 1.0
    return 200 * vector


def test_a_long_vector_is_clipped_to_the_threshold_and_no_more():
    vectors = few_large_and_many_small(1_000_000)[None]
    local = Local(clip=0.5, noise_multiplier=1e-9, delta=1e-5, participations=1)
    sealed = local.seal(ClientResult(vectors, torch.ones(1)), None, np.random.default_rng(0)).vectors
    assert float(sealed.double().norm()) == pytest.approx(0.5, rel=1e-5)


def test_a_record_of_a_large_model_is_clipped_to_the_threshold_and_no_more():
    x = few_large_and_many_small(1_000_000)[None] / 200
    model = torch.nn.Linear(x.shape[1], 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    work = ClippedGradient(of_module(model, mse), clip=1.0, divisor=1.0)
    cohort = Population.of([(x, torch.full((1, 1), 100.0))]).cohort(np.array([0]))
    made, _ = work.run({"model": flat_parameters(model)}, cohort, {}, RowOrder())
    assert float(made.vectors.double().norm()) == pytest.approx(1.0, rel=1e-5)


def test_rows_that_cannot_be_clipped_become_zero():
    rows = torch.tensor([[math.inf, 1.0], [math.nan, 1.0], [3e38, 3e38], [3e-30, 4e-30], [0.0, 0.0]])
    assert clipped_rows(rows, 1e-30).double().norm(dim=1).tolist() == pytest.approx([0, 0, 0, 1e-30, 0], rel=1e-5)


def test_nobody_answering_is_no_release():
    from sordina.federated.messages import ClientUpdate

    for placement in (Local(1.0, 1.0, 1e-5, 1), RecordNoise(1.0, 1e-5, 1)):
        assert placement.open(ClientUpdate(), None, np.random.default_rng(0))[0] is None
