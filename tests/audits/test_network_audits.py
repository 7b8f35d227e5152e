"""Canaries between pairs: nobody learns more in gossip, walks and GOPA than claimed; planted faults are caught.

Coordinates are independent, so one run with many coordinates is as many trials of one number.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from sordina.accounting import accountant, gaussian_epsilon
from sordina.auditing.bounds import TwoRates
from sordina.auditing.scores import Scores
from sordina.federated.decentralized import gossip
from sordina.federated.decentralized.gopa import party_losses
from sordina.federated.decentralized.gopa_party import GopaTerms, pair_noise
from sordina.federated.decentralized.gossip import GossipPlan, average, pair_losses
from sordina.federated.decentralized.graphs import k_out, named
from sordina.federated.decentralized.walk import WalkPlan
from sordina.random import add_gaussian, seeded

TRIALS, DELTA, CONFIDENCE = 20_000, 1e-3, 0.99


def lower(inside: np.ndarray, outside: np.ndarray) -> float:
    tuning, report = Scores(inside, outside).split(0.5, np.random.default_rng(0))
    return TwoRates().epsilon_lower(tuning, report, DELTA, CONFIDENCE).epsilon


def run(plan: GossipPlan, owner: int, seed: int) -> np.ndarray:
    """Messages ``(rounds, parties, trials)``; the owner's value is 1 in the first half of the trials, else 0."""
    values = np.zeros((plan.graph.parties, TRIALS))
    values[owner, : TRIALS // 2] = 1.0
    trace: list[np.ndarray] = []
    average(values, plan, seeded(seed), trace=trace)
    return np.stack(trace)


def best_scores(plan: GossipPlan, owner: int, observer: int, messages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likelihood ratio of the observer's view, its own noises taken out of what it sees."""
    weights = plan.weights.toarray()
    own = messages[:, observer].copy()
    own[1:] -= np.einsum("l,klt->kt", weights[observer], messages[:-1])
    seen = messages.copy()
    powers = [np.linalg.matrix_power(weights, p) for p in range(plan.rounds)]
    for k in range(plan.rounds):
        for j in range(k + 1):
            seen[k] -= powers[k - j][:, [observer]] * own[j]
    near = plan.graph.neighbours(observer)
    spots = [(k, int(one)) for k in range(plan.rounds) for one in near]
    account = gossip._Responses.of(plan, np.array([observer]))
    covariance, signal = account._view(spots, np.array([observer]))
    direction = np.linalg.solve(covariance, signal[:, owner])
    scores = direction @ np.stack([seen[k, one] for k, one in spots])
    return scores[: TRIALS // 2], scores[TRIALS // 2 :]


@pytest.mark.parametrize(("name", "owner"), [("ring", 1), ("ring", 3), ("exponential", 4), ("exponential", 7)])
def test_no_pair_learns_more_in_gossip_than_its_claim_and_the_best_attack_comes_near(name, owner):
    plan = GossipPlan(named(name, 20), 6, noise=0.8)
    squared = pair_losses(plan, [0])[0, owner]
    inside, outside = best_scores(plan, owner, 0, run(plan, owner, seed=owner))
    claim = gaussian_epsilon(1 / math.sqrt(squared), DELTA)
    assert lower(inside, outside) <= claim
    reached = (inside.mean() - outside.mean()) / outside.std()
    assert reached == pytest.approx(math.sqrt(squared), rel=0.06)  # the account is tight, not only safe


def test_a_neighbour_that_reuses_a_noise_is_caught(monkeypatch):
    plan = GossipPlan(named("exponential", 20), 3, noise=0.8)
    owner, copier, observer = 1, 2, 0
    honest = gossip.add_fine_gaussian

    def faulty(values, sigma, step, rng):
        before = values.copy()
        honest(values, sigma, step, rng)
        values[copier] = before[copier] + (values[owner] - before[owner])

    claim = gaussian_epsilon(1 / math.sqrt(pair_losses(plan, [observer])[0, owner]), DELTA)

    def attacked(seed: int) -> float:
        first = run(plan, owner, seed)[0]
        scores = first[owner] - first[copier]
        return lower(scores[: TRIALS // 2], scores[TRIALS // 2 :])

    assert attacked(1) <= claim
    monkeypatch.setattr(gossip, "add_fine_gaussian", faulty)
    assert attacked(1) > claim


def walked(plan: WalkPlan, noisy_others: bool) -> tuple[np.ndarray, np.ndarray]:
    """The likelihood ratio of party 1 about party 0, whose steps all point one way; the path is known."""
    rng, runs = np.random.default_rng(5), 6000
    found: tuple[list[float], list[float]] = ([], [])
    for trial in range(runs):
        present = trial % 2
        made, time, steps, score = 0, 0, 0, 0.0
        for holder in [*rng.integers(plan.parties, size=40), 1]:
            if holder == 1:
                noise = time if noisy_others else steps
                if steps:
                    drift = rng.normal(present * steps, plan.noise_multiplier * math.sqrt(noise))
                    score += steps * (drift - steps / 2) / (noise * plan.noise_multiplier**2)
                time = steps = 0
                continue
            time += 1
            if holder == 0 and made < plan.contributions:
                made += 1
                steps += 1
        found[present].append(score)
    return np.array(found[1]), np.array(found[0])


def test_no_pair_learns_more_in_a_walk_than_its_claim_and_silent_parties_are_caught():
    plan = WalkPlan(12, 5, 1.2)
    claim = plan.epsilon(DELTA)
    assert lower(*walked(plan, noisy_others=True)) <= claim
    lazy = WalkPlan(12, 5, 0.45)
    assert lower(*walked(lazy, noisy_others=True)) <= lazy.epsilon(DELTA)
    ring = WalkPlan(12, 5, 1.0, ring=True, published=False)
    claim = accountant("rdp").epsilon(ring.pair_event(0, 6), DELTA)
    rng = np.random.default_rng(6)
    once, alone = rng.normal(size=(2, 20_000, 5, 6)).sum(axis=3), rng.normal(size=(2, 20_000, 5))
    assert lower((1 + once[0]).sum(axis=1), once[1].sum(axis=1)) <= claim
    # planted: only the owner of a step adds noise, the five others on the way do not
    assert lower((1 + alone[0]).sum(axis=1), alone[1].sum(axis=1)) > claim


def test_a_coalition_learns_no_more_about_a_party_of_gopa_than_its_claim_and_a_forgotten_mask_is_caught():
    rng, parties, trials = np.random.default_rng(7), 12, 4000
    graph, honest = k_out(parties, 4, rng), np.arange(parties) >= 4
    terms = GopaTerms(0, trials, 1.0, 0.7, 5.0)
    losses = party_losses(graph, honest, 0.7, 5.0)
    inner = graph.among(honest)
    covariance = 25.0 * (np.diag(inner.degrees) - inner.adjacency.toarray()) + 0.49 * np.eye(8)
    target = int(np.argmax(losses))

    def scores(forgotten: bool) -> tuple[np.ndarray, np.ndarray]:
        values = np.zeros((8, trials))
        values[target, : trials // 2] = 1.0
        for row in values:
            add_gaussian(row, terms.independent, seeded(int(rng.integers(2**31))))
        if not forgotten:
            for number, (one, other) in enumerate(inner.edges):
                noise = pair_noise(terms, number.to_bytes(32, "little")) * terms.step
                values[one] += noise
                values[other] -= noise
        matrix = 0.49 * np.eye(8) if forgotten else covariance
        direction = np.linalg.solve(matrix, np.eye(8)[target])
        found = direction @ values
        return found[: trials // 2], found[trials // 2 :]

    claim = gaussian_epsilon(1 / math.sqrt(losses.max()), DELTA)
    assert lower(*scores(forgotten=False)) <= claim
    assert lower(*scores(forgotten=True)) > claim
