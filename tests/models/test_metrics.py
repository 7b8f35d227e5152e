"""Metrics against scikit-learn, and the constant answer beside them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs
from torch import nn

from sordina.models import metrics
from sordina.training import evaluate


def test_scores_of_classes_are_scikit_learns():
    rng = np.random.default_rng(0)
    scores = np.round(rng.normal(size=(400, 2)), 1)
    labels = (rng.random(400) < 0.1).astype(int)
    found = metrics.class_scores(torch.from_numpy(scores), torch.from_numpy(labels))
    odds = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert found["auc"] == pytest.approx(
        theirs.roc_auc_score(labels, np.round(scores[:, 1] - scores[:, 0], 6)), abs=2e-3
    )
    assert found["balanced_accuracy"] == pytest.approx(theirs.balanced_accuracy_score(labels, scores.argmax(1)))
    assert found["log_loss"] == pytest.approx(theirs.log_loss(labels, odds))
    share = labels.mean()
    assert found["constant_accuracy"] == pytest.approx(1 - share)
    assert found["constant_log_loss"] == pytest.approx(theirs.log_loss(labels, np.tile([1 - share, share], (400, 1))))


def test_calibration_is_zero_for_honest_odds_and_not_for_sure_ones():
    labels = torch.tensor([0] * 75 + [1] * 25)
    honest = torch.tensor([[0.75, 0.25]]).log().repeat(100, 1)
    assert metrics.calibration_error(honest, labels) == pytest.approx(0, abs=1e-6)
    assert metrics.calibration_error(torch.tensor([[9.0, -9.0]]).repeat(100, 1), labels) == pytest.approx(
        0.25, abs=1e-3
    )


def test_ties_count_half_and_one_class_alone_says_nothing():
    assert metrics.auc(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])) == 0.5
    assert metrics.auc(torch.randn(4, 2), torch.zeros(4, dtype=torch.long)) == 0.5


def test_numbers_have_rmse_and_r2_beside_the_mean():
    targets = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    found = metrics.number_scores(targets + 0.5, targets)
    assert found["rmse"] == pytest.approx(0.5)
    assert found["r2"] == pytest.approx(theirs.r2_score(targets.numpy(), targets.numpy() + 0.5), abs=1e-6)
    assert metrics.number_scores(torch.full((4, 1), 3.0), targets)["r2"] == pytest.approx(0)


def test_a_validation_has_them_all():
    x, y = torch.randn(50, 3), torch.randint(2, (50,))
    assert {"accuracy", "auc", "log_loss", "constant_log_loss"} <= evaluate(
        nn.Linear(3, 2), nn.functional.cross_entropy, (x, y)
    ).keys()
    assert {"rmse", "r2", "constant_rmse"} <= evaluate(nn.Linear(3, 1), nn.functional.mse_loss, (x, x[:, :1])).keys()
