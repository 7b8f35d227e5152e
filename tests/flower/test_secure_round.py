"""Distributed privacy on Flower: the protocol through the real ClientApp, what crosses, and what clients may do."""

import importlib.util
import sys
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'sordina[federated]'")

from scipy.stats import chisquare

from sordina.errors import Unsupported
from sordina.federated.engines import InProcess
from sordina.federated.flower.client_policy import ClientPolicy
from sordina.federated.privacy.distributed import Distributed
from sordina.federated.recipe import FederatedRecipe, run
from sordina.privacy import Budget

_spec = importlib.util.spec_from_file_location("double", Path(__file__).with_name("double.py"))
double = importlib.util.module_from_spec(_spec)
sys.modules["double"] = double
_spec.loader.exec_module(double)

CLIENTS, ROUNDS = 8, 2
STEPS = ("keys", "digest", "masked", "shares")


def parts(width=4, epsilon=1e6):
    placement = Distributed.within(Budget(epsilon, 1e-3), CLIENTS, ROUNDS, honest_share=0.75, dropout=0.25)
    return double.parts_of(placement, CLIENTS, width)


engine_of = partial(double.engine_of, limit=Fraction(ROUNDS))
go = partial(double.go, clients=CLIENTS, rounds=ROUNDS)


def test_on_flower_as_in_process_up_to_the_noise(tmp_path):
    method, population, models = parts()
    apart = go(method, engine_of(method, population, tmp_path), models)
    together = go(method, InProcess(population, limit=Fraction(ROUNDS)), models)
    torch.testing.assert_close(apart.models, together.models, atol=2e-2, rtol=0)
    assert apart.models.norm() > 0.1
    assert apart.statement.epsilon == pytest.approx(together.statement.epsilon)
    assert [one.answered for one in apart.history] == [CLIENTS] * ROUNDS


def test_the_server_sees_uniform_words_and_no_count(tmp_path):
    method, population, models = parts(width=5000)
    engine = engine_of(method, population, tmp_path)
    go(method, engine, models, rounds=1)
    replies = [reply.content for _, reply in engine.grid.replies]
    vectors = [
        record["masked"] for content in replies for record in content.array_records.values() if "masked" in record
    ]
    assert len(vectors) == CLIENTS
    for one in vectors:
        counts = np.bincount(np.frombuffer(one.data, dtype=np.uint8), minlength=256)
        assert chisquare(counts).pvalue > 1e-6
    seen = {key for content in replies for record in content.config_records.values() for key in record}
    assert seen == {"keys", "digest", "numbers", "data"}
    assert not any("letter" in content or "vectors" in content for content in replies)


@pytest.mark.parametrize("step", STEPS)
def test_clients_drop_out_at_every_step(tmp_path, step):
    method, population, models = parts()
    engine = engine_of(method, population, tmp_path, tamper=double.silent_in(step, STEPS), deadline=0.5)
    result = go(method, engine, models, rounds=1)
    assert result.history[0].answered == (CLIENTS if step == "shares" else CLIENTS - 2)
    assert result.models.norm() > 0.03


def test_too_few_that_remain_change_nothing(tmp_path):
    method, population, models = parts()
    engine = engine_of(
        method, population, tmp_path, tamper=lambda node, reply: None if node < 103 else reply, deadline=0.3
    )
    result = go(method, engine, models, rounds=1)
    assert result.history[0].answered == 0
    assert not result.models.any()
    assert result.statement.epsilon is not None


def test_garbage_leaves_the_sum_and_is_named(tmp_path):
    from flwr.app import ConfigRecord, RecordDict

    method, population, models = parts()

    def spoil(node, reply):
        if node == 102 and reply.has_content() and "secure" in reply.content.config_records:
            reply.content = RecordDict({"secure": ConfigRecord({"keys": b"short", "numbers": [1], "data": [b"x"]})})
        return reply

    result = go(method, engine_of(method, population, tmp_path, tamper=spoil), models, rounds=1)
    assert result.history[0].answered == CLIENTS - 1
    assert [one.sender for one in result.history[0].refused] == [2]


