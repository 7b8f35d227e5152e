"""Fairness is fairlearn's, except that a rate of nobody is no rate."""

import sys

import numpy as np
import pytest
from fairlearn import metrics

from sordina.errors import InvalidInput, Unsupported
from sordina.fairness import measure


@pytest.mark.parametrize("seed", range(5))
def test_the_differences_are_fairlearns(seed):
    rng = np.random.default_rng(seed)
    groups = rng.integers(3, size=300)
    truth = (rng.random(300) < 0.3 + 0.2 * groups).astype(int)
    decided = np.where(rng.random(300) < 0.7, truth, 1 - truth)
    fair = measure(truth, decided, groups, names=("a", "b", "c"))
    arguments = {"y_true": truth, "y_pred": decided, "sensitive_features": groups}
    assert fair.demographic_parity_difference == pytest.approx(metrics.demographic_parity_difference(**arguments))
    assert fair.equalized_odds_difference == pytest.approx(metrics.equalized_odds_difference(**arguments))
    rates = metrics.MetricFrame(metrics=metrics.true_positive_rate, **arguments)
    assert fair.equal_opportunity_difference == pytest.approx(rates.difference())
    assert fair.left_out == ()


def test_the_table_counts_by_hand():
    truth, decided, groups = [1, 1, 0, 0, 1], [1, 0, 1, 0, 1], ["x", "x", "x", "x", "y"]
    fair = measure(truth, decided, groups, smallest=1)
    x, y = fair.groups
    assert (x.name, x.count, x.positives) == ("x", 4, 2)
    assert (x.accuracy, x.selection_rate, x.true_positive_rate, x.false_positive_rate) == (0.5, 0.5, 0.5, 0.5)
    assert (y.count, y.true_positive_rate, y.false_positive_rate) == (1, 1.0, None)
    assert fair.demographic_parity_difference == 0.5
    assert fair.equal_opportunity_difference == 0.5
    assert fair.equalized_odds_difference is None


def test_a_group_without_positives_does_not_look_unfair():
    truth = np.array([1, 0] * 20 + [0] * 20)
    groups = np.array([0] * 20 + [1] * 20 + [2] * 20)
    fair = measure(truth, truth, groups)
    assert fair.groups[2].true_positive_rate is None
    assert fair.equal_opportunity_difference == 0
    assert metrics.MetricFrame(
        metrics=metrics.true_positive_rate, y_true=truth, y_pred=truth, sensitive_features=groups
    ).difference() == pytest.approx(1)


def test_small_groups_are_shown_but_not_compared():
    truth, groups = np.array([0, 1] * 50 + [1]), np.array([0] * 50 + [1] * 50 + [2])
    decided = truth.copy()
    decided[-1] = 0
    fair = measure(truth, decided, groups, names=("a", "b", "tiny"))
    assert fair.left_out == ("tiny",)
    assert fair.groups[2].true_positive_rate == 0
    assert fair.equal_opportunity_difference == 0
    assert measure(truth, decided, groups, smallest=1).equal_opportunity_difference == 1


def test_one_group_has_nobody_to_differ_from():
    fair = measure([0, 1] * 10, [0, 1] * 10, [0] * 20)
    assert fair.demographic_parity_difference is None
    assert fair.equalized_odds_difference is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (([0, 1], [0, 1, 1], [0, 0]), "2 truths, 3 decisions and 2 groups"),
        (([0, 2], [0, 1], [0, 0]), "y_true must hold only 0 and 1"),
        (([0, 1], [0, 0.5], [0, 0]), "y_pred must hold only 0 and 1"),
        (([], [], []), "0 truths"),
    ],
)
def test_malformed_input_is_refused(arguments, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        measure(*arguments)


def test_without_fairlearn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fairlearn", None)
    with pytest.raises(Unsupported, match=r"pip install 'sordina\[federated\]'"):
        measure([0, 1], [0, 1], [0, 1])
