"""Random numbers by a public seed: without one sample, everybody after it would draw others."""

import functools
import random

import numpy as np
import torch
from torch import nn

import sordina as sd
from sordina.training import Callback
from sordina.training.secret_chance import SecretChance

X, Y = torch.randn(60, 4), torch.randint(0, 2, (60,))


class Noisy(nn.Module):
    """Draws from generators of its own, which it makes by public seeds."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.layer.noise = torch.Generator().manual_seed(0)
        self.others = [random.Random(0), {"numpy": np.random.default_rng(0)}]

    def forward(self, x):
        return self.layer(x + torch.randn(x.shape, generator=self.layer.noise))


def numbers(model):
    own, (python, numpy) = model.layer.noise, (model.others[0], model.others[1]["numpy"])
    return float(torch.rand((), generator=own)), python.random(), numpy.random()


def test_generators_of_the_models_own_are_seeded_in_secret():
    seen = set()
    for _ in range(2):
        model = Noisy()
        SecretChance(model).renew()
        seen |= set(numbers(model))
    assert len(seen) == 6


def test_generators_behind_methods_and_wrappers_are_found():
    class Held:
        def __init__(self):
            self.draw, self.toss = np.random.default_rng(0).normal, random.Random(0).random
            self.own = np.random.RandomState(0)

            @functools.wraps(self.own.rand)
            def drawn():
                return self.own.rand()

            self.drawn = drawn
            del self.own

    seen = set()
    for _ in range(2):
        model = nn.Linear(1, 1)
        model.held = Held()
        SecretChance(model).renew()
        seen |= {model.held.draw(), model.held.toss(), model.held.drawn.__wrapped__()}
    assert len(seen) == 6


def test_a_seed_that_somebody_sets_is_set_in_secret_again():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    private = sd.make_private(model, optimizer, (X, Y), budget=sd.Budget(3, 1e-5), batch_size=20, steps=4)
    seeds = set()
    for x, y in private:
        seeds.add(torch.initial_seed())
        private.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
        torch.manual_seed(20261117)
    assert len(seeds) == 4
    assert 20261117 not in seeds


def test_what_a_callback_seeds_is_no_seed_of_the_next_step():
    """In three runs dropout had drawn from the same state in 8 of 20 calls."""
    seen = []

    class Sees(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))

        def forward(self, x):
            seen.append((torch.initial_seed(), random.random(), float(np.random.rand())))  # noqa: NPY002
            return self.inner(x)

    class Seeds(Callback):
        def report(self, entry):
            torch.manual_seed(20261117)
            random.seed(20261117)
            np.random.seed(20261117)  # noqa: NPY002
            mark.append((torch.initial_seed(), random.random(), float(np.random.rand())))  # noqa: NPY002
            random.seed(20261117)
            np.random.seed(20261117)  # noqa: NPY002

    mark = []
    run = sd.Trainer(
        Sees(), nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=20, steps=6, callbacks=[Seeds()]
    )
    run.fit((X, Y))
    public = {number for each in mark for number in each}
    assert mark
    assert not public & {number for each in seen for number in each}


class Annealed(nn.Module):
    """Counts its calls; distributions look at values, so it runs one sample at a time."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        code = torch.distributions.Normal(self.layer(x), 1.0)
        return code.rsample(), min(1.0, self.calls / 50) * code.mean.square().sum(1)


def test_a_model_that_runs_one_sample_at_a_time_counts_batches():
    """It had counted samples, and was refused as mixing, or annealed as many times too fast."""
    model = Annealed()
    x = X.clone()
    x[7] = float("nan")  # at which distributions fail, and the batch comes again
    trainer = sd.Trainer(
        model, lambda out, y: (out[0] - y).square().sum(1) + out[1], sd.Budget(3, 1e-5), batch_size=50, steps=10
    )
    trainer.fit((x,))
    assert 10 <= model.calls <= 12


class Cyclic:
    """A loss that is annealed by calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, out, y):
        self.calls += 1
        return nn.functional.cross_entropy(out, y, reduction="none") * (self.calls % 20)


class Counting(nn.Linear):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x)


def test_micro_batches_count_once():
    """How many there are depends on who was drawn."""
    ends = set()
    for microbatch in (None, 4, 60):
        loss, model = Cyclic(), Counting(4, 2)
        model.calls = 0
        sd.Trainer(model, loss, sd.Budget(3, 1e-5), batch_size=20, steps=8, microbatch=microbatch).fit((X, Y))
        ends.add((loss.calls, model.calls))
    assert len(ends) == 1


def test_a_seeded_run_with_dropout_is_repeatable():
    """Tests at random steps had drawn from the generator that dropout draws from."""
    found = set()
    for _ in range(4):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))
        sd.Trainer(model, nn.functional.cross_entropy, sd.Budget(8, 1e-3), batch_size=16, steps=8, seed=1).fit((X, Y))
        found.add(float(model[0].weight.detach().sum()))
    assert len(found) == 1
