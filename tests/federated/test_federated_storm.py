"""The storm of federations: killed at every change of a disk, they resume, and never draw more than they claim.

The short form looks at every so-many-th point; ``SORDINA_STORM=1`` (``make storm``) at every one, in three manners.
"""

import importlib.util
import os
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sordina.errors import SordinaError
from sordina.federated import recipe as recipes
from sordina.federated.engines.engine import Call, ClientSide
from sordina.federated.engines.home import Home
from sordina.federated.engines.inprocess import InProcess
from sordina.federated.engines.participation import Desk, alone, answer
from sordina.federated.keeping import FederationKeeper, federate_into
from sordina.federated.order import Order
from sordina.federated.privacy.metric import Metric, PublicRadius
from sordina.run_folder import FolderState, RunFolder, read_claim, state_of

_spec = importlib.util.spec_from_file_location("kill_points", Path(__file__).with_name("kill_points.py"))
kill_points = importlib.util.module_from_spec(_spec)
sys.modules["kill_points"] = kill_points
_spec.loader.exec_module(kill_points)

LONG = bool(os.environ.get("SORDINA_STORM"))
MANNERS = ("before", "half", "after")
CLIENTS, ROUNDS = 6, 4
OPTIONS = {"clients": CLIENTS, "validation": 3}
RECIPES = {
    "central": recipes.Recipe(
        "synthetic", "fedavg", privacy="central", rounds=ROUNDS, clients_per_round=3, patience=0, options=OPTIONS
    ),
    "metric": recipes.Recipe(
        "synthetic", "metric-pfl", radius="public:0.5", rounds=ROUNDS, clients_per_round=3, patience=0, options=OPTIONS
    ),
}


@pytest.fixture
def quick(monkeypatch):
    """No figures, and one calibration for the whole storm: they change nothing on the way of a claim."""
    monkeypatch.setattr("sordina.federated.figures.draw", lambda *_: [])
    kept = {}
    whole = recipes.make_plan

    def plan(budget, sampler, rounds, **options):
        key = (budget, sampler, rounds)
        kept.setdefault(key, whole(budget, sampler, rounds, **options))
        return kept[key]

    monkeypatch.setattr(recipes, "make_plan", plan)


@pytest.fixture
def drawn(monkeypatch):
    seen = SimpleNamespace(rounds=0, clients=np.zeros(CLIENTS, dtype=int))
    whole = InProcess.map_reduce

    def watched(self, side, call, clients, rng):
        seen.rounds += 1
        seen.clients[clients] += 1
        return whole(self, side, call, clients, rng)

    monkeypatch.setattr(InProcess, "map_reduce", watched)
    return seen


def looked_at(count):
    """The kill points to try, with their manner."""
    if LONG:
        return [(point, manner) for point in range(count) for manner in MANNERS]
    return [(point, MANNERS[point % 3]) for point in range(0, count, 5)]


@pytest.mark.parametrize("name", RECIPES)
def test_a_federation_survives_every_kill(name, tmp_path, quick, drawn):
    stormed(name, tmp_path, drawn)


