import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score, roc_curve

from sordina.auditing.scores import Scores, auc, lower_rate, roc, tpr_at, upper_rate
from sordina.errors import InvalidInput


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    return Scores(rng.normal(0.7, 1, 300).round(1), rng.normal(0, 1, 200).round(1))


def labelled(scores):
    truth = np.repeat([1, 0], [len(scores.inside), len(scores.outside)])
    return truth, np.concatenate([scores.inside, scores.outside])


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (77, 400)])
def test_rates_are_the_ends_of_the_exact_interval(hits, trials):
    interval = binomtest(hits, trials).proportion_ci(0.9, method="exact")
    assert lower_rate(hits, trials, 0.05) == pytest.approx(interval.low)
    assert upper_rate(hits, trials, 0.05) == pytest.approx(interval.high)


def test_auc_and_roc_agree_with_scikit_learn_ties_included(scores):
    truth, values = labelled(scores)
    assert auc(scores).value == pytest.approx(roc_auc_score(truth, values))
    fpr, tpr, _ = roc_curve(truth, values, drop_intermediate=False)
    assert np.allclose(roc(scores).fpr, fpr)
    assert np.allclose(roc(scores).tpr, tpr)


def test_the_interval_of_the_auc_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    truth = 0.7602499389065233  # Phi(1 / sqrt 2)
    covered = 0
    for _ in range(400):
        estimate = auc(Scores(rng.normal(1, 1, 80), rng.normal(0, 1, 60)))
        covered += estimate.low <= truth <= estimate.high
    assert binomtest(covered, 400, 0.95).pvalue > 1e-3


def test_tpr_at_low_fpr_counts_hits_above_all_but_the_allowed_false_alarms():
    scores = Scores(np.array([5.0, 4.0, 3.0, 1.0]), np.arange(100) / 25)
    assert tpr_at(scores, 0.01).value == 0.5
    assert tpr_at(scores, 0.001).value == 0.5
    assert tpr_at(scores, 0.5).value == 0.75
    assert tpr_at(scores, 1.0).value == 1.0


def test_a_split_loses_nothing_and_shares_nothing(scores):
    first, second = Scores(np.arange(10.0), np.arange(10.0, 30)).split(0.3, np.random.default_rng(0))
    assert len(first.inside) == 3
    assert len(first.outside) == 6
    assert sorted([*first.inside, *second.inside]) == list(range(10))
    assert sorted([*first.outside, *second.outside]) == list(range(10, 30))


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(InvalidInput, match="not a number"):
        Scores(np.array([1.0, np.nan]), np.array([0.0]))
    with pytest.raises(InvalidInput, match="no scores outside"):
        Scores(np.array([1.0]), np.array([]))
