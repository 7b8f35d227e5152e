"""Companies that a few random rows are not: images as bytes, of which each holds all numbers; large batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sordina.errors import Unsupported
from sordina.gradients import Engine
from sordina.gradients._crowds import Work, company_trials
from sordina.gradients._rehearsal import CHANGES, Snapshot, replaced, scaled
from sordina.gradients.one_by_one import SamplePlacement
from sordina.gradients.removal import COMPANY, others_change
from sordina.gradients.structure import Mixing


class Prepared(nn.Module):
    """Inputs that are prepared in the forward pass."""

    def __init__(self, prepare, size=3072):
        super().__init__()
        self.prepare, self.layer = prepare, nn.Linear(size, 3)

    def forward(self, x):
        return self.layer(self.prepare(x).to(self.layer.weight.dtype).flatten(1))


BATCH_WIDE = {
    "largest": lambda x: x.float() / x.max(),
    "least and largest": lambda x: (x.float() - x.min()) / (x.max() - x.min()),
    "least": lambda x: x.float() - x.min(),
    "bytes or shares": lambda x: torch.where(x.max() > 1, x / 255, x.float()),
    "standardised": lambda x: (x.float() - x.float().mean()) / x.float().std(),
}


@pytest.mark.parametrize("name", BATCH_WIDE)
def test_images_as_bytes_prepared_by_statistics_of_the_batch_are_refused(name):
    """Made-up images all had a 255 and a zero, so nobody's absence showed: 2.2 and 3.0 times the bound, accepted."""
    model = Prepared(BATCH_WIDE[name])
    with Engine(model), pytest.raises(Mixing, match="made-up rows"):
        model(torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8))


class Levelled(Prepared):
    """Keeps a running average of the largest byte for later."""

    def forward(self, x):
        self.level = 0.9 * getattr(self, "level", 0) + 0.1 * x.max().detach()
        return super().forward(x)


def test_a_memory_of_the_largest_byte_is_refused():
    model = Levelled(lambda x: x / 255)
    with Engine(model), pytest.raises(Unsupported, match="keeps data between batches, in"):
        model(torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8))


