"""An item of another form adds nothing, and changes nothing for the others."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, default_collate

import sordina as sd
from sordina.clipping import Fixed
from sordina.errors import InvalidInput
from sordina.training.batches import as_rows, split

THRESHOLD, PEOPLE = 0.01, 12


class Items(Dataset):
    """What ``items`` holds, until ``change`` is set: then another item stands at some places."""

    def __init__(self, items):
        self.items, self.change = items, {}

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.change.get(index, self.items[index])
        if isinstance(item, Exception):
            raise item
        return item


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(40, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


def sequence(seed, length, label=1):
    return torch.randint(0, 40, (length,), generator=torch.Generator().manual_seed(seed)), torch.tensor(label)


def own(items):
    """The user's: it does not pad."""
    return default_collate(items)


def by_the_first(items):
    """Takes the names of the first item, as collators of `transformers` do."""
    return {name: torch.stack([item.get(name, torch.tensor(0)) for item in items]) for name in items[0]}


def bound(model, data, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = {"batch_size": PEOPLE, "steps": 1, "clipping": Fixed(THRESHOLD), "seed": 0, **options}
    return sd.make_private(model, optimizer, data, budget=sd.Budget(3, 1e-5), **options)


def after(data, drawn, monkeypatch, change=None, **options):
    """The weights after one step, on the same noise, in units of what one record may move."""
    model = Reader()
    private = bound(model, data, **options)
    data.change = change or {}
    monkeypatch.setattr(type(private.plan.sampler), "draw", lambda *_: np.array(drawn))
    for batch in private:
        x, y = batch.values() if isinstance(batch, dict) else batch
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    return nn.utils.parameters_to_vector(model.parameters()).detach() * (PEOPLE / THRESHOLD)


def moved(one, two):
    return float((one - two).norm())


@pytest.mark.parametrize("first", [5, 6])
def test_a_record_of_another_length_moves_one_threshold(monkeypatch, first):
    data = Items([sequence(0, first), *(sequence(seed, 5) for seed in range(1, PEOPLE)), sequence(99, 6, label=0)])
    others = list(range(1, PEOPLE))
    with_it, without = (after(data, rows, monkeypatch, collate_fn=own) for rows in ([*others, PEOPLE], others))
    assert 0.5 < moved(with_it, without) < 1.05  # released values lie on a grid


STRANGE = {
    "raises": OSError(), "nothing": None, "longer": sequence(1, 6), "type": (torch.ones(5), torch.tensor(1)),
    "two labels": (sequence(1, 5)[0], torch.tensor([1, 0])), "more": (*sequence(1, 5), torch.tensor(1)),
    "dictionary": {"x": sequence(1, 5)[0]}, "number": (sequence(1, 5)[0], 1.0),
}  # fmt: skip


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("place", [0, 4])
def test_an_item_that_turns_strange_adds_nothing(monkeypatch, strange, place):
    data = Items([sequence(seed, 5) for seed in range(PEOPLE)])
    everybody = list(range(PEOPLE))
    changed = after(data, everybody, monkeypatch, {place: STRANGE[strange]})
    data.change = {}
    without = after(data, [row for row in everybody if row != place], monkeypatch)
    assert moved(changed, without) < 0.1


def test_the_names_of_one_record_do_not_rule_the_batch(monkeypatch):
    data = Items([dict(zip("xy", sequence(seed, 5), strict=True)) for seed in range(PEOPLE)])
    everybody, lacking = list(range(PEOPLE)), {"x": torch.zeros(5, dtype=torch.int64)}
    more = {**data[0], "z": torch.tensor(3)}
    for strange in (lacking, more):
        data.change = {}
        changed = after(data, everybody, monkeypatch, {0: strange}, collate_fn=by_the_first)
        data.change = {}
        assert moved(changed, after(data, everybody[1:], monkeypatch, collate_fn=by_the_first)) < 0.1


def test_of_a_user_with_a_strange_item_the_other_rows_count(monkeypatch):
    data = Items([sequence(seed, 5) for seed in range(PEOPLE)])
    users = sd.sampling.Users([row // 3 for row in range(PEOPLE)], rows_per_user=3)
    table = np.arange(PEOPLE).reshape(4, 3)
    piece = split(table, None)[0]
    data.change = {1: None, 3: OSError(), 4: OSError(), 5: OSError()}
    ((part, batch),) = as_rows(data).readable(piece)
    assert part.rows.tolist() == [0, 0, 2, *range(6, PEOPLE)]
    torch.testing.assert_close(part.weights, torch.tensor([1, 0, 1, *[1] * 6], dtype=torch.float64) / 3)
    assert len(batch[1]) == 9
    data.change = {}
    changed = after(data, range(4), monkeypatch, {3: sequence(3, 6), 4: None, 5: None}, users=users, batch_size=2)
    assert torch.isfinite(changed).all()


def test_units_that_do_not_go_together_are_taken_alone_and_the_last_ends_the_step():
    data = Items([sequence(0, 4), sequence(1, 5), sequence(2, 6), sequence(3, 6)])
    users = split(np.array([[0, -1], [1, 2], [2, 3]]), None)[0]
    taken = as_rows(data, own).readable(users)
    assert [(part.rows.tolist(), part.last) for part, _ in taken] == [([0, 0], False), ([2, 3], True)]


def test_data_of_two_forms_are_refused_before_the_run(tmp_path):
    data = Items([sequence(seed, 5) for seed in range(256)] + [sequence(999, 6)])
    for begin in (
        lambda: bound(Reader(), data, folder=tmp_path / "run"),
        lambda: sd.Trainer(Reader(), F.cross_entropy, sd.Budget(3, 1e-5), batch_size=32, steps=2).fit(data),
    ):
        with pytest.raises(InvalidInput, match=r"item 256 .* another shape"):
            begin()
    assert not (tmp_path / "run").exists()
