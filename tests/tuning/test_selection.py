import math

import numpy as np
import pytest
import torch
from tests.tuning.world import world
from torch import nn

from sordina import Budget, Search, Trainer
from sordina.errors import InvalidInput, TrainingFailed, Unsupported
from sordina.privacy import Adjacency
from sordina.tuning import Grid
from sordina.tuning.runner import RunResult
from sordina.tuning.search import _best, _best_on_average
from sordina.tuning.selection import LABELS, Selection, SelectionKind, better, metric_of, score

CROSS_ENTROPY = nn.functional.cross_entropy


def model(seed, outputs=2):
    torch.manual_seed(seed)
    return nn.Linear(4, outputs)


@pytest.mark.parametrize("classify", [True, False])
def test_one_record_changes_every_score_by_at_most_one_and_all_the_same_way(classify):
    x, y = world(60, 0)
    loss = CROSS_ENTROPY if classify else nn.functional.mse_loss
    targets = y if classify else 3 * torch.randn(60, 4)
    for seed in range(5):
        net = model(seed, 2 if classify else 4)
        whole = score(net, loss, (x, targets), bound=0.5)
        for left_out in range(0, 60, 7):
            keep = torch.arange(60) != left_out
            change = whole - score(net, loss, (x[keep], targets[keep]), bound=0.5)
            assert -1e-9 <= change <= 1 + 1e-9


def test_a_broken_model_scores_within_bounds():
    x, y = world(30, 0)
    net = model(0)
    with torch.no_grad():
        net.weight.fill_(math.nan)
    assert 0 <= score(net, CROSS_ENTROPY, (x, y)) <= 30
    assert score(model(0, 4), nn.functional.mse_loss, (x, torch.full_like(x, math.inf))) == 0


def test_scores_do_not_depend_on_how_rows_are_batched():
    x, y = world(60, 0)
    assert score(model(0), CROSS_ENTROPY, (x, y), batch_size=7) == score(model(0), CROSS_ENTROPY, (x, y), batch_size=60)


def test_the_private_choice_follows_the_exponential_mechanism():
    scores = np.array([50.0, 55.0, 60.0])
    chooser = Selection(share=0.05).chooser(Budget(3, 1e-5), Adjacency.ADD_REMOVE)
    weights = np.exp(0.15 * (scores - scores.max()))  # eps u / S: counts are monotonic, so without the 2
    expected = weights / weights.sum()
    rng, draws = np.random.default_rng(5), 4000
    counts = np.bincount([chooser.release(scores, rng) for _ in range(draws)], minlength=3)
    chi_square = float(((counts - draws * expected) ** 2 / (draws * expected)).sum())
    assert chi_square < 13.8  # 99.9 % quantile at 2 degrees of freedom
    twice = np.exp(0.30 * (scores - scores.max()))
    twice /= twice.sum()
    assert ((counts - draws * twice) ** 2 / (draws * twice)).sum() > 100  # a wrong scale would show


def test_every_kind_says_what_it_is():
    assert set(LABELS) == set(SelectionKind)
    assert "validation records" in Selection().label
    assert "PUBLIC" in Selection("public").label
    assert "TEST SET" in Selection("thesis-test-set").label
    assert "not paid for" in Selection("thesis-test-set").label


def result(number, configuration, value, metric="accuracy", repetition=0):
    return RunResult(number, configuration, repetition, event={}, metric=metric, score=value)


def test_the_best_exact_score_wins():
    runs = [result(0, {"a": 1}, 0.5), result(1, {"a": 2}, 0.9), result(2, {"a": 3}, None)]
    assert _best(runs).number == 1
    losses = [result(0, {"a": 1}, 0.5, "loss"), result(1, {"a": 2}, 0.9, "loss")]
    assert _best(losses).number == 0
    with pytest.raises(TrainingFailed):
        _best([result(0, {}, None)])


def test_the_thesis_averages_over_seeds():
    runs = [
        result(0, {"a": 1}, 0.9), result(1, {"a": 2}, 0.8),
        result(2, {"a": 1}, 0.5, repetition=1), result(3, {"a": 2}, 0.7, repetition=1),
    ]  # fmt: skip
    choice = _best_on_average(runs)
    assert (choice.number, choice.score) == (1, 0.75)
    assert choice.spread == pytest.approx(math.sqrt(0.005))
    broken = [*runs[:3], result(3, {"a": 2}, None, repetition=1)]
    assert _best_on_average(broken).number == 0


def test_better():
    assert better("accuracy", 0.5, None)
    assert not better("accuracy", None, None)
    assert not better("accuracy", math.nan, 0.1)


# By which metric the best is best.


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "loss", "rmse", "r2"])
def test_one_record_changes_the_private_score_by_at_most_one_whatever_the_metric(metric):
    x, y = world(40, 0)
    classes = metric in ("accuracy", "log_loss")
    targets, net = (y, model(0)) if classes else (3 * torch.randn(40, 4), model(0, 4))
    loss = CROSS_ENTROPY if classes else nn.functional.mse_loss
    with torch.no_grad():
        net.weight.mul_(30)  # far off, so that losses pass their bound
    whole = score(net, loss, (x, targets), bound=0.5, metric=metric)
    for left_out in range(0, 40, 3):
        keep = torch.arange(40) != left_out
        change = whole - score(net, loss, (x[keep], targets[keep]), bound=0.5, metric=metric)
        assert -1e-9 <= change <= 1 + 1e-9


