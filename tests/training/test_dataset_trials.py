"""Items of a user's own data set: one that depends on other records, or on what was read before, is refused."""

import random
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import sordina as sd
from sordina.errors import InvalidInput
from sordina.gradients.structure import Mixing
from sordina.integrations.text_batches import TextItems
from sordina.training.batches import as_rows
from sordina.training.dataset_trials import check_items

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Items(Dataset):
    """Rows of a table, changed as a user may."""

    def __init__(self, kind="plain"):
        self.kind, self.x, self.y = kind, X.clone(), Y.clone()
        self.rng, self.own = np.random.default_rng(0), random.Random(0)
        self.mean, self.read = torch.zeros(4), 0
        self.starts = list(range(len(X)))
        self.cache = {}

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x, y = self.x[i], self.y[i]
        if self.kind == "noise":
            x = x + torch.randn(4) * random.random() * np.random.rand()  # noqa: NPY002
        if self.kind == "own generators":
            x = x + float(self.rng.normal()) + self.own.random()
        if self.kind == "cached":
            x = self.cache.setdefault(i, x)
        if self.kind == "counted":
            self.read += 1
        if self.kind == "starts":
            x = x + self.starts[i] - self.starts[(i + 1) % len(self)]
        if self.kind == "mixup":
            x = 0.6 * x + 0.4 * self.x[random.randrange(len(self))]
        if self.kind == "now and then" and self.rng.random() < 0.2:
            x = 0.6 * x + 0.4 * self.x[self.rng.integers(len(self))]
        if self.kind == "pair":
            x = torch.cat([x, self.x[(i + 7) % len(self)]])
        if self.kind == "largest":
            x = x / self.x.abs().max()
        if self.kind == "mixup, cached":
            x = self.cache.setdefault(i, x + self.x[(i + 5) % len(self)])
        if self.kind == "windows":
            x = self.x[i // 4 * 4 : i // 4 * 4 + 4].sum(0)
        if self.kind == "running mean":
            self.mean = 0.9 * self.mean + 0.1 * x
            x = x - self.mean
        return x, y


@pytest.mark.parametrize("kind", ["plain", "noise", "own generators", "cached", "counted", "starts"])
def test_items_of_their_own_record_pass(kind):
    data = Items(kind)
    state, numbers = torch.get_rng_state(), (random.getstate(), data.own.getstate(), data.rng.bit_generator.state)
    check_items(data, len(data))
    assert torch.equal(torch.get_rng_state(), state)
    assert (random.getstate(), data.own.getstate(), data.rng.bit_generator.state) == numbers


@pytest.mark.parametrize("kind", ["mixup", "now and then", "pair", "largest", "mixup, cached", "windows"])
@pytest.mark.parametrize("wrap", ["as it is", "subset", "joined"])
def test_items_of_several_records_are_refused(kind, wrap):
    data = Items(kind)
    data = {"as it is": data, "subset": Subset(data, range(5, 55)), "joined": ConcatDataset([data, data])}[wrap]
    with pytest.raises(Mixing, match=r"depends on more than one row of .*x"):
        check_items(data, len(data))


class Store:
    """An object that holds records."""


class Part(Dataset):
    """Items are a part of a table, which may lie in an object."""

    def __init__(self, kind):
        self.kind, self.numbers = kind, list(range(0, 180, 3))
        if kind == "keys":
            self.numbers = [number // 30 for number in self.numbers]
        self.store = Store() if kind == "object" else SimpleNamespace()
        self.store.x = torch.randn(200, 5)

    def __len__(self):
        return 190 if self.kind == "window" else len(self.numbers)

    def __getitem__(self, index):
        x, row = self.store.x, index if self.kind == "window" else self.numbers[index]
        if self.kind == "window":
            return x[row : row + 10].sum(0), 0
        if self.kind == "own":
            return x[row], 0
        if self.kind == "visits":  # three of each person
            return x[3 * index : 3 * index + 3].sum(0), 0
        if self.kind == "words":  # public vectors of words, which everybody uses
            return x[[(7 * index) % 190, (31 * index) % 200, 5]].sum(0), 0
        if self.kind == "keys":  # a public table, in which several people have the same row
            return x[self.numbers[index]], 0
        return x[row] + x[random.choice(self.numbers)], 0


@pytest.mark.parametrize("kind", ["mixup", "object", "window"])
def test_items_of_part_of_a_table_are_tried_too(kind):
    data = Part(kind)
    with pytest.raises(Mixing, match=r"store\.x"):
        check_items(data, len(data))


@pytest.mark.parametrize("kind", ["own", "visits", "words", "keys"])
def test_rows_that_are_nobodys_or_of_one_item_pass(kind):
    data = Part(kind)
    for _ in range(5):
        check_items(data, len(data))


def test_items_that_depend_on_what_was_read_are_refused():
    with pytest.raises(InvalidInput, match="another one when it is read again"):
        check_items(Items("running mean"), 60)


COINS = {"python": random.random, "numpy": np.random.rand, "torch": lambda: float(torch.rand(()))}


class Remembering(Items):
    """Uses what it read before by the toss of a coin, or where a value is missing."""

    def __init__(self, kind, toss=random.random, chance=0.05):
        super().__init__(kind)
        self.toss, self.chance, self.last = toss, chance, torch.zeros(4)
        self.x[7, 2] = torch.nan

    def __getitem__(self, i):
        x, before = self.x[i], self.last
        fell = self.kind != "missing" and self.toss() < self.chance
        self.last = 0.9 * before + 0.1 * x.nan_to_num() if self.kind == "mean" else x
        if self.kind == "missing":
            return torch.where(x.isnan(), before, x), self.y[i]
        return (x - before if self.kind == "mean" else (x + before) / 2) if fell else x, self.y[i]


@pytest.mark.parametrize("kind", ["mean", "blend"])
@pytest.mark.parametrize("coin", COINS)
def test_items_that_remember_by_the_toss_of_a_coin_are_refused(kind, coin):
    """Read with one seed only, the coin fell the same way each time: a running mean moved the sum by 7.5 C."""
    with pytest.raises(InvalidInput, match="only now and then"):  # all of 256 tosses on one side: once in 500 000 times
        check_items(Remembering(kind, COINS[coin]), 60)


def test_a_missing_value_that_becomes_the_last_one_is_refused():
    """One item of sixty, without any chance: all are read twice."""
    with pytest.raises(InvalidInput, match="another one when it is read again"):
        check_items(Remembering("missing"), 60)


def test_data_sets_without_chance_are_read_a_few_times_only():
    data, read = Items(), []
    check_items(Counted(data, read), 60)
    without, data.kind = len(read), "noise"
    read.clear()
    check_items(Counted(data, read), 60)
    assert without < 60 * 10 < len(read) + 60 * 5


class Counted(Dataset):
    def __init__(self, data, read):
        self.inner, self.read = lambda i: data[i], read  # records that nobody finds

    def __len__(self):
        return 60

    def __getitem__(self, i):
        self.read.append(i)
        return self.inner(i)


class Unusable(Dataset):
    """Records from elsewhere; one that cannot be used is another one."""

    def __init__(self, kind="next"):
        self.kind = kind

    def __len__(self):
        return 2 * len(X) if self.kind == "twice" else len(X)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if self.kind == "next" and i in (7, 8):
            return self[(i + 1) % len(self)]
        if self.kind == "any" and i == 7:
            return self[random.choice([3, 4, 5])]
        if self.kind == "twice" and i >= len(X):
            return self[i - len(X)]
        if self.kind == "again" and i == 7 and not self.__dict__.setdefault("failed", False):
            self.failed = True
            return self[i]
        return X[i], Y[i]


def looked_through(data, users=None):
    rows = as_rows(data)
    rows.check_apart(users)
    rows.check_alike()


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, range(50))], ids=["itself", "subset"])
@pytest.mark.parametrize("kind", ["next", "any", "twice"])
def test_a_record_that_is_replaced_by_another_is_refused(kind, wrap):
    """Such a record counted twice, so that one moved the sum by 1.8 C and more."""
    data = Unusable(kind)
    given = ConcatDataset([data]) if kind == "twice" else wrap(data)
    with pytest.raises(Mixing, match="asks itself for another"):
        looked_through(given)
    assert type(data) is Unusable


