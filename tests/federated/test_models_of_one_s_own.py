"""Models of one's own that keep something, or fail on somebody's rows: no client and no record reaches another."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordina as sd
from sordina import federated as fed
from sordina._stacked_models import Looped
from sordina.errors import Unsupported
from sordina.federated import losses
from sordina.federated.algorithms.algorithm import LocalSteps, perform
from sordina.federated.algorithms.fedavg import ClippedGradient, LocalGradient, LocalTraining
from sordina.federated.engines import ClientSide, InProcess, RoundRequest
from sordina.federated.objective import Batch, flat_parameters, of_module
from sordina.federated.population import Population, RowOrder
from sordina.federated.privacy.local import Local
from sordina.federated.privacy.placement import UNIFORM, ClearUpdates

BUDGET = sd.Budget(8, 1e-3)
PRIVACY = {
    "central": fed.CentralDP(BUDGET),
    "local": fed.LocalDP(BUDGET),
    "record": fed.RecordDP(BUDGET, records=20),
    "metric": fed.MetricDP(5.0, radius=1.0, leakage_limit=2.0),
    "none": fed.NoPrivacy(),
}


class Net(nn.Module):
    """A plain network that looks at values, so that it runs client after client."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.outer, self.kept = nn.Linear(3, 6), nn.Linear(6, 2), 0.0

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


class RunningMean(Net):
    def forward(self, x):
        self.kept = 0.9 * self.kept + 0.1 * float(x.detach().mean())
        return super().forward(x - self.kept)


class MeanOfTensors(Net):
    def forward(self, x):
        self.kept = 0.9 * self.kept + 0.1 * x.detach().mean(0)
        return super().forward(x - self.kept)


class Centred(Net):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class ByTheLargest(Net):
    def forward(self, x):
        return super().forward(x / x.detach().abs().max())


class Annealed(Net):
    def forward(self, x):
        self.kept += 1
        return super().forward(x) * min(1.0, self.kept / 10) * (1 + 0 * float(x.sum()))


class Picky(Net):
    def forward(self, x):
        if bool((x.abs() > 1e20).any()):
            raise ValueError(f"bad input {x.max()}")
        return super().forward(x)


def clients(count=6, bad=None):
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(count):
        x = torch.randn(8 + number, 3, generator=generator)
        made.append((torch.full_like(x, 1e30) if number == bad else x, (x[:, 0] > 0).long()))
    return made


def trainer(model, privacy, **options):
    algorithm = fed.FedAvg(learning_rate=0.1, batch_size=10)
    return fed.FederatedTrainer(model, F.cross_entropy, privacy, algorithm, rounds=2, **options)


@pytest.mark.parametrize("privacy", PRIVACY.values(), ids=PRIVACY)
def test_a_model_that_keeps_data_is_refused_before_anything_is_spent(privacy, tmp_path):
    for model in (RunningMean(), MeanOfTensors()):
        with pytest.raises(Unsupported, match="keeps data between batches"):
            trainer(model, privacy, folder=tmp_path / "run").fit(clients())
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", [Centred, ByTheLargest])
def test_a_model_that_mixes_rows_is_refused(model):
    """Batches are padded to the largest client's: with a mean over rows it moved the clipped sum of others by 2.6 C."""
    with pytest.raises(Unsupported, match="mixes the rows"):
        trainer(model(), PRIVACY["central"]).fit(clients())


def test_a_model_that_keeps_data_is_refused_on_flower_too():
    with pytest.raises(Unsupported, match="keeps data between batches"):
        trainer(RunningMean(), PRIVACY["central"], engine="flower").fit(clients())


@pytest.mark.parametrize("model", [RunningMean, Annealed])
def test_what_a_model_keeps_of_one_client_reaches_no_other(model):
    """Whatever the tests of a model find: here it is not tried, as there are no rows to try it with."""
    module, people = model(), clients()
    objective = of_module(module, losses.cross_entropy)
    objective = replace(objective, model=Looped(objective.model.module, objective.model.begin))
    flat = flat_parameters(module)

    def gradients(first):
        x, y = (torch.stack([one[i][:8] for one in people[first:]]) for i in (0, 1))
        return objective.gradient(flat.expand(len(x), -1), Batch(x, y, torch.ones(len(x), 8)))

    assert torch.equal(gradients(0)[1:], gradients(1)), "with the first client as without"
    assert torch.equal(gradients(1), gradients(1))


