"""Where the trainer owns forward pass and loss, mixing in either is refused; in a loop of the user's own it is said."""

from __future__ import annotations

from random import SystemRandom

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sordina as sd
from sordina.errors import InvalidInput, Unsupported
from sordina.gradients import removal

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 2, (64,), generator=torch.Generator().manual_seed(2))


def trainer(model: nn.Module, loss, **options) -> sd.Trainer:
    settings = {
        "budget": sd.Budget(3, 1e-5),
        "batch_size": 32,
        "steps": 6,
        "learning_rate": 0.1,
        "clipping": sd.clipping.Fixed(1.0),
    }
    return sd.Trainer(model, loss, **{**settings, **options})


def over_its_mean(output, target):
    losses = F.cross_entropy(output, target, reduction="none")
    return losses / losses.detach().mean()


def weighted_by_class(output, target):
    counts = torch.bincount(target, minlength=2).clamp_min(1)
    return F.cross_entropy(output, target, reduction="none") * (len(target) / counts)[target]


def with_a_contrast(output, target):
    return F.cross_entropy(output, target, reduction="none") + 0.1 * (output @ output.T).mean(1)


class LoadBalance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        scores = self.layer(x)
        return scores - 0.1 * scores.detach().softmax(1).mean(0)


@pytest.mark.parametrize("loss", [over_its_mean, weighted_by_class, with_a_contrast])
def test_a_loss_that_looks_at_the_batch_is_refused(loss):
    with pytest.raises((Unsupported, InvalidInput), match=r"samples mix|depends on other samples"):
        trainer(nn.Linear(4, 2), loss).fit((X, Y))


def test_a_model_that_looks_at_the_batch_is_refused():
    with pytest.raises(Unsupported, match="samples mix"):
        trainer(LoadBalance(), F.cross_entropy).fit((X, Y))


def test_a_loss_that_starts_to_look_at_the_batch_later_is_refused():
    calls = []

    def later(output, target):
        losses = F.cross_entropy(output, target, reduction="none")
        calls.append(None)
        return losses if len(calls) < 200 else losses / losses.detach().mean()

    with pytest.raises(Unsupported, match="since this began"):
        trainer(nn.Linear(4, 2), later, steps=1000).fit((X, Y))


def test_a_sound_run_goes_through_and_says_nothing_about_it():
    run = trainer(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)), F.cross_entropy, steps=20).fit(
        (X, Y)
    )
    assert not any("loop" in caveat or "buffer" in caveat for caveat in run.caveats)


def test_a_loop_of_the_users_own_says_what_it_assumes():
    model = nn.Linear(4, 2)
    private = sd.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), (X, Y), budget=sd.Budget(3, 1e-5), batch_size=32, steps=2
    )
    for x, y in private:
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    assert any("mixup" in caveat and "user's word" in caveat for caveat in private.finish().caveats)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.out = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.norm(self.layer(x)))


def test_batch_norm_stays_frozen_while_the_trainer_trains_and_validates():
    model = Frozen()
    model.norm.eval()
    before = model.norm.running_mean.clone()
    trainer(model, F.cross_entropy, validate_every=2).fit((X, Y), validation=(X.flip(0) + 1, Y))
    assert not model.norm.training
    assert torch.equal(model.norm.running_mean, before)
    with pytest.raises(Unsupported, match="BatchNorm1d"):
        trainer(Frozen().eval(), F.cross_entropy).fit((X, Y))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            self.steps += 1
        return self.layer(x)


def test_a_buffer_that_changes_must_be_declared_and_is_then_said():
    with pytest.raises(Unsupported, match="public_buffers"):
        trainer(Counting(), F.cross_entropy).fit((X, Y))
    model = Counting()
    run = trainer(model, F.cross_entropy, public_buffers=["steps"]).fit((X, Y))
    assert int(model.steps) == 6
    assert any("buffers steps" in caveat for caveat in run.caveats)


class OverItsSize(nn.Module):
    """Divides by how many there are, once there are many."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) / max(1, len(x) / 20)


def test_a_model_that_looks_at_the_size_of_a_batch_is_refused(monkeypatch):
    """The removal test replaced samples and never took one away."""
    monkeypatch.setattr(removal, "CHANCE", TakesAway())
    with pytest.raises(Unsupported, match="without one sample"):
        trainer(OverItsSize(), F.cross_entropy).fit((X, Y))


class TakesAway(SystemRandom):
    """Chance that always takes samples away, where it has the choice."""

    def choice(self, seq):
        return None if None in seq else super().choice(seq)


class Late(nn.Module):
    """Centres its results over the batch from the last step on."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.layer, self.calls, self.start = nn.Linear(4, 2), 0, start

    def forward(self, x):
        self.calls += self.training
        scores = self.layer(x)
        return scores - scores.detach().mean(0) if self.calls > self.start else scores


def test_the_last_batch_is_tested_for_certain(monkeypatch):
    _only_when_forced(monkeypatch)
    with pytest.raises(Unsupported, match="samples mix"):
        trainer(Late(5), F.cross_entropy).fit((X, Y))
    model = Late(5)
    private = sd.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), (X, Y), budget=sd.Budget(3, 1e-5), batch_size=32, steps=6,
        microbatch=64,
    )  # fmt: skip

    def loop() -> None:
        for x, y in private:
            private.step(F.cross_entropy(model(x), y, reduction="none"))

    with pytest.raises(Unsupported, match="samples mix"):
        loop()


def test_the_losses_of_the_last_batch_are_tested_for_certain(monkeypatch, caplog):
    _only_when_forced(monkeypatch)
    calls = []

    def loss(output, target):
        losses = F.cross_entropy(output, target, reduction="none")
        if not output.requires_grad or len(output) < 9:
            return losses
        calls.append(1)
        return losses / losses.detach().mean() if len(calls) > 5 else losses

    refusal = ""
    try:
        trainer(nn.Linear(4, 2), loss).fit((X, Y))
    except Unsupported as error:
        refusal = str(error)
    assert "samples mix" in refusal or "one sample at a time" in caplog.text  # which is as good


def _only_when_forced(monkeypatch) -> None:
    """No test by chance."""

    def due(self) -> bool:
        forced, self.forced = getattr(self, "forced", False), False
        return forced

    monkeypatch.setattr(removal.RemovalSchedule, "due", due)
    monkeypatch.setattr(removal.RemovalSchedule, "force", lambda self: setattr(self, "forced", True))
