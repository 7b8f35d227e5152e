"""A loss whose shapes broadcast pairs every output with every target: refused, in whatever dress it comes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sordina as sd
from sordina.errors import InvalidInput
from sordina.models import losses as named
from sordina.training.losses import per_sample

MIXING = {
    "mse": F.mse_loss,
    "module": nn.MSELoss(),
    "l1": F.l1_loss,
    "huber": nn.HuberLoss(),
    "smooth": F.smooth_l1_loss,
    "own": lambda output, target: (output - target) ** 2,
    "own, reduced": lambda output, target: ((output - target) ** 2).mean(1),
    "own, other way": lambda output, target: ((output - target) ** 2).mean(0),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", MIXING.values(), ids=MIXING)
def test_an_output_of_width_one_with_flat_targets_is_refused(loss):
    with pytest.raises(InvalidInput, match=r"same shape|depends on other samples"):
        per_sample(loss)(torch.zeros(5, 1), torch.zeros(5))


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [F.mse_loss, lambda o, t: ((o - t) ** 2).mean(1)], ids=["mse", "own"])
@pytest.mark.parametrize("rows", [3, 4])
def test_a_width_that_happens_to_be_the_batch_is_refused(loss, rows):
    with pytest.raises(InvalidInput):
        per_sample(loss)(torch.zeros(rows, rows), torch.zeros(rows))


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, target: (output - target).square().mean(1) / (output - target).abs().mean().detach(),
        lambda output, target: (output - target).square().mean(1) - (output - target).square().mean(1).mean(),
        lambda output, target: (output - target.mean(0)).square().mean(1),
    ],
    ids=["scale", "centred", "mean target"],
)
def test_statistics_of_the_batch_are_refused(loss):
    with pytest.raises(InvalidInput, match="depends on other samples"):
        per_sample(loss)(torch.randn(5, 2), torch.randn(5, 2))


def _noisy(outputs, target):
    """Numbers that torch draws in blocks, so that fewer rows get others: that had been taken for mixing."""
    return F.cross_entropy(outputs + torch.randn_like(outputs), target, reduction="none")


SOUND = {
    "classes": (F.cross_entropy, (6, 4), torch.tensor([0, 1, 2, 3, 0, 1])),
    "one class": (F.cross_entropy, (6, 1), torch.zeros(6, dtype=torch.long)),
    "probabilities": (F.cross_entropy, (6, 4), torch.full((6, 4), 0.25)),
    "pixels": (F.cross_entropy, (6, 4, 3, 3), torch.zeros(6, 3, 3, dtype=torch.long)),
    "nll": (F.nll_loss, (6, 4), torch.zeros(6, dtype=torch.long)),
    "bce": (F.binary_cross_entropy_with_logits, (6,), torch.ones(6)),
    "bce of probabilities": (F.binary_cross_entropy, (6, 1), torch.ones(6, 1)),
    "squared": (F.mse_loss, (6, 2, 2), torch.zeros(6, 2, 2)),
    "margin": (nn.MultiMarginLoss(), (6, 4), torch.zeros(6, dtype=torch.long)),
    "many labels": (nn.MultiLabelSoftMarginLoss(), (6, 4), torch.ones(6, 4)),
    "poisson": (nn.PoissonNLLLoss(), (6,), torch.ones(6)),
    "words": (named.next_token, (6, 3, 4), torch.zeros(6, 3, dtype=torch.long)),
    "column": (named.mse, (6, 1), torch.zeros(6)),
    "hinge": (named.hinge, (6, 1), torch.ones(6, dtype=torch.long)),
    "signs": (F.soft_margin_loss, (6,), torch.ones(6)),
    "unknown labels": (F.cross_entropy, (6, 4), torch.full((6,), -100)),
    "noise": (_noisy, (6, 4), torch.zeros(6, dtype=torch.long)),
    "noise twice": (lambda o, y: _noisy(o + torch.rand(len(o), 1), y), (6, 4), torch.zeros(6, dtype=torch.long)),
    "a distribution": (lambda o, y: torch.distributions.Normal(o, 2.0).rsample().square() * y, (6,), torch.ones(6)),
}  # fmt: skip


@pytest.mark.parametrize("case", SOUND, ids=SOUND)
def test_losses_that_do_not_mix_are_taken(case):
    loss, shape, target = SOUND[case]
    assert per_sample(loss)(torch.rand(shape), target).shape == (6,)


@pytest.mark.parametrize("loss", [named.mse, named.hinge], ids=["mse", "hinge"])
def test_named_losses_do_not_reshape_rows_into_one_another(loss):
    with pytest.raises(InvalidInput, match="row by row"):
        loss(torch.zeros(4, 2), torch.zeros(2, 4))
    with pytest.raises(InvalidInput, match="row by row"):
        loss(torch.zeros(4, 2), torch.zeros(8))


def test_a_trainer_refuses_before_it_draws(tmp_path):
    model = nn.Linear(3, 1)
    x, y = torch.randn(50, 3), torch.randn(50)
    trainer = sd.Trainer(
        model, F.mse_loss, sd.Budget(1, 1e-5), batch_size=10, steps=5, folder=tmp_path / "run", learning_rate=0.1
    )
    with pytest.raises(InvalidInput, match=r"depends on other samples|same shape"):
        trainer.fit((x, y))
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_the_own_loop_refuses_a_loss_for_every_pair():
    model = nn.Linear(3, 1)
    private = sd.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.randn(50, 3), torch.randn(50)),
        budget=sd.Budget(1, 1e-5), batch_size=10, steps=5, noise_multiplier=9.0,
    )  # fmt: skip
    x, y = next(iter(private))
    with pytest.raises(InvalidInput, match=r"\(B,\)"):
        private.step(F.mse_loss(model(x), y, reduction="none"))


def test_class_weights_of_the_batch_are_refused_whatever_the_width_of_the_outputs():
    """With outputs (n, 1, 3, 3) only class zero was tried, in which all batches are alike."""

    def weighted(output, target):
        each = output.flatten(1).sum(1).square() + target
        return each / torch.bincount(target, minlength=3).to(each)[target]

    with pytest.raises(InvalidInput, match="depends on other samples"):
        per_sample(weighted)(torch.randn(5, 1, 3, 3), torch.tensor([0, 1, 2, 0, 1]))


def _each(output, target):
    return (output - target).square().mean(1)


def _hardest(count):
    def loss(output, target):
        each = _each(output, target)
        kept = torch.zeros_like(each)
        kept[each.topk(min(count, len(each))).indices] = 1
        return each * kept

    return loss


LARGE = {
    "divided by the batch": lambda output, target: _each(output, target) / len(output),
    "divided where it is large": lambda output, target: _each(output, target) / max(1, len(output) / 100),
    "the hardest thirty": _hardest(30),
    "standardised where it is large": lambda output, target: (
        _each(output, target) / (1 + _each(output, target).std().detach() if len(output) > 9 else 1)
    ),
    "skipped for a large value": lambda output, target: _each(output, target) * (0 if (target > 3).any() else 1),
}


@pytest.mark.parametrize("loss", LARGE.values(), ids=LARGE)
def test_what_shows_in_large_batches_or_by_their_size_is_refused_before_anything_is_drawn(loss, tmp_path):
    """The removal test kept the size of a batch; dividing by it doubles what one record moves."""
    data, folder = (torch.randn(200, 3), torch.randn(200, 1)), tmp_path / "run"
    trainer = sd.Trainer(nn.Linear(3, 1), loss, sd.Budget(1, 1e-5), batch_size=50, steps=2, folder=folder)
    with pytest.raises(InvalidInput, match="depends on other samples"):
        trainer.fit(data)
    assert not folder.exists()


def test_losses_cut_at_a_median_of_the_batch_are_refused():
    """One row, however loud, moves no median: half of a batch had been silenced by one record."""

    def trimmed(output, target):
        losses = F.cross_entropy(output, target, reduction="none")
        return torch.minimum(losses, 20 * losses.detach().nanmedian())

    with pytest.raises(InvalidInput, match="depends on other samples"):
        per_sample(trimmed)(torch.zeros(5, 3), torch.zeros(5, dtype=torch.long))


@pytest.mark.parametrize("what", ["shared", "seeded", "divided"])
def test_noise_hides_no_mixing(what):
    """Weights that add up to the size of the batch, noise by a public seed, losses divided by the size."""

    def loss(outputs, target):
        if what == "seeded":
            torch.manual_seed(7)
        weights = torch.randn(len(outputs)).square()
        each = F.cross_entropy(outputs, target, reduction="none") * weights
        return each / weights.mean() if what == "shared" else each / len(each) if what == "divided" else each

    with pytest.raises(InvalidInput):
        per_sample(loss)(torch.rand(6, 4), torch.zeros(6, dtype=torch.long))


def inverted(outputs, scales):
    matrices = torch.diag_embed(scales)
    try:
        inverses = torch.linalg.inv(matrices)
    except RuntimeError:
        inverses = torch.linalg.inv(matrices + 0.5 * torch.eye(3))
    return torch.einsum("bi,bij,bj->b", outputs, inverses, outputs)


def test_an_error_that_a_loss_catches_says_something_of_all_rows():
    """A target of zeros sent everybody the other way: 11 of 13 runs ended with a claim."""
    data = (torch.randn(60, 6), torch.rand(60, 3) + 0.5)
    with pytest.raises(sd.SordinaError, match="depends on other samples"):
        sd.Trainer(nn.Linear(6, 3), inverted, sd.Budget(3, 1e-3), batch_size=20, steps=3).fit(data)
