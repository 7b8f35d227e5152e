"""Training without a server: gossip, DECOR and walks keep their budgets, their folders and their accounts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import sordina as sd
from sordina.accounting import accountant, from_dict
from sordina.accounting.ledger import Ledger
from sordina.errors import BudgetRefused, InvalidInput, Unsupported
from sordina.federated.decentralized.peer_run import run_peers
from sordina.federated.decentralized.peer_training import PeerSettings, _walkable, plan_peers, train_peers
from sordina.federated.privacy.placement import NoPrivacy
from sordina.federated.trainer import FederatedTrainer
from sordina.privacy import Budget

START = torch.zeros(8)


def clients(count: int = 16, rows: int = 20) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    shards = []
    for _ in range(count):
        x = torch.randn(rows, 3, generator=draw)
        shards.append((x, (x[:, 0] - x[:, 1] > 0).long()))
    return shards


def problem(count: int = 16, model: torch.nn.Module | None = None):
    module = torch.nn.Linear(3, 2) if model is None else model
    return FederatedTrainer(module, "cross-entropy", NoPrivacy())._problem(module, clients(count), clients(2))


@pytest.mark.parametrize(
    ("topology", "graph"),
    [("gossip", "exponential"), ("gossip", "ring"), ("decor", "complete"), ("walk", "complete"), ("walk", "ring")],
)
def test_every_topology_learns_within_its_budget(topology, graph):
    settings = PeerSettings(topology, graph, 12, epsilon=60.0, learning_rate=1.0, gossip_rounds=5, seed=1)
    result, facts = run_peers(settings, problem(), initial=START)
    assert 55 < facts["epsilon"] <= 60
    assert result.scores[-1].accuracy > 0.7
    again = accountant("pld").epsilon(result.statement.event, settings.delta, result.statement.adjacency)
    assert again <= 60 * (1 + 1e-3)


def test_the_pairs_of_gossip_have_accounts_of_their_own():
    settings = PeerSettings("gossip", "ring", 4, epsilon=2.0, gossip_rounds=6, seed=0)
    ready = plan_peers(settings, 16)
    epsilons = ready.account.epsilons(settings.delta)
    assert epsilons.max() <= ready.account.statement.epsilon * (1 + 1e-6)
    assert epsilons[0, 0] == 0
    far = epsilons[ready.account.distances == 5]
    assert far.max() < 0.75 * epsilons.max()
    mean = plan_peers(PeerSettings("gossip", "ring", 4, epsilon=2.0, gossip_rounds=6, protect="mean", seed=0), 16)
    assert mean.account.statement.epsilon > 2.0
    assert mean.account.statement.details["epsilon_of_the_mean_pair"] == pytest.approx(2.0, rel=0.01)


def test_the_pairs_of_a_walk_on_a_ring_are_judged_by_concentrated_privacy():
    settings = PeerSettings("walk", "ring", 3, epsilon=3.0, seed=0)
    ready = plan_peers(settings, 12)
    worst = ready.account.epsilons(settings.delta).max()
    assert worst == pytest.approx(ready.account.statement.epsilon, rel=1e-2)


def test_a_step_of_gossip_is_the_leader_s_estimate_and_nothing_else():
    people = problem()
    calm = PeerSettings("gossip", "complete", 1, epsilon=1e7, learning_rate=1.0, gossip_rounds=2, seed=3)
    ready = plan_peers(calm, 16)
    result = train_peers(ready, people, initial=START)
    start = START
    from sordina.federated.decentralized.gopa import clipped
    from sordina.federated.decentralized.peer_training import _gradients

    mean = clipped(_gradients(people, start[None].double(), people.train), 1.0).mean(axis=0)
    assert (start - result.model).numpy() == pytest.approx(mean, abs=0.02)


def test_a_walk_is_for_convex_losses_on_bounded_rows():
    deep = problem(model=torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)))
    with pytest.raises(Unsupported, match="convex"):
        _walkable(deep, PeerSettings("walk", "complete"))
    with pytest.raises(InvalidInput, match="contractions"):
        _walkable(problem(), PeerSettings("walk", "complete", learning_rate=2.5))
    people = problem()
    people.train.x[0] = math.nan
    people.train.x[1] = 1e30
    rows, bound = _walkable(people, PeerSettings("walk", "complete"))
    assert rows.x.double().norm(dim=1).max() <= 1
    for value in (0.0, 50.0, -50.0):
        gradient = people.objective.gradient(torch.full((16, 8), value), rows.cohort(np.arange(16)).whole())
        assert gradient.norm(dim=1).max() <= bound


def test_a_run_is_kept_and_booked(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("people", Budget(2.5, 1e-5), unit="user")
    settings = PeerSettings("gossip", "exponential", 2, epsilon=2.0, gossip_rounds=3, seed=0)
    _, facts = run_peers(settings, problem(), initial=START, folder=tmp_path / "run", ledger=ledger, dataset="people")
    assert ledger.spent("people") == pytest.approx(facts["epsilon"], rel=1e-3)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"privacy_by_distance.png", "pair_privacy.png", "error_by_rounds.png", "validation.png"} <= names
    claim = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert accountant("pld").epsilon(from_dict(claim["event"]), 1e-5) == pytest.approx(claim["epsilon"])
    with pytest.raises(BudgetRefused):
        run_peers(settings, problem(), initial=START, folder=tmp_path / "second", ledger=ledger, dataset="people")
    assert not (tmp_path / "second" / "run.json").exists()
    with pytest.raises(InvalidInput):
        run_peers(settings, problem(), initial=START, folder=tmp_path / "run")


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("topology", ["gossip", "decor"])
@pytest.mark.parametrize("seed", [None, 3])
def test_a_killed_run_goes_on_among_the_same_neighbours_and_draws_no_round_twice(tmp_path, topology, seed):
    settings = PeerSettings(topology, "k-out:5", 5, epsilon=30.0, gossip_rounds=3, seed=seed)
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("people", Budget(31.0, 1e-5), unit="user")
    drawn = []

    def die_in_the_third(line):
        drawn.append(line["round"])
        if len(drawn) == 3:
            raise Killed

    kept = {"folder": tmp_path / "run", "ledger": ledger, "dataset": "people", "initial": START}
    with pytest.raises(Killed):
        run_peers(settings, problem(), observe=die_in_the_third, **kept)
    graph = (tmp_path / "run" / "graph.json").read_text() if seed is None else None
    result, facts = run_peers(
        settings, problem(), observe=lambda line: drawn.append(line["round"]), resume=True, **kept
    )
    assert drawn == ([1, 2, 3, 4, 5] if seed is None else [1, 2, 3, 3, 4, 5])
    assert facts.get("rounds_lost") == (1 if seed is None else None)
    assert facts["epsilon"] == pytest.approx(result.statement.epsilon)
    assert ledger.spent("people") == pytest.approx(facts["epsilon"], rel=1e-3)
    if seed is None:
        assert graph == (tmp_path / "run" / "graph.json").read_text()
        again = plan_peers(settings, 16, json.loads(graph)["graph_seed"])
        assert (again.graph.edges == result.graph.edges).all()
    else:
        whole, _ = run_peers(settings, problem(), initial=START)
        assert torch.equal(whole.model, result.model)
    assert not (tmp_path / "run" / "checkpoint.bin").exists()
    assert run_peers(settings, problem(), resume=True, **kept)[0] is None


def test_a_walk_that_was_killed_is_refused_and_nothing_is_refunded(tmp_path):
    settings = PeerSettings("walk", "ring", 4, epsilon=3.0, learning_rate=1.0)
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("people", Budget(3.1, 1e-5), unit="user")
    kept = {"folder": tmp_path / "run", "ledger": ledger, "dataset": "people", "initial": START}

    def die(line):
        raise Killed

    with pytest.raises(Killed):
        run_peers(settings, problem(), observe=die, **kept)
    assert not (tmp_path / "run" / "checkpoint.bin").exists(), "nobody looks at a token on its way"
    with pytest.raises(InvalidInput, match="counts as spent"):
        run_peers(settings, problem(), resume=True, **kept)
    with pytest.raises(BudgetRefused):
        run_peers(settings, problem(), **(kept | {"folder": tmp_path / "other"}))


def test_the_face(tmp_path):
    trainer = sd.federated.GossipTrainer(
        torch.nn.Linear(3, 2), "cross-entropy", Budget(40, 1e-5), rounds=8, gossip_rounds=4
    )
    result = trainer.fit(clients(), clients(2))
    assert result.releasable
    assert result.statement.epsilon <= 40


def test_odd_settings_are_refused():
    for wrong in (
        {"topology": "star"}, {"protect": "nobody"}, {"rounds": 0}, {"threshold": 0.0}, {"honest_share": 0.0},
        {"epsilon": math.inf}, {"topology": "walk", "graph": "grid"}, {"gossip_rounds": 0},
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            PeerSettings(**wrong)
    with pytest.raises(InvalidInput, match="parties"):
        train_peers(plan_peers(PeerSettings(rounds=1, gossip_rounds=2), 8), problem())


def test_the_command(tmp_path):
    from typer.testing import CliRunner

    from sordina.cli.main import app

    words = [
        "federate",
        "synthetic",
        "--topology",
        "gossip",
        "--graph",
        "ring",
        "--gossip-rounds",
        "4",
        "--rounds",
        "2",
    ]
    run = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run"), "--json", "--seed", "0"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["strategy"] == "gossip"
    assert isinstance(CliRunner().invoke(app, [*words, "--privacy", "central"]).exception, InvalidInput)