class Direct:
    """Clients of one sum, asked as a server asks them."""

    def __init__(self, folder):
        from flwr.app import Context, RecordDict
        from flwr.app.user_config import UserConfig

        from sordina.federated.decentralized.secure_aggregation import SecureSum
        from sordina.federated.flower.secure_round import begin

        self.placement = parts()[0].placement
        common = SecureSum("r", self.placement.graph, self.placement.least, 4, 32)
        self.contexts = [Context(1, node, UserConfig(), RecordDict(), UserConfig()) for node in range(CLIENTS)]
        self.keys = {
            node: begin(np.zeros(4, dtype=np.int64), node, common, 0, self.contexts[node], folder / str(node))
            .config_records["secure"]["keys"]
            for node in range(CLIENTS)
        }  # fmt: skip
        self.letters = {node: self.share(node) for node in range(CLIENTS)}

    def ask(self, client, step, numbers, data=(), count=CLIENTS, context=None):
        from types import SimpleNamespace

        from sordina.federated.flower.secure_round import continued

        record = {"client": client, "step": step, "numbers": numbers, "data": list(data), "count": count}
        told = SimpleNamespace(content=SimpleNamespace(config_records={"secure": record}))
        return continued(told, self.contexts[client] if context is None else context)

    def others(self, client):
        return [one for one in range(CLIENTS) if one != client]

    def share(self, client):
        others = self.others(client)
        sent = self.ask(client, "share", others, [self.keys[one] for one in others]).config_records["secure"]
        return dict(zip(sent["numbers"], sent["data"], strict=True))

    def mask(self, client, **changed):
        others = self.others(client)
        letters = {one: self.letters[one][client] for one in others} | changed.get("letters", {})
        return self.ask(client, "mask", others, [letters[one] for one in others])


def test_a_client_does_not_unmask_for_a_server_that_says_few_remained(tmp_path):
    """Whatever the server claims, fewer survivors than the client's own copy of the run allows are refused."""
    from sordina.federated.decentralized.secure_aggregation import Aborted

    asked = Direct(tmp_path)
    for client in (0, 1):
        asked.mask(client)
    with pytest.raises(Aborted, match="too few"):
        asked.ask(0, "unmask", asked.others(0), count=asked.placement.least - 1)
    few = asked.others(1)[: asked.placement.graph.threshold]
    assert len(few) < CLIENTS - 1
    with pytest.raises(Aborted, match="more neighbours"):
        asked.ask(1, "unmask", few)


def test_a_client_unmasks_once_even_if_it_is_asked_at_the_same_time(tmp_path):
    """The share of a neighbour's seed *and* the one of its mask key would open it: one context read twice gave both."""
    import copy

    from sordina.errors import InvalidInput

    asked = Direct(tmp_path)
    asked.mask(0)
    same = copy.deepcopy(asked.contexts[0])
    first = asked.ask(0, "unmask", asked.others(0)).config_records["secure"]
    assert len(first["numbers"]) == CLIENTS - 1
    with pytest.raises(InvalidInput, match="answered before"):
        asked.ask(0, "unmask", asked.others(0)[1:], count=CLIENTS - 1, context=same)
    with pytest.raises(InvalidInput, match="answered before"):
        asked.ask(0, "unmask", asked.others(0)[1:], count=CLIENTS - 1)


def test_letters_of_an_earlier_sum_are_not_read_again(tmp_path):
    """Keys are made anew in every round, so whatever is replayed is noise to its reader."""
    old, new = Direct(tmp_path / "old"), Direct(tmp_path / "new")
    told = new.mask(0, letters={3: old.letters[3][0]})
    assert list(told.config_records["secure"]["unreadable"]) == [3]


def test_a_client_whose_letters_nobody_can_read_is_named(tmp_path):
    from flwr.app import ConfigRecord, RecordDict

    method, population, models = parts()
    calls = {}

    def spoil(node, reply):
        calls[node] = calls.get(node, -1) + 1
        if node == 104 and calls[node] == 1:
            told = dict(reply.content.config_records["secure"])
            told["data"] = [bytes(len(one)) for one in told["data"]]
            reply.content = RecordDict({"secure": ConfigRecord(told)})
        return reply

    result = go(method, engine_of(method, population, tmp_path, tamper=spoil, deadline=0.5), models, rounds=1)
    assert result.history[0].answered == 0
    assert [(one.sender, "cannot read" in one.reason) for one in result.history[0].refused] == [(4, True)]


