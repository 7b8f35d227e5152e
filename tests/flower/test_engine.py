"""The Flower engine without a network: it equals the engine in process, and lets nothing out that it should not."""

import functools
import importlib.util
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'sordina[federated]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import nn

from sordina.clipping import Fixed, Quantile
from sordina.federated import losses
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.fedavg import AddMean, LocalTraining
from sordina.federated.algorithms.ifca import BestModel
from sordina.federated.algorithms.metric_pfl import MetricPflServer
from sordina.federated.algorithms.registry import NAMES
from sordina.federated.algorithms.scaffold import ScaffoldClient, ScaffoldServer
from sordina.federated.compression import Compressed, Quantised, TopK
from sordina.federated.engines import ClientSide, FaultInjectingEngine, FaultInjection, InProcess
from sordina.federated.objective import of_module
from sordina.federated.population import Population, SampledClients
from sordina.federated.privacy.accounts import exact
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.local import Local
from sordina.federated.privacy.metric import Metric, PublicRadius
from sordina.federated.privacy.placement import ClearUpdates
from sordina.federated.recipe import FederatedRecipe
from sordina.federated.round import FederatedMethod, federate
from sordina.plan import make_plan
from sordina.privacy import Budget, Unit
from sordina.sampling import FixedSize, Poisson

_spec = importlib.util.spec_from_file_location("double", Path(__file__).with_name("double.py"))
double = importlib.util.module_from_spec(_spec)
sys.modules["double"] = double
_spec.loader.exec_module(double)

STEPS = LocalSteps(0.05, 3, epochs=2)
CLIENTS = 6


def people(seed=0):
    rng = np.random.default_rng(seed)
    shards = []
    for _ in range(CLIENTS):
        x = rng.standard_normal((int(rng.integers(2, 9)), 2))
        shards.append((torch.from_numpy(x), torch.from_numpy(x @ [[1.0], [2.0]] + rng.standard_normal((len(x), 1)))))
    return Population.of(shards)


def objective():
    return of_module(nn.Linear(2, 1, bias=False).double(), losses.mse)


def plan(rounds=5, clients=4):
    return make_plan(Budget(5.0, 1e-5), Poisson(clients, CLIENTS), rounds, unit=Unit.USER)


@functools.cache
def methods():
    f = objective()
    uniform = SampledClients(FixedSize(4, CLIENTS))
    budgeted = plan()
    central = SampledClients(budgeted.sampler)
    return {
        "fedavg": FederatedMethod(AddMean(), LocalTraining(f, STEPS), ClearUpdates(), uniform),
        "scaffold": FederatedMethod(
            ScaffoldServer(4 / CLIENTS, 0.05), ScaffoldClient(f, STEPS), ClearUpdates(), uniform
        ),
        "central": FederatedMethod(AddMean(), LocalTraining(f, STEPS), Central(budgeted, Fixed(0.5)), central),
        "central-quantile": FederatedMethod(
            AddMean(), LocalTraining(f, STEPS), Central(budgeted, Quantile(0.5)), central
        ),
        "metric": FederatedMethod(MetricPflServer(), BestModel(f, STEPS), Metric(5.0, PublicRadius(1.0)), uniform),
        "local": FederatedMethod(AddMean(), LocalTraining(f, STEPS), Local.within(Budget(8, 1e-5), 0.5, 3), uniform),
    }


def go(method, engine, rounds=5, seed=3, k=None):
    k = k or (2 if isinstance(method.strategy, MetricPflServer) else 1)
    models = torch.from_numpy(np.random.default_rng(1).standard_normal((k, 2)))
    return federate(method, engine, models, clients=CLIENTS, rounds=rounds, rng=np.random.default_rng(seed))


def on_flower(method, folder, **options):
    return double.fleet(ClientSide(method.work, method.placement), people(), folder, **options)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "central", "central-quantile"])
def test_without_noise_of_the_clients_both_engines_give_the_same_models(name, tmp_path):
    method = methods()[name]
    here = go(method, InProcess(people()))
    there = go(method, on_flower(method, tmp_path))
    assert torch.allclose(here.models, there.models, atol=1e-6, rtol=0)
    assert [one.answered for one in here.history] == [one.answered for one in there.history]
    assert here.statement == there.statement


