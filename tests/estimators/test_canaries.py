"""Canaries: what an adversary who knows everything but one record proves of each estimator stays below its claim.

Estimators of sums are attacked at their first release, along the direction in which the record moves it; those that
take steps, and objective perturbation, at their weights. Each is then run with a fault planted, which must be caught.
"""

from __future__ import annotations

import functools
from unittest.mock import patch

import numpy as np
import pytest

import sordina as sd
from sordina import private_step as training_noise
from sordina.auditing.bounds import TwoRates
from sordina.auditing.scores import Scores
from sordina.auditing.self_audit import _less_noise
from sordina.estimators import (
    PCA,
    SVC,
    BoostedClassifier,
    BoostedRegressor,
    GaussianNB,
    KMeans,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    MLPClassifier,
    MLPRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    Ridge,
    _base,
    _trees,
    boosted,
    forest,
    linear,
    linear_classifiers,
    moments,
    perturbation,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::sordina.estimators.UnbookedFits"),
    pytest.mark.filterwarnings("ignore::sordina.estimators.LooseDelta"),
    pytest.mark.filterwarnings("ignore::sordina.estimators.LittleData"),
]
BUDGET, SMALL = sd.Budget(1.5, 1e-3), sd.Budget(0.2, 1e-3)
NUMBERS = {"bounds": (0, 1), "target_bounds": (0, 1)}
SUMS = {
    "linear": LinearRegression(BUDGET, **NUMBERS),
    "functional regression": Ridge(BUDGET, **NUMBERS, method="functional"),
    "pca": PCA(1, BUDGET, row_norm=1.0),
    "naive Bayes": GaussianNB(BUDGET, bounds=(0, 1)),
    "k-means": KMeans(2, BUDGET, bounds=(0, 1), max_iter=1),
    "forest": RandomForestClassifier(BUDGET, bounds=(0, 1), n_estimators=1, max_depth=1, max_features=1.0),
    "regression forest": RandomForestRegressor(BUDGET, **NUMBERS, n_estimators=1, max_depth=1, max_features=1.0),
    "boosted": BoostedClassifier(BUDGET, bounds=(0, 1), epochs=1, bins=4),
    "boosted regression": BoostedRegressor(BUDGET, **NUMBERS, epochs=1, bins=4),
    "output": LogisticRegression(BUDGET, bounds=(0, 1), method="output", alpha=1.0),
    "output machine": LinearSVC(BUDGET, bounds=(0, 1), method="output", alpha=1.0),
    "functional": LogisticRegression(BUDGET, bounds=(0, 1), method="functional"),
}
REGRESSION = {"linear", "functional regression", "regression forest", "boosted regression", "network for numbers"}
FEW = {"epochs": 1, "batch_size": 200}
STEPS = {
    "logistic": LogisticRegression(SMALL, bounds=(0, 1), **FEW, knots=0),
    "linear machine": LinearSVC(SMALL, bounds=(0, 1), **FEW, knots=0),
    "machine": SVC(SMALL, bounds=(0, 1), **FEW, n_components=4),
    "network": MLPClassifier(SMALL, bounds=(0, 1), **FEW, hidden_layer_sizes=(2,)),
    "network for numbers": MLPRegressor(SMALL, **NUMBERS, **FEW, hidden_layer_sizes=(2,)),
}
ROWS = np.array([[0.1, 0.2], [0.2, 0.1], [0.3, 0.3], [0.15, 0.25]])
CANARY = np.array([[1.0, 1.0]])


class _Released(Exception):
    """The first release is there; the rest of the fit does not matter."""


def worlds(name):
    """The same few records with and without the canary."""
    y = np.array([0, 1, 0, 1])
    targets = y.astype(float) if name in REGRESSION else y
    more = np.append(targets, 1.0 if name in REGRESSION else 1)
    return (np.vstack([ROWS, CANARY]), more), (ROWS, targets)


def first_release(estimator, rows, targets, noise):
    """The first total of a fit, as ``noise`` releases it."""
    found = []

    def release(total, *rest):
        found.append(noise(np.array(total, float), *rest).ravel())
        raise _Released

    with patch_everywhere("add_noise", release), pytest.raises(_Released):
        estimator.fit(rows, targets)
    return found[0]


