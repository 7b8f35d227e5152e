"""Peers as processes: the same mean, accounts of their own, and hostile neighbours."""

from __future__ import annotations

import math
import tempfile

import numpy as np
import pytest

from sordina.errors import BudgetRefused, InvalidInput
from sordina.federated.decentralized.actors import GossipPeer, WalkPeer, gossip_on_ray, gossip_peers, walk_on_ray
from sordina.federated.decentralized.gossip import GossipPlan
from sordina.federated.decentralized.graphs import named
from sordina.federated.decentralized.walk import WalkPlan


def together(plan: GossipPlan, peers: list[GossipPeer], spoil=lambda letters: letters) -> np.ndarray:
    for peer in peers:
        peer.start()
    for _ in range(plan.rounds):
        letters = [peer.message() for peer in peers]
        for peer in peers:
            peer.receive(spoil([letters[one] for one in plan.graph.neighbours(peer.number)]))
        for peer in peers:
            peer.advance()
    return np.stack([peer.estimate() for peer in peers])


def made(plan: GossipPlan, size: int = 200, **more) -> tuple[np.ndarray, list[GossipPeer]]:
    values = np.random.default_rng(0).normal(size=(plan.graph.parties, size)) / 30
    return values, [GossipPeer(**one) for one in gossip_peers(plan, list(values), seed=0, **more)]


def test_peers_find_the_mean_with_the_error_of_the_plan():
    plan = GossipPlan(named("exponential", 16), 12, noise=0.5)
    values, peers = made(plan, 2000)
    ended = together(plan, peers)
    assert ((ended - values.mean(axis=0)) ** 2).mean() == pytest.approx(plan.error(), rel=0.15)
    assert not any(peer.refused for peer in peers)


def test_an_account_is_kept_and_its_limit_is_the_peer_s(tmp_path):
    plan = GossipPlan(named("ring", 4), 2)
    arguments = gossip_peers(plan, [np.zeros(3)] * 4, limit=2)[0]
    GossipPeer(**arguments, folder=str(tmp_path / "home")).start()
    again = GossipPeer(**arguments, folder=str(tmp_path / "home"))
    assert again.start() == 2
    with pytest.raises(BudgetRefused):
        again.start()
    with pytest.raises(InvalidInput):
        GossipPeer(**arguments).message()


def test_hostile_neighbours_are_refused_and_named():
    plan = GossipPlan(named("ring", 6), 3, noise=0.5)
    _values, peers = made(plan)

    def spoil(letters):
        sender, number, message = letters[0]
        nan = np.full_like(message, math.nan)
        odd = [None, (99, number, message), (sender, number - 1, message), (sender, number, message[:3])]
        odd += [(sender, number, nan), (sender, number, message * 0 + 1e30), (sender, number, "text"), "nonsense"]
        return [*odd, *letters, letters[1]]

    ended = together(plan, peers, spoil)
    assert np.isfinite(ended).all()
    reasons = {reason for peer in peers for _, reason in peer.refused}
    assert reasons == {
        "no message", "no neighbour", "another round's message", "malformed", "a second message",
        "numbers that no honest peer reaches",
    }  # fmt: skip
    calm = together(plan, made(plan)[1])
    assert (ended == calm).all()  # what was refused changed nothing


def test_a_peer_that_hears_nothing_keeps_its_own():
    plan = GossipPlan(named("ring", 4), 1)
    _, peers = made(plan, 5)
    ended = together(plan, peers, lambda letters: [])
    assert (ended[0] == peers[0]._own).all()


def test_a_walking_token_learns_and_steps_are_capped():
    rng = np.random.default_rng(1)
    plan = WalkPlan(8, 6, 0.5)
    rows = rng.normal(size=(8, 40, 2))
    peers = [WalkPeer(one, (one[:, 0] > 0).astype(int), plan, 2.0, seed=k) for k, one in enumerate(rows)]
    token = np.zeros((2, 3))
    for holder in rng.integers(8, size=80):
        token = peers[holder].step(token)
    assert max(peer.standing() for peer in peers) == 6
    for odd in (None, "token", np.full((2, 3), np.nan), np.zeros((2, 9)), np.zeros(3)):
        assert np.isfinite(peers[0].step(odd)).all()
    with pytest.raises(InvalidInput):
        WalkPeer(rows[0], np.zeros(40, dtype=int), plan, 3.0)
    steep = WalkPeer(rows[0], (rows[0][:, 0] > 0).astype(int), plan, 2.0)
    for size in (0.0, 1e3, -1e9):
        assert np.linalg.norm(steep._gradient(np.full((2, 3), size))) <= 2.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_peers_on_ray(monkeypatch):
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="ry") as folder:
        ray.init(
            num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=10**8, _temp_dir=folder,
            _system_config={"worker_niceness": 0},  # else they starve beside other tests
        )  # fmt: skip
        try:
            plan = GossipPlan(named("ring", 4), 3, noise=0.5)
            values, peers = made(plan, 50)
            wanted = together(plan, peers)
            ended, standing = gossip_on_ray(plan, gossip_peers(plan, list(values), seed=0))
            assert (np.stack(ended) == wanted).all()
            assert standing == [(1, [])] * 4
            walk = WalkPlan(3, 2, 1.0, ring=True)
            rows = [{"rows": np.eye(2), "labels": np.array([0, 1]), "seed": k} for k in range(3)]
            model, steps = walk_on_ray(walk, rows, np.zeros((2, 3)), 9)
            assert steps == [2, 2, 2]
            assert np.isfinite(model).all()
        finally:
            ray.shutdown()
