import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from sordina.auditing.runs import audit_run, open_federated, open_subject
from sordina.cli.audit import app
from sordina.errors import InvalidInput, Unsupported
from sordina.federated import record
from sordina.federated.recipe import FederatedRecipe
from sordina.federated.recipe import run as federate
from sordina.privacy import Adjacency, Unit
from sordina.training.recipe import TrainingRecipe, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    recipe = TrainingRecipe("digits", model="mlp", epochs=2.0, batch_size=64, seed=0, rows=300, random_labels=0.5)
    train(recipe, folder)
    return folder


def rows_of(samples):
    return {tuple(row) for row in samples.inputs.flatten(1).tolist()}


def test_a_trained_run_knows_who_was_in_and_who_was_not(trained):
    subject = open_subject(trained)
    assert len(subject.members) == 300
    assert len(subject.others) == 1437 - 300
    assert not rows_of(subject.members) & rows_of(subject.others)
    assert subject.claim.epsilon == pytest.approx(3.0, abs=0.01)
    assert subject.recipe.epochs == 2


def test_random_labels_fall_on_both_sides_alike():
    plain, spoilt = (TrainingRecipe("digits", seed=0, rows=300, random_labels=share) for share in (0.0, 0.5))
    for part in (lambda one: one.load().train, TrainingRecipe.left_out):
        before, after = ({tuple(x.flatten().tolist()): int(y) for x, y in part(one)} for one in (plain, spoilt))
        shared = before.keys() & after.keys()
        changed = np.mean([before[key] != after[key] for key in shared])
        # Half are drawn anew, one in ten of these as it was: 0.45.
        assert len(shared) >= 50
        assert abs(changed - 0.45) < 4 * math.sqrt(0.25 / len(shared))


def test_rows_that_are_not_there_are_refused():
    with pytest.raises(InvalidInput, match="digits has 1437 rows"):
        TrainingRecipe("digits", rows=1437).load()
    with pytest.raises(InvalidInput, match="share of random labels"):
        TrainingRecipe("digits", random_labels=1.5)
    with pytest.raises(InvalidInput, match="at least one row"):
        TrainingRecipe("digits", rows=0)


def test_an_audit_from_the_command_line_leaves_its_findings(trained, tmp_path):
    words = ["membership", str(trained), "--attacks", "loss,shadow", "--shadows", "2", "--seed", "0", "--json"]
    found = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert found.exit_code == 0, found.output
    facts = json.loads(found.stdout)
    assert {result["attack"] for result in facts["results"]} == {"loss", "shadow"}
    assert facts["results"][0]["members"] == facts["results"][0]["non_members"] == 210
    assert json.loads((tmp_path / "audit.json").read_text())["claimed_epsilon"] <= 3
    assert (tmp_path / "roc.png").exists()


def federated(folder, **options):
    trace = record.RoundTrace()
    finished = federate(FederatedRecipe("synthetic", rounds=3, **options), trace)
    record.write(finished, trace, folder)
    return finished


@pytest.mark.parametrize("seed", [None, 5])
def test_a_federated_run_is_opened_by_its_folder_alone(tmp_path, seed):
    finished = federated(tmp_path, strategy="fedavg", privacy="central", seed=seed)
    subject = open_federated(tmp_path)
    problem = finished.problem
    assert torch.equal(subject.model.population.x, torch.cat([problem.train.x, problem.held_out.x]))
    assert len(subject.members) == len(subject.others) == 100
    assert (subject.claim.unit, subject.claim.adjacency) == (Unit.USER, Adjacency.ADD_REMOVE)
    found = audit_run(tmp_path, ["loss", "noisy"], seed=1)
    assert not found.exceeds_claim
    expected = problem.validation().score(finished.result.best, np.random.default_rng(0)).loss
    assert subject.model.losses(subject.others).mean() == pytest.approx(expected, rel=1e-5)


def test_metric_privacy_claims_no_epsilon_and_federations_have_no_shadows(tmp_path):
    federated(tmp_path, strategy="metric-pfl", seed=0)
    assert "no epsilon was claimed" in audit_run(tmp_path, ["loss"], seed=0).verdict
    with pytest.raises(Unsupported, match="without shadow models"):
        audit_run(tmp_path, ["lira-online"], seed=0)


def test_local_privacy_is_held_against_replaced_clients(tmp_path):
    federated(tmp_path, strategy="fedavg", privacy="local", seed=0)
    found = audit_run(tmp_path, ["loss"], seed=0)
    assert found.claim.adjacency is Adjacency.REPLACE_ONE
    assert "replace-one" in found["loss"].bound.assumes


def test_a_folder_without_a_run_is_refused_in_words(tmp_path):
    with pytest.raises(InvalidInput, match="not the folder of a finished `sordina train` run"):
        audit_run(tmp_path)
    (tmp_path / "models.npz").touch()
    with pytest.raises(InvalidInput, match="not the folder of a finished `sordina federate` run"):
        audit_run(tmp_path)
