"""Experiments as files: what is reproduced, by which function, at which scales, against which numbers.

title     = "MNIST, k = 5"
source    = "000, table 3.11 and figure 3.10"
run       = "sordina.reproduction.searches:table"     # a function (Job) -> Findings
[settings]                                            # the same at every scale
[scales.smoke]  [scales.short]  [scales.full]         # what each scale adds or overrides
[[reference]]                                         # what the source reports; the function knows the keys
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordina.errors import InvalidInput

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from sordina.reproduction.findings import Findings

SCALES = ("smoke", "short", "full")
"""About a minute; within an hour on two cores; the protocol of the source."""


@dataclass(frozen=True)
class Experiment:
    """One file of ``experiments/``."""

    name: str
    title: str
    source: str
    run: str
    scales: dict[str, dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    reference: tuple[dict[str, Any], ...] = ()
    about: str = ""

    def function(self) -> Callable[[Job], Findings]:
        """The function that does it."""
        module, _, name = self.run.partition(":")
        found: Callable[[Job], Findings] = getattr(importlib.import_module(module), name)
        return found


@dataclass(frozen=True)
class Job:
    """An experiment at one scale: what its function is given."""

    experiment: Experiment
    scale: str
    folder: Path
    workers: int = 1
    resume: bool = False
    show: bool = False
    """Whether somebody is watching: then progress may be shown on standard error."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the experiment, with those of the scale on top."""
        return self.experiment.settings | self.experiment.scales[self.scale]

    @property
    def caveats(self) -> list[str]:
        """What a reader must know of the scale."""
        return ["Smoke: shows that everything runs; these numbers mean nothing."] if self.scale == "smoke" else []

    @property
    def reference(self) -> tuple[dict[str, Any], ...]:
        """What the source reports."""
        return self.experiment.reference


def _files() -> dict[str, Any]:
    folder = resources.files("sordina.reproduction") / "experiments"
    return {file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name.endswith(".toml")}


def names() -> tuple[str, ...]:
    """Everything that can be reproduced, in the order of the documents."""
    return tuple(sorted(_files(), key=_order))


def _order(name: str) -> tuple[Any, ...]:
    """Table 3.9 before table 3.10."""
    kind, _, number = name.partition("-")
    return kind, tuple(int(part) if part.isdigit() else part for part in number.split(".")) if number else ()


def load(name: str) -> Experiment:
    """The experiment called ``name``.

    >>> load("table-3.11").title
    'MNIST, k = 5: accuracy at the budget of the whole grid'
    """
    files = _files()
    if name not in files:
        raise InvalidInput(f"nothing is called {name!r} here: see `sordina reproduce --list`.")
    data = tomllib.loads(files[name].read_text())
    try:
        made = Experiment(name, **{**data, "reference": tuple(data.get("reference", ()))})
    except TypeError as error:
        raise InvalidInput(f"experiment {name}: {error}.") from error
    if missing := [scale for scale in SCALES if scale not in made.scales]:
        raise InvalidInput(f"experiment {name} has no scale {missing[0]!r}.")
    return made
