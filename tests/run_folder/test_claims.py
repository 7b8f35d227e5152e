"""One schema of privacy.json: what is written comes back, and folders of version 0.1 are read without a guess.

The folders in ``version_0_1`` were written by version 0.1.0 itself (``sordina train digits --model mlp --clipping fixed
--threshold 0.5 --lr 0.5 --epochs 1 --batch-size 128 --seed 0`` and ``sordina federate synthetic --strategy fedavg
--privacy central --rounds 2 --seed 0``), without their figures and checkpoints.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sordina as sd
from sordina.auditing.runs import open_subject
from sordina.errors import InvalidInput
from sordina.federated.result import FederatedResult, load_models
from sordina.privacy import Adjacency, Trust, Unit
from sordina.privacy_claim import CLAIM_SCHEMA, PrivacyClaim
from sordina.reports import reading
from sordina.run_folder import PRIVACY, FolderState, read_claim, state_of
from sordina.training.recipe import open_run

OLD = Path(__file__).parent / "version_0_1"
numbers = st.none() | st.floats(0, 1e3)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        PrivacyClaim, statement=st.text(max_size=9), private=st.booleans(), sound=st.booleans(), epsilon=numbers,
        delta=numbers, unit=st.none() | st.sampled_from(Unit), adjacency=st.none() | st.sampled_from(Adjacency),
        trust=st.none() | st.sampled_from(Trust), placement=st.none() | st.sampled_from(["central", "local", "none"]),
        accountant=st.none() | st.just("pld"), noise_multiplier=numbers, releasable=st.none() | st.booleans(),
        clipping=st.none() | st.just({"kind": "Fixed", "threshold": 1.0}), caveats=st.just(("One.", "Two.")),
        details=st.just({"rounds": 3}), versions=st.just({"sordina": "0.3"}), more=st.just({"steps": 4}),
    )
)  # fmt: skip
def test_a_claim_comes_back_as_it_was_written(claim):
    assert PrivacyClaim.from_dict(json.loads(json.dumps(claim.to_dict()))) == claim


@pytest.mark.parametrize("adjacency", [None, *Adjacency])
def test_nobody_guesses_the_neighbours(adjacency):
    told = {"schema": CLAIM_SCHEMA, "epsilon": 1.0, "delta": 0.0, "unit": "record", "placement": "local"}
    claim = PrivacyClaim.from_dict(told | ({} if adjacency is None else {"adjacency": str(adjacency)}))
    assert claim.adjacency is adjacency
    if adjacency is None:
        with pytest.raises(InvalidInput, match="neighbours"):
            claim.guarantee  # noqa: B018
    else:
        assert claim.guarantee.adjacency is adjacency


@pytest.mark.parametrize(
    "facts", [{"schema": 99}, {"epsilon": "1"}, {"adjacency": "near"}, {"unit": 3}, {"private": 1}]
)
def test_what_is_no_claim_is_refused(facts):
    with pytest.raises(InvalidInput, match=r"privacy\.json"):
        PrivacyClaim.from_dict(facts)


def test_a_run_says_its_policy_as_data(tmp_path):
    data = (torch.randn(40, 2), torch.zeros(40, dtype=torch.long))
    trainer = sd.Trainer(
        torch.nn.Linear(2, 2), torch.nn.functional.cross_entropy, sd.Budget(9, 1e-5), batch_size=10, steps=2, seed=0,
        clipping=sd.clipping.PerLayer(sd.clipping.Quantile(threshold=0.25)), folder=tmp_path / "run",
        tensorboard=False,
    )  # fmt: skip
    trainer.fit(data)
    stored = json.loads((tmp_path / "run" / PRIVACY).read_text())
    assert stored["schema"] == CLAIM_SCHEMA
    assert stored["clipping"]["kind"] == "PerLayer"
    assert stored["clipping"]["policy"] == {
        "kind": "Quantile", "gamma": 0.5, "threshold": 0.25, "rate": 0.2, "inflation": 0.002
    }  # fmt: skip
    assert reading.run(tmp_path / "run").clipping == "PerLayer"


def test_a_run_of_version_0_1_is_read(tmp_path):
    folder = shutil.copytree(OLD / "train", tmp_path / "train")
    assert state_of(folder).state is FolderState.FINISHED
    claim = read_claim(folder)
    assert claim.clipping == {"kind": "Fixed", "threshold": 0.5}
    assert claim.guarantee == sd.Guarantee(2.9999690161602723, 1e-5)
    recipe, _, model, _ = open_run(folder)
    assert recipe.learning_rate == 0.5
    assert sum(parameter.numel() for parameter in model.parameters()) > 0
    facts = reading.run(folder)
    assert (facts.claim.epsilon, facts.claim.adjacency, facts.clipping) == (claim.epsilon, "add-remove", "Fixed")
    assert facts.history[0].threshold == 0.5
    assert "--learning-rate 0.5" in facts.command
    assert sd.report([folder], folder=tmp_path / "page").exists()
    assert open_subject(folder).claim == claim.guarantee


def test_a_federation_of_version_0_1_is_read(tmp_path):
    folder = shutil.copytree(OLD / "federate", tmp_path / "federate")
    claim = read_claim(folder)
    assert (claim.adjacency, claim.accountant, claim.private) == (Adjacency.ADD_REMOVE, "pld", True)
    assert claim.statement.startswith("Central differential privacy")
    module = torch.nn.Linear(2, 1, bias=False)
    (model,) = load_models(folder, module)
    assert torch.allclose(model.weight, torch.tensor([[1.357290267944336, 1.0582971572875977]]))
    assert FederatedResult.load(folder, module).guarantee.adjacency is Adjacency.ADD_REMOVE
    assert open_subject(folder).claim == sd.Guarantee(2.999971079864453, 1e-5, Adjacency.ADD_REMOVE, Unit.USER)
    facts = reading.run(folder)
    assert (facts.kind, facts.claim.adjacency) == ("federate", "add-remove")
    assert sd.report([folder], folder=tmp_path / "page").exists()


def test_metric_privacy_has_no_neighbours():
    claim = PrivacyClaim.from_dict({"placement": "metric", "epsilon": None, "sound": True, "unit": "user"})
    assert claim.private
    assert claim.adjacency is None
    with pytest.raises(InvalidInput):
        claim.guarantee  # noqa: B018


def test_no_privacy_is_an_infinite_guarantee():
    told = {"placement": "none", "epsilon": None, "delta": None, "unit": "user", "details": {}}
    assert math.isinf(PrivacyClaim.from_dict(told).guarantee.epsilon)
