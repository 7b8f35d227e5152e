"""A function that pads to the longest item of a batch: one long record may not change what the others are."""

import contextlib
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import sordina as sd
from sordina import private_step
from sordina.clipping import Fixed
from sordina.errors import InvalidInput
from sordina.gradients.structure import Mixing
from sordina.training.batches import MicroBatch, as_rows
from sordina.training.collate_trials import made_up

THRESHOLD = 0.1


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def padded(items):
    return pad_sequence([x for x, _ in items], batch_first=True), torch.stack([y for _, y in items])


def by_time(items):
    return pad_sequence([x for x, _ in items]), torch.stack([y for _, y in items])


class Mean(nn.Module):
    """The mean over time, of padding too."""

    def __init__(self, batch_first=True):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.head, self.time = nn.Linear(4, 8), nn.Linear(8, 3), 1 if batch_first else 0

    def forward(self, x):
        return self.head(torch.relu(self.first(x)).mean(self.time))


class Last(nn.Module):
    """The last output of a recurrent layer, which has read the padding."""

    def __init__(self, batch_first=True):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.head = nn.LSTM(4, 8, batch_first=batch_first), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.first(x)[0][:, -1])


def items(count=24, long=30):
    g = torch.Generator().manual_seed(0)
    one = (torch.randn(5, 4, generator=g), torch.tensor(0))
    return [*[one] * count, (torch.randn(long, 4, generator=g), torch.tensor(1))]


def train(model, private):
    for x, y in private:
        private.step(F.cross_entropy(model(x), y, reduction="none"))


def total(monkeypatch, model, data, **options):
    """The clipped sum of a step in which everybody is drawn, without noise."""
    found = []

    def keep(vector, *_):
        if vector.dim():
            found.append(vector.detach().clone())
        return vector

    monkeypatch.setattr(private_step, "add_noise", keep)
    private = sd.make_private(
        model, torch.optim.SGD(model.parameters(), 0.1), data, budget=sd.Budget(3, 1e-5),
        clipping=Fixed(THRESHOLD), seed=1, steps=1, **{"batch_size": len(data), "collate_fn": padded, **options},
    )  # fmt: skip
    train(model, private)
    assert private.steps_taken == 1
    return found[0]


@pytest.mark.parametrize(("make", "collate"), [(Mean, padded), (Last, padded), (lambda: Mean(False), by_time)])
def test_a_long_record_moves_the_sum_by_one_threshold(monkeypatch, make, collate):
    everybody = items()
    with_it, without = (
        total(monkeypatch, make(), Items(data), collate_fn=collate) for data in (everybody, everybody[:-1])
    )
    assert 0.5 < float((with_it - without).norm()) / THRESHOLD < 1 + 1e-5


