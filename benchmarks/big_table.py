"""A million rows of 20 columns from a CSV file to a logistic regression: seconds and peak memory, beside plain ones.

``python -m benchmarks.big_table [--rows 1000000]`` writes the file, then runs ``sordina train FILE --model logistic``,
plain PyTorch (pandas reads, the same batches and passes) and scikit-learn (pandas reads), each in a process of its own
on one thread. The file has 16 numbers and 4 categories; a tenth of the rows are kept for testing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

NUMBERS = [f"n{place}" for place in range(16)]
CATEGORIES = [f"c{place}" for place in range(4)]
VALUES = ["red", "green", "blue", "grey", "white"]
EPSILON, DELTA, BATCH, PASSES = 1.0, 1e-8, 4096, 10


def write(folder: Path, rows: int) -> None:
    """The CSV file and its schema."""
    import pandas

    rng = np.random.default_rng(0)
    for start in range(0, rows, 100_000):
        size = min(100_000, rows - start)
        x = rng.uniform(0, 100, (size, 16)).round(2)
        codes = rng.integers(0, 5, (size, 4))
        scores = (x - 50) @ np.linspace(-1, 1, 16) / 40 + (codes[:, 0] == 2) - (codes[:, 1] == 3)
        part = pandas.DataFrame(x, columns=NUMBERS)
        for place, name in enumerate(CATEGORIES):
            part[name] = np.array(VALUES)[codes[:, place]]
        part["outcome"] = np.where(rng.random(size) < 1 / (1 + np.exp(-scores)), "yes", "no")
        part.to_csv(folder / "big.csv", mode="a", header=start == 0, index=False)
    lines = ['target = "outcome"', "[columns.outcome]", 'kind = "category"', 'values = ["no", "yes"]']
    for name in NUMBERS:
        lines += [f"[columns.{name}]", 'kind = "number"', "low = 0", "high = 100", "optional = false"]
    for name in CATEGORIES:
        lines += [f"[columns.{name}]", 'kind = "category"', f"values = {json.dumps(VALUES)}", "optional = false"]
    (folder / "big.toml").write_text("\n".join(lines) + "\n")


def _read(folder: Path) -> Any:
    import pandas

    frame = pandas.read_csv(folder / "big.csv")
    y = (frame.pop("outcome") == "yes").to_numpy(np.int64)
    frame[NUMBERS] /= 100
    x = pandas.get_dummies(frame, columns=CATEGORIES).to_numpy(np.float32)
    test = np.random.default_rng(1).random(len(y)) < 0.1
    return x[~test], y[~test], x[test], y[test]


def scikit_learn(folder: Path) -> float:
    """Test accuracy of scikit-learn's logistic regression."""
    from sklearn.linear_model import LogisticRegression

    x, y, x_test, y_test = _read(folder)
    return float(LogisticRegression(max_iter=200).fit(x, y).score(x_test, y_test))


def pytorch(folder: Path) -> float:
    """Test accuracy of a linear layer by plain steps."""
    import torch

    x, y, x_test, y_test = (torch.from_numpy(one) for one in _read(folder))
    model = torch.nn.Linear(x.shape[1], 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(PASSES):
        for rows in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return float((model(x_test).argmax(1) == y_test).float().mean())


def measured(words: list[str], folder: Path) -> dict[str, Any]:
    """Run a process: seconds on the clock and of the processor, peak memory, and what it printed."""
    start = time.monotonic()
    with (folder / "printed").open("w+") as printed:
        process = subprocess.Popen(words, stdout=printed, env={**os.environ, "OMP_NUM_THREADS": "1"})
        _, status, usage = os.wait4(process.pid, 0)
        printed.seek(0)
        text = printed.read()
    if status:
        sys.exit(f"{words[:4]} failed")
    return {
        "seconds": time.monotonic() - start,
        "processor": usage.ru_utime + usage.ru_stime,
        "megabytes": usage.ru_maxrss / 1024,
        "printed": text,
    }


def run(words: list[str] | None = None) -> None:
    """Measure all three.

    Args:
        words: Of the command line; the usual if None.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "FOLDER"))
    chosen = parser.parse_args([] if words is None else words)
    if chosen.one:
        what, place = chosen.one
        print({"pytorch": pytorch, "scikit_learn": scikit_learn}[what](Path(place)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, chosen.rows)
        train = [
            sys.executable,
            "-m",
            "sordina",
            "train",
            str(folder / "big.csv"),
            "--schema",
            str(folder / "big.toml"),
        ]
        train += ["--model", "logistic", "--epsilon", str(EPSILON), "--delta", str(DELTA), "--test-share", "0.1"]
        commands = {"sordina train": [*train, "--out", str(folder / "run"), "--json"]}
        for what in ("pytorch", "scikit_learn"):
            commands[what] = [sys.executable, "-m", "benchmarks.big_table", "--one", what, name]
        size = (folder / "big.csv").stat().st_size / 2**20
        table = Table(
            "", "seconds", "processor seconds", "peak MB", title=f"{chosen.rows} rows, a file of {size:.0f} MB"
        )
        for what, command in commands.items():
            found = measured(command, folder)
            table.add_row(what, *(f"{found[key]:.0f}" for key in ("seconds", "processor", "megabytes")))
            print(what, json.dumps(found), flush=True)
        Console(width=100).print(table)


if __name__ == "__main__":
    run(sys.argv[1:])
