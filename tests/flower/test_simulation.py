"""Flower's own simulation, with Ray's processes: the same models as in process, and accounts that add up."""

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

for name in ("flwr", "ray"):
    pytest.importorskip(name, reason=f"Flower's simulation needs {name}: pip install 'sordina[federated]'")

pytestmark = pytest.mark.slow

SCRIPT = """
import json
import numpy as np
import torch
from sordina.federated import recipe as recipes
from sordina.federated.data import load
from sordina.federated.engines import InProcess
from sordina.federated.flower.simulation import simulated
from sordina.federated.problem import FederatedProblem
from sordina.federated.round import federate

RECIPES = {
    "fedavg": dict(strategy="fedavg", privacy="none"),
    "scaffold": dict(strategy="scaffold", privacy="none", batch_size=3),
    "central": dict(strategy="fedavg", privacy="central", clipping="quantile"),
    "metric": dict(strategy="metric-pfl", noise_multiplier=5.0, radius="public:0.5", leakage_limit=0.4),
}
problem = FederatedProblem.of(load("synthetic", np.random.default_rng(0), clients=6, validation=4))

def run(name, engine):
    recipe = recipes.FederatedRecipe("synthetic", rounds=3, clients_per_round=4, seed=5, **RECIPES[name])
    setup = recipe.setup(6)
    method, limit = setup.method(problem.objective)
    engine = engine or InProcess(problem.train, limit=limit)
    rng = np.random.default_rng(5)
    models = recipes.initial(recipe, problem, rng)
    result = federate(method, engine, models, clients=6, rounds=3, rng=rng)
    return {
        "models": result.models.tolist(), "statement": result.statement.words, "leakage": result.leakage.tolist(),
        "rounds": [[one.answered, one.withheld, one.rejected] for one in result.history],
    }

def all_of_them(engine):
    found = {name: run(name, engine) for name in RECIPES}
    return found | {"traffic": [[one.sent, one.received] for one in engine.traffic]}

if __name__ == "__main__":
    from fractions import Fraction
    there = simulated(all_of_them, problem.train, limit=Fraction(2, 5), seed=5)
    print(json.dumps({"there": there, "here": {name: run(name, None) for name in RECIPES}}))
"""


def test_both_engines_agree_in_every_placement(tmp_path):
    """One session of Ray for four runs, in a process of its own: Ray changes signal handlers and the environment."""
    script = tmp_path / "both.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    here, there = told["here"], told["there"]
    for name in ("fedavg", "scaffold", "central"):
        assert np.allclose(here[name]["models"], there[name]["models"], atol=1e-5, rtol=0), name
        assert here[name]["rounds"] == there[name]["rounds"]
        assert here[name]["statement"] == there[name]["statement"]
    metric = there["metric"]
    answered = sum(one[0] for one in metric["rounds"])
    assert sum(map(Fraction, map(str, metric["leakage"]))) == answered * Fraction(2, 5)
    assert max(metric["leakage"]) == 0.4
    assert metric["rounds"] == here["metric"]["rounds"], "the same clients reach the same limits"
    assert np.isfinite(metric["models"]).all()
    assert all(sent > 0 and received > 0 for sent, received in there["traffic"])


UNTRUSTED = """
import json
from dataclasses import replace
from fractions import Fraction
import numpy as np
from sordina.federated import recipe as recipes
from sordina.federated.data import load
from sordina.federated.engines import InProcess
from sordina.federated.flower.simulation import simulated
from sordina.federated.problem import FederatedProblem
from sordina.federated.round import federate

problem = FederatedProblem.of(load("synthetic", np.random.default_rng(0), clients=10, validation=4))

def run(privacy, engine):
    recipe = recipes.FederatedRecipe("synthetic", "fedavg", privacy=privacy, rounds=2, clients_per_round=10, seed=5,
                                     epsilon=1e6, delta=1e-3, tolerated_dropout=0.2, neighbours=6)
    method, limit = recipe.setup(10).method(problem.objective)
    rng = np.random.default_rng(5)
    models = recipes.initial(recipe, problem, rng)
    engine = engine or InProcess(problem.train, limit=limit)
    result = federate(method, engine, models, clients=10, rounds=2, rng=rng)
    return {"models": result.models.tolist(), "statement": result.statement.words, "leakage": result.leakage.tolist(),
            "first": models.tolist(), "answered": [one.answered for one in result.history]}

if __name__ == "__main__":
    kinds = ("distributed", "gopa")
    there = simulated(lambda engine: {one: run(one, engine) for one in kinds}, problem.train, limit=Fraction(2))
    print(json.dumps({"there": there, "here": {one: run(one, None) for one in kinds}}))
"""


def test_without_a_trusted_server_on_ray(tmp_path):
    """Secure aggregation and GOPA in one session of Ray: the sums of both engines agree, up to a small noise."""
    script = tmp_path / "untrusted.py"
    script.write_text(UNTRUSTED)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    for name in ("distributed", "gopa"):
        here, there = told["here"][name], told["there"][name]
        assert np.allclose(here["models"], there["models"], atol=0.02, rtol=0), name
        assert np.linalg.norm(np.subtract(there["models"], there["first"])) > 0.1
        assert here["statement"] == there["statement"]
        assert there["answered"] == [10, 10]
        assert there["leakage"] == [2.0] * 10


def test_an_engine_that_is_not_installed_is_named(monkeypatch):
    from sordina.errors import Unsupported
    from sordina.federated.flower import simulation

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="flwr"):
        simulation.simulated(lambda engine: None, None)


