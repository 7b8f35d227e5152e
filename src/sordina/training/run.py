"""What a training run leaves behind: the model, its history, and the guarantee with all that gives it meaning."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sordina
from sordina.accounting import to_dict
from sordina.training.checkpoint import atomically
from sordina.training.plan import Plan
from sordina.training.raw import CAVEAT, KEY
from sordina.types import Guarantee

CAVEATS = (
    "The population size that the sampling rate is computed from is treated as public.",
    "Validation data are not covered by the guarantee: their scores are computed without noise.",
    "Noise is drawn in floating point; the guarantee is that of the ideal Gaussian mechanism.",
)


@dataclass(frozen=True)
class Run:
    """The outcome of `Trainer.fit`."""

    model: nn.Module
    plan: Plan
    steps: int
    clipping: str
    releasable: bool
    seconds: float
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def guarantee(self) -> Guarantee:
        """The claim for the steps that were booked."""
        return self.plan.guarantee(self.steps)

    @property
    def epsilon(self) -> float:
        """What was spent, at the plan's delta; infinite without privacy."""
        return self.guarantee.epsilon

    @property
    def delta(self) -> float:
        """The plan's delta."""
        return self.plan.budget.delta

    @property
    def validation(self) -> dict[str, float]:
        """The last validation scores."""
        return next((entry["validation"] for entry in reversed(self.history) if "validation" in entry), {})

    def privacy(self) -> dict[str, Any]:
        """The guarantee, the way it came about and its limits, as plain data."""
        guarantee, sampler = self.guarantee, self.plan.sampler
        return {
            "epsilon": guarantee.epsilon if math.isfinite(guarantee.epsilon) else None,
            "delta": guarantee.delta,
            "private": self.plan.private,
            "statement": self.statement(),
            "adjacency": str(guarantee.adjacency),
            "unit": str(guarantee.unit),
            "model": str(guarantee.trust),
            "accountant": self.plan.accountant,
            "noise_multiplier": self.plan.noise_multiplier,
            "sampler": {"kind": type(sampler).__name__, **vars(sampler)},
            "clipping": self.clipping,
            "steps": self.steps,
            "planned_steps": self.plan.steps,
            "event": to_dict(self.plan.event(self.steps)),
            "releasable": self.releasable,
            "caveats": self.caveats,
            "versions": versions(),
        }

    @property
    def caveats(self) -> list[str]:
        """What the guarantee does not cover."""
        raw = any(KEY in entry for entry in self.history)
        return [*CAVEATS, CAVEAT] if raw else list(CAVEATS)

    def statement(self) -> str:
        """The guarantee in a sentence."""
        if not self.plan.private:
            return "NOT PRIVATE: trained without clipping and noise; nothing is guaranteed to anybody."
        claim = str(self.guarantee)
        if not self.releasable:
            return f"{claim}, IF the noise were secret: this run was seeded for reproduction, so do not release it."
        return f"{claim}."

    def save(self, folder: str | Path) -> Path:
        """Write ``model.pt``, ``metrics.jsonl`` and ``privacy.json`` into ``folder``."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        atomically(folder / "model.pt", lambda path: torch.save(self.model.state_dict(), path))
        lines = "".join(json.dumps(entry) + "\n" for entry in self.history)
        atomically(folder / "metrics.jsonl", lambda path: path.write_text(lines))
        facts = json.dumps(self.privacy(), indent=2) + "\n"
        atomically(folder / "privacy.json", lambda path: path.write_text(facts))
        return folder


def versions() -> dict[str, str]:
    """Of what a run depends on."""
    return {"sordina": sordina.__version__, "torch": torch.__version__, "python": platform.python_version()}