@pytest.mark.parametrize("metric", ["auc", "balanced_accuracy"])
def test_what_has_no_small_sensitivity_is_chosen_by_on_public_data_only(metric):
    with pytest.raises(Unsupported, match="public"):
        Selection("private", metric=metric)
    assert Selection("public", metric=metric).exact
    with pytest.raises(InvalidInput, match="unknown metric"):
        Selection(metric="beauty")


def test_a_metric_that_the_data_do_not_have_is_refused():
    assert metric_of({"loss": 1.0, "accuracy": 0.5}, None) == "accuracy"
    assert metric_of({"loss": 1.0}, None) == "loss"
    with pytest.raises(InvalidInput, match="no auc"):
        metric_of({"loss": 1.0, "rmse": 1.0}, "auc")
    with pytest.raises(InvalidInput, match="classes"):
        score(model(0, 4), nn.functional.mse_loss, (torch.ones(3, 4), torch.ones(3, 4)), metric="log_loss")


def test_higher_and_lower():
    assert better("auc", 0.9, 0.8)
    assert better("r2", 0.1, -1.0)
    assert better("rmse", 0.1, 0.2)
    assert not better("log_loss", 0.3, 0.2)


@pytest.mark.parametrize("metric", ["rmse", "r2"])
def test_results_in_a_column_and_targets_in_a_row_are_not_broadcast(metric):
    """A model with one output and targets of shape (n,): a record's merit is about that record."""
    x, y = torch.randn(50, 3), torch.rand(50)

    def loss(output, target):
        return torch.nn.functional.mse_loss(output.squeeze(1), target)

    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    whole = score(model, loss, (x, y), metric=metric)
    assert whole == pytest.approx(float((1 - y.double().square()).sum()))
    loud = (torch.cat([x, x[:1]]), torch.cat([y, torch.tensor([1e6])]))
    assert abs(score(model, loss, loud, metric=metric) - whole) <= 1
    flat = torch.nn.Sequential(model, torch.nn.Flatten(0))
    assert score(flat, torch.nn.functional.mse_loss, (x, y), metric=metric) == pytest.approx(whole)


@pytest.mark.parametrize("metric", [None, "accuracy", "log_loss"])
def test_one_score_a_row_is_judged_row_by_row(metric):
    """A model whose results have one dimension: the largest of a batch is nobody's class."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.randint(0, 2, (40,))

    def loss(output, target):
        return nn.functional.binary_cross_entropy_with_logits(output, target.float(), reduction="none")

    column = nn.Linear(3, 1)
    flat = nn.Sequential(column, nn.Flatten(0))
    whole = score(flat, loss, (x, y), metric=metric)
    apart = sum(score(flat, loss, (x[i : i + 1], y[i : i + 1]), metric=metric) for i in range(40))
    assert whole == pytest.approx(apart)
    if metric != "log_loss":
        assert whole == float(((column(x)[:, 0] > 0).long() == y).sum())


class CentredWhenEvaluated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        scores = self.layer(x)
        return scores if self.training else scores - scores.mean(0)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return {"scores": self.layer(x), "share": self.layer.weight.norm()}


X, Y = torch.randn(60, 4), torch.randint(0, 2, (60,))


@pytest.mark.parametrize("metric", [None, "loss", "log_loss"])
def test_a_model_that_mixes_when_it_is_evaluated_has_no_private_score(metric):
    model = CentredWhenEvaluated()
    with pytest.raises(Unsupported, match="records mix"):
        score(model, nn.functional.cross_entropy, (X, Y), metric=metric)
    assert model.training


def test_a_model_that_mixes_when_it_is_evaluated_is_refused_before_a_search_trains():
    search = Search(
        Grid({"rate": (0.1, 0.5)}),
        trainer=lambda seed: Trainer(CentredWhenEvaluated(), nn.functional.cross_entropy, Budget(3, 1e-5), steps=2),
        strategy=lambda one: {"learning_rate": one["rate"]}, budget=Budget(3, 1e-5), method="composition",
    )  # fmt: skip
    with pytest.raises(Unsupported, match="records mix"):
        search.fit((X, Y), (X, Y))


def test_a_loss_of_a_dictionary_is_scored_and_one_that_mixes_refused():
    model = Named()

    def loss(output, target):
        return nn.functional.cross_entropy(output["scores"], target, reduction="none")

    def centred(output, target):
        losses = loss(output, target)
        return losses / losses.mean()

    expected = float((1 - loss(model(X), Y).detach().double().clamp(0, 1)).sum())
    assert score(model, loss, (X, Y)) == pytest.approx(expected)
    with pytest.raises(Unsupported, match="records mix"):
        score(model, centred, (X, Y))
    with pytest.raises(InvalidInput, match="returns one tensor"):
        score(model, loss, (X, Y), metric="accuracy")


def test_a_model_that_cannot_be_tested_is_scored_row_by_row():
    class Proud(nn.Module):
        """Takes no other batch, but rows alone."""

        def forward(self, x):
            if len(x) > 1 and not torch.equal(x, X):
                raise RuntimeError("no other batch")
            return x

    assert score(Proud(), lambda x, y: x[:, 0], (X, Y), metric="loss") == pytest.approx(
        float((1 - X[:, 0].double().clamp(0, 1)).sum())
    )