def test_an_unknown_engine_is_refused():
    from sordina.errors import InvalidInput
    from sordina.federated.recipe import FederatedRecipe

    with pytest.raises(InvalidInput, match="unknown engine"):
        FederatedRecipe("synthetic", engine="steam")


def test_a_client_half_is_published_once(tmp_path):
    from torch import nn

    from sordina.federated import losses
    from sordina.federated.algorithms.fedavg import LocalGradient
    from sordina.federated.engines import ClientSide
    from sordina.federated.flower.simulation import Stage
    from sordina.federated.objective import of_module
    from sordina.federated.privacy.placement import ClearUpdates

    work = LocalGradient(of_module(nn.Linear(2, 1).to(torch.float64), losses.mse))
    one, other = ClearUpdates(), ClearUpdates(gather=True)
    stage = Stage(tmp_path, None, None)
    assert [stage.publish(ClientSide(work, place)) for place in (one, one, other)] == [0, 0, 1]


KILLED = """
import os, signal, sys
from sordina.federated import recipe as recipes

def die(seen):
    os.kill(os.getpid(), signal.SIGKILL)

recipes.run(recipes.FederatedRecipe("synthetic", "fedavg", privacy="central", rounds=3, engine="flower", seed=7,
                           options={"clients": 6, "validation": 4}), die)
"""


@pytest.fixture
def short_folder():
    """Ray's sockets live in its folder, and a socket's path has at most 107 bytes: pytest's folders are too deep."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_killed_simulation_leaves_no_row_on_any_disk(tmp_path, short_folder):
    """The rows of the synthetic clients are known by their seed, so that they can be looked for, byte for byte."""
    import os

    from sordina import random
    from sordina.federated.recipe import FederatedRecipe

    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    scratch = short_folder
    env = {**os.environ, "TMPDIR": str(scratch), "RAY_TMPDIR": str(scratch)}
    said = tmp_path / "said.txt"  # not a pipe: Ray's processes would hold it open after their master is gone
    with said.open("w") as out:
        done = subprocess.run([sys.executable, str(script)], stdout=out, stderr=out, timeout=120, env=env)
    assert done.returncode == -9, said.read_text()[-3000:]
    recipe = FederatedRecipe("synthetic", options={"clients": 6, "validation": 4}, seed=7)
    problem = recipe.problem(random.generator(7))
    needles = [row.numpy().tobytes() for row in problem.train.x[:20]]
    found = []
    for path in scratch.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            found += [path for needle in needles if needle in content]
    assert not found
    left = list(scratch.glob("sordina-simulation-*"))
    assert all(one.stat().st_mode & 0o077 == 0 for one in left)
    from sordina.federated.flower import simulation

    before = simulation.tempfile.tempdir
    simulation.tempfile.tempdir = str(scratch)
    try:
        simulation._sweep()
    finally:
        simulation.tempfile.tempdir = before
    assert not list(scratch.glob("sordina-simulation-*")), "the next start takes the rest away"


def test_rows_travel_by_reference_and_wait_until_ray_runs(monkeypatch):
    """A put before Flower has started Ray would start another one."""
    from types import SimpleNamespace

    from sordina.federated.flower.simulation import SharedRows
    from sordina.federated.population import Population

    asked, store = [], []
    fake = SimpleNamespace(
        is_initialized=lambda: asked.append(1) or len(asked) > 2,
        put=lambda value: store.append(value) or 0,
        get=lambda reference: store[reference],
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    people = Population(torch.arange(8.0).reshape(4, 2), torch.arange(4), np.array([1, 3]))
    shared = SharedRows()
    shared.share(people)
    assert len(asked) == 3
    assert shared.reference == 0
    rows = shared.load().cohort(np.array([1]))
    assert rows.sizes.tolist() == [3]
    assert torch.equal(rows.rows()[0], people.x[1:])


TRAINER = """
import json, sys
import torch
from torch import nn
import sordina as sd

def fit(engine, folder):
    torch.manual_seed(0)
    clients = {f"site {k}": (torch.randn(12, 2), torch.randn(12, 1)) for k in range(4)}
    trainer = sd.federated.FederatedTrainer(
        nn.Linear(2, 1), loss=nn.functional.mse_loss, algorithm=sd.federated.FedAvg(learning_rate=0.1, batch_size=6),
        privacy=sd.federated.CentralDP(sd.Budget(8, 1e-3)), clients_per_round=4, rounds=2, engine=engine, seed=3,
        folder=folder,
    )
    result = trainer.fit(clients)
    return [value.flatten().tolist() for value in result.model.state_dict().values()], str(result.guarantee)

if __name__ == "__main__":
    print(json.dumps({engine: fit(engine, sys.argv[1] + "/" + engine) for engine in ("in-process", "flower")}))
"""


def test_the_trainer_gives_the_same_model_on_both_engines(tmp_path):
    """`FederatedTrainer(engine="flower")` on Ray's processes: model, guarantee and folder as in process."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    (here, claimed), (there, said) = told["in-process"], told["flower"]
    for ours, theirs in zip(here, there, strict=True):
        assert np.allclose(ours, theirs, atol=1e-5, rtol=0)
    assert said == claimed
    claims = [json.loads((tmp_path / engine / "privacy.json").read_text()) for engine in told]
    assert claims[0]["epsilon"] == claims[1]["epsilon"] <= 8