class Words(nn.Module):
    """Takes no sentence without words, and no length of zero."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(50, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, words, lengths):
        if not bool((words > 0).any(1).all()) or not bool((lengths > 0).all()):
            raise ValueError("an empty sentence")
        there = (words > 0) & (torch.arange(words.shape[1]) < lengths[:, None])
        return self.layer((self.table(words) * there[..., None]).sum(1) / lengths[:, None])


SOUND = {
    "bytes": (Prepared(lambda x: x / 255), torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)),
    "each its own largest": (
        Prepared(lambda x: x / x.amax((1, 2, 3), keepdim=True).clamp_min(1)),
        torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8),
    ),
    "words": (Words(), torch.randint(1, 50, (8, 6)), torch.randint(1, 7, (8,))),
    "large": (Prepared(lambda x: x.tanh()), torch.randn(8, 3, 32, 32)),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_models_of_whole_numbers_are_accepted(name):
    model, *inputs = SOUND[name]
    with Engine(model) as engine:
        for _ in range(12):
            engine.record(model(*inputs).square().sum(1))


@pytest.mark.parametrize("bytes_", [False, True])
def test_images_are_tried_in_large_batches_too(bytes_):
    """Inputs of more than 546 values never were."""
    model = Prepared(lambda x: x.float() - (x.float().mean() if len(x) % 60 == 0 else 0), size=784)
    images = torch.randint(0, 256, (8, 28, 28), dtype=torch.uint8) if bytes_ else torch.randn(8, 28, 28)
    with Engine(model), pytest.raises(Mixing, match="one sample of several"):
        model(images)


class Sized(Prepared):
    """Says whether the batch is a large one."""

    def forward(self, x):
        return super().forward(x), len(x) > 10


def test_a_value_of_python_that_depends_on_a_large_number_of_samples_is_refused():
    """It was looked at in small batches only, and a loss that goes by it moved by 9.9 times the bound."""
    model = Sized(lambda x: x, 5)
    with Engine(model), pytest.raises(Mixing, match="a value of Python's in the model's result"):
        model(torch.randn(11, 5))


def test_work_is_counted_in_multiplications():
    """Of products and convolutions, whatever the number of weights: it decides what is tried in large batches."""
    counts, inputs = [], (torch.randn(1, 100), torch.randn(1, 4, 20, 20))
    for layer, x in zip((nn.Linear(100, 50), nn.Conv2d(4, 8, 3, padding=1)), inputs, strict=True):
        with Work() as work:
            layer(x)
        counts.append(work.done)
    assert counts == [50 * 100, 8 * 400 * 4 * 9]


def test_whole_numbers_change_within_their_range():
    """An index beyond a table is never made; without ``whole`` they are exchanged as they are."""
    words = torch.tensor([[3, 5], [4, 9], [6, 6]])
    seen = [replaced(words, (0,), 0, 1, change, whole=True)[0].tolist() for change in CHANGES]
    assert seen == [[4, 9], [9, 9], [3, 3], [3, 3], [3, 3]]
    assert replaced(words, (0,), 0, 1, CHANGES[1])[0].tolist() == [4, 9]
    assert scaled(words, (0,), [0, 1], 1e4, whole=True).tolist() == [[9, 9], [9, 9], [6, 6]]
    labels = torch.tensor([[-100, 5000], [-100, 30000], [-7, -1]])
    made = [replaced(labels, (0,), 2, 0, change, whole=True)[2] for change in CHANGES]
    made += [twin for _, twins in company_trials(labels, (0,), torch.Generator()) for _, twin in twins]
    assert {number for each in made for number in each.flatten().tolist() if number < 0} <= {-100, -7, -1}
    companies = list(company_trials((words, torch.randn(3, 2)), (0, 0), torch.Generator()))
    assert len(companies) == 3
    for company, twins in companies:
        for gone, twin in twins:
            kept = [row for row in range(3) if row not in gone]
            assert torch.equal(company[0][kept], twin[0][kept])
            assert not torch.equal(company[0], twin[0])
            assert set(twin[0].flatten().tolist()) <= set(range(3, 10))
            assert twin[1] is company[1]


@pytest.mark.parametrize("name", ["largest", "bytes"])
def test_a_removal_test_makes_companies_of_the_batch_itself(name):
    model = Prepared(BATCH_WIDE.get(name, lambda x: x / 255))
    images = torch.randint(0, 60, (8, 3, 32, 32), dtype=torch.uint8)
    places, before = (SamplePlacement(0, True),), Snapshot(model)
    found = [
        others_change(model, lambda x: [model(x)], images, (0,), places, 8, [model(images).detach()], before, COMPANY)
        for _ in range(20)
    ]
    assert any(found) == (name == "largest")
    assert None not in found


class Counted(Prepared):
    """Hands a number to the loss that depends on how many samples there are, and one that does not."""

    def __init__(self, count):
        super().__init__(lambda x: x, 5)
        self.count = count

    def forward(self, x):
        return super().forward(x), torch.tensor(float(self.count(len(x)))), torch.ones(2)


@pytest.mark.parametrize("count", [lambda rows: rows, lambda rows: rows > 10])
def test_a_tensor_without_rows_that_depends_on_the_number_of_samples_is_withheld(count):
    """It holds no sample's values, but a loss that goes by it moved by 11.2 times the bound."""
    model, x = Counted(count), torch.randn(12, 5)
    with Engine(model) as engine:
        result, _, constant = model(x)
        engine.record(result.sum(1) * constant[0])
        result, number, _ = model(x)
        with pytest.raises(Unsupported, match="a result of the model that is not one per sample"):
            result.sum(1) * number
