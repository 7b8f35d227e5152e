"""The client's own policy decides, through the real ClientApp: the run's configuration can only ask for less."""

import importlib.util
import json
import logging
import stat
import sys
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'sordina[federated]'")

from flwr.app import Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from torch import nn

from sordina.accounting import Gaussian, Repeated, accountant
from sordina.errors import InvalidInput
from sordina.federated import losses
from sordina.federated.engines import RoundRequest
from sordina.federated.flower.client import ClientFolder
from sordina.federated.flower.client_policy import ClientPolicy
from sordina.federated.flower.deployment import client_app, recipe_of
from sordina.federated.flower.records import instruct
from sordina.federated.objective import of_module
from sordina.federated.population import RowOrder
from sordina.privacy import Adjacency

_spec = importlib.util.spec_from_file_location("double", Path(__file__).with_name("double.py"))
double = importlib.util.module_from_spec(_spec)
sys.modules["double"] = double
_spec.loader.exec_module(double)

CONFIG = {
    "clients": 4, "strategy": "fedavg", "hypotheses": 1, "privacy": "local", "noise": 5.0, "radius": "public:0.5",
    "leakage-limit": 0.0, "epsilon": 3.0, "delta": 1e-5, "clipping": "fixed", "threshold": 1.0, "rounds": 4,
    "clients-per-round": 4, "local-rate": 0.1, "batch": 8, "epochs": 1, "server-rate": 0.0, "mu": 0.1, "seed": -1,
}  # fmt: skip
METRIC = CONFIG | {"strategy": "metric-pfl", "privacy": "metric"}
PARAMETERS = 3


def rows():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((20, 2))).float()
    return x, x @ torch.tensor([[2.0], [-1.0]])


def task(read=rows):
    return SimpleNamespace(LOSS="mse", model=lambda: nn.Linear(2, 1), train_data=lambda context: read())


def ask(home, config, *, number=0, run=7, client=0, read=rows, order=1, sent=None, change=None):
    """What the real ClientApp answers to an instruction under a run's configuration."""
    recipe = recipe_of({**config, "seed": -1})
    if sent is None:
        hypotheses = torch.zeros(recipe.models, PARAMETERS)
        sent = {"hypotheses": hypotheses} if recipe.strategy.startswith("metric") else {"model": hypotheses[0]}
    privacy = None
    if recipe.placed == "central":
        method, _ = recipe.setup(config["clients"]).method(of_module(nn.Linear(2, 1), losses.mse))
        privacy = method.placement.start(PARAMETERS)
    content = instruct(RoundRequest(sent, privacy, RowOrder(order, number)), client)
    if change is not None:
        change(content)
    double.DoubleGrid({}, run)
    message = Message(double.crossed(content), 100, "train")
    message.metadata.__dict__["_message_id"] = "one"
    node = {"state-dir": str(home)}
    context = Context(run, 100, UserConfig(node), RecordDict(), UserConfig(config))
    return double.arrays(client_app(task(read))(message, context).content["letter"])


def multiplier_of(config):
    recipe = recipe_of(config)
    method, _ = recipe.setup(config["clients"]).method(of_module(nn.Linear(2, 1), losses.mse))
    return method.placement.noise_multiplier


def policy(home, **facts):
    home.mkdir(exist_ok=True)
    (home / "policy.json").write_text(json.dumps(facts))
    return home


@pytest.fixture
def local(tmp_path):
    return policy(tmp_path / "home", accepts=["local"], epsilon=3.0, delta=1e-5)


@pytest.fixture
def metric(tmp_path):
    return policy(tmp_path / "home", accepts=["metric"], leakage=2.0, radius=0.5)


def test_an_ordinary_run_is_answered(local, metric, tmp_path):
    home = policy(tmp_path / "both", accepts=["local", "metric"], epsilon=3.0, delta=1e-5, leakage=2.0, radius=0.5)
    assert ask(home, CONFIG)["vectors"].shape == (1, PARAMETERS)
    assert ask(home, METRIC, run=8)["vectors"].shape == (1, PARAMETERS)


def test_without_a_policy_nothing_is_sent(tmp_path, caplog):
    assert set(ask(tmp_path / "bare", CONFIG)) == {"rejected"}
    assert "no policy" in caplog.text
    assert not (tmp_path / "bare" / "account.json").exists()


