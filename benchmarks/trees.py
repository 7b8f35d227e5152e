"""One private step in two trees of this repository, alternating: what a change costs.

``python -m benchmarks.trees OTHER [--steps 40]`` with OTHER the top of another work tree (``git worktree add``). One
process per tree, model and policy waits for its turn; times are of the processor, so that a busy machine slows nobody.
Each ratio is the median over turns of (this tree / the other, in the same turn), and of each tree over plain PyTorch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
CHILD = """
import logging, sys, time, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
import torch
torch.set_num_threads(1)
from benchmarks.step import METHODS
step = METHODS[sys.argv[2]](sys.argv[1])
for _ in range(4):
    step()
print("ready", flush=True)
for line in sys.stdin:
    start = time.process_time()
    for _ in range(int(line)):
        step()
    print(time.process_time() - start, flush=True)
"""
MODELS = {"Adult MLP": 40, "MNIST CNN": 1, "autoencoder": 1, "AG News": 20, "GPT-2": 1}
"""The models, and how many steps a turn has."""


class Stepper:
    """A process that runs steps of one method on one model with the code of one tree."""

    def __init__(self, tree: Path, model: str, method: str) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, model, method],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tree,
        )  # fmt: skip
        self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def seconds(self, steps: int) -> float:
        """Processor time of so many steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(other: Path, model: str, turns: int) -> dict[str, list[float]]:
    """By method and tree the seconds of each turn."""
    steppers = {"plain": Stepper(HERE, model, "plain")}
    for method in ("Fixed", "Online"):
        steppers |= {f"{method} before": Stepper(other, model, method), method: Stepper(HERE, model, method)}
    found: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(turns):
        for name, stepper in steppers.items():
            found[name].append(stepper.seconds(MODELS[model]) / MODELS[model])
    for stepper in steppers.values():
        stepper.close()
    return found


def ratio(one: list[float], two: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, two, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    chosen = parser.parse_args()
    table = Table(
        title=f"one step, {HERE.name} against {chosen.other.name}: processor time, median of {chosen.turns} turns"
    )
    for heading in ("model", "plain ms", "Fixed before", "Fixed", "change", "Online before", "Online", "change"):
        table.add_column(heading, justify="right")
    for model in chosen.models:
        found = compare(chosen.other, model, chosen.turns)
        cells = [f"{1e3 * statistics.median(found['plain']):.2f}"]
        for method in ("Fixed", "Online"):
            before, now = found[f"{method} before"], found[method]
            cells += [f"{ratio(before, found['plain']):.3f}", f"{ratio(now, found['plain']):.3f}"]
            cells.append(f"{100 * (ratio(now, before) - 1):+.1f} %")
        table.add_row(model, *cells)
        print(model, *cells, flush=True)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
