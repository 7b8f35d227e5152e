"""How runs grow: 5 million rows, 100 000 clients, a report of 200 runs: `python -m benchmarks.scale rows` and so on.

Each part runs in a process of its own and says what it took: processor seconds, seconds on the clock, peak memory. For
the ledger with 10 000 distinct events see `benchmarks.ledger`.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import sordina as sd


def rows(count: int = 5_000_000, width: int = 20, steps: int = 200) -> None:
    """A network with one hidden layer, in a folder and a ledger, on ``count`` rows."""
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] + x[:, 1] > 0).long())
    with tempfile.TemporaryDirectory() as place:
        ledger = sd.Ledger(Path(place) / "ledger.db")
        ledger.create("people", sd.Budget(3, 1e-8))
        model = nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, 2))
        trainer = sd.Trainer(
            model, nn.functional.cross_entropy, sd.Budget(1, 1e-8), batch_size=4096, steps=steps,
            folder=Path(place) / "run", ledger=ledger, dataset_budget="people",
        )  # fmt: skip

        def fit() -> None:
            run = trainer.fit(data, validation=(x[:10_000], data[1][:10_000]))
            print(f"accuracy {run.validation['accuracy']:.3f}, {run.statement()}")

        timed(f"train on {count:,} rows of {width}, {steps} steps of 4096, with folder and ledger", fit)


def clients(count: int = 100_000, rounds: int = 5, per_round: int = 1000) -> None:
    """A federation under central and under local privacy, in a folder."""
    from sordina.federated import recipe as recipes
    from sordina.federated.run_keeper import federate_into

    for privacy in ("central", "local"):
        recipe = recipes.FederatedRecipe(
            "synthetic", "fedavg", privacy=privacy, rounds=rounds, clients_per_round=per_round, patience=0,
            options={"clients": count, "validation": 100},
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as place:
            timed(
                f"federate {count:,} clients, {rounds} rounds of {per_round:,}, {privacy}",
                lambda recipe=recipe, place=place: federate_into(Path(place) / "run", recipe),  # type: ignore[misc]
            )


def report(count: int = 200) -> None:
    """One page about ``count`` runs."""
    from sordina.reports import report as written

    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as place:
        folders = []
        for number in range(count):
            folder = Path(place) / f"run{number:03d}"
            if not folders:
                sd.Trainer(
                    nn.Linear(4, 2), nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=20, steps=40,
                    folder=folder, tensorboard=False,
                ).fit((x, (x[:, 0] > 0).long()), validation=(x, (x[:, 0] > 0).long()))  # fmt: skip
            else:
                _copied(folders[0], folder, number)
            folders.append(folder)
        page = Path(place) / "report.html"
        timed(f"report of {count} runs", lambda: written(folders, folder=page))
        print(f"{page.stat().st_size / 1e6:.1f} MB")


def _copied(first: Path, folder: Path, number: int) -> None:
    import shutil

    shutil.copytree(first, folder)
    facts = json.loads((folder / "privacy.json").read_text())
    facts["noise_multiplier"] += 1e-6 * number
    (folder / "privacy.json").write_text(json.dumps(facts))


def timed(what: str, act: Callable[[], object]) -> None:
    wall, begun = time.perf_counter(), time.process_time()
    act()
    took, memory = time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{what}: {took:.1f} s of processor time, {time.perf_counter() - wall:.1f} s, peak {memory:.2f} GB", flush=True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("rows", "clients", "report"))
    parser.add_argument("--count", type=int, help="rows, clients or runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002
    part = {"rows": rows, "clients": clients, "report": report}[given.part]
    part(**({} if given.count is None else {"count": given.count}))
