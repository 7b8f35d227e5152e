from __future__ import annotations

import json
import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import sordina as sd
from sordina.accounting.ledger import Status
from sordina.errors import BudgetRefused, InvalidInput
from sordina.training import AdamWOSM, AutomaticRate, DistanceRate, LearningRateRule, SteadyRate
from sordina.training.learning_rates import typical_size


def trainer(model, **rest):
    options = {
        "clipping": sd.clipping.Fixed(1.0),
        "batch_size": 20,
        "epochs": 4,
        "learning_rate": 1.0,
        "seed": 0,
    } | rest
    return sd.Trainer(model, F.cross_entropy, sd.Budget(6, 1e-5), **options)


def test_a_run_says_what_it_cost_and_what_it_reached(model, data, held_out):
    run = trainer(model).fit(data, validation=held_out)
    assert 0.99 * 6 <= run.epsilon <= 6
    assert run.steps == 20
    assert run.validation["accuracy"] > 0.6
    assert run.history[-1]["step"] == 20
    assert run.history[-1]["epsilon"] == pytest.approx(run.epsilon)
    assert [entry["epsilon"] for entry in run.history] == sorted(entry["epsilon"] for entry in run.history)
    assert "do not release" in run.statement()


def test_a_run_without_a_seed_is_releasable(model, data):
    run = trainer(model, seed=None).fit(data)
    assert run.releasable
    assert "do not release" not in run.statement()


def test_a_folder_holds_everything(model, data, held_out, tmp_path):
    folder = tmp_path / "run"
    run = trainer(model, folder=folder).fit(data, validation=held_out)
    facts = json.loads((folder / "privacy.json").read_text())
    assert facts["epsilon"] == run.epsilon
    assert facts["adjacency"] == "add-remove"
    assert facts["unit"] == "record"
    assert facts["sampler"] == {"kind": "Poisson", "batch_size": 20, "population": 100}
    assert facts["releasable"] is False
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == run.history
    assert list((folder / "tensorboard").glob("events*"))
    weights = torch.load(folder / "model.pt", weights_only=True)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    with pytest.raises(InvalidInput, match="holds a run already"):
        trainer(model, folder=folder).fit(data)


def test_training_loss_and_norms_stay_secret(model, data):
    run = trainer(model).fit(data)
    assert set(run.history[-1]) == {"step", "steps", "epsilon", "threshold", "learning_rate"}


def test_raw_statistics_are_marked_wherever_they_show(model, data, tmp_path):
    run = trainer(model, raw=True, folder=tmp_path / "r").fit(data)
    assert set(run.history[-1]["NOT_PRIVATE"]) == {"training_loss", "median_norm", "clipped"}
    facts = json.loads((tmp_path / "r" / "privacy.json").read_text())
    assert any("NOT_PRIVATE" in caveat for caveat in facts["caveats"])


def test_without_privacy_it_says_so_everywhere(model, data, tmp_path):
    run = sd.Trainer(
        model,
        F.cross_entropy,
        sd.Budget(math.inf, 0.0),
        batch_size=20,
        epochs=4,
        learning_rate=0.5,
        seed=0,
        folder=tmp_path / "r",
    ).fit(data, validation=data)
    assert math.isinf(run.epsilon)
    assert run.statement().startswith("NOT PRIVATE")
    facts = json.loads((tmp_path / "r" / "privacy.json").read_text())
    assert facts["epsilon"] is None
    assert facts["private"] is False


def test_any_optimiser_will_do(make_model, data, held_out):
    for maker in (lambda p: torch.optim.Adam(p, lr=0.05), lambda p: AdamWOSM(p), lambda p: torch.optim.SGD(p, lr=0.1)):
        run = trainer(make_model(), learning_rate=None, optimizer=maker).fit(data, validation=held_out)
        assert run.validation["loss"] < 1.0
    with pytest.raises(InvalidInput, match="learning rate"):
        trainer(make_model(), learning_rate=1.0, optimizer=maker).fit(data)


def test_adam_wosm_is_told_the_noise(model, data):
    made = []

    def maker(parameters):
        made.append(AdamWOSM(parameters))
        return made[0]

    run = trainer(model, learning_rate=None, optimizer=maker, clipping=sd.clipping.Fixed(0.5)).fit(data)
    assert made[0].param_groups[0]["noise"] == pytest.approx(run.plan.noise_multiplier * 0.5 / 20)


