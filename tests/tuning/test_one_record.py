"""One record can neither end a search nor be seen in how it ends."""

import json
import math

import pytest
import torch
from tests.tuning.world import STEPS, conv, mlp

import sordina as sd
from sordina._stacked_models import LinearTape
from sordina.accounting import from_dict
from sordina.errors import InvalidInput
from sordina.tuning import Grid, Search, plan
from sordina.tuning.parallel_runs import stackable

VALUES = (math.nan, math.inf, 3e38)


def search(make, method, **rest):
    return Search(
        Grid({"learning_rate": (0.01, 0.02)}), make, sd.Budget(3, 1e-5), method=method, accountant="rdp", **rest
    )  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("make", "method"), [(mlp, "composition"), (conv, "composition"), (mlp, "random-stopping")])
def test_a_poisoned_record_changes_nothing_that_shows(tmp_path, train, held_out, monkeypatch, make, method, value):
    monkeypatch.setattr(plan, "draw_runs", lambda *_: 2)
    x, y = train
    poisoned = x.clone()
    poisoned[:40] = value
    found = search(make, method, folder=tmp_path / "s").fit((poisoned, y), held_out)
    assert all(run.stopped is None for run in found.runs)
    assert all(from_dict(run.event).count == STEPS for run in found.runs)
    assert all(torch.isfinite(one).all() for one in found.model.parameters())
    written = "".join(path.read_text() for path in (tmp_path / "s").rglob("*.json"))
    assert "failed" not in written
    assert "NaN" not in written


def test_a_stacked_tape_leaves_out_what_is_not_finite():
    a, b = torch.ones(3, 2), torch.ones(3, 4)
    a[1, 0] = math.nan
    tape = LinearTape([a], [b], [True])
    norms = tape.scalars().norms
    assert not norms[1].isfinite()
    assert norms[0] >= math.sqrt(3 * 4)
    sums = tape.contract([sd.queries.VectorQuery(torch.ones(3))])[0]
    assert torch.isfinite(sums).all()
    assert sums.tolist() == [2.0] * 12


def test_data_that_do_not_fit_are_refused_before_anything_is_reserved(tmp_path, train, held_out):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(3, 1e-5), accountant="rdp")
    x, y = train
    made = search(mlp, "composition", ledger=ledger, dataset_budget="people", folder=tmp_path / "s")
    with pytest.raises(InvalidInput):
        made.fit((x, y + 7), held_out)
    assert ledger.spent("people") == 0
    assert not (tmp_path / "s").exists()


def test_two_at_once_are_one_too_many(tmp_path, train, held_out, monkeypatch):
    """A second search into the folder, fresh or resumed, is refused before it draws."""
    drawn = []

    def make(seed):
        trainer = mlp(seed)
        if (folder / "plan.json").exists() and not drawn:
            drawn.append(seed)
            for resume in (False, True):
                with pytest.raises(InvalidInput, match="in use"):
                    search(mlp, "composition", folder=folder).fit(train, held_out, resume=resume)
        return trainer

    folder = tmp_path / "s"
    search(make, "composition", folder=folder).fit(train, held_out)
    assert drawn
    assert json.loads((folder / "privacy.json").read_text())["epsilon"] <= 3


def probabilities(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 1), torch.nn.Sigmoid())
    loss = torch.nn.functional.binary_cross_entropy
    return sd.Trainer(model, loss, sd.Budget(3, 1e-5), batch_size=8, steps=4, learning_rate=0.1)


class Sigmoid(torch.nn.Module):
    def forward(self, x):
        return torch.sigmoid(x)


def unstacked(seed):
    trainer = probabilities(seed)
    trainer.model[1] = Sigmoid()
    return trainer


@pytest.mark.parametrize("make", [probabilities, unstacked])
@pytest.mark.parametrize("where", ["train", "validation"])
def test_a_record_that_the_loss_refuses_ends_nothing(make, where):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 8, generator=draw)
    y = (x[:, :1] > 0).float()
    strange = y.clone()
    strange[:20] = 5.0
    assert stackable(make(0)) == (make is probabilities)
    train, held_out = ((x, strange), (x, y)) if where == "train" else ((x, y), (x, strange))
    found = search(make, "composition").fit(train, held_out)
    assert all(run.stopped is None for run in found.runs)


def test_a_refused_record_has_no_merit():
    from sordina.tuning.selection import score

    loss = torch.nn.functional.binary_cross_entropy
    x = torch.tensor([1.0, 1.0, 1.0])
    assert score(torch.nn.Identity(), loss, (x, torch.tensor([1.0, 7.0, 1.0]))) == 2.0
