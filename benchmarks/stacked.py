"""Training the runs of a search as one batched computation against one by one: `python benchmarks/stacked.py`.

Interleaved, so that whatever else the machine does falls on both alike; prints time per run and step, and their ratio.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import sordina as sd
from sordina.tuning.parallel_runs import perform_together
from sordina.tuning.runner import Brief, RunOrder, perform
from sordina.tuning.selection import Selection


@dataclass(frozen=True)
class Shape:
    """A network with one hidden layer, and the batch it sees."""

    inputs: int
    hidden: int
    batch: int
    steps: int

    @property
    def weights(self) -> int:
        """How many there are."""
        return (self.inputs + 1) * self.hidden + (self.hidden + 1) * 10

    def trainer(self, seed: int) -> sd.Trainer:
        """A trainer whose noise is given, so that nothing is accounted."""
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(self.inputs, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 10))
        budget = sd.Budget(math.inf, 1e-5)
        return sd.Trainer(model, nn.functional.cross_entropy, budget, batch_size=self.batch, steps=self.steps)


SHAPES = (Shape(64, 16, 64, 60), Shape(64, 32, 64, 60), Shape(131, 64, 256, 40), Shape(784, 32, 256, 30),
          Shape(784, 128, 512, 15), Shape(1500, 128, 512, 15))  # fmt: skip


def measure(shape: Shape, runs: int, repetitions: int) -> tuple[float, float]:
    """Seconds per run and step: one by one, and together; the best of some repetitions."""
    rows = 4000
    x, y = torch.randn(rows, shape.inputs), torch.randint(0, 10, (rows,))
    orders = [RunOrder(number, {"rho": 0.1}, 0, number) for number in range(runs)]
    alone, together = math.inf, math.inf
    for _ in range(repetitions):
        for stacked in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                brief = Brief(shape.trainer, "online", sd.Budget(1e6, 1e-5), 1.0, "rdp", Selection(), Path(folder))
                start = time.perf_counter()
                if stacked:
                    perform_together(brief, orders, (x, y), None)
                    together = min(together, time.perf_counter() - start)
                else:
                    for order in orders:
                        perform(brief, order, (x, y), None)
                    alone = min(alone, time.perf_counter() - start)
    scale = runs * shape.steps
    return alone / scale, together / scale


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=3)
    given = parser.parse_args()
    print(f"{given.runs} runs with Online clipping, {torch.get_num_threads()} threads")
    print(f"{'weights':>8} {'batch':>6} {'one by one':>12} {'together':>12} {'ratio':>6}")
    for shape in SHAPES:
        alone, together = measure(shape, given.runs, given.repetitions)
        times = f"{1e3 * alone:>9.3f} ms {1e3 * together:>9.3f} ms {alone / together:>6.2f}"
        print(f"{shape.weights:>8} {shape.batch:>6} {times}")


if __name__ == "__main__":
    main()
