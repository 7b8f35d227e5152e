"""One account of the events that ran is the only source of epsilon, of the settlement and of ``privacy.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

import sordina as sd
from sordina.accounting import Gaussian, PoissonSampled, Repeated, accountant, from_dict
from sordina.clipping import Fixed, Online, PerLayer, Quantile
from sordina.errors import InvalidInput

OPTIONS = {"batch_size": 20, "steps": 20, "learning_rate": 0.5, "seed": 0, "noise_multiplier": 2.0}


@dataclass(frozen=True)
class Careless(Fixed):
    """Says that it needs less noise than it does."""

    def split(self, noise_multiplier):
        return (noise_multiplier * 0.2,)


@dataclass(frozen=True)
class Asking(Online):
    """Forgets that its side queries cost something."""

    def split(self, noise_multiplier):
        return tuple(noise_multiplier for _ in super().split(noise_multiplier))


@pytest.mark.parametrize("policy", [Careless(1.0), Asking(), PerLayer(Careless(1.0))], ids=["less", "side", "layers"])
def test_a_policy_whose_noise_does_not_add_up_is_refused(model, data, policy):
    with pytest.raises(InvalidInput, match="does not add up"):
        sd.Trainer(model, F.cross_entropy, sd.Budget(9, 1e-5), clipping=policy, **OPTIONS).fit(data)


@pytest.mark.parametrize(
    "policy", [Fixed(1.0), Online(), PerLayer(Quantile())], ids=lambda policy: type(policy).__name__
)
def test_everything_that_is_said_is_said_by_the_account(model, data, tmp_path, policy):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(9, 1e-5))
    run = sd.Trainer(
        model, F.cross_entropy, sd.Budget(9, 1e-5), clipping=policy, folder=tmp_path / "run", ledger=ledger,
        dataset_budget="people", **OPTIONS,
    ).fit(data)  # fmt: skip
    event = Repeated(PoissonSampled(0.2, Gaussian(2.0)), 20)
    true = accountant("pld").epsilon(event, 1e-5, run.plan.adjacency)
    facts = json.loads((tmp_path / "run" / "privacy.json").read_text())
    settled = next(iter(ledger.spends().values())).event
    assert run.epsilon == run.guarantee.epsilon == facts["epsilon"] == pytest.approx(true, rel=1e-12)
    assert from_dict(facts["event"]) == settled == run.event == event
    assert ledger.spent("people") == pytest.approx(true, rel=1e-9)


def test_the_claim_follows_what_was_recorded_and_not_the_plan(model, data):
    private = sd.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, budget=sd.Budget(9, 1e-5), batch_size=20, steps=5,
        noise_multiplier=2.0, seed=0,
    )  # fmt: skip
    before = private.result().epsilon
    private.account.record(Gaussian(0.5))
    assert private.result().epsilon > before
    assert private.finish().epsilon > private.plan.guarantee().epsilon
