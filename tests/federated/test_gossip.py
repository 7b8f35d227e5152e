"""Gossip: the mean, the exact account against a noise matrix written out, and what the published sum misses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sordina.accounting import linear_gaussian
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.decentralized.gossip import (
    ACCELERATED,
    GossipPlan,
    average,
    coalition_losses,
    pair_losses,
    revised_bound,
    sum_over_messages,
)
from sordina.federated.decentralized.graphs import CommunicationGraph, named
from sordina.federated.decentralized.lattice import effective
from sordina.random import seeded


def written_out(plan: GossipPlan, members: list[int], forgotten: bool = False) -> np.ndarray:
    """mu^2 from the messages as rows over all noises; with ``forgotten`` the members' own noises count as unknown."""
    n, rounds, weights = plan.graph.parties, plan.rounds, plan.weights.toarray()

    def noise(j: int) -> np.ndarray:
        matrix = np.zeros((n, n * (rounds + 2)))
        matrix[np.arange(n), j * n + np.arange(n)] = effective(plan.noise if j == 0 else plan.tau)
        return matrix

    state, answer = noise(0), np.eye(n)
    before, answer_before = np.zeros_like(state), np.zeros_like(answer)
    messages, answers = [], []
    for k in range(rounds + 1):
        message = state + noise(k + 1)
        messages.append(message)
        answers.append(answer)
        if k < rounds:
            w = plan.momenta[k]
            state, before = w * weights @ message + (1 - w) * before, state
            answer, answer_before = w * weights @ answer + (1 - w) * answer_before, answer
    near = np.setdiff1d(np.concatenate([plan.graph.neighbours(one) for one in members]), members)
    spots = [(k, one) for k in range(rounds) for one in near]
    if plan.leader is not None and plan.leader not in members:
        spots.append((rounds, plan.leader))
    matrix = np.stack([messages[k][one] for k, one in spots])
    signal = np.stack([answers[k][one] for k, one in spots])
    if not forgotten:
        matrix.reshape(len(spots), rounds + 2, n)[:, :, members] = 0.0
    found = np.zeros(n)
    for u in set(range(n)) - set(members):
        if signal[:, u].any():
            found[u] = linear_gaussian.squared_losses(signal[:, u], noise=matrix)[0]
    return found


@pytest.mark.parametrize("name", ["ring", "exponential", "grid"])
@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("leader", [None, 3])
def test_the_account_is_that_of_the_view_written_out(name, accelerated, leader):
    plan = GossipPlan(named(name, 12), 5, noise=2.0, accelerated=accelerated, leader=leader)
    for members in ([0], [0, 4], [3, 5, 6]):
        wanted = written_out(plan, members)
        assert coalition_losses(plan, members) == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    assert pair_losses(plan, [0, 7])[0] == pytest.approx(written_out(plan, [0]), rel=1e-6, abs=1e-12)


def test_a_coalition_that_forgets_its_own_noises_underestimates_itself():
    plan = GossipPlan(named("ring", 16), 12, leader=8)
    right, wrong = written_out(plan, [0, 1, 2]), written_out(plan, [0, 1, 2], forgotten=True)
    assert (wrong <= right + 1e-9).all()
    assert (wrong < 0.8 * right).any()


def test_a_coalition_learns_at_least_what_its_members_learn():
    plan = GossipPlan(named("grid", 36), 8)
    alone = pair_losses(plan, [0, 14, 20])
    together = coalition_losses(plan, [0, 14, 20])
    others = np.setdiff1d(np.arange(36), [0, 14, 20])
    assert (together[others] >= alone.max(axis=0)[others] * (1 - 1e-6)).all()


def test_everybody_ends_near_the_mean_and_the_error_is_the_one_that_is_stated():
    plan = GossipPlan(named("exponential", 64), 25, noise=3.0)
    values = np.random.default_rng(0).normal(size=(64, 800)) / 40
    wanted = values.mean(axis=0)
    ended = average(values, plan, seeded(1))
    assert ((ended - wanted) ** 2).mean() == pytest.approx(plan.error(), rel=0.1)
    fast = GossipPlan(named("ring", 64), 60, noise=3.0, message_noise=ACCELERATED, accelerated=True)
    slow = GossipPlan(named("ring", 64), 60, noise=3.0)
    assert fast.error() < slow.error() / 2
    values = np.zeros((64, 400))
    assert (average(values, fast, seeded(2)) ** 2).mean() == pytest.approx(fast.error(), rel=0.3)


def test_far_parties_learn_less_and_nobody_learns_more_than_the_value_with_its_noise():
    plan = GossipPlan(named("ring", 40), 30)
    losses, distances = pair_losses(plan, [0])[0], plan.graph.distances(0)
    by_distance = [losses[distances == d].mean() for d in range(1, 21)]
    assert all(a >= b for a, b in itertools.pairwise(by_distance))
    assert losses.max() <= 1 / effective(1.0) ** 2 * (1 + 1e-6)
    assert by_distance[0] > 0.99
    assert by_distance[-1] < 0.2


def test_messages_together_tell_more_than_their_sum_one_by_one():
    """A path of three: two messages of the middle party show the other end, the sum of single messages says a third."""
    path = GossipPlan(CommunicationGraph("path", 3, np.array([[0, 1], [1, 2]])), 2, message_noise=1e-3)
    assert pair_losses(path, [0])[0, 2] == pytest.approx(1.0, rel=1e-2)
    assert sum_over_messages(path, [0])[0, 2] == pytest.approx(1 / 3, rel=1e-3)


def test_odd_plans_are_refused():
    ring = named("ring", 8)
    apart = CommunicationGraph("apart", 4, np.array([[0, 1], [2, 3]]))
    for wrong in ({"rounds": 0}, {"noise": 0.0}, {"message_noise": 0.0}, {"message_noise": 2.0}, {"leader": 8}):
        with pytest.raises(InvalidInput):
            GossipPlan(**{"graph": ring, "rounds": 3} | wrong)
    with pytest.raises(InvalidInput, match="connect"):
        GossipPlan(apart, 3)
    with pytest.raises(InvalidInput):
        coalition_losses(GossipPlan(ring, 3), [9])
    with pytest.raises(InvalidInput):
        average(np.zeros((7, 2)), GossipPlan(ring, 3), seeded(0))
    with pytest.raises(Unsupported, match="too large"):
        pair_losses(GossipPlan(named("complete", 400), 10), [0])


@pytest.mark.parametrize(("name", "rounds"), [("ring", 12), ("grid", 10), ("exponential", 6), ("erdos-renyi:0.2", 5)])
def test_exact_losses_are_below_the_revised_bound_on_the_course_s_graphs(name, rounds):
    plan = GossipPlan(named(name, 36, np.random.default_rng(0)), rounds)
    exact, bound = pair_losses(plan), revised_bound(plan)
    assert (exact <= bound * 1.003).all()  # an account counts 0.2 % less noise than is drawn
    assert bound.max() == 1
    assert (sum_over_messages(plan) <= 1e-12 + revised_bound(plan) * plan.rounds * plan.graph.degrees.max()).all()


def test_a_hub_behind_a_neighbour_is_told_more_of_than_either_published_bound_says():
    edges = np.array([[0, 1], [1, 2], *([2, other] for other in range(3, 103))])
    plan = GossipPlan(CommunicationGraph("hub", 103, edges), 2)
    exact = pair_losses(plan, [0])[0, 2]
    assert exact == pytest.approx(0.194, abs=0.001)
    assert revised_bound(plan, [0])[0, 2] == pytest.approx(0.018, abs=0.001)
    assert sum_over_messages(plan, [0])[0, 2] < 0.001