def first_vectors(method, engine, seed):
    seen = []
    models = torch.from_numpy(np.random.default_rng(1).standard_normal((2, 2)))
    federate(
        method, engine, models, clients=CLIENTS, rounds=1, rng=np.random.default_rng(seed),
        observe=lambda shown: seen.append(shown.release.vectors),
    )  # fmt: skip
    return seen[0]


def test_sanitised_vectors_follow_the_same_law_on_both_engines(tmp_path):
    """The Euclidean Laplace law in n = 2: the noise is n / epsilon = nu r long on average, within 5 standard errors."""
    method = methods()["metric"]
    quiet = FederatedMethod(MetricPflServer(), method.work, ClearUpdates(gather=True), method.selection)
    engines = {
        "in process": lambda seed: InProcess(people()),
        "flower": lambda seed: on_flower(method, tmp_path / str(seed), seed=seed),
    }
    for engine_of in engines.values():
        pairs = [
            (first_vectors(method, engine_of(seed), seed), first_vectors(quiet, InProcess(people()), seed))
            for seed in range(25)
        ]
        lengths = torch.cat([(noised - clear).norm(dim=1) for noised, clear in pairs])
        assert len(lengths) == 100
        assert abs(float(lengths.mean()) - 5.0 * 1.0) < 5 * float(lengths.std()) / 100**0.5


def test_accounts_are_written_at_home_and_no_limit_is_passed(tmp_path):
    method = methods()["metric"]
    engine = on_flower(method, tmp_path, limit=exact(0.8))
    result = go(method, engine, rounds=12)
    own = [double.ClientFolder(tmp_path / str(k)).total().of_run(7) for k in range(CLIENTS)]
    assert [account.spent for account in own] == [account.spent for account in engine.accounts]
    assert max(account.spent for account in own) == Fraction(4, 5)
    assert sum(one.answered for one in result.history) == sum(account.participations for account in own)
    assert any(one.withheld for one in result.history)


def test_an_instruction_that_comes_twice_gets_the_same_answer_and_costs_nothing(tmp_path):
    method = methods()["metric"]
    engine = on_flower(method, tmp_path)
    go(method, engine, rounds=2)
    home = double.ClientFolder(tmp_path / "0")
    before = home.total()
    last = [message for message in engine.grid.instructions if message.metadata.dst_node_id == 100][-1]
    said = [reply for node, reply in engine.grid.replies if node == 100][-1]
    again = engine.grid.deliver(last)
    assert arrays(again).keys() == arrays(said).keys()
    assert all(np.array_equal(value, arrays(said)[key]) for key, value in arrays(again).items())
    assert home.total() == before


def test_an_older_instruction_is_not_followed(tmp_path):
    method = methods()["metric"]
    engine = on_flower(method, tmp_path)
    go(method, engine, rounds=4)
    mine = [message for message in engine.grid.instructions if message.metadata.dst_node_id == 101]
    before = double.ClientFolder(tmp_path / "1").total()
    assert len(mine) > 1
    packed = arrays(engine.grid.deliver(mine[0]))
    assert set(packed) == {"withheld"}
    assert double.ClientFolder(tmp_path / "1").total() == before


def test_a_spend_is_on_disk_before_the_noise_is_drawn(tmp_path, monkeypatch):
    method = methods()["metric"]
    spent = []

    def look(self, outcome, state, rng):
        spent.append(double.ClientFolder(tmp_path / "0").total().of_run(7).spent)
        raise RuntimeError("the process dies here, and its words quote 42.0 of the data")

    engine = on_flower(method, tmp_path)
    monkeypatch.setattr(Metric, "seal", look)
    instruction = double.instruction_for(method, engine)
    reply = engine.grid.deliver(instruction)
    assert spent == [Fraction(2, 5)]
    assert set(arrays(reply)) == {"rejected"}, "and what went wrong is not told to the server"
    assert set(reply.content) == {"letter"}
    monkeypatch.undo()
    engine.grid.deliver(instruction)
    assert double.ClientFolder(tmp_path / "0").total().of_run(7).spent == Fraction(4, 5), "a second draw is paid for"


def arrays(message):
    return double.arrays(message.content["letter"])


