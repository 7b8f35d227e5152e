"""Reproduction: the tables and figures of the founding documents, ours beside theirs.

One declarative file per table or figure lies in ``experiments/`` and names the function that does it. To add one: write
the file, and a function ``(Job) -> Findings``.
"""

from sordina.reproduction.experiment import SCALES, Experiment, Job, load, names
from sordina.reproduction.findings import Curve, Findings, Panel, Value
from sordina.reproduction.reproduce import reproduce

__all__ = ["SCALES", "Curve", "Experiment", "Findings", "Job", "Panel", "Value", "load", "names", "reproduce"]