def test_a_seed_of_the_server_is_not_taken(local, tmp_path):
    """With it, the server could draw the same noise and subtract it."""
    other = policy(tmp_path / "other", accepts=["local"], epsilon=3.0, delta=1e-5)
    one, two = (ask(home, CONFIG | {"seed": 0})["vectors"] for home in (local, other))
    assert np.abs(one - two).min() > 1e-6


@pytest.mark.parametrize(
    "asked", [{"privacy": "none"}, {"privacy": "central"}, METRIC, {"epochs": 10**8}, {"rounds": 10**8},
              {"hypotheses": 10**4}, {"threshold": 1e30}, {"threshold": 1e-30}, {"epsilon": 1e9}],
    ids=["none", "central", "metric", "epochs", "rounds", "hypotheses", "huge", "tiny", "epsilon"],
)  # fmt: skip
def test_less_privacy_or_more_work_than_the_client_accepts_is_withheld(local, asked):
    started = time.process_time()
    assert set(ask(local, CONFIG | asked)) == {"withheld"}
    assert time.process_time() - started < 5
    assert ClientFolder(local).total().participations == 0


def test_a_run_with_less_noise_than_the_budget_allows_is_withheld(local):
    assert set(ask(local, CONFIG | {"epsilon": 4.0, "rounds": 1})) == {"withheld"}
    assert "vectors" in ask(local, CONFIG | {"epsilon": 2.5, "rounds": 1})


def test_one_account_over_runs_at_different_multipliers(local):
    """Each of these runs fits by itself; together they may not pass the client's epsilon of 3."""
    spent = []
    for run, epsilon in enumerate((1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7)):
        config = CONFIG | {"epsilon": epsilon, "rounds": 1}
        if "vectors" in ask(local, config, run=run):
            method, _ = recipe_of(config).setup(4).method(of_module(nn.Linear(2, 1), losses.mse))
            spent.append(method.placement.noise_multiplier)
    assert 2 <= len(spent) < 8
    multiplier = sum(1 / z**2 for z in spent) ** -0.5
    total = accountant("pld").epsilon(Gaussian(multiplier), 1e-5, Adjacency.REPLACE_ONE)
    assert total <= 3.0
    assert ClientFolder(local).total().leakage.epsilon(1e-5) == pytest.approx(total)


def test_one_account_over_radii_and_multipliers(metric):
    """Twenty slightly different radii, and four multipliers: never more than 2 within the client's radius of 0.5."""
    leaked = 0.0
    for run in range(20):
        radius, nu = 0.5 + 0.01 * run, (5.0, 4.0, 6.0, 7.0)[run % 4]
        if "vectors" in ask(metric, METRIC | {"radius": f"public:{radius}", "noise": nu}, run=run):
            leaked += PARAMETERS / nu / radius * 0.5
    assert 1.0 < leaked <= 2.0
    assert float(ClientFolder(metric).total().leakage.per_distance) * 0.5 == pytest.approx(leaked)


@pytest.mark.parametrize("radius", ["public:0.1", "public:1e30", "update"])
def test_a_radius_below_the_clients_own_or_the_heuristic_one_is_withheld(metric, radius):
    assert set(ask(metric, METRIC | {"radius": radius})) == {"withheld"}


def test_the_heuristic_radius_is_counted_where_a_policy_accepts_it(tmp_path):
    home = policy(tmp_path / "h", accepts=["metric"], leakage=1.5, radius=0.5, heuristic_radius=True)
    answers = [set(ask(home, METRIC | {"radius": "update"}, number=k)) for k in range(4)]
    assert answers == [{"vectors"}] * 2 + [{"withheld"}] * 2


def test_numbers_of_the_server_cost_the_client_no_memory(local):
    tracemalloc.start()
    started = time.process_time()
    answer = ask(local, CONFIG, client=10**8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "vectors" in answer
    assert peak < 50e6
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "sent",
    [{"model": torch.zeros(PARAMETERS + 1)}, {"model": torch.zeros(1000, 1000)}, {"model": torch.zeros(3).double()},
     {"other": torch.zeros(PARAMETERS)}, {}],
    ids=["longer", "larger", "double", "name", "nothing"],
)  # fmt: skip
def test_other_models_than_the_runs_own_are_not_trained(local, sent):
    assert set(ask(local, CONFIG, sent=sent)) == {"rejected"}
    assert ClientFolder(local).total().participations == 0


