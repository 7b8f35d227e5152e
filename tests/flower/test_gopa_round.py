"""GOPA on Flower: the protocol through the real ClientApp, what crosses, drop-outs, and clients that do wrong."""

import importlib.util
import sys
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'sordina[federated]'")

from flwr.app import ConfigRecord, RecordDict

from sordina.errors import BudgetRefused, InvalidInput
from sordina.federated.decentralized.gopa import GopaNoise
from sordina.federated.engines import InProcess
from sordina.federated.flower.client import ClientFolder
from sordina.federated.flower.client_policy import ClientPolicy
from sordina.privacy import Budget

_spec = importlib.util.spec_from_file_location("double", Path(__file__).with_name("double.py"))
double = importlib.util.module_from_spec(_spec)
sys.modules["double"] = double
_spec.loader.exec_module(double)

CLIENTS, ROUNDS, GONE = 12, 2, 2
STEPS = ("key", "tags", "message")


def parts(width=4, epsilon=1e6):
    placement = GopaNoise.within(
        Budget(epsilon, 1e-3), CLIENTS, ROUNDS, honest_share=0.75, neighbours=6, dropout=GONE / CLIENTS,
        rng=np.random.default_rng(1),
    )  # fmt: skip
    return double.parts_of(placement, CLIENTS, width)


engine_of = partial(double.engine_of, limit=Fraction(ROUNDS))
go = partial(double.go, clients=CLIENTS, rounds=ROUNDS)


def test_on_flower_as_in_process_up_to_the_noise(tmp_path):
    method, population, models = parts()
    apart = go(method, engine_of(method, population, tmp_path), models)
    together = go(method, InProcess(population, limit=Fraction(ROUNDS)), models)
    torch.testing.assert_close(apart.models, together.models, atol=2e-2, rtol=0)
    assert apart.models.norm() > 0.1
    assert apart.statement.words == together.statement.words
    assert [one.answered for one in apart.history] == [CLIENTS] * ROUNDS


def test_with_a_seed_both_engines_release_the_same_numbers(tmp_path):
    """Pairwise noises cancel to the last bit, whatever keys they came from."""
    method, population, models = parts(epsilon=1.0)
    runs = [go(method, engine_of(method, population, tmp_path / name, seed=3), models) for name in ("one", "two")]
    assert (runs[0].models == runs[1].models).all()


def test_no_message_is_readable_and_nothing_else_crosses(tmp_path):
    method, population, models = parts(width=3000, epsilon=8.0)
    engine = engine_of(method, population, tmp_path)
    go(method, engine, models, rounds=1)
    replies = [reply.content for _, reply in engine.grid.replies]
    messages = [
        np.frombuffer(record["message"].data, dtype=np.int32)[-3001:]
        for content in replies
        for record in content.array_records.values()
        if "message" in record
    ]
    assert len(messages) == CLIENTS
    noise = method.placement
    for one in messages:  # at least three partners: no update, clipped to 1, shows through
        assert one.std() * noise.step > 1.6 * noise.pairwise
    total = np.sum(messages, axis=0) * noise.step
    assert total.std() < 10 * noise.independent * np.sqrt(CLIENTS)
    seen = {key for content in replies for record in content.config_records.values() for key in record}
    assert seen == {"key", "numbers", "data"}
    assert not any("letter" in content for content in replies)


@pytest.mark.parametrize("step", STEPS)
def test_clients_drop_out_at_every_step(tmp_path, step):
    """Before messages are made the round goes on without them; after that it ends, and nothing was revealed."""
    method, population, models = parts()
    engine = engine_of(method, population, tmp_path, tamper=double.silent_in(step, STEPS), deadline=0.4)
    result = go(method, engine, models, rounds=1)
    assert result.history[0].answered == (0 if step == "message" else CLIENTS - GONE)
    assert (result.models.norm() > 0.03) == (step != "message")
    folders = [ClientFolder(tmp_path / str(number)) for number in range(CLIENTS)]
    assert [one.total().participations for one in folders] == [1] * CLIENTS  # whoever dropped out has paid, too
    assert result.statement.details["limit"] == ROUNDS
    assert result.statement.event is not None


def test_too_few_that_remain_change_nothing(tmp_path):
    method, population, models = parts()
    engine = engine_of(
        method, population, tmp_path, tamper=lambda node, reply: None if node < 103 else reply, deadline=0.3
    )
    result = go(method, engine, models, rounds=1)
    assert result.history[0].answered == 0
    assert not result.models.any()
    sent = [reply.content for _, reply in engine.grid.replies if "message" in reply.content.array_records]
    assert not sent