@pytest.mark.parametrize("kind", ["again", "plain"])
def test_a_data_set_that_asks_itself_for_the_same_item_passes(kind):
    looked_through(Unusable(kind))
    looked_through(Subset(Unusable(kind), range(40)))


def test_items_of_one_person_may_be_made_of_one_another():
    owners = np.tile(np.arange(len(X)), 2)
    looked_through(Unusable("twice"), sd.sampling.Users(owners, rows_per_user=2))
    with pytest.raises(Mixing):
        looked_through(Unusable("twice"), sd.sampling.Users(np.arange(2 * len(X)), rows_per_user=2))


def test_a_trainer_refuses_a_record_that_is_replaced_by_another():
    with pytest.raises(Mixing, match="asks itself for another"):
        trainer().fit(Unusable())


def test_wrapped_tensors_pass():
    data = Subset(TensorDataset(X, Y), list(range(40)))
    check_items(data, len(data))


@pytest.mark.parametrize("kind", ["list", "frame"])
def test_records_of_other_kinds(kind):
    class Mixed(Dataset):
        def __init__(self):
            self.rows = list(X) if kind == "list" else pytest.importorskip("pandas").DataFrame(X.numpy())

        def __len__(self):
            return len(X)

        def __getitem__(self, i):
            rows = self.rows if kind == "list" else self.rows.to_numpy()
            return torch.as_tensor(rows[i] + rows[(i + 1) % len(X)])

    with pytest.raises(Mixing):
        check_items(Mixed(), len(X))


