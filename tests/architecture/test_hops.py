"""How many files of the package a batch passes, from the loop to its optimiser's step: see ARCHITECTURE.md."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.nn import functional as F

import sordina as sd

ROOT = str(Path(sd.__file__).parent)
MOST = 30
"""28 when this was written, 31 before (and 5 in jax_privacy, which watches no model): it should fall, not rise."""


class Watched(torch.optim.SGD):
    """Notes the files that are entered before each of eight steps in the middle of a run."""

    passed: list[set[str]]

    def step(self, closure=None):
        sys.setprofile(None)
        done = super().step(closure)
        self.passed.append(set())
        if 100 < len(self.passed) < 109:
            sys.setprofile(self._entered)
        return done

    def _entered(self, frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            self.passed[-1].add(frame.f_code.co_filename.removeprefix(ROOT))


def test_a_steady_step_passes_few_files(monkeypatch):
    """Of eight steps the one with the fewest: at random steps samples are also tested for mixing."""
    monkeypatch.setattr(Watched, "passed", [], raising=False)
    x = torch.randn(256, 10, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    options = {"batch_size": 32, "steps": 150, "track_epsilon": False}
    trainer = sd.Trainer(model, F.cross_entropy, sd.Budget(3, 1e-5), **options, optimizer=lambda p: Watched(p, lr=0.1))
    try:
        trainer.fit((x, (x[:, 0] > 0).long()))
    finally:
        sys.setprofile(None)
    fewest = min(filter(None, Watched.passed), key=len)
    assert 15 < len(fewest) <= MOST, sorted(fewest)
