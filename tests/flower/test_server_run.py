"""A run at its server: names, who withheld, the folder as a run, personal models in the clients' own folders."""

import importlib.util
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'sordina[federated]'")

from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from torch import nn

from sordina import federated as fed
from sordina.auditing import audit_run
from sordina.federated.flower.client import ClientFolder
from sordina.federated.flower.client_app import distinct_names
from sordina.federated.flower.client_policy import policy_for
from sordina.federated.flower.deployment import client_app, recipe_of, server_app
from sordina.reports import report
from sordina.run_folder import read_claim

_spec = importlib.util.spec_from_file_location("double", Path(__file__).with_name("double.py"))
double = importlib.util.module_from_spec(_spec)
sys.modules["double"] = double
_spec.loader.exec_module(double)

TASK = """
from torch import nn
LOSS = "mse"
def model():
    return nn.Linear(2, 1)
"""


def rows(seed):
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(seed))
    return x, x @ torch.tensor([[1.0], [-2.0]])


class Town:
    """A server and three clients with folders of their own, in this process: the generated apps, without a network."""

    def __init__(self, folder, names=("", "", ""), run=7, broken=None, **config):
        self.folder, self.names, self.run, self.broken = folder, names, run, broken
        self.config = {
            "clients": 3, "deadline": 5.0, "wait": 5.0, "out": str(folder / "results"), "learning-rate": 0.1,
            "batch-size": 16,
            "clients-per-round": 3, "seed": -1, **config,
        }  # fmt: skip
        self.task_file = folder / "task.py"
        self.task_file.write_text(TASK)
        self.task = SimpleNamespace(
            LOSS="mse", model=lambda: nn.Linear(2, 1), validation_data=lambda: [rows(99)], train_data=self.rows_of
        )
        for number in range(3):
            (folder / f"home-{number}").mkdir(mode=0o700, exist_ok=True)
            policy = policy_for(recipe_of(self.config)) | {"rounds": 100}
            (folder / f"home-{number}" / "policy.json").write_text(json.dumps(policy))

    @property
    def out(self):
        return max(self.folder.glob("results*"), key=lambda one: one.stat().st_mtime_ns)

    def rows_of(self, context):
        if context.node_id - 100 == self.broken:
            raise OSError("the disk is gone")
        return rows(context.node_id - 100)

    def home(self, number):
        return ClientFolder(self.folder / f"home-{number}")

    def store(self, name, seed):
        x, y = rows(seed)
        np.savez(self.folder / f"{name}.npz", x=x.numpy(), y=y.numpy())


class TownGrid(double.DoubleGrid):
    """Nodes with configurations of their own."""

    def __init__(self, town):
        super().__init__({100 + number: client_app(town.task) for number in range(3)}, town.run)
        self.town = town

    def deliver(self, message):
        node = message.metadata.dst_node_id
        mine = {"state-dir": str(self.town.folder / f"home-{node - 100}"), "name": self.town.names[node - 100]}
        state = self.states.setdefault(node, RecordDict())
        context = Context(self.run_id, node, UserConfig(mine), state, UserConfig(self.town.config))
        reply = self.apps[node](message, context)
        reply.content = double.crossed(reply.content)
        self.waiting[message.metadata.message_id] = reply


