"""The loop people own: what `Private` promises, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import sordina as sd
from sordina.clipping import Fixed, Online
from sordina.errors import BudgetRefused, InvalidInput, Unsupported
from sordina.privacy import Unit
from sordina.random import add_gaussian
from sordina.sampling import Users
from sordina.training.loop import Private


def private(model, data, plan, **rest):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"clipping": Fixed(1.0), "rng": np.random.default_rng(0)} | rest
    return Private(model, optimizer, data, plan, **options)


def losses(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def train(loop):
    for batch in loop:
        loop.step(losses(loop.model, batch))
    return torch.cat([p.detach().flatten() for p in loop.model.parameters()])


def test_a_loop_takes_the_planned_steps_and_books_each(model, data, plan):
    loop = private(model, data, plan)
    train(loop)
    assert loop.steps_taken == 8
    assert loop.account.event.events[0].count == 8
    assert list(loop) == []


def test_micro_batches_train_the_same_model(data, plan, make_model):
    whole = train(private(make_model(), data, plan))
    pieces = train(private(make_model(), data, plan, microbatch=7))
    torch.testing.assert_close(whole, pieces, rtol=1e-5, atol=1e-6)


def test_a_step_is_one_clipped_noised_mean(data, plan, make_model):
    """Against a hand-written step: autograd per sample, clip, sum, the same noise, divide by the expected batch."""
    model, twin = make_model().double(), make_model().double()
    x, y = data[0].double(), data[1]
    loop = private(model, (x, y), plan, clipping=Fixed(0.3), rng=np.random.default_rng(3))
    rng = np.random.default_rng(3)
    rows = np.flatnonzero(rng.random(100) < 0.2)
    total = torch.zeros(sum(p.numel() for p in twin.parameters()), dtype=torch.float64)
    for row in rows:
        gradients = torch.autograd.grad(
            F.cross_entropy(twin(x[row : row + 1]), y[row : row + 1]), list(twin.parameters())
        )
        g = torch.cat([part.flatten() for part in gradients])
        total += g * min(1.0, 0.3 / float(g.norm()))
    add_gaussian(total.numpy(), float(np.nextafter(0.3 * 1.3, 1)), rng)
    noised = total / 20
    expected = torch.cat([p.detach().flatten() for p in twin.parameters()]) - 0.1 * noised
    batch = next(iter(loop))
    loop.step(losses(model, batch))
    got = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_without_privacy_it_is_plain_training_to_the_bit(data, make_model):
    model, twin = make_model(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop = sd.make_private(
        model, optimizer, data, budget=sd.Budget(math.inf, 0.0), batch_size=20, steps=12, seed=4, clipping=Fixed(1e-9)
    )
    train(loop)
    plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    rng = np.random.default_rng(4)
    for _ in range(12):
        rows = torch.from_numpy(np.flatnonzero(rng.random(100) < 0.2))
        plain.zero_grad()
        (F.cross_entropy(twin(data[0][rows]), data[1][rows], reduction="none").sum() / 20).backward()
        plain.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)
    assert math.isinf(loop.epsilon)


def test_users_are_clipped_as_one(plan, make_model):
    """A user with many identical extreme rows moves the sum no further than one clipped vector."""
    x, y = torch.full((40, 5), 50.0), torch.zeros(40, dtype=torch.long)
    owners = np.repeat(np.arange(10), 4)
    model = make_model()
    loop = private(
        model, (x, y), plan, users=Users(owners, rows_per_user=4), clipping=Fixed(0.5), rng=np.random.default_rng(1)
    )
    seen = {}
    original = loop.private_step.absorb

    def spy(tape):
        seen["norms"] = tape.scalars().norms
        original(tape)
        seen["total"] = loop.private_step._totals[0][0].clone()

    loop.private_step.absorb = spy
    batch = next(iter(loop))
    loop.step(losses(model, batch))
    users = len(batch[0]) // 4
    assert len(seen["norms"]) == users
    assert float(seen["total"].norm()) <= 0.5 * users * (1 + 1e-5)


def test_users_make_it_user_level(data, make_model):
    optimizer = torch.optim.SGD((model := make_model()).parameters(), lr=0.1)
    users = Users(np.arange(100) // 5, rows_per_user=3)
    loop = sd.make_private(
        model,
        optimizer,
        data,
        budget=sd.Budget(8, 1e-3),
        batch_size=5,
        steps=3,
        users=users,
        seed=0,
        noise_multiplier=5.0,
    )
    assert loop.plan.unit is Unit.USER
    assert loop.plan.sampler.rate == 5 / 20
    train(loop)


def test_empty_batches_are_steps_too(data, plan, make_model):
    from sordina.plan import Plan
    from sordina.sampling import Poisson

    rare = Plan(Poisson(0.01, 100), 5, plan.budget, 1.0)
    loop = private(make_model(), data, rare)
    train(loop)
    assert loop.steps_taken == 5


class TestRefusals:
    def test_a_mean_loss(self, model, data, plan):
        loop = private(model, data, plan)
        x, y = next(iter(loop))
        with pytest.raises(InvalidInput, match=r"one per sample|per-sample|scalar"):
            loop.step(F.cross_entropy(model(x), y))

    def test_losses_of_another_length(self, model, data, plan):
        loop = private(model, data, plan)
        batch = next(iter(loop))
        with pytest.raises(InvalidInput):
            loop.step(losses(model, batch)[:-1])

    def test_a_step_without_a_batch_and_a_second_step(self, model, data, plan):
        loop = private(model, data, plan)
        with pytest.raises(InvalidInput, match="just drawn"):
            loop.step(torch.zeros(3, requires_grad=True))
        batch = next(iter(loop))
        loop.step(losses(model, batch))
        with pytest.raises(InvalidInput, match="just drawn"):
            loop.step(losses(model, batch))

    def test_a_batch_that_was_drawn_and_not_used_stays_on_record(self, model, data, plan):
        loop = private(model, data, plan)
        batches = iter(loop)
        next(batches)
        with pytest.raises(InvalidInput, match="on record"):
            next(batches)
        assert loop.steps_taken == 1

    def test_a_data_loader(self, model, data, plan):
        with pytest.raises(InvalidInput, match="DataLoader"):
            private(model, DataLoader(TensorDataset(*data)), plan)

    def test_batch_norm(self, data, plan):
        with pytest.raises(Unsupported, match="BatchNorm"):
            private(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), data, plan)

    def test_noise_that_would_overspend(self, model, data):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(BudgetRefused, match="above the budget"):
            sd.make_private(
                model, optimizer, data, budget=sd.Budget(0.5, 1e-5), batch_size=20, steps=100, noise_multiplier=0.5
            )

    @pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"batch_size": 101}, {"sampling": "shuffle"}, {"steps": 0}])
    def test_bad_options(self, model, data, wrong):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"budget": sd.Budget(1, 1e-5), "batch_size": 10, "steps": 2} | wrong
        with pytest.raises(InvalidInput):
            sd.make_private(model, optimizer, data, **options)

    def test_a_population_that_fixed_size_sampling_contradicts(self, model, data):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loop = sd.make_private(
            model, optimizer, data, budget=sd.Budget(8, 1e-5), batch_size=10, steps=2, sampling="fixed-size",
            population=200, noise_multiplier=9.0, clipping=Online(),
        )  # fmt: skip
        with pytest.raises(InvalidInput, match="population"):
            next(iter(loop))


def test_an_engine_of_an_earlier_run_serves_the_next_one_and_no_other_model(data, plan, make_model):
    model, other = make_model(), make_model()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    loop = private(model, data, plan)
    alone = train(loop)
    model.load_state_dict(start)
    again = private(model, data, plan, engine=loop.engine)
    assert again.engine is loop.engine
    assert torch.equal(train(again), alone)
    with pytest.raises(InvalidInput, match="another model"):
        private(other, data, plan, engine=loop.engine)
