"""Reproduction: the tables and figures of the founding documents, ours beside theirs.

One declarative file per table or figure lies in ``experiments/`` and names the function that does it. To add one: write
the file, and a function ``(Job) -> Findings``.
"""

from __future__ import annotations

from sordina.reproduction.experiment import (
    SCALES,
    Experiment,
    ExperimentFindings,
    Job,
    Panel,
    PlottedCurve,
    Value,
    load,
    names,
    reproduce,
)

__all__ = [
    "SCALES",
    "Experiment",
    "ExperimentFindings",
    "Job",
    "Panel",
    "PlottedCurve",
    "Value",
    "load",
    "names",
    "reproduce",
]
