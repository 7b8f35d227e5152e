"""Held-out clients tell randomised metrics: near the truth, as often as agreed, and never in the clear."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sordina.accounting import accountant
from sordina.errors import BudgetRefused, InvalidInput
from sordina.federated.problem import RandomizedMetrics
from sordina.privacy import Adjacency, Trust


def told(metrics, clients=4000):
    losses = np.linspace(0.2, 0.8, clients)
    return metrics.ask(losses, np.full(clients, 0.75), np.arange(clients) % 4 // 3, 2)


def test_metrics_are_near_the_truth():
    loss, accuracy, shares = told(RandomizedMetrics(4.0, 1, largest_loss=2.0, seed=1))
    assert loss == pytest.approx(0.5, abs=0.1)
    assert accuracy == pytest.approx(0.75, abs=0.1)
    assert shares == pytest.approx((0.75, 0.25), abs=0.1)
    assert sum(shares) == pytest.approx(1)


def test_a_client_answers_as_often_as_agreed():
    metrics = RandomizedMetrics(4.0, 2, largest_loss=2.0)
    with pytest.raises(BudgetRefused, match="3 times"):
        metrics.check(3)
    told(metrics), told(metrics)
    with pytest.raises(BudgetRefused):
        told(metrics)


def test_answers_of_one_client_are_fresh_and_bounded():
    metrics = RandomizedMetrics(2.0, 50, largest_loss=1.0)
    losses = {metrics.ask(np.array([math.nan]), None, np.array([0]), 1)[0] for _ in range(50)}
    assert losses <= {0.0, 1.0} or all(0 <= loss <= 1 for loss in losses)


def test_the_guarantee_is_the_client_s_own():
    metrics = RandomizedMetrics(4.0, 8, largest_loss=2.0)
    assert metrics.guarantee.trust is Trust.LOCAL
    assert accountant("basic").epsilon(metrics.event(), 0.0, Adjacency.REPLACE_ONE) == pytest.approx(4.0)


def test_one_answer_keeps_its_share_of_epsilon(monkeypatch):
    """All questions of a validation together cost the share of one; a fault that asks at the whole is seen."""
    spent = []
    from sordina.federated import problem

    for name in ("Hybrid", "Frequency"):
        honest = getattr(problem, name)

        def noted(*given, honest=honest):
            spent.append(given[-1])
            return honest(*given)

        monkeypatch.setattr(problem, name, noted)
    told(RandomizedMetrics(3.0, 6, largest_loss=2.0))
    assert math.fsum(spent) == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [(0.0, 1, 1.0), (1.0, 0, 1.0), (1.0, 1, 0.0), (1.0, 1, math.inf)])
def test_bad_agreements_are_refused(bad):
    with pytest.raises(InvalidInput):
        RandomizedMetrics(*bad)