def test_the_client_s_own_limit_counts_that_the_graph_may_fail():
    from sordina.errors import BudgetRefused
    from sordina.federated.privacy.accounts import Leakage

    placement = Distributed.within(Budget(2.0, 1e-10), 3000, 40, honest_share=0.9, dropout=0.05)
    assert placement.graph.failure > 0
    one = placement.leakage(10)
    assert one.failure == Fraction(repr(placement.graph.failure))
    total = sum((one for _ in range(40)), Leakage())
    bare = replace(total, failure=Fraction(0))
    assert total.epsilon(1e-10) > bare.epsilon(1e-10)
    assert total.epsilon(40 * placement.graph.failure) == float("inf")
    again = Leakage.from_dict(total.to_dict())
    assert again == total
    old = {name: value for name, value in bare.to_dict().items() if name != "failure"}
    assert Leakage.from_dict(old) == bare
    with pytest.raises(BudgetRefused, match="epsilon would be inf"):
        ClientPolicy(("distributed",), epsilon=100.0, delta=20 * placement.graph.failure).check_total(total)


def test_a_client_that_spoils_its_shares_has_not_dropped_out(tmp_path):
    from flwr.app import ConfigRecord, RecordDict

    method, population, models = parts()
    calls = {}

    def spoil(node, reply):
        calls[node] = calls.get(node, -1) + 1
        if node == 102 and calls[node] == 3:
            reply.content = RecordDict({"secure": ConfigRecord({"numbers": [1], "data": [b"x"]})})
        return reply

    result = go(method, engine_of(method, population, tmp_path, tamper=spoil), models, rounds=1)
    assert (result.history[0].answered, result.history[0].dropped) == (CLIENTS, 0)


def test_a_simulated_node_may_stand_for_several_clients(tmp_path):
    from sordina.federated.engines import ClientSide
    from sordina.federated.flower.client import ClientContext, ClientFolder, alone
    from sordina.federated.flower.client_app import client_app

    method, population, models = parts()
    side = ClientSide(method.work, method.placement)

    def client_context(instruction, context):
        number = instruction.client
        rows = slice(int(population.starts[number]), int(population.starts[number] + population.sizes[number]))
        home = ClientFolder(tmp_path / str(number))
        return ClientContext(side, lambda: alone(population.x[rows], population.y[rows], number), home, Fraction(2))

    grid = double.DoubleGrid({100 + node: client_app(client_context) for node in range(3)}, 7, None)
    engine = double.Flower(grid, CLIENTS, Fraction(2), 0.5, shared=True)
    engine.gather()
    assert [one.answered for one in go(method, engine, models).history] == [CLIENTS] * ROUNDS


def test_a_round_that_is_begun_again_gets_no_second_sum(tmp_path):
    """The same noised update in two sums: a client missing from the second would be their difference."""
    from sordina.federated.engines import ClientSide, RoundRequest
    from sordina.federated.population import RowOrder

    method, population, models = parts()
    lost = set()
    engine = engine_of(
        method, population, tmp_path, tamper=lambda node, reply: None if node in lost else reply, deadline=0.3
    )
    sent = method.strategy.configure(method.strategy.init(models))
    call = RoundRequest(sent, method.placement.start(method.work.width(sent)), RowOrder(5, 0))
    side, rng = ClientSide(method.work, method.placement), np.random.default_rng(0)
    assert engine.map_reduce(side, call, np.arange(CLIENTS), rng).answered == CLIENTS
    lost.add(103)
    again = engine.map_reduce(side, call, np.arange(CLIENTS), rng)
    assert again.answered == 0
    assert not again.sums


def test_a_policy_believes_in_its_own_share_of_honest_clients():
    from sordina.errors import BudgetRefused

    policy = ClientPolicy(("distributed",), epsilon=8.0, delta=1e-3, honest_share=0.5)
    method, _, _ = parts()
    with pytest.raises(BudgetRefused, match="more honest clients"):
        policy.check_placement(method.placement)
    replace(policy, honest_share=0.9).check_placement(method.placement)


def test_as_a_user_types_it_in_process():
    recipe = FederatedRecipe(
        "synthetic", "fedavg", privacy="distributed", rounds=3, clients_per_round=20, epsilon=8.0, delta=1e-4, seed=0,
        dropout=0.05, tolerated_dropout=0.2,
    )  # fmt: skip
    finished = run(recipe)
    assert finished.result.statement.placement == "distributed"
    assert finished.result.statement.epsilon <= 8.0
    with pytest.raises(Unsupported, match="hostile"):
        run(replace(recipe, hostile="huge:1"))
