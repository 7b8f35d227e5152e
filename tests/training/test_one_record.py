"""One record can neither stop a run nor be seen in it: what it adds becomes zero, and the others add what they add."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sordina as sd
from sordina.clipping import Automatic, FallingNorm, Fixed, Online, PerLayer, Quantile, TypicalNorm
from sordina.errors import InvalidInput, TrainingFailed
from sordina.training import batches
from sordina.training.loop import Private
from sordina.training.losses import FailingRows

POLICIES = [Fixed(1.0), TypicalNorm(), FallingNorm(), Online(), Quantile(), Automatic(1.0), PerLayer(Fixed(1.0))]


def fit(model, data, **rest):
    options = {
        "clipping": Fixed(1.0),
        "batch_size": 20,
        "steps": 30,
        "learning_rate": 0.5,
        "noise_multiplier": 4.0,
        "seed": 0,
    }
    return sd.Trainer(model, F.cross_entropy, sd.Budget(6, 1e-5), **(options | rest)).fit(data)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38, -3e38])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_a_feature_that_is_no_number_stops_nothing_and_touches_nobody_else(data, make_model, bad, policy):
    x, y = data[0].clone(), data[1]
    x[17, 2] = bad
    first, second = make_model(), make_model()
    run = fit(first, (x, y), clipping=policy)
    assert run.steps == 30
    assert torch.isfinite(weights(first)).all()
    if not np.isfinite(bad) and isinstance(policy, Fixed):
        zeroed = [0.0 if row == 17 else 1.0 for row in range(100)]
        fit_without(second, (data[0], y), torch.tensor(zeroed))
        torch.testing.assert_close(weights(first), weights(second), rtol=1e-5, atol=1e-6)


def fit_without(model, data, keep):
    """The same run with the loss of some records multiplied by zero."""
    x, y = data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private = sd.make_private(
        model, optimizer, (x, y, keep), budget=sd.Budget(6, 1e-5), batch_size=20, steps=30, noise_multiplier=4.0,
        seed=0, clipping=Fixed(1.0),
    )  # fmt: skip
    for a, b, kept in private:
        private.step(F.cross_entropy(model(a), b, reduction="none") * kept)


def test_losses_that_are_no_numbers_stop_nothing(model, data, plan):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = Private(model, optimizer, data, plan, Fixed(1.0), rng=np.random.default_rng(0))
    for x, y in loop:
        loop.step(F.cross_entropy(model(x), y, reduction="none") * float("nan"))
    assert loop.steps_taken == 8
    assert torch.isfinite(weights(model)).all()


def test_weights_that_are_released_may_stop_a_run(model, data):
    with pytest.raises(TrainingFailed, match="weights are no longer finite"):
        fit(model, data, learning_rate=3.4e38, clipping=Fixed(100.0))


def test_an_empty_batch_is_reported_like_any_other(model, data):
    run = fit(model, data, batch_size=1, steps=40, noise_multiplier=9.0, track_epsilon=False)
    assert [entry["step"] for entry in run.history] == list(range(2, 41, 2))


class TestBeforeAnythingIsReserved:
    """What model, loss and data cannot do together is told first, and quotes nobody."""

    @pytest.fixture
    def ledger(self, tmp_path):
        ledger = sd.Ledger(tmp_path / "ledger.db")
        ledger.create("people", sd.Budget(7, 1e-5))
        return ledger

    @pytest.mark.parametrize("wrong", ["width", "dtype", "label", "negative", "token", "rows", "empty"])
    def test_data_that_do_not_fit(self, data, make_model, ledger, tmp_path, wrong):
        x, y = data[0].clone(), data[1].clone()
        model = make_model()
        if wrong == "width":
            x = x[:, :4]
        elif wrong == "dtype":
            x = x.double()
        elif wrong == "label":
            y[5] = 7919
        elif wrong == "negative":
            y[5] = -3
        elif wrong == "token":
            model = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(8, 2))
            x = torch.zeros(100, 2, dtype=torch.long)
            x[3, 1] = 7919
        elif wrong == "rows":
            y = y[:-1]
        elif wrong == "empty":
            x, y = x[:0], y[:0]
        with pytest.raises(InvalidInput) as refused:
            fit(model, (x, y), ledger=ledger, dataset_budget="people", folder=tmp_path / "run")
        assert "7919" not in str(refused.value)
        assert not (tmp_path / "run").exists()
        assert ledger.spent("people") == 0

    @pytest.mark.parametrize(
        "wrong",
        [
            {"microbatch": -1}, {"microbatch": 0}, {"microbatch": 1.5}, {"epochs": 0, "steps": None}, {"steps": -1},
            {"epochs": float("nan"), "steps": None}, {"checkpoint_every": 0}, {"validate_every": 0},
            {"learning_rate": -1.0},
            {"noise_multiplier": -4.0}, {"noise_multiplier": float("nan")}, {"population": 0}, {"steps": 1.5},
        ],
        ids=repr,
    )  # fmt: skip
    def test_options_that_cannot_be(self, data, model, ledger, tmp_path, wrong):
        with pytest.raises(InvalidInput):
            fit(model, data, ledger=ledger, dataset_budget="people", folder=tmp_path / "run", **wrong)
        assert not (tmp_path / "run").exists()
        assert ledger.spent("people") == 0

    @pytest.mark.parametrize("out", ["file", "file/below"])
    def test_a_folder_that_cannot_be(self, data, model, ledger, tmp_path, out):
        (tmp_path / "file").write_text("")
        with pytest.raises(InvalidInput):
            fit(model, data, ledger=ledger, dataset_budget="people", folder=tmp_path / out)
        assert ledger.spent("people") == 0

    def test_the_model_is_left_as_it_was(self, data, make_model):
        from sordina.training.batches import as_rows
        from sordina.training.losses import check_takes

        model = nn.Sequential(nn.Dropout(0.5), make_model())
        model[1].eval()
        state = torch.get_rng_state()
        check_takes(model, F.cross_entropy, as_rows(data))
        assert model.training
        assert model[0].training
        assert not model[1].training
        assert torch.equal(torch.get_rng_state(), state)


class Packed(nn.Module):
    """A sequence has at least one element: it takes no row of zeros."""

    def __init__(self):
        super().__init__()
        self.read, self.last = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.last(self.read(packed)[1][-1])


def test_a_model_that_takes_no_zeros_is_trained_and_a_record_that_fails_stops_nothing():
    lengths = torch.randint(1, 6, (60,))
    rows = torch.randn(60, 5, 4), lengths, torch.randint(0, 2, (60,))
    fit(Packed(), rows)
    model = Packed()
    lengths[7] = 0
    losses = FailingRows(model, lambda batch: F.cross_entropy(model(*batch[:2]), batch[2], reduction="none"), None)
    assert losses(rows).nonzero().flatten().tolist() == [row for row in range(60) if row != 7]


def probabilities():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 1), nn.Sigmoid(), nn.Flatten(0))


class TestWhatTheLossRefuses:
    """`binary_cross_entropy` raises on what is no probability: at the step that draws the record, were it let."""

    def fit(self, model, x, y, **rest):
        options = {
            "batch_size": 20,
            "steps": 30,
            "learning_rate": 0.5,
            "noise_multiplier": 4.0,
            "seed": 0,
            "track_epsilon": False,
        }
        return sd.Trainer(
            model, F.binary_cross_entropy, sd.Budget(6, 1e-5), clipping=Fixed(1.0), **(options | rest)
        ).fit((x, y))  # fmt: skip

    def test_the_loss_itself_is_taken(self, data):
        assert self.fit(probabilities(), data[0], data[1].float()).steps == 30

    @pytest.mark.parametrize("bad", [float("nan"), 2.0, -3e38])
    @pytest.mark.parametrize("place", ["feature", "target"])
    def test_a_record_it_refuses_adds_nothing(self, data, bad, place):
        x, y = data[0].clone(), data[1].float()
        (x[17] if place == "feature" else y[17:18])[:] = bad
        first, second = probabilities(), probabilities()
        assert self.fit(first, x, y).steps == 30
        if place == "target":
            fit_with(second, data[0], data[1].float(), without=17)
            torch.testing.assert_close(weights(first), weights(second), rtol=1e-5, atol=1e-6)

    def test_users_too(self, data):
        y = data[1].float()
        y[17] = 3.0
        users = sd.sampling.Users(np.arange(100) // 2, rows_per_user=2)
        assert self.fit(probabilities(), data[0], y, users=users).steps == 30

    def test_all_at_once(self, data):
        assert self.fit(probabilities(), data[0], data[1].float() + 3, batch_size=2).steps == 30

    def test_what_fails_on_anything_is_told(self, data, model):
        calls = []

        def loss(output, target):
            calls.append(torch.is_grad_enabled())
            if sum(calls) > 3:
                raise ArithmeticError("out of order")
            return F.cross_entropy(output, target, reduction="none")

        with pytest.raises(ArithmeticError, match="out of order"):
            sd.Trainer(model, loss, sd.Budget(6, 1e-5), batch_size=20, steps=300, noise_multiplier=9.0).fit(data)


def fit_with(model, x, y, without):
    keep = torch.ones(100)
    keep[without] = 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private = sd.make_private(
        model, optimizer, (x, y, keep), budget=sd.Budget(6, 1e-5), batch_size=20, steps=30, noise_multiplier=4.0,
        seed=0, clipping=Fixed(1.0),
    )  # fmt: skip
    for a, b, kept in private:
        private.step(F.binary_cross_entropy(model(a), b, reduction="none") * kept)


class Items(torch.utils.data.Dataset):
    """A map-style data set with one strange item, from the ``patience``-th reading of it on."""

    def __init__(self, data, strange=None, patience=0):
        self.data, self.strange, self.left = data, strange, patience

    def __len__(self):
        return len(self.data[0])

    def __getitem__(self, index):
        x, y = self.data[0][index], self.data[1][index]
        if index != 17 or self.strange is None:
            return x, y
        self.left -= 1
        if self.left >= 0:
            return x, y
        if self.strange == "raises":
            raise OSError("/home/ann/scan.png")
        return {
            "shape": (x[:4], y), "type": (x.double(), y), "label": (x, torch.tensor(7919)), "nothing": None,
        }[self.strange]  # fmt: skip


class TestMapStyle:
    """Items that are read one by one, when they are drawn."""

    @pytest.mark.parametrize("strange", ["raises", "shape", "type", "label", "nothing"])
    def test_an_item_that_does_not_fit_is_told_before_anything_is_reserved(self, data, model, tmp_path, strange):
        with pytest.raises(InvalidInput) as refused:
            fit(model, Items(data, strange), folder=tmp_path / "run")
        assert "scan" not in str(refused.value)
        assert "7919" not in str(refused.value)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("strange", ["raises", "shape", "type", "label", "nothing"])
    def test_one_that_goes_bad_later_stops_nothing(self, data, make_model, strange, monkeypatch):
        monkeypatch.setattr(batches, "check_items", lambda *args: None)  # it would read until it is bad
        first, second = make_model(), make_model()
        assert fit(first, Items(data, strange, patience=1)).steps == 30
        x = data[0].clone()
        x[17] = float("nan")
        fit(second, (x, data[1]))
        torch.testing.assert_close(weights(first), weights(second), rtol=1e-5, atol=1e-6)

    def test_it_trains_what_tensors_train(self, data, make_model):
        first, second = make_model(), make_model()
        fit(first, Items(data))
        fit(second, data)
        assert torch.equal(weights(first), weights(second))

    def test_all_bad_is_like_nobody_there(self, data, model):
        class Gone(Items):
            def __getitem__(self, index):
                raise OSError

        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        plan = sd.plan.make_plan(sd.Budget(6, 1e-5), sd.sampling.Poisson(20, 100), 5)
        loop = Private(model, optimizer, Gone(data), plan, Fixed(1.0), rng=np.random.default_rng(0))
        assert list(loop) == []
        assert (loop.steps_taken, loop.trained_steps) == (5, 5)


@pytest.mark.parametrize("labels", [{5: -100, 6: -5}, {5: 255, 6: 30}])
def test_a_label_between_the_ignored_one_and_the_classes_is_told_first(data, model, labels):
    y = data[1].clone()
    for row, label in labels.items():
        y[row] = label
    ignored = labels[5]

    def loss(output, target, reduction="mean"):
        return F.cross_entropy(output, target, reduction=reduction, ignore_index=ignored)

    with pytest.raises(InvalidInput, match="outside the range"):
        sd.Trainer(model, loss, sd.Budget(6, 1e-5), batch_size=20, steps=3).fit((data[0], y))
    y[6] = 1
    assert sd.Trainer(model, loss, sd.Budget(6, 1e-5), batch_size=20, steps=3).fit((data[0], y)).steps == 3


class Nosy(nn.Module):
    """Looks at the whole batch."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 2)

    def forward(self, x):
        return self.inner(x - x.mean(0))


def test_a_model_that_cannot_be_trained_costs_nothing(data, tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(7, 1e-5))
    model = Nosy()
    with pytest.raises(sd.errors.Unsupported, match="mix"):
        fit(model, data, ledger=ledger, dataset_budget="people", folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert ledger.spends() == {}
    assert type(model) is Nosy
