"""Nothing reaches a batch beside it: not from the batch before, nor by what reads the data."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate

import sordina as sd
from sordina.gradients.structure import Mixing
from sordina.training.augmentation import _large

X = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Net(nn.Module):
    def __init__(self, scale: Any = lambda: 1.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.net, self.scale = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2)), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x / self.scale())


def each(outputs: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(outputs, target, reduction="none")


def fit(model: nn.Module, loss: Any = each, data: Any = (X, Y), **options: Any) -> None:
    budget = sd.Budget(6, 1e-5)
    sd.Trainer(model, loss, budget, batch_size=20, steps=20, learning_rate=0.1, progress=False, **options).fit(data)


class Items(Dataset):
    """Keeps what it read last, and how much it has read."""

    def __init__(self) -> None:
        self.last, self.cache, self.reads = 1.0, dict[int, Any](), 0

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        self.last, self.reads = 1 + float(X[index].abs().max()), self.reads + 1
        return self.cache.setdefault(index, (X[index], Y[index]))


class Averaging(Items):
    """Keeps the running mean of what it read, which moves with every reading."""

    mean = 1.0

    def __getitem__(self, index: int) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * float(X[index].abs().mean())
        return super().__getitem__(index)


class Shaking:
    """An augmentation that keeps what it saw last."""

    last = 1.0

    def __call__(self, row: Tensor, generator: torch.Generator) -> Tensor:
        self.last = 1 + float(row.abs().max())
        return row


class Collating:
    """A collate function that keeps the largest number of its batch, and counts its calls."""

    largest, calls = 1.0, 0

    def __call__(self, items: Any) -> Any:
        batch = default_collate(items)
        self.calls += 1
        self.largest = 1 + float(batch[0].abs().max())
        return batch


NOTE = {"mean": 0.5}


def noting(outputs: Tensor, target: Tensor) -> Tensor:
    NOTE["mean"] = float(target.float().mean()) if len(target) else 0.5
    return each(outputs, target)


class OwnLoss(Net):
    """Its loss keeps something for the next pass."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.losses, self.steps = 1.0, list[float](), 0
        self.scale = lambda: self.largest

    def noting(self, outputs: Tensor, target: Tensor) -> Tensor:
        self.largest = 1 + float(outputs.detach().abs().max()) if len(target) else 1.0
        return each(outputs, target)


def refused_by_the_trainer() -> dict[str, Any]:
    items, averaging, shaking, model = Items(), Averaging(), Shaking(), OwnLoss()
    return {
        "running mean to model": lambda: fit(Net(lambda: averaging.mean), data=averaging),
        "running mean to loss": lambda: fit(Net(), lambda o, y: each(o / averaging.mean, y), averaging),
        "count of rows to model": lambda: fit(Net(lambda: 1 + items.reads / 50), data=items),
        "data set to model": lambda: fit(Net(lambda: items.last), data=items),
        "data set to loss": lambda: fit(Net(), lambda o, y: each(o / items.last, y), items),
        "augmentation to model": lambda: fit(Net(lambda: shaking.last), augment=shaking),
        "augmentation to loss": lambda: fit(Net(), lambda o, y: each(o / shaking.last, y), augment=shaking),
        "loss to model, global": lambda: fit(Net(lambda: 1 + NOTE["mean"]), noting),
        "loss to model, method": lambda: fit(model, model.noting),
    }


@pytest.mark.parametrize("way", refused_by_the_trainer())
def test_what_is_kept_beside_a_batch_may_not_matter_for_it(way):
    """Up to 2.6 times the bound, to the end of the run."""
    with pytest.raises((Mixing, sd.errors.InvalidInput), match=r"samples mix|keeps data|remembers"):
        refused_by_the_trainer()[way]()


def test_what_a_collate_function_keeps_may_not_matter_for_a_model_in_a_loop_of_ones_own():
    collating = Collating()
    model = Net(lambda: collating.largest)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    budget = sd.Budget(6, 1e-5)

    def loop() -> None:
        with sd.make_private(
            model, optimizer, Items(), budget=budget, batch_size=20, steps=20, collate_fn=collating
        ) as private:
            for x, y in private:
                private.step(each(model(x), y))

    with pytest.raises(Mixing, match="read or computed before"):
        loop()


class Watching(OwnLoss):
    """Its loss counts steps, on which it depends, and keeps losses for somebody to look at."""

    def noting(self, outputs: Tensor, target: Tensor) -> Tensor:
        self.steps += 1
        return each(outputs, target) * min(1.0, 0.1 + self.steps / 10)


def test_a_count_of_the_batches_that_were_put_together_is_no_reason_to_refuse():
    collating = Collating()
    model = Net(lambda: 1 + collating.calls / 50)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options = {"budget": sd.Budget(6, 1e-5), "batch_size": 20, "steps": 10, "collate_fn": collating}
    with sd.make_private(model, optimizer, Items(), **options) as private:
        for x, y in private:
            private.step(each(model(x), y))
    assert private.guarantee.epsilon > 0


def test_what_nobody_reads_and_counts_are_no_reason_to_refuse():
    items, shaking, model = Items(), Shaking(), Watching()
    fit(Net(dropout=0.3), data=items)
    fit(Net(dropout=0.3), augment=shaking, views=2)
    fit(model, model.noting)
    assert items.cache
    assert shaking.last != 1
    assert model.steps


def test_what_reads_is_put_back_but_for_the_data_which_would_take_longer_than_a_step():
    items = Items()
    items.rows, items.table = [(row, 1) for row in X.repeat(3, 1)], torch.zeros(300, 300)
    items.recent, items.cache = [X[0]], dict.fromkeys(range(1000))
    found = {id(each) for each in _large(Subset(ConcatDataset([items, items]), range(100)))}
    assert {id(each) for each in (items.rows, items.table, items.cache)} <= found
    assert id(items.recent) not in found
    assert id(items) not in found
