"""`make_private` on a par with `Trainer`: folder, ledger, resume, save, len, and an end that pays for the plan."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch.nn import functional as F

import sordina as sd
from sordina.accounting.ledger import Status
from sordina.errors import InvalidInput
from sordina.run_folder import FolderState, read_claim, state_of


def loop(model, data, **rest):
    options = {"budget": sd.Budget(6, 1e-5), "batch_size": 20, "steps": 20, "noise_multiplier": 3.0} | rest
    return sd.make_private(model, torch.optim.SGD(model.parameters(), lr=0.5), data, **options)


def take(private, steps=None):
    for x, y in itertools.islice(private, steps):
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    return private


def fail(private, steps):
    with private:
        take(private, steps)
        raise InvalidInput("a mistake.")


@pytest.fixture
def ledger(tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(9, 1e-5))
    return ledger


def test_leaving_early_pays_for_the_plan(model, data):
    private = loop(model, data)
    whole = private.plan.guarantee().epsilon
    take(private, 4)
    assert private.so_far.epsilon < 0.8 * whole
    assert private.epsilon == private.guarantee.epsilon == whole
    assert "for the whole plan of 20 steps" in private.statement()
    assert "4 are on the account" in private.statement()
    run = private.finish()
    assert run.epsilon == whole
    assert run.steps == 20
    assert private.finish() is run
    assert "own" in " ".join(run.caveats)
    assert list(private) == []


def test_a_run_that_ended_early_draws_no_more(model, data):
    private = take(loop(model, data), 4)
    private.finish()
    assert list(private) == []


def test_the_length_is_the_plans(model, data):
    assert len(loop(model, data)) == 20


def test_a_folder_and_a_ledger_as_for_a_trainer(make_model, data, tmp_path, ledger):
    folder = tmp_path / "run"
    options = {"folder": folder, "ledger": ledger, "dataset_budget": "people"}
    private = take(loop(make_model(), data, **options), 7)
    assert ledger.spent("people") == pytest.approx(private.epsilon)
    private.close()
    with pytest.raises(InvalidInput, match="holds a run already"):
        loop(make_model(), data, **options)
    resumed = loop(make_model(), data, resume=True, **options)
    assert resumed.steps_taken >= 6
    run = take(resumed).finish()
    assert run.epsilon == pytest.approx(ledger.spent("people"))
    assert not ledger.statement("people").having(Status.OPEN)
    assert state_of(folder).state is FolderState.FINISHED
    assert read_claim(folder).epsilon == run.epsilon


def test_a_context_ends_the_run_or_keeps_what_failed(make_model, data, tmp_path, ledger):
    with loop(make_model(), data, ledger=ledger, dataset_budget="people") as private:
        take(private, 3)
    assert [str(spend.status) for spend in ledger.spends().values()] == ["settled"]
    assert ledger.spent("people") == pytest.approx(private.epsilon)


def test_what_failed_without_a_folder_is_settled_in_full(make_model, data, ledger):
    private = loop(make_model(), data, ledger=ledger, dataset_budget="people")
    with pytest.raises(InvalidInput, match="settled in full"):
        fail(private, 3)
    assert ledger.spent("people") == pytest.approx(private.epsilon)
    assert not ledger.statement("people").having(Status.OPEN)


def test_what_failed_before_it_drew_is_given_back(make_model, data, ledger):
    with pytest.raises(InvalidInput, match="settled as unspent"):
        fail(loop(make_model(), data, ledger=ledger, dataset_budget="people"), 0)
    assert ledger.spent("people") == 0


def test_what_failed_in_a_folder_says_what_is_held(make_model, data, ledger, tmp_path):
    private = loop(make_model(), data, ledger=ledger, dataset_budget="people", folder=tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"3 of 20 steps are on record. Reservation 2 on 'people' is held"):
        fail(private, 3)
    assert ledger.statement("people").having(Status.OPEN)


def test_saving_ends_the_run(model, data, tmp_path):
    private = take(loop(model, data), 5)
    private.save(tmp_path / "saved")
    facts = json.loads((tmp_path / "saved" / "privacy.json").read_text())
    assert facts["epsilon"] == private.plan.guarantee().epsilon
    weights = torch.load(tmp_path / "saved" / "model.pt", weights_only=True)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_that_code_of_ones_own_fails_on_no_record_is_said_to_be_the_users_word(model, data):
    caveats = " ".join(take(loop(model, data)).finish().caveats)
    assert "no code in it fails on a record" in caveats
    assert "its size) is the user's word" in caveats


def test_a_step_by_hand_on_the_gradients_of_the_data_is_refused(model, data):
    """It moved the weights without noise, under the same claim."""
    private = loop(model, data)
    x, y = next(iter(private))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(InvalidInput, match="by hand"):
        private.optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))
    private.step(F.cross_entropy(model(x), y, reduction="none"))
    private.close()
    private.optimizer.step()


def test_parameters_of_the_optimiser_that_are_not_the_models_are_refused_and_never_move(model, data):
    """They were moved by gradients without noise, and the losses of everybody with them."""
    scale = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.5)
    options = {"budget": sd.Budget(6, 1e-5), "batch_size": 20, "steps": 4}
    with pytest.raises(InvalidInput, match="not the model's"):
        sd.make_private(model, optimizer, data, **options)
    frozen = list(model.parameters())[-1].requires_grad_(False)
    frozen.grad = torch.ones_like(frozen)  # left over from what came before
    before = frozen.clone()
    take(sd.make_private(model, torch.optim.SGD(model.parameters(), lr=0.5), data, **options))
    assert torch.equal(frozen, before)


def test_a_model_made_of_one_that_was_trained_before_says_so(model, data):
    take(loop(model, data)).finish()
    whole = torch.nn.Sequential(model, torch.nn.Linear(2, 2))
    assert any("trained before" in caveat for caveat in take(loop(whole, data)).finish().caveats)