FAULTS = {
    "nothing is claimed": ("claim", lambda self, number, rounds, clients: None),
    "rounds are claimed without their clients": (
        "_charge_lost", lambda self, kept, claimed, accounts, cost: None
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, tmp_path, quick, drawn, monkeypatch):
    monkeypatch.setattr(FederationKeeper, *FAULTS[fault])
    with pytest.raises(AssertionError):
        stormed("metric", tmp_path, drawn)


def stormed(name, tmp_path, drawn):
    recipe = RECIPES[name]
    count = kill_points.points(lambda: federate_into(tmp_path / "whole", recipe), tmp_path)
    assert count > 4 * ROUNDS
    for point, manner in looked_at(count):
        folder = tmp_path / f"{point}-{manner}"
        drawn.rounds, drawn.clients[:] = 0, 0
        killed = kill_points.killed(lambda folder=folder: federate_into(folder, recipe), tmp_path, point, manner)
        assert killed, (point, manner)
        if (folder / "privacy.json").exists():
            read_claim(folder)
        again = state_of(folder).state is not FolderState.FRESH or (folder / "run.json").exists()
        federate_into(folder, recipe, resume=again)
        claim = read_claim(folder)
        journal = RunFolder.begin(folder, "federate", {"recipe": _settings(recipe)}, resume=True)
        claimed = journal.journal.claimed
        journal.close()
        assert drawn.rounds <= claimed
        assert drawn.rounds <= ROUNDS, (point, manner)
        if name == "central":
            assert claim["epsilon"] == pytest.approx(3.0, rel=0.01)
        else:
            spent = np.array(claim["leakage_per_client"])
            cost = claim["details"]["per_participation"]
            assert (spent >= drawn.clients * cost - 1e-9).all(), (point, manner)


def _settings(recipe):
    return {key: value for key, value in recipe.to_dict().items() if key != "data_seed"}


class Work:
    """A client that sends its rows' mean."""

    @property
    def state_sizes(self):
        return {"kept": 2}

    def width(self, sent):
        return 2

    def run(self, sent, cohort, state, order):
        from sordina.federated.messages import Outcome

        x, _, _ = cohort.rows()
        return Outcome(x.mean(dim=0, keepdim=True), torch.ones(1)), {"kept": state["kept"] + 1}


def test_a_clients_home_survives_every_kill(tmp_path, monkeypatch):
    """Released values are never more than the account says, whenever the client dies; asked again, it answers."""
    placement = Metric(5.0, PublicRadius(0.5))
    side, cost = ClientSide(Work(), placement), Fraction(2, 5)
    drawn = []
    seal = Metric.seal
    monkeypatch.setattr(Metric, "seal", lambda self, *rest: drawn.append(1) or seal(self, *rest))

    def take_part(folder, rounds=3):
        x = torch.ones(4, 2)
        desk = Desk(side, lambda: alone(x, x[:, :1], 0), Home(folder), Fraction(10))
        for number in range(rounds):
            answer(desk, Call({"model": torch.zeros(2)}, None, Order(0, number)), 7, 0)

    count = kill_points.points(lambda: take_part(tmp_path / "whole"), tmp_path)
    assert count >= 12
    for point in range(count):
        for manner in MANNERS:
            folder = tmp_path / f"{point}-{manner}"
            drawn.clear()
            assert kill_points.killed(lambda folder=folder: take_part(folder), tmp_path, point, manner)
            assert len(drawn) * cost <= Home(folder).total().leakage.per_distance * Fraction(1, 2)
            take_part(folder)
            total = Home(folder).total()
            assert len(drawn) * cost <= total.leakage.per_distance * Fraction(1, 2) <= (len(drawn) + 1) * cost
            assert total.participations * cost == total.of_run(7).spent


def test_a_full_disk_is_one_line_and_nothing_is_lost(tmp_path, monkeypatch, quick, drawn):
    """Whatever write fails for want of room, the run says so; with room again it goes on."""
    recipe = RECIPES["central"]
    count = kill_points.points(lambda: federate_into(tmp_path / "whole", recipe), tmp_path)
    write = os.write
    for point in range(0, count, 1 if LONG else 11):
        folder, seen = tmp_path / f"full-{point}", [0]
        drawn.rounds = 0

        def full(handle, data, seen=seen, point=point):
            seen[0] += 1
            if seen[0] > point:
                raise OSError(28, "No space left on device")
            return write(handle, data)

        monkeypatch.setattr(os, "write", full)
        try:
            federate_into(folder, recipe)
            failed, lines = False, 1
        except SordinaError as error:
            failed, lines = True, len(str(error).splitlines())
        finally:
            monkeypatch.setattr(os, "write", write)
        again = state_of(folder).state is not FolderState.FRESH or (folder / "run.json").exists()
        assert lines == 1
        if failed:
            federate_into(folder, recipe, resume=again)
        assert read_claim(folder)["epsilon"] == pytest.approx(3.0, rel=0.01)
        assert drawn.rounds <= ROUNDS
