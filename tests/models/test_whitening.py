"""Leading directions are shortened, rows get one norm, and a row changes what is released by what was paid for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sordina as sd
from sordina.accounting import Composed, Gaussian
from sordina.errors import InvalidInput, Unsupported
from sordina.models import WhitenedInputs
from sordina.models.public_pictures import made_up_pictures
from sordina.run_folder import MODEL
from sordina.training.batches import as_rows
from sordina.training.checkpoint import read_tensors
from sordina.training.components import find_components


def rows(count: int = 400) -> torch.Tensor:
    """The first of six numbers is large in all rows."""
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(0)) + torch.tensor([10.0, 0, 0, 0, 0, 0])


def filled(layer: WhitenedInputs, x: torch.Tensor, event: Gaussian | None = None) -> WhitenedInputs:
    find_components(layer, as_rows((x, torch.zeros(len(x)))), event, np.random.default_rng(0))
    return layer


def test_directions_in_which_all_are_alike_are_shortened_and_rows_have_one_norm():
    x = rows()
    layer = filled(WhitenedInputs(6, norm=3.0), x)
    even = layer(x)
    assert torch.allclose(even.norm(dim=1), torch.full((400,), 3.0))
    before, after = ((one[:, 0].abs() / one.norm(dim=1)).mean() for one in (x, even))
    assert before > 0.95
    assert after < 0.6
    unit = F.normalize(x)
    shares = torch.linalg.eigvalsh((unit.T @ unit / len(x)).double())
    shortened = unit - (unit @ layer.weight.T) @ layer.weight
    kept = torch.linalg.eigvalsh((shortened.T @ shortened / len(x)).double())
    assert torch.allclose(kept, torch.full((6,), 0.002).double().minimum(shares), atol=1e-5)


def test_a_row_of_zeros_stays_and_one_of_no_number_touches_no_other():
    x = rows(10)
    layer = filled(WhitenedInputs(6), x)
    x[3], x[4] = 0.0, math.nan
    even = layer(x)
    assert not even[3].any()
    others = [0, 1, 2, 5, 6, 7, 8, 9]
    assert torch.equal(even[others], layer(rows(10))[others])


def test_a_row_changes_the_released_moment_by_no_more_than_one(monkeypatch):
    seen = []
    monkeypatch.setattr("sordina.training.components.add_noise", lambda v, s, r: (seen.append((v.clone(), s)), v)[1])
    basis = torch.linalg.qr(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)))[0]
    x = rows(30)
    x[2], x[5], x[7] = x[2] * 1e6, math.nan, 0.0
    x[9] = 100 * basis[:, 0]

    def released(some: torch.Tensor) -> torch.Tensor:
        filled(WhitenedInputs(6, 3, basis=lambda: basis), some, Gaussian(2.0))
        return seen[-1][0]

    whole = released(x)
    assert seen[-1][1] == pytest.approx(2.0)
    changes = [float((whole - released(x[torch.arange(30) != i])).norm()) for i in range(30)]
    assert max(changes) <= 1 + 1e-9
    assert changes[9] == pytest.approx(1)  # the bound is met
    assert changes[5] == changes[7] == 0


def test_under_much_noise_nothing_is_shortened_that_noise_made_up():
    x = torch.randn(200, 40, generator=torch.Generator().manual_seed(0))
    layer = filled(WhitenedInputs(40), x, Gaussian(1000.0))
    assert layer.weight.norm(dim=1).square().sum() < 40 * 0.5


def test_a_run_pays_for_it_and_keeps_it(tmp_path):
    x = rows()
    y = (x[:, 1] > 0).long()
    model = nn.Sequential(WhitenedInputs(6), nn.Linear(6, 2))
    options = {"batch_size": 40, "steps": 20, "seed": 0}
    run = sd.Trainer(model, F.cross_entropy, sd.Budget(3, 1e-5), folder=tmp_path / "run", **options).fit((x, y))
    assert isinstance(run.event, Composed)
    assert 2.9 < run.epsilon <= 3
    plain = sd.Trainer(nn.Linear(6, 2), F.cross_entropy, sd.Budget(3, 1e-5), **options).fit((x, y))
    assert run.plan.noise_multiplier > plain.plan.noise_multiplier
    assert bool(model[0].released)
    assert model[0].weight.any()
    saved = read_tensors((tmp_path / "run" / MODEL).read_bytes())
    assert torch.equal(saved["0.weight"], model[0].weight)


def test_what_is_not_accounted_is_refused():
    x, y = rows(), torch.zeros(400).long()
    model = nn.Sequential(WhitenedInputs(6), nn.Linear(6, 2))
    with pytest.raises(Unsupported):
        sd.Trainer(model, F.cross_entropy, sd.Budget(3, 1e-5), batch_size=40, sampling="fixed-size").fit((x, y))
    for wrong in ({"directions": 0}, {"directions": 7}, {"norm": 0.0}, {"noise_multiplier": -1.0}):
        with pytest.raises(InvalidInput):
            WhitenedInputs(6, **wrong)


def test_made_up_pictures_are_the_same_for_everybody():
    pictures = made_up_pictures(9)
    assert pictures.shape == (9, 1, 28, 28)
    assert torch.equal(pictures, made_up_pictures(9))
    assert not torch.equal(pictures, made_up_pictures(9, seed=1))
    assert 0 <= float(pictures.min()) < float(pictures.max()) <= 1


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((nn.Linear(6, 4), WhitenedInputs(4), nn.Linear(4, 2)), "as the first layer: a row has 6 numbers"),
        ((WhitenedInputs(6, 2, basis=lambda: torch.randn(5, 3)), nn.Linear(6, 2)), "orthonormal"),
        ((WhitenedInputs(6, 2, basis=lambda: 100 * torch.eye(6)), nn.Linear(6, 2)), "orthonormal"),
        ((WhitenedInputs(6, 2, basis=lambda: torch.full((6, 3), math.nan)), nn.Linear(6, 2)), "orthonormal"),
        ((WhitenedInputs(6, 2, basis=torch.eye(6)), nn.Linear(6, 2)), "orthonormal"),
    ],
)
def test_a_layer_that_cannot_be_filled_is_refused_before_anything_is_booked(tmp_path, layers, said):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("data", sd.Budget(5, 1e-4))
    trainer = sd.Trainer(
        nn.Sequential(*layers), F.cross_entropy, sd.Budget(1, 1e-5), batch_size=40, steps=5, ledger=ledger,
        dataset_budget="data",
    )  # fmt: skip
    with pytest.raises(InvalidInput, match=said):
        trainer.fit((rows(), torch.zeros(400).long()))
    assert ledger.spent("data") == 0


def test_items_are_put_together_one_by_one():
    """A function that mixes in large batches only is seen by no trial, and no step has so many."""

    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return rows()[index], torch.tensor(0)

    seen = []

    def collate(items):
        seen.append(len(items))
        return torch.stack([one[0] for one in items]), torch.stack([one[1] for one in items])

    layer = WhitenedInputs(6)
    find_components(layer, as_rows(Items(), collate), None, np.random.default_rng(0))
    assert set(seen) == {1}
    assert torch.allclose(layer.weight, filled(WhitenedInputs(6), rows()[:40]).weight, atol=1e-5)