def test_more_numbers_than_the_policy_says_are_withheld(tmp_path):
    home = policy(tmp_path / "h", accepts=["local"], epsilon=3.0, delta=1e-5, numbers=2)
    assert set(ask(home, CONFIG)) == {"withheld"}


def poisoned():
    x, y = rows()
    x[3, 0] = torch.nan
    return x, y


def huge():
    x, y = rows()
    return x * 1e30, y


def unreadable():
    raise ValueError("row 3: could not convert 'Maria' to a number")


def misshapen():
    x, y = rows()
    return torch.cat([x, x], dim=1), y


def nobody():
    x, y = rows()
    return x[:0], y[:0]


@pytest.mark.parametrize("read", [poisoned, huge, unreadable, misshapen, nobody])
@pytest.mark.parametrize("config", [CONFIG, METRIC, METRIC | {"radius": "update"}], ids=["local", "metric", "update"])
def test_a_client_that_cannot_train_answers_like_any_other(config, read, tmp_path, caplog):
    """Same names, shapes, kinds and bytes, finite, noised, charged; nothing of the reason leaves."""
    facts = {"accepts": ["local", "metric"], "epsilon": 3.0, "delta": 1e-5, "leakage": 2.0, "radius": 0.5}
    sane, ill = (policy(tmp_path / name, **facts, heuristic_radius=True) for name in ("sane", "ill"))
    ordinary, answer = ask(sane, config), ask(ill, config, read=read)
    assert set(answer) == set(ordinary) == {"vectors"}
    assert answer["vectors"].shape == ordinary["vectors"].shape
    assert answer["vectors"].dtype == ordinary["vectors"].dtype
    assert np.isfinite(answer["vectors"]).all()
    assert (answer["vectors"] != 0).any()  # noise on its grid is exactly 0 in one of some hundred places
    assert ClientFolder(ill).total() == ClientFolder(sane).total()
    assert not any("Maria" in record.getMessage() and record.levelno < logging.ERROR for record in caplog.records)


def test_files_are_the_clients_own(local):
    ask(local, CONFIG)
    for path in local.iterdir():
        if path.name != "policy.json":
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert stat.S_IMODE((local / "account.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((local / "run-7.npz").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "facts",
    [{}, {"accepts": []}, {"accepts": ["hope"]}, {"accepts": "local"}, {"accepts": ["local"]}, {"accepts": ["metric"]},
     {"accepts": ["local"], "epsilon": -1, "delta": 1e-5}, {"accepts": ["local"], "epsilon": "3", "delta": 1e-5},
     {"accepts": ["none"], "epochs": True}, {"accepts": ["none"], "epochs": 0}, {"accepts": ["none"], "limit": 3},
     {"accepts": ["metric"], "leakage": 1.0, "radius": float("nan")}],
)  # fmt: skip
def test_a_policy_that_is_unclear_is_refused(facts):
    with pytest.raises(InvalidInput):
        ClientPolicy.from_dict(facts)


def test_the_old_accounts_are_not_forgotten(local):
    (local / "account-local-3.0.json").write_text('{"limit": null, "spent": "5", "participations": 5}')
    assert set(ask(local, CONFIG)) == {"rejected"}


def test_participations_of_one_run_stay_within_its_plan(local):
    config = CONFIG | {"rounds": 2}
    answers = [set(ask(local, config, number=k)) for k in range(4)]
    assert answers == [{"vectors"}, {"vectors"}, {"withheld"}, {"withheld"}]
    assert ClientFolder(local).total().leakage.epsilon(1e-5) <= 3.0
    event = Repeated(Gaussian(multiplier_of(config)), 2)
    claimed = accountant("pld").epsilon(event, 1e-5, Adjacency.REPLACE_ONE)
    assert ClientFolder(local).total().leakage.epsilon(1e-5) == pytest.approx(claimed, rel=1e-6)