class Transform:
    def __init__(self, rng):
        self.steps = [self.moved]
        self.inner = [[rng]]

    def moved(self, x):
        return x + float(self.inner[0][0].normal())

    def __call__(self, x):
        for step in self.steps:
            x = step(x)
        return x


@dataclass
class Person:
    x: torch.Tensor
    words: str


class Own(Dataset):
    """Items that are objects, made by transforms that hold a generator."""

    def __init__(self, kind):
        self.kind, self.rows = kind, list(X)
        self.transform = Transform(np.random.default_rng(0))
        self.mean = X.mean(0)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        x = self.transform(self.rows[i]) - self.mean
        return {"dataclass": Person(x, "a"), "sparse": x.to_sparse(), "object": SimpleNamespace(x=x)}[self.kind]


@pytest.mark.parametrize("kind", ["dataclass", "sparse", "object"])
def test_items_may_be_objects(kind):
    check_items(Own(kind), len(X))


def test_windows_over_the_records_of_one_person_pass_where_people_are_known():
    check_items(Items("windows"), 60, [i // 4 for i in range(60)])


def trainer():
    return sd.Trainer(nn.Linear(4, 2), nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=20, steps=3)


def test_a_trainer_refuses_before_anything_is_spent_and_says_whose_word_it_is():
    with pytest.raises(Mixing):
        trainer().fit(Items("mixup"))
    run = trainer().fit(Items())
    assert any("a data set of the user's own (Items)" in each for each in run.caveats)
    assert not any("data set of the user's own" in each for each in trainer().fit((X, Y)).caveats)


class Texts(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return {"input_ids": [i, i]}


def test_whose_word_it_is_does_not_hide_behind_a_data_set_of_ours():
    assert as_rows(TextItems(Texts(), None)).own == "Texts"
    assert as_rows(TextItems([{"input_ids": [1, 2]}] * 3, None)).own is None
    assert as_rows(Subset(TensorDataset(X, Y), range(3))).own == "Subset"


def test_a_table_of_hugging_faces_is_plain_without_a_transform():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"input_ids": [[1, 2]] * 3})
    assert as_rows(TextItems(table, None)).own is None
    assert as_rows(TextItems(table.with_transform(lambda rows: rows), None)).own == "Dataset"
