"""Several searches on one data set, strategy against strategy and budget against budget.

Each search has a budget of its own. Looking at all of them costs what all of them cost: `Comparison.together` says it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sordina.accounting import Account
from sordina.accounting.ledger import Ledger
from sordina.errors import SordinaError
from sordina.run_folder import JOURNAL, RESULTS, RUN, RunFolder
from sordina.training import evaluate
from sordina.tuning import secret
from sordina.tuning.outcome import Outcome
from sordina.tuning.search import Search, Watch
from sordina.tuning.selection import Kind, Selection
from sordina.tuning.space import Part, Space, spanning
from sordina.tuning.strategies import named
from sordina.tuning.task import Named
from sordina.types import Budget


@dataclass(frozen=True)
class Entry:
    """One search of a comparison and how well its model does."""

    strategy: str
    epsilon: float
    outcome: Outcome
    metric: str
    utility: float
    """The exact score the choice was made by, or under private selection the test score of the chosen model."""

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        private = math.isfinite(self.epsilon)
        head = {"strategy": self.strategy, "asked_epsilon": self.epsilon if private else None}
        return head | {"utility": self.utility, "utility_metric": self.metric} | self.outcome.facts()


@dataclass(frozen=True)
class Comparison:
    """Searches side by side."""

    task: Named
    selection: Selection
    entries: tuple[Entry, ...]

    @property
    def together(self) -> float | None:
        """The epsilon of all searches as one, at their delta; None where the selection is not paid for anyway."""
        outcomes = [entry.outcome for entry in self.entries]
        if self.selection.kind is Kind.TEST_SET or any(math.isinf(entry.epsilon) for entry in self.entries):
            return None
        account = Account(outcomes[0].scheme.accountant, outcomes[0].scheme.adjacency)
        for outcome in outcomes:
            for event in outcome.events():
                account.record(event)
        return account.epsilon(outcomes[0].scheme.budget.delta)

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "task": asdict(self.task),
            "data": self.task.data().source,
            "selection": {"kind": str(self.selection.kind), "label": self.selection.label},
            "epsilon_of_all_searches": self.together,
            "searches": [entry.facts() for entry in self.entries],
        }

    def save(self, folder: RunFolder) -> None:
        """Write ``results.json`` and ``utility.png``, and say that the comparison has ended."""
        from sordina.tuning.plot import plot_utility

        folder.write_json(RESULTS, self.facts())
        folder.write("utility.png", lambda file: plot_utility(self.facts(), file))
        folder.end()


@dataclass(frozen=True)
class Plan:
    """What to compare, and how."""

    task: Named
    strategies: Sequence[str]
    epsilons: Sequence[float]
    delta: float = 1e-5
    granularity: int = 5
    runs: int | None = None
    """Random search with this many runs over the ranges of the grid; the grid itself if left out."""
    cells: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    """By strategy: the only points of its grid to try, though all are paid for (see `Part`)."""
    selection: Selection = field(default_factory=Selection)
    method: str | None = None
    seeds: int = 1
    seed: int | None = None
    validate_every: int | None = None
    patience: int | None = None
    workers: int = 1

    def settings(self) -> dict[str, Any]:
        """All that decides what is done, as plain data."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        del plain["workers"]
        return plain | {
            "task": asdict(self.task), "selection": repr(self.selection), "cells": repr(self.cells),
            "strategies": list(self.strategies), "epsilons": [repr(one) for one in self.epsilons],
        }  # fmt: skip

    def search(self, strategy: str, epsilon: float, folder: Path) -> Search:
        """The search for one strategy at one budget, in ``folder``."""
        return Search(
            self.space(strategy), self.task.trainer, Budget(epsilon, self.delta), strategy=strategy,
            selection=replace(self.selection, bound=self.task.bound), method=self.method, seeds=self.seeds,
            seed=self.seed, workers=self.workers, folder=folder, validate_every=self.validate_every,
            patience=self.patience,
        )  # fmt: skip

    def space(self, strategy: str) -> Space:
        """Where the configurations of ``strategy`` come from."""
        grid = named(strategy).grid(self.granularity)
        if strategy in self.cells:
            return Part(grid, self.cells[strategy])
        return grid if self.runs is None or not grid.axes else spanning(grid.axes, self.runs)


def compare(
    plan: Plan,
    folder: Path,
    *,
    resume: bool = False,
    ledger: Ledger | None = None,
    dataset_budget: str | None = None,
    watch: Watch | None = None,
) -> Comparison:
    """Do all searches of ``plan``, each in a folder of its own below ``folder``.

    Args:
        plan: What to compare.
        folder: Where; held until all searches have ended.
        resume: Go on with the comparison in ``folder``.
        ledger: Where each search reserves its whole cost.
        dataset_budget: The ledger's data set.
        watch: Shows a search while it runs.
    """
    began = time.time()
    train, _ = plan.task.source()
    searches = {
        (strategy, epsilon): plan.search(strategy, epsilon, folder / f"{strategy}-{epsilon:g}")
        for strategy in plan.strategies
        for epsilon in plan.epsilons
    }
    entries = []
    with RunFolder.begin(folder, "tune several", plan.settings(), resume=resume) as held:
        try:
            for (strategy, epsilon), search in searches.items():
                search = replace(search, ledger=ledger, dataset_budget=dataset_budget, watch=watch)
                going_on = resume and (Path(str(search.folder)) / RUN).exists()
                outcome = search.fit_from(plan.task.source, len(train), resume=going_on)
                entries.append(_entry(plan, strategy, epsilon, outcome))
        except SordinaError:
            if not resume and not any((Path(str(one.folder)) / RUN).exists() for one in searches.values()):
                held.forget()
            raise
        comparison = Comparison(plan.task, plan.selection, tuple(entries))
        comparison.save(held)
    if any(entry.outcome.scheme.stopping is not None for entry in entries):
        secret.date_back(folder, min(began, (folder / JOURNAL).stat().st_mtime))
    return comparison


def _entry(plan: Plan, strategy: str, epsilon: float, outcome: Outcome) -> Entry:
    if outcome.score is not None and outcome.metric is not None:
        return Entry(strategy, epsilon, outcome, outcome.metric, outcome.score)
    scores = evaluate(outcome.model, plan.task.loss, plan.task.data().test)
    metric = "accuracy" if "accuracy" in scores else "loss"
    return Entry(strategy, epsilon, outcome, metric, scores[metric])