def test_what_a_loss_counts_is_put_back():
    class Annealing:
        calls = 0

        def __call__(self, outputs, targets):
            self.calls += 1
            return F.cross_entropy(outputs, targets, reduction="none") * self.calls

    loss = losses.of_any(Annealing())
    pair = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    assert torch.equal(loss.value(*pair), loss.value(*pair))


def answered(work, placement, people):
    engine = InProcess(Population.of(people))
    sent = {"model": flat_parameters(Picky())}
    call = RoundRequest(sent, placement.start(work.width(sent)), RowOrder())
    return engine.map_reduce(ClientSide(work, placement), call, np.arange(len(people)), np.random.default_rng(0))


def picky(loss=losses.cross_entropy):
    return of_module(Picky(), loss, example=torch.zeros(1, 3))


QUIET = Local(clip=1.0, noise_multiplier=1e-12, delta=1e-5, participations=1)


@pytest.mark.parametrize("work", [LocalGradient, lambda f: LocalTraining(f, LocalSteps(0.1, 4, epochs=2))])
def test_a_client_on_whose_rows_the_model_fails_adds_nothing_and_stops_nothing(work):
    sane, ill = (answered(work(picky()), QUIET, clients(bad=bad)).vectors for bad in (None, 3))
    assert ill.shape == sane.shape
    others = [0, 1, 2, 4, 5]
    assert torch.allclose(ill[others], sane[others], atol=1e-6)
    assert float(ill[3].norm()) < 1e-6 < float(sane[3].norm())


def test_without_privacy_the_error_is_told():
    with pytest.raises(ValueError, match="bad input"):
        answered(LocalGradient(picky()), ClearUpdates(UNIFORM), clients(bad=3))


def test_a_fault_that_zeros_show_too_is_told():
    class Broken(Picky):
        def forward(self, x):
            raise TypeError("no such thing")

    with pytest.raises(TypeError, match="no such thing"):
        answered(LocalGradient(of_module(Broken(), losses.cross_entropy)), QUIET, clients())


def test_a_record_on_which_the_model_fails_takes_only_itself_out_of_a_client():
    people = clients(1)
    x, y = people[0]
    broken = x.clone()
    broken[2] = 1e30
    rest = torch.arange(len(x)) != 2
    work = ClippedGradient(picky(), 1.0, 6.0)
    sent = {"model": flat_parameters(Picky())}

    def vectors(x, y):
        return work.run(sent, Population.of([(x, y)]).cohort(np.array([0])), {}, RowOrder())[0].vectors

    assert torch.allclose(vectors(broken, y), vectors(x[rest], y[rest]), atol=1e-6)


@pytest.mark.parametrize("privacy", ["central", "local", "record"])
def test_a_run_with_a_client_on_whose_rows_the_model_fails_ends_as_any_other(privacy):
    result = trainer(Picky(), PRIVACY[privacy], seed=0).fit(clients(bad=3))
    assert len(result.history) == 2
    assert math.isfinite(float(flat_parameters(result.models[0]).sum()))


def test_dropout_comes_from_a_secret_seed_unless_the_run_is_seeded():
    module = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Linear(50, 2))
    work = LocalGradient(of_module(module, losses.cross_entropy, example=torch.zeros(1, 3)))
    cohort, sent = Population.of(clients()).cohort(np.arange(1)), {"model": flat_parameters(module)}

    def twice(rng):
        found = []
        for _ in range(2):
            torch.manual_seed(0)
            found.append(perform(work, sent, cohort, {}, RowOrder(), rng)[0].vectors)
        return torch.equal(*found)

    assert twice(np.random.default_rng(0))
    assert not twice(sd.random.secure())