def test_whoever_sends_garbage_is_named(tmp_path):
    method, population, models = parts()
    calls = {}

    def spoil(node, reply):
        calls[node] = calls.get(node, -1) + 1
        if node == 102 and calls[node] == 1:  # hashes of other keys: nobody can tell which end of a pair lies
            record = reply.content.config_records["gopa"]
            reply.content = RecordDict(
                {"gopa": ConfigRecord({"numbers": list(record["numbers"]), "data": [bytes(32)] * len(record["data"])})}
            )
        if node == 105 and calls[node] == 0:
            reply.content = RecordDict({"gopa": ConfigRecord({"key": b"short"})})
        return reply

    result = go(method, engine_of(method, population, tmp_path, tamper=spoil, deadline=0.4), models, rounds=1)
    named = {one.sender: one.reason for one in result.history[0].refused}
    assert set(named) == {2, 5}
    assert "malformed" in named[5]
    assert "agrees with its neighbours about no key" in named[2]
    assert result.history[0].answered == CLIENTS - 2


def test_two_that_disagree_about_one_key_are_both_named(tmp_path):
    method, population, models = parts()
    calls = {}

    def spoil(node, reply):
        calls[node] = calls.get(node, -1) + 1
        if node == 102 and calls[node] == 1:
            record = reply.content.config_records["gopa"]
            data = [bytes(32), *list(record["data"])[1:]]
            reply.content = RecordDict({"gopa": ConfigRecord({"numbers": list(record["numbers"]), "data": data})})
        return reply

    result = go(method, engine_of(method, population, tmp_path, tamper=spoil), models, rounds=1)
    assert len(result.history[0].refused) == 2
    assert 2 in {one.sender for one in result.history[0].refused}
    assert result.history[0].answered == CLIENTS - 2


def test_numbers_that_no_honest_client_reaches_are_named(tmp_path):
    method, population, models = parts()

    def spoil(node, reply):
        if node == 107 and "message" in reply.content.array_records:
            huge = np.full(models.shape[1], 2**31 - 1, dtype=np.int32)
            reply.content = RecordDict({"message": type(reply.content["message"])({"message": double.array(huge)})})
        return reply

    result = go(method, engine_of(method, population, tmp_path, tamper=spoil), models, rounds=1)
    assert [one.sender for one in result.history[0].refused] == [7]
    assert "no honest party" in result.history[0].refused[0].reason
    assert not result.models.any()


def test_a_second_send_with_other_partners_is_refused_even_at_the_same_time(tmp_path):
    """Two messages of one round that differ by a partner differ by that pair's noise."""
    import copy
    from types import SimpleNamespace

    from flwr.app import Context
    from flwr.app.user_config import UserConfig

    from sordina.federated.decentralized.key_agreement import KeyPair
    from sordina.federated.engines import RoundRequest
    from sordina.federated.flower.gopa_round import begin, continued
    from sordina.federated.population import RowOrder

    method, _, _ = parts()
    placement, context = method.placement, Context(1, 0, UserConfig(), RecordDict(), UserConfig())

    def told(**record):
        return SimpleNamespace(content=SimpleNamespace(config_records={"gopa": record, "order": {"client": 0}}))

    ClientFolder(tmp_path).advance(1, 0, 0)
    call = RoundRequest({}, None, RowOrder(5, 0))
    with pytest.raises(InvalidInput, match="place"):
        begin(np.zeros(4, dtype=np.int64), placement, call, told(place=CLIENTS), context, tmp_path)
    begin(np.zeros(4, dtype=np.int64), placement, call, told(place=0), context, tmp_path)
    near = [int(one) for one in placement.graph.neighbours(0)]
    keys = [KeyPair.fresh().public for _ in near]
    continued(told(client=0, step="agree", numbers=near, data=keys), context)
    same = copy.deepcopy(context)
    continued(told(client=0, step="send", numbers=near, data=[]), context)
    with pytest.raises(InvalidInput, match="answered before"):
        continued(told(client=0, step="send", numbers=near[1:], data=[]), same)
    with pytest.raises(KeyError):
        continued(told(client=0, step="send", numbers=near[1:], data=[]), context)


def test_a_policy_counts_what_the_run_counts():
    method, _, _ = parts(epsilon=1.0)
    with pytest.raises(InvalidInput, match="gopa privacy says how much"):
        ClientPolicy(("gopa",))
    policy = ClientPolicy(("gopa",), epsilon=8.0, delta=1e-3, honest_share=0.5)
    with pytest.raises(BudgetRefused, match="more honest clients"):
        policy.check_placement(method.placement)
    ClientPolicy(("gopa",), epsilon=8.0, delta=1e-3, honest_share=0.9).check_placement(method.placement)