def test_a_user_with_a_long_row_moves_it_by_one_too(monkeypatch):
    everybody = items(23)
    owners = [row // 2 for row in range(24)]
    with_them, without = (
        total(monkeypatch, Mean(), Items(data), users=sd.sampling.Users(own, rows_per_user=2), batch_size=len(own) // 2)
        for data, own in ((everybody, owners), (everybody[:-2], owners[:-2]))
    )
    assert 0.5 < float((with_them - without).norm()) / THRESHOLD < 1 + 1e-5


def test_items_of_one_size_run_together():
    data, seen = Items([(torch.randn(n % 3 + 4, 4), torch.tensor(n % 2)) for n in range(24)]), []
    model = Mean()
    private = sd.make_private(
        model, torch.optim.SGD(model.parameters(), 0.1), data, budget=sd.Budget(3, 1e-5), batch_size=24, steps=1,
        collate_fn=padded,
    )  # fmt: skip
    for x, y in private:
        seen.append(tuple(x.shape))
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    assert sorted(width for _, width, _ in seen) == [4, 5, 6]


def test_a_function_that_standardises_the_batch_is_refused():
    def standardised(given):
        x, y = padded(given)
        return (x - x.mean(0)) / (x.std(0, correction=0) + 1), y

    data, model = Items([(torch.randn(5, 4), torch.tensor(n % 2)) for n in range(24)]), Mean()
    with pytest.raises(Mixing, match="collate_fn"):  # before anything is spent
        sd.make_private(
            model, torch.optim.SGD(model.parameters(), 0.1), data, budget=sd.Budget(3, 1e-5), batch_size=24, steps=40,
            collate_fn=standardised,
        )  # fmt: skip


def test_a_function_with_chance_is_taken():
    def noisy(given):
        x, y = padded(given)
        return x + 0.1 * torch.randn_like(x), y

    data, model = Items([(torch.randn(5, 4), torch.tensor(n % 2)) for n in range(24)]), Mean()
    private = sd.make_private(
        model, torch.optim.SGD(model.parameters(), 0.1), data, budget=sd.Budget(3, 1e-5), batch_size=24, steps=30,
        collate_fn=noisy,
    )  # fmt: skip
    train(model, private)
    assert private.steps_taken == 30


def standardised(batch_first):
    def collate(items):
        x = pad_sequence([x for x, _ in items], batch_first=batch_first)
        return (x - x.mean()) / x.std(), torch.stack([y for _, y in items])

    return collate


def with_weights(items):
    """Weights of the classes in the batch, which have no rows."""
    y = torch.stack([y for _, y in items])
    return torch.stack([x[0] for x, _ in items]), y, torch.bincount(y, minlength=2) / len(y)


def cut_mixed(items):
    x = torch.stack([x for x, _ in items])
    return torch.cat([x[:, :2], x[torch.randperm(len(x))][:, 2:]], 1), torch.stack([y for _, y in items])


def noisy(items):
    """Chance for each item: no mixing."""
    return torch.stack([x + torch.randn(x.shape) for x, _ in items]), torch.stack([y for _, y in items])


def rows_of(collate):
    data = Items([(torch.randn(5, 4) + n, torch.tensor(n % 2)) for n in range(24)])
    return as_rows(data, collate, by_size=True)


@pytest.mark.parametrize("collate", [standardised(True), standardised(False), with_weights])
def test_a_function_that_looks_across_the_batch_is_refused(collate):
    rows = rows_of(collate)
    with pytest.raises(Mixing, match="samples mix"):
        rows.readable(MicroBatch(np.arange(24), None, 1, last=True))


def by_label(items):
    """Sorted, as for packed sequences."""
    return padded([items[n] for n in np.argsort([int(y) for _, y in items], kind="stable")[::-1]])


@pytest.mark.parametrize(
    ("collate", "batches"), [(cut_mixed, 24), (noisy, 1), (padded, 1), (by_time, 1), (by_label, 1)]
)
def test_where_chance_hides_mixing_units_run_apart(collate, batches):
    found = rows_of(collate).readable(MicroBatch(np.arange(24), None, 1, last=True))
    assert len(found) == batches
    assert [part.last for part, _ in found] == [False] * (batches - 1) + [True]


def coin(items):
    """Mixup now and then."""
    x, y = padded(items)
    return (0.7 * x + 0.3 * x.roll(1, 0) if random.random() < 0.1 else x), y


class Remembering:
    """Takes off a running mean."""

    def __init__(self):
        self.mean = torch.zeros(4)

    def __call__(self, items):
        x, y = padded(items)
        self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 1))
        return x - self.mean, y


class Noisy:
    """Draws from a generator of its own."""

    def __init__(self):
        self.own = torch.Generator().manual_seed(0)

    def __call__(self, items):
        x, y = padded(items)
        return x + torch.randn(x.shape, generator=self.own), y


def sorted_noisy(items):
    x, y = padded(sorted(items, key=lambda item: float(item[0].sum())))
    return x + torch.randn_like(x), y


def dropping(items):
    """Leaves out places at random, then pads."""
    return padded([(x[torch.rand(len(x)) < 0.7], y) for x, y in items])