@pytest.mark.parametrize("name", ["metric", "central", "local"])
def test_what_leaves_a_client_is_as_long_as_the_method_says_and_tells_nothing_else(name, tmp_path):
    method = methods()[name]
    engine = on_flower(method, tmp_path)
    go(method, engine)
    assert engine.grid.replies
    clear = raw_vectors(method)
    for _, reply in engine.grid.replies:
        packed = arrays(reply)
        assert set(packed) == ({"sum-0"} if name == "central" else {"vectors"}), "no sample count, no hypothesis chosen"
        numbers = packed["sum-0"] if name == "central" else packed["vectors"][0]
        assert numbers.shape == (2,)
        if name == "central":
            assert np.linalg.norm(numbers) <= 0.5 + 1e-9, "clipped in the client's process"
        else:
            assert min(np.linalg.norm(numbers - one) for one in clear) > 1e-6, "sanitised in the client's process"
    sizes = {sum(len(array.data) for array in reply.content["letter"].values()) for _, reply in engine.grid.replies}
    assert len(sizes) == 1, "every message has the same length"


def raw_vectors(method):
    seen = []
    quiet = FederatedMethod(
        MetricPflServer(), method.work, ClearUpdates(gather=True), SampledClients(FixedSize(CLIENTS, CLIENTS))
    )
    if not isinstance(method.strategy, MetricPflServer):
        quiet = FederatedMethod(
            AddMean(), method.work, ClearUpdates(gather=True), SampledClients(FixedSize(CLIENTS, CLIENTS))
        )
    k = 2 if isinstance(method.strategy, MetricPflServer) else 1
    models = torch.from_numpy(np.random.default_rng(1).standard_normal((k, 2)))
    federate(
        quiet, InProcess(people()), models, clients=CLIENTS, rounds=1, rng=np.random.default_rng(0),
        observe=lambda shown: seen.extend(shown.release.vectors.numpy()),
    )  # fmt: skip
    return seen


def tampered(reply, **changes):
    record = ArrayRecord(dict(reply.content["letter"].items()))
    for key, value in changes.items():
        record[key] = value if isinstance(value, Array) else double.array(value)
    return reply_with(reply, RecordDict({"letter": record}))


def reply_with(reply, content):
    reply.content = content
    return reply


WEATHER = {
    "not finite": lambda reply: tampered(reply, vectors=np.array([[np.nan, 0.0]])),
    "too long": lambda reply: tampered(reply, vectors=np.zeros((1, 3))),
    "several": lambda reply: tampered(reply, vectors=np.zeros((5, 2))),
    "another kind of number": lambda reply: tampered(reply, vectors=np.zeros((1, 2), np.float32)),
    "huge": lambda reply: tampered(reply, vectors=np.full((1, 2), 1e30)),
    "text": lambda reply: tampered(reply, vectors=Array(np.array([["a", "b"]]))),
    "one record too many": lambda reply: reply_with(
        reply, RecordDict({**reply.content, "more": ConfigRecord({"samples": 3})})
    ),
    "another name": lambda reply: reply_with(
        reply, RecordDict({"letter": ArrayRecord({"samples": double.array(np.ones(1))})})
    ),
    "empty": lambda reply: reply_with(reply, RecordDict()),
}


@pytest.mark.parametrize("name", sorted(WEATHER))
def test_a_bad_reply_is_left_out_and_named_and_the_round_goes_on(name, tmp_path, caplog):
    method = methods()["metric"]
    bad = lambda node, reply: WEATHER[name](reply) if node == 102 else reply  # noqa: E731
    engine = on_flower(method, tmp_path, tamper=bad)
    result = go(method, engine, rounds=4)
    assert len(result.history) == 4
    assert torch.isfinite(result.models).all()
    asked = sum(message.metadata.dst_node_id == 102 for message in engine.grid.instructions)
    assert asked == sum(len(one.refused) for one in result.history) > 0
    assert sum(one.answered + len(one.refused) for one in result.history) == 16
    assert "client 2 is left out" in caplog.text


def test_a_client_that_leaves_is_counted_as_if_it_had_answered(tmp_path, caplog):
    method = methods()["metric"]
    engine = on_flower(method, tmp_path, tamper=lambda node, reply: None if node == 103 else reply, deadline=0.2)
    result = go(method, engine, rounds=4)
    lost = sum(message.metadata.dst_node_id == 103 for message in engine.grid.instructions)
    assert sum(one.answered for one in result.history) == 16 - lost
    assert sum(one.dropped for one in result.history) == lost > 0
    assert engine.accounts[3].participations == lost
    assert "clients [3] are gone" in caplog.text


