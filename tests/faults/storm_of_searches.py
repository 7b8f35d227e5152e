"""The storm on searches: every kill point of every write: `python -m tests.faults.storm_of_searches [EVERY]`.

After every kill the search is resumed, and it must hold that it was reserved once and settled once, that no run drew
more steps than it paid for, and that the claim in the folder is about the model in it.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from unittest import mock

import torch
from tests.faults.dying import Disk, Killed, dying

import sordina as sd
from sordina.accounting.ledger import Ledger, Status
from sordina.run_folder import RUN, FolderState, read_claim, state_of
from sordina.training.loop import Private
from sordina.tuning import Grid, Search

RUNS, STEPS = 2, 3
METHODS = ("composition", "random-stopping")


def _search(root: Path, method: str) -> None:
    x = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] > 0).long())

    def trainer(seed: int) -> sd.Trainer:
        loss = torch.nn.functional.cross_entropy
        return sd.Trainer(torch.nn.Linear(2, 2), loss, sd.Budget(1, 1e-5), batch_size=4, steps=STEPS)

    search = Search(
        Grid({"learning_rate": (0.1, 0.2)}), trainer, sd.Budget(50, 1e-5), method=method, accountant="rdp",
        folder=root / "s",
        ledger=Ledger(root / "ledger.db"), dataset_budget="people",
    )  # fmt: skip
    begun = (root / "s" / RUN).exists() and state_of(root / "s").state is not FolderState.FRESH
    search.fit(data, data, resume=begun)


def points(method: str) -> int:
    """How many things a search does to the disk."""
    return accident(method, 0)


def accident(method: str, at: int) -> int:
    """A search that dies at point ``at``, and is resumed; returns what the first life did to the disk."""
    drawn, draw, disk = [0], Private._draw, Disk(at)

    def counted(private: Private) -> list:
        drawn[0] += 1
        return draw(private)

    with tempfile.TemporaryDirectory() as place, mock.patch.object(Private, "_draw", counted):
        root = Path(place)
        Ledger(root / "ledger.db").create("people", sd.Budget(1000, 1e-2), accountant="rdp")
        with mock.patch("sordina.tuning.plan.draw_runs", return_value=RUNS):
            with dying(disk), suppress(Killed):
                _search(root, method)
            if disk.dead:
                _search(root, method)
        spends = list(Ledger(root / "ledger.db").spends().values())
        assert [spend.status for spend in spends] == [Status.SETTLED]
        assert read_claim(root / "s").epsilon <= 50
        assert method != "composition" or drawn[0] <= RUNS * STEPS, drawn
    return disk.done


def main() -> None:
    """The long form."""
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for method in METHODS:
        count = points(method)
        for at in range(1, count + 1, every):
            accident(method, at)
        print(f"{method}: {len(range(1, count + 1, every))} kills at {count} points, 0 failures", flush=True)


if __name__ == "__main__":
    main()
