"""The demo: train with and without privacy, federate, attack, keep the books, and write one report.

Everything a stage makes is written before the next begins, so an interrupt loses the stage that runs, at most; what a
private run had reserved in the ledger stays reserved, as it may have been seen.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from sordina.accounting.ledger import Ledger
from sordina.errors import BudgetRefused, InvalidInput, SordinaError
from sordina.reports import demo_parts as parts
from sordina.reports import reading, writing
from sordina.reports.demo_parts import FULL, QUICK, Size
from sordina.types import Budget, format_up

__all__ = ["FULL", "QUICK", "Outcome", "Size", "fresh_folder", "run"]

BUDGET = Budget(epsilon=3.0, delta=1e-5)
"""Of one private training."""
WHOLE = Budget(epsilon=4.8, delta=1e-5)
"""Of the data set: two trainings fit, by composition, and a third does not."""
DATASET = "digits"


@dataclass(frozen=True)
class Outcome:
    """Where the demo's report is, and what it showed."""

    page: Path
    folder: Path
    seconds: float
    spent: float
    refusal: str
    runs: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "report": str(self.page), "facts": str(self.page.with_suffix(".json")), "folder": str(self.folder),
            "seconds": round(self.seconds, 1), "spent_epsilon": self.spent, "budget_epsilon": WHOLE.epsilon,
            "refused": self.refusal, "runs": list(self.runs),
        }  # fmt: skip


def fresh_folder() -> Path:
    """A folder named after the moment, below ``sordina-demo``."""
    return Path("sordina-demo") / datetime.now().strftime("%Y%m%d-%H%M%S")


def run(folder: Path, *, size: Size = FULL, console: Console | None = None) -> Outcome:
    """Do it all in ``folder``, which must be new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder} is in use: give the demo a new folder with --out.")
    demo = _Demo(folder, size, console or Console(stderr=True))
    start = time.perf_counter()
    stages = demo.stages()
    with _one_thread():
        for number, (title, stage) in enumerate(stages, 1):
            demo.console.rule(f"{number}/{len(stages)}  {title}", align="left")
            try:
                stage()
            except KeyboardInterrupt:
                demo.console.print(demo.kept(), highlight=False)
                raise
    seconds = time.perf_counter() - start
    demo.console.print(f"Done in {seconds:.0f} s.")
    names = tuple(path.name for path in demo.finished())
    return Outcome(demo.page, folder, seconds, demo.ledger.spent(DATASET), demo.refusal, names)


@dataclass
class _Demo:
    folder: Path
    size: Size
    console: Console
    refusal: str = ""

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    @property
    def shown(self) -> bool:
        return not self.console.quiet

    @cached_property
    def ledger(self) -> Ledger:
        self.folder.mkdir(parents=True, exist_ok=True)
        ledger = Ledger(self.folder / "ledger.db")
        ledger.create(DATASET, WHOLE)
        return ledger

    @cached_property
    def planted(self) -> parts.Planted:
        return parts.plant(self.size)

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        """The titles and what is done, in order."""
        return (
            ("Handwritten digits, without privacy", self.plain),
            (f"The same at ε = {BUDGET.epsilon:g}: Online clipping, from a bad first threshold", self.online),
            (f"The same at ε = {BUDGET.epsilon:g}: Fixed clipping at that threshold", self.fixed),
            ("One more private training, which the ledger refuses", self.refused),
            ("A personalised federation under metric privacy", self.federated),
            ("Attacks: who was in the training data?", self.membership),
            ("Attack: rebuild an image from a client's update", self.inversion),
            ("The report", self.report),
        )

    def plain(self) -> None:
        parts.train_plain(self.planted, self.folder / "plain", self.size, self.shown)

    def online(self) -> None:
        self._private("online")

    def fixed(self) -> None:
        self._private("fixed")

    def refused(self) -> None:
        """Ask for a third training; nothing may be read or written."""
        try:
            self._private("refused")
        except BudgetRefused as refusal:
            self.refusal = str(refusal)
            self.console.print(f"Refused, as it must be: {refusal}", highlight=False)
            return
        raise SordinaError("the ledger let a training pass that overspends the budget: do not trust it, report this.")

    def federated(self) -> None:
        parts.federate(self.folder / "federation", self.size, self.console)

    def membership(self) -> None:
        parts.attack_membership(
            self.planted, [self.folder / name for name in ("plain", "online", "fixed")], self.console
        )

    def inversion(self) -> None:
        parts.attack_updates(self.planted, self.folder / "updates", self.size, self.console)

    def report(self) -> None:
        facts = reading.report(
            self.finished(), title="Sordina demo: what leaks, and what does not", ledger=self.folder / "ledger.db"
        )
        command = ["sordina", "demo", "--out", str(self.folder), *(["--quick"] if self.size == QUICK else [])]
        facts = replace(facts, refusals=(self.refusal,), commands=(shlex.join(command), *facts.commands))
        writing.write(facts, self.page)

    def finished(self) -> list[Path]:
        """The folders of runs that ended, in the order of the stages."""
        names = ("plain", "online", "fixed", "federation", "updates")
        marks = ("privacy.json", "inversion.json")
        return [self.folder / name for name in names if any((self.folder / name / mark).is_file() for mark in marks)]

    def kept(self) -> str:
        """What an interrupt leaves."""
        finished = self.finished()
        lines = [f"Interrupted. Kept in {self.folder}: {', '.join(path.name for path in finished) or 'no run yet'}."]
        cut = [path.parent.name for path in self.folder.glob("*/journal.jsonl") if path.parent not in finished]
        if cut:
            lines.append(f"Cut off: {', '.join(cut)}. What it reserved in the ledger stays booked as spent.")
        if (self.folder / "ledger.db").exists():
            spent = self.ledger.spent(DATASET) if "ledger" in vars(self) else 0.0
            lines.append(f"Ledger: {format_up(spent)} of ε = {WHOLE.epsilon:g} booked on {DATASET!r}.")
        if finished:
            lines.append(f"A report of what is there: sordina report {' '.join(map(str, finished))}")
        return "\n".join(lines)

    def _private(self, name: str) -> None:
        parts.train_private(self.planted, self.folder / name, BUDGET, self.size, self.ledger, DATASET, self.shown)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Models this small are faster on one thread, on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
