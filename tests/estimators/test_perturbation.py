"""Objective and output perturbation, functional mechanism: proofs held against neighbours, and planted faults."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import sordina as sd
from sordina.errors import InvalidInput, Unsupported
from sordina.estimators import SVC, LinearRegression, LinearSVC, LogisticRegression, Ridge
from sordina.estimators._features import HatFeatures, knots_for
from sordina.estimators.perturbation import (
    FunctionalMechanism,
    LogisticLoss,
    MarginProblem,
    ObjectivePerturbation,
    OutputPerturbation,
    SmoothedHinge,
    _delta,
    shortened,
)

pytestmark = pytest.mark.filterwarnings("ignore::sordina.estimators.UnbookedFits")
BUDGET = sd.Budget(2, 1e-4)


def rows_and_signs(seed, size=60, width=3):
    rng = np.random.default_rng(seed)
    rows = shortened(rng.normal(size=(size, width)), 1.0)
    return rows, np.sign(rows[:, 0] + 0.3 * rng.normal(size=size))


@pytest.mark.parametrize("loss", [LogisticLoss(), SmoothedHinge()], ids=["logistic", "hinge"])
def test_losses_are_what_they_say(loss):
    margins = np.linspace(-30, 30, 20001)
    slope = np.gradient(loss.value(margins), margins)
    np.testing.assert_allclose(slope[1:-1], loss.slope(margins)[1:-1], atol=2e-3)
    assert (np.abs(loss.slope(margins)) <= 1).all()
    assert ((loss.bend(margins) >= 0) & (loss.bend(margins) <= loss.curvature + 1e-12)).all()


@pytest.mark.parametrize("loss", [LogisticLoss(), SmoothedHinge()], ids=["logistic", "hinge"])
def test_the_minimum_is_one(loss):
    rows, signs = rows_and_signs(0)
    problem = MarginProblem(loss, rows, 0.5, 1.0)
    tilt = np.array([3.0, -2.0, 8.0])
    found = problem.minimum(signs, tilt)
    gradient = (rows * signs[:, None]).T @ loss.slope(rows @ found * signs) + 0.5 * found + tilt
    assert np.linalg.norm(gradient) <= problem.tolerance


@pytest.mark.parametrize("loss", [LogisticLoss(), SmoothedHinge()], ids=["logistic", "hinge"])
def test_output_moves_no_further_than_stated(loss):
    plan = OutputPerturbation.within(BUDGET, loss, 1.0, 1, 1, (60, 3), alpha=0.3)
    stated, worst = plan.sensitivity(1, 1e-6), 0.0
    for seed in range(30):
        rows, signs = rows_and_signs(seed, size=1 + seed % 5)
        extra = shortened(np.random.default_rng(seed + 99).normal(size=(1, 3)) * 9, 1.0)
        less = MarginProblem(loss, rows, plan.ridge, 1.0).minimum(signs)
        for sign in (-1.0, 1.0):
            more = MarginProblem(loss, np.vstack([rows, extra]), plan.ridge, 1.0).minimum(np.append(signs, sign))
            worst = max(worst, float(np.linalg.norm(more - less)))
    assert 0.3 * stated < worst <= stated


def privacy_loss(plan, rows, signs, extra, sign, weights):
    """``log p(w | with the record) - log p(w | without)`` at ``weights``, exactly, from the two densities."""
    found = []
    for x, s in ((np.vstack([rows, extra]), np.append(signs, sign)), (rows, signs)):
        signed = x * s[:, None]
        tilt = -(signed.T @ plan.loss.slope(signed @ weights) + plan.ridge * weights)
        hessian = (signed * plan.loss.bend(signed @ weights)[:, None]).T @ signed + plan.ridge * np.eye(len(weights))
        found.append(-tilt @ tilt / (2 * plan.sigma**2) + np.linalg.slogdet(hessian)[1])
    return found[0] - found[1]


def worst_delta(plan, epsilon, draws=1200, most=1):
    """The larger delta of both directions between two tables that are as easy to tell apart as they come."""
    rng = np.random.default_rng(0)
    rows, signs = np.array([[0.1, 0.0], [0.0, 0.1]]), np.array([1.0, -1.0])
    extra, sign = np.tile([[1.0, 0.0]], (most, 1)), np.ones(most)
    found = []
    for direction, (x, s) in ((1, (np.vstack([rows, extra]), np.append(signs, sign))), (-1, (rows, signs))):
        problem = MarginProblem(plan.loss, x, plan.ridge, 1.0)
        losses = [
            direction
            * privacy_loss(plan, rows, signs, extra, sign, problem.minimum(s, rng.normal(size=2) * plan.sigma))
            for _ in range(draws)
        ]
        found.append(float(np.mean(np.maximum(0.0, 1 - np.exp(epsilon - np.array(losses))))))
    return max(found)


@pytest.mark.slow
def test_objective_perturbation_keeps_its_delta_and_a_forgotten_determinant_is_caught():
    budget = sd.Budget(1.0, 0.05)
    plan = ObjectivePerturbation.within(budget, LogisticLoss(), 1.0, 1)
    assert worst_delta(plan, 1.0) <= 0.05
    small = ObjectivePerturbation(plan.loss, 1.0, plan.ridge / 40, plan.sigma / 2, plan.event)
    assert worst_delta(small, 1.0) > 0.05


def test_objective_perturbation_of_persons_is_planned_for_all_their_rows():
    budget = sd.Budget(1.0, 0.05)
    one, three = (ObjectivePerturbation.within(budget, LogisticLoss(), 1.0, 1, most=most) for most in (1, 3))
    assert one.event == three.event
    assert worst_delta(three, 1.0, draws=400, most=3) <= 0.05
    assert worst_delta(one, 1.0, draws=400, most=3) > 0.05, "a plan for one row does not hide three"


def test_the_delta_of_a_folded_normal_loss_is_the_integral():
    for a, t in ((0.5, 0.3), (1.0, 1.0), (0.2, 2.0)):
        direct, _ = quad(lambda z, a=a, t=t: (1 - math.exp(a - z)) * norm.pdf(z, scale=t), a, 60)
        assert _delta(a, t) == pytest.approx(2 * direct, rel=1e-6)
    assert _delta(-0.1, 1.0) == 1.0


def test_functional_coefficients_change_no_more_than_stated(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "sordina.estimators.perturbation.add_noise", lambda total, *_: seen.append(total.copy()) or total
    )
    plan = FunctionalMechanism(1.0, 0.1, 1.0, 1)
    rows, signs = rows_and_signs(3)
    plan.release(rows, [signs, -signs], None)
    plan.release(np.vstack([rows, [[1.0, 0, 0]]]), [np.append(signs, 1.0), np.append(-signs, -1.0)], None)
    change = float(np.linalg.norm(seen[1] - seen[0]))
    assert 0.9 * plan.sensitivity < change <= plan.sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("method", ["objective", "output", "functional"])
@pytest.mark.parametrize("classes", [2, 3])
def test_every_method_learns_within_its_budget(method, classes):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (3000, 2))
    y = np.minimum((x[:, 0] * classes).astype(int), classes - 1)
    model = LogisticRegression(sd.Budget(8, 1e-5), bounds=(0, 1), method=method, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.8
    assert 7.9 < model.guarantee_.epsilon <= 8
    assert model.predict_proba(x).shape == (3000, classes)


def test_machines_by_objective_perturbation():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (3000, 2))
    ring = ((x - 0.5) ** 2).sum(axis=1) < 0.1
    linear = LinearSVC(sd.Budget(4, 1e-5), bounds=(0, 1), method="objective", random_state=0).fit(x, x[:, 0] > 0.5)
    assert linear.score(x, x[:, 0] > 0.5) > 0.9
    kernel = SVC(sd.Budget(8, 1e-5), bounds=(0, 1), method="objective", gamma=10, random_state=0).fit(x, ring)
    assert kernel.score(x, ring) > 0.8


def test_what_has_no_proof_is_refused():
    x, y = np.random.default_rng(0).random((40, 2)), np.arange(40) % 2
    with pytest.raises(Unsupported, match="not private"):
        LinearSVC(BUDGET, bounds=(0, 1), method="dual").fit(x, y)
    with pytest.raises(Unsupported, match="hinge"):
        LinearSVC(BUDGET, bounds=(0, 1), method="functional").fit(x, y)
    for wrong in ({"method": "magic"}, {"knots": 1}, {"knots": -2}, {"alpha": -1.0}, {"row_norm": 0.0}):
        with pytest.raises(InvalidInput):
            LogisticRegression(BUDGET, bounds=(0, 1), **wrong).fit(x, y)
    with pytest.raises(InvalidInput, match="method"):
        Ridge(BUDGET, bounds=(0, 1), target_bounds=(0, 1), method="magic").fit(x, y)


def test_hats_sum_to_one_and_let_a_line_bend():
    import torch

    hats = HatFeatures([1], 5)(torch.tensor([[0.3, 0.6], [1.0, 1.0]]))
    assert hats.shape == (2, 7)
    torch.testing.assert_close(hats[:, 2:].sum(1), torch.ones(2))
    torch.testing.assert_close(hats[:, 2:] @ torch.linspace(0, 1, 5), torch.tensor([0.6, 1.0]))
    assert knots_for(5, 32561, 1.0) == 9
    assert knots_for(30, 500, 1.0) == 0


def test_relevance_favours_what_matters():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (4000, 6))
    model = LinearRegression(
        sd.Budget(2, 1e-5), bounds=(0, 1), target_bounds=(-3, 3), method="functional", random_state=0
    ).fit(x, 2 * x[:, 0] - 2 * x[:, 3])
    assert set(np.argsort(model.relevance_)[-2:]) == {0, 3}
    assert model.score(x, 2 * x[:, 0] - 2 * x[:, 3]) > 0.8