def test_a_newcomer_takes_the_seat_of_one_who_left_and_the_worst_account(tmp_path):
    method = methods()["metric"]
    engine = on_flower(method, tmp_path)
    go(method, engine, rounds=4)
    worst = max(account.spent for account in engine.accounts)
    engine.grid.apps[200] = engine.grid.apps.pop(100)
    go(method, engine, rounds=1)
    assert engine.seats[0] == 200
    assert worst <= engine.accounts[0].spent <= worst + Fraction(2, 5)


def test_too_few_nodes_are_said_in_so_many_words(tmp_path):
    from sordina.errors import DataNotFound

    with pytest.raises(DataNotFound, match="0 of 3 clients came"):
        double.Flower(double.DoubleGrid({}), 3).gather(0.01)


def test_a_damaged_account_or_memory_stops_the_client_not_the_run(tmp_path):
    method = methods()["metric"]
    engine = on_flower(method, tmp_path)
    go(method, engine, rounds=3)
    (tmp_path / "0" / "account.json").write_text("{}")
    (tmp_path / "1" / "run-7.npz").write_bytes(b"nothing")
    result = go(method, on_flower(method, tmp_path), rounds=3)
    assert sum(one.rejected for one in result.history) > 0
    assert len(result.history) == 3


def test_a_message_is_not_of_our_making(tmp_path):
    from sordina.errors import InvalidInput
    from sordina.federated.flower.records import read

    with pytest.raises(InvalidInput, match="not of Sordina's making"):
        read(RecordDict({"order": ConfigRecord({"seed": 1})}))
    message = Message(RecordDict({"order": ConfigRecord({"seed": 1})}), 100, "train")
    engine = on_flower(methods()["metric"], tmp_path)
    assert set(arrays(engine.grid.deliver(message))) == {"rejected"}


def test_hostile_weather_is_the_same_on_both_engines(tmp_path):
    """Who falls silent, is late or is turned away, and what that leaves of the models, without noise of clients."""
    method = methods()["fedavg"]
    faults = FaultInjection(dropout=0.3, late=0.2, hostile={0: "nan", 1: "huge", 2: "replay", 3: "impostor"}, seed=4)
    here = go(method, FaultInjectingEngine(InProcess(people()), faults), rounds=8)
    there = go(method, FaultInjectingEngine(on_flower(method, tmp_path), faults), rounds=8)
    assert torch.allclose(here.models, there.models, atol=1e-6, rtol=0)
    facts = [
        [(one.answered, one.dropped, sorted((r.sender, r.reason) for r in one.refused)) for one in result.history]
        for result in (here, there)
    ]
    assert facts[0] == facts[1]
    assert any(one[1] for one in facts[0])
    assert {sender for one in facts[0] for sender, _ in one[2]} >= {0, 1}


@pytest.mark.parametrize("codec", [Quantised(8), TopK(0.5)], ids=["8bit", "top"])
def test_compressed_letters_cross_and_cost_fewer_bytes(codec, tmp_path):
    plain = methods()["metric"]
    small = replace(plain, placement=Compressed(plain.placement, codec, 2, torch.float64))
    engine = on_flower(small, tmp_path, limit=exact(2.0))
    result = go(small, engine)
    assert sum(one.answered for one in result.history) == 20
    assert all(arrays(reply)["vectors"].dtype == np.uint8 for _, reply in engine.grid.replies)
    own = double.ClientFolder(tmp_path / "0").total()
    assert own.participations == engine.accounts[0].participations > 0, "one account, compressed or not"


@pytest.mark.parametrize("name", NAMES)
def test_every_named_method_gives_the_same_models_on_both_engines(name, tmp_path):
    recipe = FederatedRecipe(
        "own", name, privacy="none", rounds=3, clients_per_round=4, learning_rate=0.05, batch_size=3
    )
    method, _ = recipe.setup(CLIENTS).method(objective())
    here, there = (
        go(method, InProcess(people()), 3, k=recipe.models),
        go(method, on_flower(method, tmp_path), 3, k=recipe.models),
    )
    assert torch.allclose(here.models, there.models, atol=1e-6, rtol=0)
    assert sum(one.answered for one in there.history) == 12