def test_the_rate_is_found_when_none_is_given(model, data):
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    least = AutomaticRate().travel * typical_size(model) * math.sqrt(len(before) / 40)
    private = trainer(model, learning_rate=None, steps=40).private(data)
    for x, y in private:
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    moved = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) - before
    torch.testing.assert_close(private.rate_state.moved, -moved, rtol=1e-4, atol=1e-5)
    assert private.rate_state.distance >= max(least, 0.999 * float(moved.norm()))


def test_bfloat16_autocast_trains(model, data, held_out):
    run = trainer(model, autocast=torch.bfloat16).fit(data, validation=held_out)
    assert run.validation["accuracy"] > 0.6


def test_a_ledger_is_asked_first_and_told_after(model, make_model, data, tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(7, 1e-5))
    trainer(model, ledger=ledger, dataset_budget="people", folder=tmp_path / "a").fit(data)
    assert 0.98 * 6 <= ledger.spent("people") <= 6 * (1 + 1e-9)
    with pytest.raises(BudgetRefused):
        trainer(make_model(), ledger=ledger, dataset_budget="people", folder=tmp_path / "b").fit(data)
    assert not (tmp_path / "b").exists()
    with pytest.raises(InvalidInput, match="go together"):
        trainer(make_model(), ledger=ledger).fit(data)


class Crash:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def report(self, entry):
        if entry["step"] == 7:
            raise RuntimeError("power cut")


def test_a_crash_leaves_its_reservation_and_a_resumed_run_settles_it(make_model, data, tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(7, 1e-5))
    options = {"ledger": ledger, "dataset_budget": "people", "folder": tmp_path / "a"}
    with pytest.raises(RuntimeError):
        trainer(make_model(), callbacks=[Crash()], **options).fit(data)
    assert ledger.spent("people") > 5.9
    run = trainer(make_model(), **options).fit(data, resume=True)
    assert run.steps == 20
    assert ledger.spent("people") <= 6 * (1 + 1e-9)
    assert not ledger.statement("people").having(Status.OPEN)


@pytest.mark.parametrize("rate", [LearningRateRule(), SteadyRate(), DistanceRate(), AutomaticRate()], ids=repr)
def test_every_rate_goes_on_from_a_checkpoint(rate, make_model, data, tmp_path):
    options = {"learning_rate": rate, "folder": tmp_path / "a", "checkpoint_every": 5}
    with pytest.raises(RuntimeError):
        trainer(make_model(), callbacks=[Crash()], **options).fit(data)
    resumed, whole = make_model(), make_model()
    trainer(resumed, **options).fit(data, resume=True)
    trainer(whole, learning_rate=rate).fit(data)
    for one, other in zip(resumed.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_resuming_what_is_not_there(model, data, tmp_path):
    with pytest.raises(InvalidInput, match="no run to resume"):
        trainer(model, folder=tmp_path).fit(data, resume=True)
    with pytest.raises(InvalidInput, match="folder"):
        trainer(model).fit(data, resume=True)


def test_an_autoencoder_trains_on_inputs_alone(data, held_out):
    model = nn.Sequential(nn.Linear(5, 2), nn.Linear(2, 5))
    run = sd.Trainer(model, F.mse_loss, sd.Budget(6, 1e-5), batch_size=20, epochs=2, learning_rate=0.1, seed=0).fit(
        (data[0],), validation=(held_out[0],)
    )
    assert set(run.validation) == {"loss"}


def test_the_default_learns_an_autoencoder():
    """A mean square over pixels behind a sigmoid: long first steps had driven every pixel to white for good."""
    pictures = torch.tensor(load_digits().images / 16, dtype=torch.float32).unsqueeze(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.LeakyReLU(), nn.Conv2d(8, 16, 3), nn.LeakyReLU(),
        nn.ConvTranspose2d(16, 8, 3), nn.LeakyReLU(), nn.ConvTranspose2d(8, 1, 3), nn.Sigmoid(),
    )  # fmt: skip

    def error(given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return (given - wanted).square().mean((1, 2, 3))

    train, test = pictures[:1400], pictures[1400:]
    sd.Trainer(model, error, sd.Budget(3, 1e-4), batch_size=128, epochs=10, seed=0).fit((train, train))
    with torch.no_grad():
        assert float(error(model(test), test).mean()) < 0.6 * float(error(train.mean(0), test).mean())
