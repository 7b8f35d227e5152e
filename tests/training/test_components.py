"""Principal components of the inputs: found once, privately, paid for with the run, and never released twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sordina as sd
from sordina.accounting import Composed, Gaussian
from sordina.errors import InvalidInput, TrainingFailed, Unsupported
from sordina.models.networks import PCAInputs
from sordina.sampling import Users
from sordina.training import loop
from sordina.training.batches import as_rows
from sordina.training.components import find_components


def network(**options):
    torch.manual_seed(0)
    return nn.Sequential(PCAInputs(5, 3, row_norm=3.0, **options), nn.Linear(3, 2))


def trainer(model, **rest):
    options = {"batch_size": 20, "steps": 10, "learning_rate": 0.5, "clipping": sd.clipping.Fixed(1.0)}
    return sd.Trainer(model, F.cross_entropy, sd.Budget(6, 1e-5), **(options | rest))


def test_the_release_is_the_gram_matrix_of_shortened_rows_with_symmetric_noise(monkeypatch):
    seen = []
    monkeypatch.setattr("sordina.training.components.add_noise", lambda v, s, r: (seen.append((v.clone(), s)), v)[1])
    x = torch.randn(50, 5) * 2
    x[3] = float("nan")
    layer = PCAInputs(5, 2, row_norm=3.0)
    find_components(layer, as_rows((x, torch.zeros(50))), Gaussian(1.5), np.random.default_rng(0))
    ((whole, sigma),) = seen
    assert sigma == pytest.approx(1.5 * 9)
    for i in (0, 7, 20):
        find_components(
            PCAInputs(5, 2, row_norm=3.0),
            as_rows((x[torch.arange(50) != i], torch.zeros(49))),
            Gaussian(1.5),
            np.random.default_rng(0),
        )
        assert float((whole - seen[-1][0]).norm()) <= 9 * (1 + 1e-9)
    long = torch.cat([x[:3], 100 * x[4:5]])
    find_components(
        PCAInputs(5, 2, row_norm=3.0), as_rows((long, torch.zeros(4))), Gaussian(1.5), np.random.default_rng(0)
    )
    find_components(
        PCAInputs(5, 2, row_norm=3.0), as_rows((x[:3], torch.zeros(3))), Gaussian(1.5), np.random.default_rng(0)
    )
    assert float((seen[-2][0] - seen[-1][0]).norm()) == pytest.approx(9)  # the bound is met


def test_without_noise_they_are_the_principal_components():
    torch.manual_seed(0)
    x = torch.randn(400, 5) * torch.tensor([0.1, 1.0, 0.2, 0.7, 0.05])
    layer = PCAInputs(5, 2, row_norm=10.0)
    find_components(layer, as_rows((x, torch.zeros(400))), None, np.random.default_rng(0))
    exact = torch.linalg.svd(x.double(), full_matrices=False).Vh[:2]
    assert torch.allclose((layer.weight.double() @ exact.T).abs(), torch.eye(2).double(), atol=1e-5)


def test_one_claim_covers_components_and_steps(data, tmp_path):
    run = trainer(network(), folder=tmp_path / "run").fit(data)
    assert isinstance(run.event, Composed)
    assert run.event == run.plan.event()
    assert 5.9 < run.epsilon <= 6
    plain = sd.Trainer(nn.Linear(5, 2), F.cross_entropy, sd.Budget(6, 1e-5), batch_size=20, steps=10).fit(data)
    assert run.plan.noise_multiplier > plain.plan.noise_multiplier
    layer = run.model[0]
    assert bool(layer.released)
    assert not torch.equal(layer.weight, torch.eye(3, 5))
    assert not layer.weight.requires_grad


def test_a_layer_that_was_released_is_not_paid_for_again(data):
    model = trainer(network()).fit(data).model
    again = trainer(model).fit(data)
    assert again.plan.before is None


class StopAt:
    def __init__(self, step):
        self.step = step

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def report(self, entry):
        if entry["step"] >= self.step:
            raise KeyboardInterrupt


def test_a_killed_run_goes_on_with_the_components_it_released(data, tmp_path):
    options = {"folder": tmp_path / "run", "checkpoint_every": 100}
    model = network()
    with pytest.raises(KeyboardInterrupt):
        trainer(model, callbacks=[StopAt(2)], **options).fit(data)
    run = trainer(network(), **options).fit(data, resume=True)
    assert torch.equal(run.model[0].weight, model[0].weight)
    assert run.event == run.plan.event()


def test_components_lost_in_a_crash_are_not_released_a_second_time(data, tmp_path, monkeypatch):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(9, 1e-5))
    options = {"folder": tmp_path / "run", "ledger": ledger, "dataset_budget": "people"}

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(loop, "find_components", killed)
        with pytest.raises(KeyboardInterrupt):
            trainer(network(), **options).fit(data)
    with pytest.raises(TrainingFailed, match="second release"):
        trainer(network(), **options).fit(data, resume=True)
    assert ledger.spent("people") == pytest.approx(6, rel=0.02)


def test_users_and_replace_one_are_refused(data):
    with pytest.raises(Unsupported, match="come or go"):
        trainer(network(), users=Users(np.arange(100) // 2, rows_per_user=2)).fit(data)
    with pytest.raises(Unsupported, match="come or go"):
        trainer(network(), sampling="fixed-size").fit(data)
    with pytest.raises(InvalidInput, match="components"):
        PCAInputs(5, 6)


def test_a_search_pays_for_the_components_of_every_run(data, held_out):
    def search(**options):
        return sd.Search(
            sd.tuning.Grid({"learning_rate": (0.1, 0.5)}), trainer=lambda seed: trainer(network(**options)),
            budget=sd.Budget(6, 1e-5), selection="public", method="composition", seed=1,
        )  # fmt: skip

    with pytest.raises(InvalidInput, match="noise_multiplier"):
        search().fit(data, held_out)
    found = search(noise_multiplier=8.0).fit(data, held_out)
    assert found.guarantee.epsilon <= 6
    assert all(run.event["events"][0]["event"] == {"kind": "Gaussian", "noise_multiplier": 8.0} for run in found.runs)


def test_a_run_is_not_resumed_as_if_its_components_had_cost_less(data, tmp_path):
    class Stop:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def report(self, entry):
            if entry["step"] >= 3:
                raise KeyboardInterrupt

    options = {"noise_multiplier": 8.0, "folder": tmp_path / "run", "tensorboard": False, "checkpoint_every": 1}
    model = network(noise_multiplier=4.0)
    with pytest.raises(KeyboardInterrupt):
        trainer(model, callbacks=[Stop()], **options).fit(data)
    for other in (network(noise_multiplier=50.0), model):  # of another price; and as it is in memory, found already
        with pytest.raises(InvalidInput, match="another run"):
            trainer(other, **options).fit(data, resume=True)
    trainer(network(noise_multiplier=4.0), **options).fit(data, resume=True)


def test_a_run_of_a_search_that_fails_has_paid_for_its_components(data, held_out):
    def make(seed):
        torch.manual_seed(seed)
        return trainer(network(noise_multiplier=4.0), clipping=sd.clipping.Fixed(1000.0))

    search = sd.Search(
        sd.tuning.Grid({"learning_rate": (0.1, 3e38)}), make, budget=sd.Budget(8, 1e-5), selection="public",
        method="composition", accountant="rdp",
    )  # fmt: skip
    found = search.fit(data, held_out)
    assert {run.stopped for run in found.runs} >= {None}
    failed, whole = sorted((repr(run.event) for run in found.runs), key=len)
    assert failed == whole, (failed, whole)
