"""Searches that are killed, and what comes after."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tuning.victim import RUNS, search
from tests.tuning.world import STEPS, conv

import sordina as sd
from sordina.accounting import from_dict
from sordina.errors import InvalidInput
from sordina.journal import Journal
from sordina.sampling import Poisson, Users
from sordina.tuning import Grid, Search

VICTIM = Path(__file__).with_name("victim.py")


def make(seed):
    return replace(conv(seed), steps=300, checkpoint_every=20)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for the victim's workers in /proc")
def test_a_search_killed_by_force_goes_on_to_the_same_end(tmp_path, train, held_out):
    folder = tmp_path / "killed"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(VICTIM), str(folder)], env=environment)
    try:
        wait_until(lambda: list(folder.glob("runs/*/training/checkpoint.pt")) or process.poll() is not None)
        assert process.poll() is None, "the victim ended before it could be killed"
        workers = children(process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until(lambda: not any(map(alive, workers)), seconds=30)
    done = len(list(folder.glob("runs/*/result.json")))
    assert done < RUNS
    assert not (folder / "results.json").exists()
    resumed = search(folder, make, 1).fit(train, held_out, resume=True)
    whole = search(tmp_path / "whole", make, 1).fit(train, held_out)
    assert len(resumed.runs) == RUNS
    assert resumed.configuration == whole.configuration
    assert resumed.guarantee == whole.guarantee
    for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


class Bomb:
    """Ends the process's work, as a kill would, when a run reports its third step."""

    def __init__(self):
        self.armed = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def report(self, entry):
        if self.armed and entry["step"] == 3:
            self.armed = False
            raise KeyboardInterrupt


def test_secret_noise_is_never_drawn_twice_for_the_same_step(tmp_path, train, held_out, monkeypatch):
    """A run that was killed counts the steps it may have taken as spent, and only takes the rest."""
    drawn, draw = [], Poisson.draw
    monkeypatch.setattr(Poisson, "draw", lambda self, size, rng: drawn.append(size) or draw(self, size, rng))
    bomb = Bomb()
    made = Search(
        Grid({"rho": (0.1, 1.0)}), lambda seed: replace(conv(seed), callbacks=(bomb,)), sd.Budget(3, 1e-5),
        strategy="online", method="composition", accountant="rdp", folder=tmp_path / "s",
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        made.fit(train, held_out)
    assert Journal.open(tmp_path / "s/runs/0000/training/journal.jsonl").claimed >= 3
    found = made.fit(train, held_out, resume=True)
    assert [from_dict(run.event).count for run in found.runs] == [STEPS, STEPS]
    assert found.guarantee.epsilon <= 3
    assert len(drawn) <= 2 * STEPS, "no step may be taken again"
    assert not list((tmp_path / "s").rglob("training")), "what a run needed while it went on is cleared away"


def test_workers_say_when_a_search_cannot_be_sent_to_them(train, held_out):
    made = Search(
        Grid({"rho": (0.1, 1.0)}), lambda seed: conv(seed), sd.Budget(3, 1e-5), strategy="online", method="composition",
        accountant="rdp", workers=2,
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="workers=1"):
        made.fit(train, held_out)


class Interrupted:
    """A watcher that ends the process, as far as the search can tell."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def report(self, entry):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "other",
    [{"users": None}, {"users": Users(np.arange(40) // 4, rows_per_user=4)}, {"raw": True}],
    ids=["no users", "more rows", "raw"],
)  # fmt: skip
def test_a_search_is_not_resumed_for_other_units(tmp_path, other):
    """Begun per user and gone on with per record, it still claimed to protect users."""
    x, held = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0))
    data, judged = (x, (x[:, 0] > 0).long()), (held, (held[:, 0] > 0).long())

    def of(**fields):
        def make(seed):
            options = {"users": Users(np.arange(40) // 4, rows_per_user=1), "batch_size": 4, "steps": 3} | fields
            return sd.Trainer(torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, sd.Budget(3, 1e-5), **options)

        return Search(
            Grid({"learning_rate": (0.1, 0.2)}), make, sd.Budget(3, 1e-5), method="composition", accountant="rdp",
            selection="public", folder=tmp_path / "s",
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        of(callbacks=(Interrupted(),)).fit(data, judged)
    with pytest.raises(InvalidInput, match="belongs to another run"):
        of(**other).fit(data, judged, resume=True)
    assert of().fit(data, judged, resume=True).guarantee.unit is sd.privacy.Unit.USER