def fresh(items):
    x, y = padded(items)
    return x + torch.from_numpy(np.random.default_rng().normal(size=x.shape)).float(), y


SOUND = [Noisy(), sorted_noisy, by_time, dropping, fresh]


@pytest.mark.parametrize(
    ("collate", "refusal"), [(coin, Mixing), (Remembering(), InvalidInput), *((each, None) for each in SOUND)]
)
def test_what_a_function_does_now_and_then_is_seen_before_anything_is_spent(collate, refusal):
    rows = rows_of(collate)
    with pytest.raises(refusal, match="collate_fn") if refusal else contextlib.nullcontext():
        rows.check_apart()


def missing(count=1, size=600):
    """Some items of many have a missing value."""
    g = torch.Generator().manual_seed(0)
    found = [(torch.randn(6, generator=g), torch.tensor(n % 2)) for n in range(size)]
    for x, _ in found[5 : 5 + count]:
        x[2] = torch.nan
    return Items(found)


def stacked(items):
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def filled(items):
    """Missing values become the mean of the batch."""
    x, y = stacked(items)
    return torch.where(x.isnan(), x.nanmean(0).nan_to_num(), x), y


def filled_noisy(items):
    x, y = filled(items)
    return x + torch.randn_like(x), y


def neighbours(items):
    """An item with a missing value is its neighbour."""
    return stacked([items[place - 1] if item[0].isnan().any() else item for place, item in enumerate(items)])


def zeros(items):
    x, y = stacked(items)
    return x.nan_to_num(), y


def zeros_noisy(items):
    x, y = zeros(items)
    return x + torch.randn_like(x) * random.random(), y


def finite(items):
    """Refuses what is missing, all of it."""
    x, y = stacked(items)
    if x[:, 0].isnan().any():
        raise ValueError("missing")
    return x, y


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("collate", [filled, filled_noisy, neighbours])
def test_what_a_function_does_to_few_items_is_seen_before_anything_is_spent(collate, count):
    """In 24 batches of 12 items of 600 hardly one had a missing value: the sum moved by 2.9 C."""
    with pytest.raises(Mixing, match="collate_fn"):
        as_rows(missing(count), collate, by_size=True).check_apart()


def rarely(items):
    """Mixup, by a toss of torch's that is not the first."""
    x, y = stacked(items)
    torch.rand(3)
    return (0.7 * x + 0.3 * x.roll(1, 0) if float(torch.rand(())) < 0.05 else x), y


def last_values():
    """Missing values become the last ones that were seen, which a function closes over."""
    kept = [torch.zeros(6)]

    def collate(items):
        x, y = stacked(items)
        x = torch.where(x.isnan(), kept[0], x)
        kept[0] = x[-1]
        return x, y

    return collate


@pytest.mark.parametrize(("collate", "refusal"), [(rarely, Mixing), (last_values(), InvalidInput)])
def test_rare_tosses_and_memories_of_functions_are_seen_too(collate, refusal):
    with pytest.raises(refusal, match="collate_fn"):
        as_rows(missing(1), collate, by_size=True).check_apart()


@pytest.mark.parametrize("collate", [zeros, zeros_noisy, finite, stacked, *SOUND[:2]])
def test_sound_functions_of_items_with_missing_values_pass(collate):
    data = missing(4) if collate not in SOUND else Items([(torch.randn(5, 4), torch.tensor(n % 2)) for n in range(300)])
    as_rows(data, collate, by_size=True).check_apart()


def test_all_items_are_tried_together_and_some_that_are_made_up():
    given = list(made_up({"x": torch.ones(2), "y": 3, "words": ["a"], "z": np.ones(1)}))
    assert any(bool(item["x"].isnan().all()) and np.isnan(item["z"]).all() and item["y"] == 3 for item in given)
    assert any(item["y"] == -100 and bool((item["x"] == 1).all()) for item in given)
    assert any(item["words"] == [""] for item in given)
