"""What depends on a client's rows, or on who took part, shows nowhere; an end chosen from data pays for the plan."""

import numpy as np
import pytest
import torch
from torch import nn

from sordina.clipping import Fixed, Quantile
from sordina.federated import losses
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.fedavg import AddMean, ClippedGradient, LocalTraining
from sordina.federated.algorithms.ifca import BestModel
from sordina.federated.algorithms.metric_pfl import MetricPflServer
from sordina.federated.engines import InProcess
from sordina.federated.objective import of_module
from sordina.federated.population import ClientsInTurn, Population, SampledClients
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.local import Local, RecordNoise
from sordina.federated.privacy.metric import Metric, PublicRadius
from sordina.federated.problem import Validation
from sordina.federated.record import line
from sordina.federated.round import FederatedMethod, Patience, federate
from sordina.plan import make_plan
from sordina.privacy import Budget, Unit
from sordina.sampling import FixedSize, Poisson

CLIENTS = 8
STEPS = LocalSteps(0.05, 4)


def people(spoil=None):
    rng = np.random.default_rng(0)
    shards = []
    for client in range(CLIENTS):
        x = torch.from_numpy(rng.standard_normal((6, 2)))
        y = x @ torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        if client == 3 and spoil is not None:
            x[2, 1] = spoil
        shards.append((x, y))
    return Population.of(shards)


def objective():
    return of_module(nn.Linear(2, 1, bias=False).double(), losses.mse)


def method(name, rounds=3):
    f = objective()
    everybody = ClientsInTurn(CLIENTS)
    plan = make_plan(Budget(3.0, 1e-5), FixedSize(CLIENTS, CLIENTS), rounds, unit=Unit.USER)
    training, mean = LocalTraining(f, STEPS), AddMean()
    return {
        "local": lambda: FederatedMethod(mean, training, Local.within(Budget(3, 1e-5), 0.5, rounds), everybody),
        "record": lambda: FederatedMethod(
            AddMean(0.1), ClippedGradient(f, 1.0, 6.0), RecordNoise.within(Budget(3, 1e-5), rounds), everybody
        ),
        "metric": lambda: FederatedMethod(
            MetricPflServer(), BestModel(f, STEPS), Metric(5.0, PublicRadius(0.5)), everybody
        ),
        "heuristic": lambda: FederatedMethod(MetricPflServer(), BestModel(f, STEPS), Metric(5.0), everybody),
        "central": lambda: FederatedMethod(mean, training, Central(plan, Fixed(0.5)), SampledClients(plan.sampler)),
    }[name]()


def go(chosen, population, rounds=3, **options):
    seen = []
    models = torch.zeros(2 if isinstance(chosen.strategy, MetricPflServer) else 1, 2, dtype=torch.float64)
    engine = InProcess(population)
    result = federate(
        chosen, engine, models, clients=CLIENTS, rounds=rounds, rng=np.random.default_rng(1), observe=seen.append,
        **options,
    )  # fmt: skip
    return result, engine, seen


@pytest.mark.parametrize("spoil", [np.nan, np.inf, 1e308])
@pytest.mark.parametrize("name", ["local", "record", "metric", "heuristic", "central"])
def test_a_client_that_diverged_is_counted_charged_and_answers_like_any_other(name, spoil):
    sane, ill = (go(method(name), people(bad)) for bad in (None, spoil))
    for one, other in zip(sane[0].history, ill[0].history, strict=True):
        counts = [(r.answered, r.withheld, r.rejected, r.dropped, r.refused, r.up, r.down) for r in (one, other)]
        assert counts[0] == counts[1]
    assert sane[0].leakage.tolist() == ill[0].leakage.tolist()
    assert [a.participations for a in sane[1].accounts] == [a.participations for a in ill[1].accounts]
    assert sane[0].statement == ill[0].statement
    assert torch.isfinite(ill[0].models).all()
    if ill[2][0].release.vectors is not None:
        vectors = ill[2][0].release.vectors
        assert len(vectors) == CLIENTS
        assert (vectors != 0).any(-1).all(), "noised, not announced by an exact value"


def test_one_bad_record_takes_only_itself_out_of_a_client():
    """Record-level privacy: with the whole client at zero, one record would change more than its bound."""
    from sordina.federated.population import RowOrder

    f = objective()
    work, bound = ClippedGradient(f, 1.0, 6.0), 1.0 / 6.0
    sent = {"model": torch.zeros(2, dtype=torch.float64)}
    vectors = [work.run(sent, people(bad).cohort(np.array([3])), {}, RowOrder())[0].vectors for bad in (None, np.nan)]
    assert float((vectors[0] - vectors[1]).norm()) <= bound * (1 + 1e-9)


def stopping(name, rounds=60):
    validation = Validation(objective(), people())
    return go(method(name, rounds), people(), rounds, validation=validation, patience=Patience(3))[0]


@pytest.mark.parametrize("name", ["central", "local", "record"])
def test_an_end_that_data_chose_pays_for_the_plan(name):
    result = stopping(name)
    assert len(result.history) < 60, "patience ended it"
    assert 2.97 <= result.statement.epsilon <= 3.0
    assert f"after {len(result.history)} rounds" in result.statement.words
    whole, _, _ = go(method(name, 60), people(), 60)
    assert whole.statement.epsilon == result.statement.epsilon


def test_who_took_part_shows_in_no_line_under_central_privacy():
    """Poisson sampling of few: some rounds have nobody. Bytes, counts and the end of the run are the same."""
    plan = make_plan(Budget(3.0, 1e-5), Poisson(0.05, CLIENTS), 40, unit=Unit.USER)
    lines = []
    for policy in (Fixed(0.5), Quantile(0.5)):
        chosen = FederatedMethod(
            AddMean(), LocalTraining(objective(), STEPS), Central(plan, policy), SampledClients(plan.sampler)
        )
        result, _, seen = go(chosen, people(), 40)
        answered = [one.answered for one in result.history]
        assert 0 in answered, "there are empty rounds"
        assert len(result.history) == 40, "and a row of them does not end the run"
        told = [line(one) for one in seen]
        assert {tuple(sorted(one)) for one in told} == {("bytes_down_each", "bytes_up_each", "round")}
        assert len({(one["bytes_down_each"], one["bytes_up_each"]) for one in told}) == 1
        lines.append(told)
    assert lines[0][0]["bytes_up_each"] == 16


def test_a_policy_with_a_number_no_float_holds_is_refused_in_one_line():
    from sordina.errors import InvalidInput
    from sordina.federated.flower.client_policy import ClientPolicy

    with pytest.raises(InvalidInput, match="epsilon is too large"):
        ClientPolicy.from_dict({"accepts": ["local"], "epsilon": 10**400, "delta": 1e-6})
