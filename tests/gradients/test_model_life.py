"""What people do to a model between two steps: it is answered rightly, or refused before a batch is drawn and paid."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import sordina as sd
from sordina.errors import InvalidInput, Unsupported
from sordina.gradients import Engine
from sordina.queries import VectorQuery

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def bound(model: nn.Module, data=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (X, torch.arange(6) % 2) if data is None else data
    return sd.make_private(
        model, optimizer, data, budget=sd.Budget(8.0, 1e-3), batch_size=3, steps=4, seed=0, **options
    )


def one_step(private, model) -> None:
    for x, y in private:
        private.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
        break


CHANGES = {
    "eval": lambda model: model.eval(),
    "frozen": lambda model: model[0].weight.requires_grad_(False),
    "head replaced": lambda model: model.__setitem__(2, nn.Linear(5, 2)),
    "head of another size": lambda model: model.__setitem__(2, nn.Linear(5, 3)),
    "layer added": lambda model: model.append(nn.Linear(2, 2)),
    "assigned": lambda model: model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True),
    "second engine": Engine,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_would_train_something_else_is_refused_before_it_costs(name):
    model = network()
    private = bound(model)
    one_step(private, model)
    spent = private.steps_taken
    kept = CHANGES[name](model)  # noqa: F841
    with pytest.raises(InvalidInput):
        one_step(private, model)
    assert private.steps_taken == spent


def test_a_layer_unfrozen_later_is_refused():
    model = network()
    model[0].requires_grad_(False)
    private = bound(model)
    one_step(private, model)
    model[0].requires_grad_(True)
    with pytest.raises(InvalidInput, match="unfrozen"):
        one_step(private, model)


def test_copies_and_pickles_made_on_the_way_are_of_the_models_own_classes():
    model, classes = network(), [type(module) for module in network().modules()]
    with Engine(model) as engine:
        engine.record(model(X).square().sum(1))
        stream = io.BytesIO()
        torch.save(model, stream)
        stream.seek(0)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(stream, weights_only=False)]
        average = torch.optim.swa_utils.AveragedModel(model)
    for twin in (*copies, average.module, model):
        assert [type(module) for module in twin.modules()] == classes
        before = twin(X)
        with torch.no_grad():
            twin[2].bias += 1
        torch.testing.assert_close(twin(X), before + 1)


def test_forward_passes_that_nobody_records_are_forgotten_with_their_graphs():
    model = network()
    with Engine(model) as engine:
        engine.record(model(X).square().sum(1))
        alive = []
        for _ in range(5):
            x = X.clone()
            alive.append(weakref.ref(x))
            model(x)
        del x
        gc.collect()
        assert not any(each() is not None for each in alive)
        losses = model(X).square().sum(1)
        gc.collect()
        assert float(engine.record(losses).scalars().norms.min()) > 0


def test_a_batch_is_computed_in_the_precision_the_model_has_then():
    model = network()
    with Engine(model) as engine:
        engine.record(model(X).square().sum(1))
        model.double()
        tape = engine.record(model(X.double()).square().sum(1))
    assert tape.scalars().norms.dtype == tape.contract([VectorQuery(torch.ones(6))])[0].dtype == torch.float64


def test_a_norm_with_something_inside_is_not_repaired_by_dropping_it():
    class Fused(nn.BatchNorm2d):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

        def forward(self, x):
            return self.act(self.drop(super().forward(x)))

    class Hidden(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).relu()

    fixed = sd.fix(nn.Sequential(nn.Conv2d(2, 4, 2), Fused(4)))
    assert float(fixed(torch.randn(3, 2, 4, 4)).detach().min()) >= 0
    with pytest.raises(Unsupported, match="of its own"):
        sd.fix(nn.Sequential(nn.Conv2d(2, 4, 2), Hidden(4)))


class Ragged(Dataset):
    """Sequences of different lengths."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((i + 1,), i), i % 2


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4, padding_idx=6), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.table(x).sum(1))


def test_items_of_different_sizes_are_put_together_by_the_users_function():
    def padded(items):
        return pad_sequence([x for x, _ in items], True, 6), torch.tensor([y for _, y in items])

    model = Reader()
    private = bound(model, Ragged(), collate_fn=padded)
    for x, y in private:
        private.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
    assert private.steps_taken == 4
    with pytest.raises(InvalidInput, match="collate_fn"):
        bound(network(), collate_fn=padded)


def test_of_a_tape_nothing_is_kept_while_its_losses_live():
    """The noise needs the room: what the backward pass left is as large as the activations."""
    model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 2))
    with Engine(model) as engine:
        losses = model(X[:, None].expand(6, 3, 4).contiguous()).square().sum((1, 2))
        tape = engine.record(losses)
        kept = [weakref.ref(tensor) for term in tape.terms.values() for tensor in vars_of(term)]
        assert len(kept) >= 6
        del tape
        gc.collect()
        assert losses.grad_fn is not None
        assert [one() for one in kept if one() is not None] == []


def vars_of(term) -> list[torch.Tensor]:
    """The tensors of a term."""
    values = [getattr(term, name) for name in ("left", "right", "vectors") if hasattr(term, name)]
    return [value if isinstance(value, torch.Tensor) else value.vectors for value in values]


class Casting(nn.Module):
    """As routers of transformers do: a layer is brought to single precision in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        self.gate = self.gate.to(torch.float32)
        return hidden * self.gate(hidden.float()).softmax(-1).to(hidden.dtype)


def test_a_layer_that_is_brought_to_single_precision_is_not_taken_for_changed() -> None:
    torch.manual_seed(0)
    model, x = Casting(), torch.randn(5, 4)
    alone = [torch.autograd.grad(model(row[None]).sum(), list(model.parameters())) for row in x]
    with Engine(model) as engine:
        norms = engine.record(model(x).sum(1)).scalars().norms
    expected = torch.stack([torch.cat([each.flatten() for each in row]).norm() for row in alone])
    torch.testing.assert_close(norms, expected, check_dtype=False)
