"""Splits that do not look, and splits by the exponential mechanism on disjoint bags: scores, bags, learning."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

import sordina as sd
from sordina.errors import InvalidInput
from sordina.estimators import RandomForestClassifier, RandomForestRegressor
from sordina.estimators._trees import BagShares
from sordina.mechanisms.exponential import Exponential

pytestmark = pytest.mark.filterwarnings("ignore::sordina.estimators.UnbookedFits")
CLASSES = RandomForestClassifier(
    sd.Budget(2, 1e-5), bounds=(0, 1), splits="exponential", n_estimators=1, max_features=1.0
)
NUMBERS = RandomForestRegressor(
    sd.Budget(2, 1e-5), bounds=(0, 1), target_bounds=(0, 1), splits="exponential", n_estimators=1, max_features=1.0
)


class _Scored(Exception):
    """The first scores are there; the rest of the fit does not matter."""


def first_chances(estimator, rows, targets, **fitting):
    """The scores of the root's splits, and the chance of each."""
    found = []

    def release(mechanism, scores, rng=None):
        found.append((scores, mechanism.probabilities(scores)))
        raise _Scored

    with patch.object(Exponential, "release", release), pytest.raises(_Scored):
        estimator.fit(rows, targets, **fitting)
    return found[0]


def worst_changes(estimator):
    """Over random tables and extreme rows: the largest rise of a score, its largest fall, and the largest log ratio."""
    rng = np.random.default_rng(0)
    rise, fall, ratio = -np.inf, 0.0, 0.0
    for _ in range(12):
        size = int(rng.integers(6, 12))
        rows = rng.choice([0.0, 0.5, 1.0], (size, 2))
        numbers = estimator is NUMBERS
        targets = rng.choice([0.0, 1.0], size) if numbers else np.append([0, 1], rng.integers(0, 2, size - 2))
        extra, target = rng.choice([0.0, 1.0], (1, 2)), rng.choice([-5.0, 5.0]) if numbers else rng.integers(0, 2)
        less, chance = first_chances(estimator, rows, targets)
        more, other = first_chances(estimator, np.vstack([rows, extra]), np.append(targets, target))
        # sums of squares of numbers are told up to that of the targets themselves, which the row adds to
        changes = more - less - (0.25 if numbers else 0.0)
        rise, fall = max(rise, float(changes.max())), max(fall, float(-changes.min()))
        ratio = max(ratio, float(np.abs(np.log(chance) - np.log(other)).max()))
    return rise, fall, ratio


@pytest.mark.parametrize("estimator", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_scores_only_fall_and_by_no_more_than_stated(estimator, monkeypatch):
    monkeypatch.setattr("sordina.estimators.forest.noise_for", lambda budget, make_event: 3.0)
    rise, fall, ratio = worst_changes(estimator)
    epsilon = BagShares.pure(sd.Budget(2, 1e-5), estimator.max_depth)
    assert rise <= 1e-9
    assert fall <= type(estimator).squares
    assert 0.1 * epsilon < ratio <= epsilon
    monkeypatch.setattr(type(estimator), "squares", 0.2)
    assert worst_changes(estimator)[2] > epsilon, "the planted fault was not caught"


def test_a_person_is_in_one_bag():
    owners = np.repeat(np.arange(50), 4)
    bags = BagShares(1.0, 5, 3, 0.1).bags(owners, np.random.default_rng(0))
    assert sorted(np.concatenate(bags).tolist()) == list(range(200))
    assert sum(len(np.unique(owners[bag])) for bag in bags) == 50


def test_rows_of_a_person_are_scored_for_as_many():
    rows, targets, who = np.random.default_rng(0).random((40, 2)), np.arange(40) % 2, np.arange(40) // 2
    _, one = first_chances(CLASSES.set_params(rows_per_person=1), rows, targets, persons=np.arange(40))
    _, two = first_chances(CLASSES.set_params(rows_per_person=2), rows, targets, persons=who)
    CLASSES.set_params(rows_per_person=None)
    np.testing.assert_allclose(np.ptp(np.log(two)), np.ptp(np.log(one)) / 2)


@pytest.mark.parametrize("splits", ["random", "exponential"])
def test_both_learn(splits):
    rng = np.random.default_rng(0)
    x = rng.random((4000, 2))
    model = RandomForestClassifier(sd.Budget(4, 1e-5), bounds=(0, 1), splits=splits, n_estimators=8, random_state=0)
    assert model.fit(x, x[:, 0] > 0.5).score(x, x[:, 0] > 0.5) > 0.85
    numbers = RandomForestRegressor(
        sd.Budget(4, 1e-5), bounds=(0, 1), target_bounds=(0, 1), splits=splits, n_estimators=8, random_state=0
    )
    assert numbers.fit(x, x[:, 0]).score(x, x[:, 0]) > 0.5
    assert 3.9 < numbers.guarantee_.epsilon <= 4


def test_unknown_ways_are_refused():
    with pytest.raises(InvalidInput, match="histogram, random, exponential"):
        RandomForestClassifier(sd.Budget(1, 1e-5), bounds=(0, 1), splits="best").fit([[0.1], [0.9]], [0, 1])