def patch_everywhere(name, replacement):
    modules = [
        one
        for one in (_trees, boosted, forest, linear, linear_classifiers, moments, perturbation)
        if hasattr(one, name)
    ]
    return functools.reduce(_Both, [patch.object(one, name, replacement) for one in modules])


class _Both:
    def __init__(self, one, two):
        self.parts = (one, two)

    def __enter__(self):
        for part in self.parts:
            part.__enter__()

    def __exit__(self, *what):
        for part in reversed(self.parts):
            part.__exit__(*what)


def lower_bound(scores_in, scores_out, confidence=0.999):
    cut = len(scores_in) // 4
    tuned, reported = Scores(scores_in[:cut], scores_out[:cut]), Scores(scores_in[cut:], scores_out[cut:])
    return TwoRates().epsilon_lower(tuned, reported, BUDGET.delta, confidence).epsilon


def attack_sums(name, factor=1.0, runs=250):
    rng = np.random.default_rng(0)
    estimator = SUMS[name].set_params(random_state=rng)
    genuine, calibrated = _base.add_noise, {}
    inside, outside = worlds(name)

    def less(total, sensitivity, multiplier, source):
        return genuine(total, sensitivity, multiplier * factor, source)

    def once(budget, make_event):
        if not calibrated:
            calibrated[name] = _base.noise_for(budget, make_event)
        return calibrated[name]

    spread = patch.object(moments, "_spread_out", lambda *_: np.array([[-0.2, -0.2], [0.2, 0.2]]))
    with patch_everywhere("noise_for", once), patch.object(_base, "warn_unbooked", lambda *_: None), spread:
        exact = [first_release(estimator, *world, lambda total, *_: total) for world in (inside, outside)]
        direction = exact[0] - exact[1]
        scores = [
            np.array([first_release(estimator, *world, less) @ direction for _ in range(runs)])
            for world in (inside, outside)
        ]
    return lower_bound(*scores)


@pytest.mark.parametrize("name", SUMS)
def test_canaries_in_sums(name):
    assert attack_sums(name) <= BUDGET.epsilon
    assert attack_sums(name, factor=0.02, runs=120) > BUDGET.epsilon, "the planted fault was not caught"


def weights_of(name, rows, targets):
    return np.concatenate([one.ravel() for one in STEPS[name].fit(rows, targets).weights_.values()])


def attack_steps(name, factor, runs=24):
    (more, more_y), (less, less_y) = worlds(name)
    inside = np.vstack([np.tile(less, (50, 1)), more[-1:]]), np.append(np.tile(less_y, 50), more_y[-1])
    outside = np.tile(less, (50, 1)), np.tile(less_y, 50)
    with patch.object(training_noise, "add_noise", _less_noise(1e-6)):
        direction = weights_of(name, *inside) - weights_of(name, *outside)
    with patch.object(training_noise, "add_noise", _less_noise(factor)):
        scores = [np.array([weights_of(name, *world) @ direction for _ in range(runs)]) for world in (inside, outside)]
    return lower_bound(*scores, confidence=0.99)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_canaries_in_steps(name):
    """The claim is small here, so that a few fits can refute it."""
    assert attack_steps(name, 1.0) <= SMALL.epsilon
    caught = any(attack_steps(name, 1e-4) > SMALL.epsilon for _ in range(4))  # first weights are drawn: one may miss
    assert caught, "the planted fault was not caught"


def attack_objective(factor=1.0, runs=200):
    rng = np.random.default_rng(1)
    plan = perturbation.ObjectivePerturbation.within(BUDGET, linear_classifiers.LogisticLoss(), 1.0, 1)
    plan = perturbation.ObjectivePerturbation(plan.loss, 1.0, plan.ridge, plan.sigma * factor, plan.event)
    (more, more_y), (less, less_y) = worlds("logistic")
    scores = [
        np.array([plan.release(x / 2, [2.0 * y - 1], rng)[0] @ CANARY[0] for _ in range(runs)])
        for x, y in ((more, more_y), (less, less_y))
    ]
    return lower_bound(*scores)


def test_canaries_in_an_objective():
    assert attack_objective() <= BUDGET.epsilon
    assert attack_objective(0.01, 120) > BUDGET.epsilon, "the planted fault was not caught"
