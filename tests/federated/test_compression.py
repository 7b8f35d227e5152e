"""Compression: what arrives, how many bytes it took, and that it comes after sanitisation or not at all."""

import numpy as np
import pytest
import torch
from torch import nn

from sordina.clipping import Fixed
from sordina.errors import InvalidInput, Unsupported
from sordina.federated import losses
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.fedavg import AddMean, LocalTraining
from sordina.federated.compression import Compressed, Quantised, TopK, named
from sordina.federated.engines import ClientSide, FaultInjectingEngine, FaultInjection, InProcess, RoundRequest
from sordina.federated.messages import ClientResult, pack, unpack
from sordina.federated.objective import of_module
from sordina.federated.population import ClientsInTurn, Population, RowOrder
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.local import Local
from sordina.federated.privacy.metric import Metric, PublicRadius
from sordina.federated.privacy.placement import UNIFORM, ClearUpdates
from sordina.federated.round import FederatedMethod, federate
from sordina.plan import make_plan
from sordina.privacy import Budget, Unit
from sordina.sampling import Poisson

SIZE = 101


def rows(count=5, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((count, SIZE)))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_rounding_is_within_a_level_unbiased_and_packed(bits):
    codec, values = Quantised(bits), rows()
    encoded = codec.encode(values, np.random.default_rng(0))
    assert encoded.shape == (5, 4 + -(-SIZE * bits // 8))
    level = 2 * values.abs().max(dim=1, keepdim=True).values / (2**bits - 1)
    assert ((codec.decode(encoded, SIZE) - values).abs() <= level * 1.001).all()
    rng = np.random.default_rng(1)
    draws = 400
    mean = sum(codec.decode(codec.encode(values, rng), SIZE) for _ in range(draws)) / draws
    worst = level / 2 / draws**0.5
    assert ((mean - values).abs() < 6 * worst).all()
    assert (mean - values).abs().mean() < worst.mean()


def test_rounding_keeps_zeros_and_extremes():
    codec = Quantised(8)
    zero = torch.zeros(1, 5)
    assert torch.equal(codec.decode(codec.encode(zero, np.random.default_rng(0)), 5).float(), zero)
    wide = torch.tensor([[1e-30, -1e30, 1e30]], dtype=torch.float64)
    back = codec.decode(codec.encode(wide, np.random.default_rng(0)), 3)
    assert torch.allclose(back[0, 1:], wide[0, 1:], rtol=1e-6)


def test_top_k_keeps_the_largest_and_only_them():
    codec, values = TopK(0.1), rows()
    encoded = codec.encode(values, np.random.default_rng(0))
    assert encoded.shape == (5, 8 * 10)
    back = codec.decode(encoded, SIZE)
    for row in range(5):
        kept = back[row].nonzero().flatten()
        assert len(kept) == 10
        assert torch.allclose(back[row, kept], values[row, kept], rtol=1e-6)
        assert values[row, kept].abs().min() >= values[row].abs().sort().values[-10] * 0.999999


@pytest.mark.parametrize("codec", [Quantised(4), TopK(0.1)])
def test_bytes_that_nobody_wrote_are_refused(codec):
    encoded = codec.encode(rows(1), np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="malformed"):
        codec.decode(encoded[:, :-1], SIZE)
    if isinstance(codec, TopK):
        broken = encoded.copy()
        broken[0, :4] = 255
        with pytest.raises(InvalidInput, match="different"):
            codec.decode(broken, SIZE)


def test_compression_comes_after_the_noise():
    """The compressed update is a function of the sanitised one: equal noise, then the codec."""
    metric = Metric(50.0, PublicRadius(0.5))
    outcome = ClientResult(rows().float(), torch.ones(5))
    placement = Compressed(metric, TopK(0.2), SIZE)
    sent = placement.decoded(placement.seal(outcome, None, np.random.default_rng(3))).vectors
    noised = metric.seal(outcome, None, np.random.default_rng(3)).vectors
    kept = sent != 0
    assert int(kept.sum()) == 5 * 20
    assert torch.allclose(sent[kept], noised[kept], rtol=1e-6)
    assert placement.cost(SIZE) == metric.cost(SIZE)


def test_central_privacy_refuses_compression():
    plan = make_plan(Budget(3.0, 1e-5), Poisson(10, 20), 5, unit=Unit.USER)
    with pytest.raises(Unsupported, match="calibrated"):
        Compressed(Central(plan, Fixed(1.0)), Quantised(8), SIZE)
    with pytest.raises(InvalidInput, match="announced"):
        Compressed(Metric(5.0), Quantised(8), SIZE).start(SIZE + 1)


def federation():
    rng = np.random.default_rng(0)
    law = torch.from_numpy(rng.standard_normal((40, 1))).float()
    shards = []
    for _ in range(20):
        x = torch.from_numpy(rng.standard_normal((30, 40))).float()
        shards.append((x, x @ law))
    return Population.of(shards), of_module(nn.Linear(40, 1, bias=False), losses.mse), law.flatten()


@pytest.mark.parametrize(("codec", "size"), [(None, 164), (Quantised(8), 44), (Quantised(4), 24), (TopK(0.25), 80)])
@pytest.mark.parametrize("privacy", ["none", "local"])
def test_runs_end_in_the_same_place_and_report_their_bytes(codec, size, privacy):
    population, objective, law = federation()
    placement = ClearUpdates(UNIFORM, gather=codec is not None) if privacy == "none" else Local(5.0, 1e-3, 1e-5, 100)
    if codec is not None:
        placement = Compressed(placement, codec, 40)
    elif privacy == "local":
        size = 160
    method = FederatedMethod(AddMean(), LocalTraining(objective, LocalSteps(0.02, 10)), placement, ClientsInTurn(10))
    engine = InProcess(population)
    result = federate(method, engine, torch.zeros(1, 40), clients=20, rounds=60, rng=np.random.default_rng(0))
    assert (result.models[0] - law).norm() < 0.1 * law.norm()
    assert {one.sent for one in result.history} == {10 * 160}
    assert {one.received for one in result.history} == {10 * size}


def test_compressed_letters_pass_the_guard_and_the_wire():
    population, objective, _ = federation()
    placement = Compressed(Metric(1000.0, PublicRadius(0.1)), Quantised(8), 40)
    side = ClientSide(LocalTraining(objective, LocalSteps(0.02, 10)), placement)
    call = RoundRequest({"model": torch.zeros(40)}, None, RowOrder(0, 0))
    engine = FaultInjectingEngine(InProcess(population), FaultInjection(hostile={2: "nan", 5: "huge"}))
    update = engine.map_reduce(side, call, np.arange(10), np.random.default_rng(0))
    assert update.answered == 8
    assert update.vectors.dtype == torch.uint8
    assert {one.sender for one in update.refused} == {2, 5}
    alone, _ = engine.inner.apart(side, call, np.array([3]), np.random.default_rng(0))
    again = unpack(pack(alone[3]), type(alone[3])())
    assert torch.equal(again.vectors, alone[3].vectors)
    release, _ = placement.open(update, None, np.random.default_rng(0))
    assert release.vectors.shape == (8, 40)


def test_names():
    assert named("8bit") == Quantised(8)
    for wrong in ("3bit", "top:2", "top:", "zip", "bit"):
        with pytest.raises(InvalidInput):
            named(wrong)
