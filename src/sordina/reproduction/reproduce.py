"""Run one experiment and leave Markdown, JSON and a figure."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordina.errors import InvalidInput
from sordina.reproduction.experiment import SCALES, Experiment, Job, load
from sordina.reproduction.findings import Findings
from sordina.reproduction.write import write


@dataclass(frozen=True)
class Reproduction:
    """An experiment, its scale and what it found."""

    experiment: Experiment
    scale: str
    findings: Findings
    seconds: float

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.experiment.name,
            "title": self.experiment.title,
            "source": self.experiment.source,
            "scale": self.scale,
            "seconds": round(self.seconds, 1),
            **self.findings.facts(),
        }


def reproduce(
    name: str, scale: str, folder: Path, *, workers: int = 1, resume: bool = False, show: bool = False
) -> Reproduction:
    """Do the experiment called ``name`` in ``folder``/name/scale."""
    if scale not in SCALES:
        raise InvalidInput(f"unknown scale {scale!r}: choose one of {', '.join(SCALES)}.")
    experiment = load(name)
    place = folder / name / scale
    place.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    findings = experiment.function()(Job(experiment, scale, place, workers, resume, show))
    made = Reproduction(experiment, scale, findings, time.perf_counter() - start)
    write(made.facts(), findings, place)
    return made