def serve(town):
    """What the server says."""
    said = []

    class Listener(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    logger = logging.getLogger("sordina")
    before, listener = (list(logger.handlers), logger.level, logger.propagate), Listener()
    try:
        import sordina.federated.flower.deployment as deployment

        whole = deployment.talk
        deployment.talk = lambda: (logger.handlers.__setitem__(slice(None), [listener]), logger.setLevel(logging.INFO))
        server_app(town.task)(TownGrid(town), Context(town.run, 1, UserConfig(), RecordDict(), UserConfig(town.config)))
    finally:
        deployment.talk = whole
        logger.handlers[:], logger.level, logger.propagate = before
    return said


def test_a_served_run_is_a_run_with_names_withholding_and_personal_models(tmp_path):
    town = Town(tmp_path, names=("north", "south", ""), strategy="metric-pfl", privacy="metric", rounds=5,
                **{"leakage-limit": 1.3, "radius": "public:0.5"})  # fmt: skip
    said = serve(town)
    assert any(line.startswith("WARNING: a client leaks 0.6") for line in said), "before the first round"
    assert "round 1 of 5: 3 of 3 clients answered; validation loss" in " ".join(said)
    empty = next(line for line in said if line.startswith("round 3 of 5"))
    assert "0 of 3 clients answered; withheld, their limit being reached: client 2, north, south" in empty
    assert "the model stays as it was" in empty
    told = json.loads((town.out / "result.json").read_text())
    assert told["by_client"]["north"] == {"asked": 5, "withheld": 3, "failed": 0, "silent": 0}
    assert told["validation_loss"] == min(told["losses"])
    claim = read_claim(town.out)
    assert claim.sound is True
    assert claim.more["leakage_per_client"] == [1.2, 1.2, 1.2]
    lines = [json.loads(line) for line in (town.out / "metrics.jsonl").read_text().splitlines()]
    assert [line["withheld"] for line in lines] == [0, 0, 3, 3, 3]
    assert report(town.out).exists()
    for number in range(3):
        mine = fed.load_personal_model(tmp_path / f"home-{number}", town.task.model())
        assert mine(torch.zeros(4, 2)).shape == (4, 1)
    models = fed.load_models(town.out, town.task.model())
    assert len(models) == 2
    town.store("members", 0)
    town.store("others", 77)
    found = audit_run(town.out, ["loss"], task=town.task_file, members=tmp_path / "members.npz",
                      non_members=tmp_path / "others.npz")  # fmt: skip
    assert found.results[0].name == "loss"


def test_under_central_privacy_nothing_tells_who_took_part(tmp_path):
    town = Town(tmp_path, names=("north", "south", "west"), strategy="fedavg", privacy="central", epsilon=8.0, rounds=2)
    said = serve(town)
    assert "round 2 of 2: done; validation loss" in " ".join(said)
    text = " ".join(path.read_text() for path in town.out.iterdir() if path.suffix in (".json", ".jsonl"))
    assert "north" not in text + " ".join(said)
    assert "withheld" not in text


def test_record_privacy_with_fedavg_and_a_ledger(tmp_path):
    from sordina.accounting.ledger import Ledger
    from sordina.privacy import Budget

    Ledger(tmp_path / "books.db").create("patients", Budget(10, 1e-3), unit="record")
    town = Town(tmp_path, strategy="fedavg", privacy="record", epsilon=4.0, records=40, rounds=3, batch=10,
                ledger=str(tmp_path / "books.db"), **{"dataset-budget": "patients"})  # fmt: skip
    serve(town)
    claim = read_claim(town.out)
    assert str(claim.unit) == "record"
    assert 3.5 < claim.epsilon <= 4
    assert [str(one.status) for one in Ledger(tmp_path / "books.db").spends().values()] == ["settled"]
    total = town.home(0).total()
    assert total.leakage.epsilon(1e-5) == pytest.approx(claim.epsilon, rel=1e-6)
    again = Town(tmp_path, strategy="fedavg", privacy="record", epsilon=4.0, records=40, rounds=3, batch=10, run=8)
    said = serve(again)
    assert again.out.name == "results-2", "nothing is overwritten"
    assert sum("withheld, their limit being reached" in line for line in said) == 3, "the policy allows one such run"


def test_a_client_that_cannot_read_its_rows_sends_noise_like_everybody(tmp_path, caplog):
    town = Town(tmp_path, strategy="fedavg", privacy="record", epsilon=4.0, records=40, rounds=2, batch=10, broken=1)
    with caplog.at_level(logging.CRITICAL, logger="sordina.federated"):
        said = serve(town)
    assert all("3 of 3 clients answered" in line for line in said if line.startswith("round"))
    assert json.loads((town.out / "result.json").read_text())["by_client"]["client 1"]["failed"] == 0


def test_names_nobody_vouches_for():
    told = [(100, "north"), (101, "north"), (102, "")]
    assert distinct_names(told, [100, 101, 102, None]) == {100: "north", 101: "client 1", 102: "client 2"}
