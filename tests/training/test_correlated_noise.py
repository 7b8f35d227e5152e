"""A run whose noise is correlated over its steps: what it costs, what it draws, and what a crash may keep of it."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import sordina as sd
from sordina.errors import InvalidInput
from sordina.mechanisms import BandedNoise, LambdaCGD, ToeplitzNoise
from sordina.run_folder import CHECKPOINT, read_claim
from sordina.sampling import Users
from sordina.training.checkpoint import save


def trainer(model, **rest):
    options = {"batch_size": 10, "steps": 24, "learning_rate": 0.5, "noise": BandedNoise(4)}
    options |= {"clipping": sd.clipping.Fixed(1.0)}
    return sd.Trainer(model, F.cross_entropy, rest.pop("budget", sd.Budget(6, 1e-5)), **(options | rest))


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


@pytest.mark.parametrize("noise", [BandedNoise(4), LambdaCGD(0.8), ToeplitzNoise()])
def test_a_run_costs_its_plan_and_says_so(make_model, data, noise, tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(9, 1e-5))
    run = trainer(make_model(), noise=noise, folder=tmp_path / "run", ledger=ledger, dataset_budget="people").fit(data)
    assert run.event == run.plan.event()
    assert 5.9 < run.epsilon <= 6
    claim = read_claim(tmp_path / "run")
    assert claim.epsilon == run.epsilon
    assert claim.more["correlated_noise"]["kind"] == type(noise).__name__
    assert claim.more["sampler"]["kind"] == "CyclicPoisson"
    assert ledger.spent("people") == pytest.approx(run.epsilon, rel=1e-3)


def test_epochs_are_rounded_to_whole_turns(make_model, data):
    run = trainer(make_model(), steps=None, epochs=2.7).fit(data)
    assert run.steps == 28
    assert run.event.count == 7


def test_noise_of_one_band_is_plain_dp_sgd(make_model, data):
    weights = []
    for noise in (None, BandedNoise(1), LambdaCGD(0.0)):
        run = trainer(make_model(), noise=noise, seed=3).fit(data)
        weights.append((run.event, torch.cat([one.flatten() for one in run.model.parameters()])))
    for event, other in weights[1:]:
        assert event == weights[0][0]
        assert torch.allclose(other, weights[0][1], atol=1e-5)


@pytest.mark.parametrize("noise", [BandedNoise(4), LambdaCGD(0.8), ToeplitzNoise()])
@pytest.mark.parametrize("step", [5, 8, 21])
def test_a_secret_run_that_was_killed_begins_a_new_turn_at_the_same_price(
    make_model, data, held_out, tmp_path, noise, step
):
    options = {"folder": tmp_path / "run", "checkpoint_every": 1, "validate_every": 1, "noise": noise}
    with pytest.raises(KeyboardInterrupt):
        trainer(make_model(), callbacks=[StopAt(step)], **options).fit(data, validation=held_out)
    kept = torch.load(tmp_path / "run" / CHECKPOINT, weights_only=False)
    assert kept["noise"] is None
    assert kept["rng"] is None
    fresh = trainer(make_model(), **options)
    private = fresh.private(data)
    turn = private.plan.turn
    private.close()
    run = trainer(make_model(), **options).fit(data, resume=True)
    assert run.event == run.plan.event()
    assert run.steps == 24
    begun = min(24, -(-step // turn) * turn)
    assert run.lost_steps >= begun - step


def test_after_a_break_steps_go_on_at_the_next_turn_with_new_parts_and_no_past(make_model, data, tmp_path):
    options = {"folder": tmp_path / "run", "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        trainer(make_model(), callbacks=[StopAt(6)], **options).fit(data)
    from sordina.training.run_keeper import RunKeeper

    again = trainer(make_model(), **options)
    private = again.private(data)
    private.own_loop = False
    private.keeper = RunKeeper.open(
        private, folder=options["folder"], resume=True, checkpoint_every=1, settings=again._settings()
    )
    assert private.steps_taken % 4 == 0
    assert private.private_step.past[0].noise == []
    assert private._divided is None
    private.keeper.close()
    private.close()


def test_a_seeded_run_is_repeated_bit_for_bit(make_model, data, tmp_path):
    options = {"seed": 5, "checkpoint_every": 3}
    whole = trainer(make_model(), folder=tmp_path / "whole", **options).fit(data)
    with pytest.raises(KeyboardInterrupt):
        trainer(make_model(), callbacks=[StopAt(7)], folder=tmp_path / "part", **options).fit(data)
    run = trainer(make_model(), folder=tmp_path / "part", **options).fit(data, resume=True)
    assert run.lost_steps == 0
    assert run.weights == whole.weights


def test_a_checkpoint_of_a_secret_run_holds_no_noise_whatever_is_in_memory(make_model, data):
    private = trainer(make_model()).private(data)
    for x, y in private:
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
        if private.steps_taken == 6:
            break
    assert len(private.private_step.past[0].noise) == 3
    file = io.BytesIO()
    save(private, "run", file)
    file.seek(0)
    assert torch.load(file, weights_only=False)["noise"] is None
    private.close()


def test_an_own_loop_left_early_pays_for_the_plan(make_model, data):
    model = make_model()
    private = sd.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, budget=sd.Budget(6, 1e-5), batch_size=10, steps=24,
        noise=BandedNoise(4),
    )  # fmt: skip
    for x, y in private:
        private.step(F.cross_entropy(model(x), y, reduction="none"))
        if private.steps_taken == 5:
            break
    assert private.account.event.events[0].count == 2  # two turns begun
    assert private.so_far.epsilon < private.guarantee.epsilon
    assert private.finish().event == private.plan.event()


@pytest.mark.parametrize(
    "policy", [sd.clipping.TypicalNorm(), sd.clipping.Quantile(), sd.clipping.PerLayer(sd.clipping.Fixed(1.0))]
)
def test_thresholds_may_move_and_layers_have_their_own(make_model, data, policy):
    """The noise of a step is in units of its own bound; queries beside the gradient have independent noise."""
    private = trainer(make_model(), clipping=policy, noise_multiplier=2.0, budget=sd.Budget(9, 1e-5), seed=0).private(
        data
    )
    for x, y in private:
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    for past in private.private_step.past:
        assert past.step == 24
        assert len(past.noise) == 3
        spread = np.concatenate([one.numpy() for one in past.noise]).std()
        assert 0.5 < spread / float(past._spread[-1]) < 1.6
    assert private.finish().epsilon <= 9


def test_users_micro_batches_and_an_infinite_budget(make_model, data):
    users = Users(np.arange(100) // 2, rows_per_user=2)
    run = trainer(make_model(), users=users, batch_size=5, microbatch=2, steps=8).fit(data)
    assert run.event.count == 2
    free = trainer(make_model(), budget=sd.Budget(math.inf, 1e-5), steps=8).fit(data)
    assert not free.plan.private


def test_fixed_size_batches_are_refused(make_model, data):
    with pytest.raises(InvalidInput, match="Poisson"):
        trainer(make_model(), sampling="fixed-size").fit(data)
    with pytest.raises(InvalidInput, match="bands"):
        trainer(make_model(), noise=BandedNoise(11)).fit(data)


def test_a_search_pays_for_runs_with_correlated_noise(make_model, data, held_out):
    search = sd.Search(
        sd.tuning.Grid({"learning_rate": (0.1, 0.5)}), trainer=lambda seed: trainer(make_model()),
        budget=sd.Budget(6, 1e-5), selection="public", method="composition", seed=1,
    )  # fmt: skip
    found = search.fit(data, held_out)
    assert found.guarantee.epsilon <= 6
    assert {run.event["event"]["kind"] for run in found.runs} == {"PoissonSampled"}
    assert {run.event["count"] for run in found.runs} == {6}
