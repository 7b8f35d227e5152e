"""Searches on a named data set, and several of them side by side."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from sordina import datasets, models
from sordina.accounting import Account
from sordina.accounting.ledger import Ledger
from sordina.datasets import Data, Task
from sordina.errors import InvalidInput, SordinaError
from sordina.privacy import Budget, check_seed
from sordina.run_folder import JOURNAL, METRICS, RESULTS, RUN, RunFolder
from sordina.training import Trainer, evaluate
from sordina.training.losses import Loss
from sordina.training.recipe import TrainingRecipe
from sordina.tuning import runner
from sordina.tuning.outcome import Outcome
from sordina.tuning.plan import PLAN, STOPPING
from sordina.tuning.runner import finished
from sordina.tuning.search import Search, Watch
from sordina.tuning.selection import Selection, SelectionKind, metric_of
from sordina.tuning.space import STRATEGIES, GridFrom, PartOfGrid, Space, named, spanning
from sordina.tuning.watchers import TRAINING

if TYPE_CHECKING:
    from rich.table import Table


# A named data set, model and schedule as plain data: what a search over a known data set needs in every process.

_LOSSES: dict[Task, Loss] = {
    Task.CLASSIFICATION: nn.functional.cross_entropy,
    Task.RECONSTRUCTION: nn.functional.mse_loss,
}
_BOUNDS = {Task.CLASSIFICATION: 1.0, Task.RECONSTRUCTION: 0.1}
"""Public bound of a record's loss in private selection: pixels lie in [0, 1], and useful pictures are off far less."""


@dataclass(frozen=True)
class NamedTask:
    """What to train. A share ``hold_out`` of the training rows validates; with 0, the test part does.

    Which rows are held out is decided by a hash of each row, keyed by ``split_seed``: a row's fate depends on that row
    alone, so when one comes or goes the others stay where they are. The expected number of rows is the public
    population. ``batch_size`` and ``epochs`` are the search's to choose where they are None. ``rows`` and ``test_rows``
    take only the first so many, for trial runs. ``options`` are more fields of a
    `sordina.training.recipe.TrainingRecipe` (averaging, views, optimizer, features, task, noise, bands, decay,
    components_noise).
    """

    dataset: str
    model: str | None = None
    batch_size: int | None = 512
    epochs: float | None = 10.0
    hold_out: float = 0.0
    split_seed: int = 0
    rows: int | None = None
    test_rows: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.options:
            self._recipe(0)
        if not 0 <= self.hold_out < 1:
            raise InvalidInput(f"the held-out share must lie in [0, 1), got {self.hold_out}.")
        for name, count in (("rows", self.rows), ("test_rows", self.test_rows), ("batch_size", self.batch_size)):
            if count is not None and count < 1:
                raise InvalidInput(f"{name} must be at least 1, got {count}.")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise InvalidInput(f"epochs must be positive and finite, got {self.epochs}.")
        check_seed(self.split_seed)

    def data(self) -> Data:
        """The data set, cut to ``rows`` and ``test_rows``; loaded once per process."""
        data = _load(self.dataset, tuple(one for one in self.options if one[0] in ("features", "task")))
        if data.task not in _LOSSES:
            raise InvalidInput(f"{self.dataset} is a {data.task} task; a search trains classifiers and autoencoders.")
        return replace(data, train=_first(data.train, self.rows), test=_first(data.test, self.test_rows))

    def source(self) -> tuple[TensorDataset, TensorDataset]:
        """Training and validation rows."""
        data = self.data()
        if not self.hold_out:
            return data.train, data.test
        held_out = coins(data.train, self.split_seed) < self.hold_out
        return _rows(data.train, ~held_out), _rows(data.train, held_out)

    def trainer(self, seed: int) -> Trainer:
        """A fresh trainer; budget and noise are the search's to set."""
        data, population = self.data(), round(len(self.data().train) * (1 - self.hold_out))
        if self.options:
            made = self._recipe(seed).trainer(data, population=population)
            return replace(
                made, clipping=None, learning_rate=None, seed=None, batch_size=self.batch_size, epochs=self.epochs
            )
        return Trainer(
            models.build_for(data, self.model, seed=seed), self.loss, Budget(math.inf, 0.0),
            batch_size=self.batch_size, epochs=self.epochs, population=population,
        )  # fmt: skip

    def _recipe(self, seed: int) -> TrainingRecipe:
        """What `sordina train` would do with the same options; clipping and rate are the strategy's.

        A schedule that is left open is the search's to choose, not the recipe's, whose budget here has no end.
        """
        options: dict[str, Any] = dict(self.options)
        if options.get("noise") == "banded" and options.get("bands") is None:
            raise InvalidInput("a search needs to know the number of bands: its budget is shared among its runs.")
        return TrainingRecipe(
            self.dataset, self.model, epsilon=math.inf, delta=0.0, seed=seed,
            batch_size=1 if self.batch_size is None else self.batch_size,
            epochs=1.0 if self.epochs is None else self.epochs, whitened=False, **options,
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        plain = asdict(self)
        return plain | {"options": dict(self.options)} if plain.pop("options") else plain

    @property
    def loss(self) -> Loss:
        """The loss of the data set's task."""
        return _LOSSES[self.data().task]

    @property
    def bound(self) -> float:
        """The public bound of a record's loss."""
        return _BOUNDS[self.data().task]


@functools.lru_cache(maxsize=2)
def _load(dataset: str, form: tuple[tuple[str, Any], ...]) -> Data:
    return TrainingRecipe(dataset, **dict(form)).load() if form else datasets.load(dataset)


def coins(rows: TensorDataset, seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) per row, from a hash of the row keyed by ``seed``."""
    parts = [tensor.numpy() for tensor in rows.tensors]
    key = seed.to_bytes(16, "little")
    digests = [
        hashlib.blake2b(b"".join(part[row].tobytes() for part in parts), digest_size=8, key=key).digest()
        for row in range(len(rows))
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8") / 2.0**64


def _first(rows: TensorDataset, count: int | None) -> TensorDataset:
    return rows if count is None else TensorDataset(*(tensor[:count] for tensor in rows.tensors))


def _rows(rows: TensorDataset, where: Any) -> TensorDataset:
    index = np.flatnonzero(where)
    return TensorDataset(*(tensor[index] for tensor in rows.tensors))


# Several searches on one data set side by side: strategies, budgets, a live table and a figure.

# A search to look at while it runs: a table made from the search's folder, a few times a second.

_AT_MOST = 30


@contextmanager
def live_table(folder: Path) -> Iterator[None]:
    """Show the search in ``folder`` on standard error until it ends."""
    from rich.console import Console
    from rich.live import Live

    plan = json.loads((folder / PLAN).read_text())
    with Live(
        get_renderable=lambda: table(folder, plan), console=Console(stderr=True), refresh_per_second=2, transient=True
    ):
        yield


def table(folder: Path, plan: dict[str, Any]) -> Table:
    """The runs of a search and how far they are.

    Validation scores show where they are exact; under private selection nobody sees them. With random stopping even the
    number of runs is secret.
    """
    from rich.table import Table

    scheme, orders = plan["scheme"], plan.get("orders", [])
    noise = f"{scheme['method']}, noise {scheme['noise_multiplier']:.4g}"
    if scheme["method"] == STOPPING:
        view = Table(title=f"{folder.name}: {noise}", title_justify="left")
        view.add_column("running; how many runs there are stays secret")
        return view
    states = [_state(folder / "runs" / f"{order['number']:04d}") for order in orders]
    done = sum(state["state"] != "waits" and state["state"] != "runs" for state in states)
    view = Table(title=f"{folder.name}: {noise}, {done} of {len(orders)} runs", title_justify="left")
    for column in ("run", "configuration", "step", "C", "rate", "score", "state"):
        view.add_column(column, justify="left" if column in ("configuration", "state") else "right")
    first = max(0, min(len(orders) - _AT_MOST, done - _AT_MOST // 2))
    for order, state in list(zip(orders, states, strict=True))[first : first + _AT_MOST]:
        values = " ".join(f"{name}={value:.4g}" for name, value in order["configuration"].items()) or "(none)"
        view.add_row(
            str(order["number"]), values, state["step"], state["C"], state["rate"], state["score"], state["state"]
        )
    return view


def _state(folder: Path) -> dict[str, str]:
    """What a run's folder tells: the last line of its metrics, and whether it has ended."""
    blank = {"step": "", "C": "", "rate": "", "score": "", "state": "waits"}
    entry = _last(folder / METRICS) or _last(folder / TRAINING / METRICS)
    if entry is not None:
        blank |= {
            "step": f"{entry['step']}/{entry['steps']}",
            "C": f"{entry['threshold']:.3g}",
            "rate": f"{entry['learning_rate']:.3g}",
            "score": _score(entry.get("validation", {})),
            "state": "runs",
        }
    result = finished(folder)
    if result is not None:
        blank |= {"state": result.stopped or "done"}
        if result.score is not None:
            blank["score"] = f"{result.score:.4g}"
    return blank


def _score(validation: dict[str, float]) -> str:
    value = validation.get("accuracy", validation.get("loss"))
    return "" if value is None else f"{value:.4g}"


def _last(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file of JSON lines."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        return entry
    return None


# Utility against epsilon, one line per strategy.


def plot_utility(facts: dict[str, Any], path: BinaryIO) -> None:
    """Draw the searches of a comparison's `facts` into the open file ``path``; says how the selection was made."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    searches = [search for search in facts["searches"] if search["asked_epsilon"] is not None]
    for strategy in dict.fromkeys(search["strategy"] for search in searches):
        points = sorted(
            (search["asked_epsilon"], search["utility"], search["spread"] or 0.0)
            for search in searches
            if search["strategy"] == strategy
        )
        epsilons, values, spreads = zip(*points, strict=True)
        axes.errorbar(epsilons, values, yerr=spreads, marker="o", capsize=3, label=STRATEGIES[strategy].title)
    axes.set_xlabel("epsilon of the whole search")
    axes.set_ylabel(facts["searches"][0]["utility_metric"])
    axes.set_title(f"{facts['task']['dataset']}: {facts['selection']['label'].partition(':')[0]}", fontsize=9)
    axes.grid(alpha=0.3)
    if searches:
        axes.legend()
    figure.savefig(path, dpi=120, format="png")


# Several searches on one data set, strategy against strategy and budget against budget.
#
# Each search has a budget of its own. Looking at all of them costs what all of them cost: `SearchComparison.together`
# says it.


@dataclass(frozen=True)
class ComparisonRow:
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
class SearchComparison:
    """Searches side by side."""

    task: NamedTask
    selection: Selection
    entries: tuple[ComparisonRow, ...]

    @property
    def together(self) -> float | None:
        """The epsilon of all searches as one, at their delta; None where the selection is not paid for anyway."""
        outcomes = [entry.outcome for entry in self.entries]
        if self.selection.kind is SelectionKind.TEST_SET or any(math.isinf(entry.epsilon) for entry in self.entries):
            return None
        account = Account(outcomes[0].scheme.accountant, outcomes[0].scheme.adjacency)
        for outcome in outcomes:
            for event in outcome.events():
                account.record(event)
        return account.epsilon(outcomes[0].scheme.budget.delta)

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "task": self.task.facts(),
            "data": self.task.data().source,
            "selection": {"kind": str(self.selection.kind), "label": self.selection.label},
            "epsilon_of_all_searches": self.together,
            "searches": [entry.facts() for entry in self.entries],
        }

    def save(self, folder: RunFolder) -> None:
        """Write ``results.json`` and ``utility.png``, and say that the comparison has ended."""

        folder.write_json(RESULTS, self.facts())
        folder.write("utility.png", lambda file: plot_utility(self.facts(), file))
        folder.end()


@dataclass(frozen=True)
class ComparisonPlan:
    """What to compare, and how."""

    task: NamedTask
    strategies: Sequence[str]
    epsilons: Sequence[float]
    delta: float = 1e-5
    granularity: int = 5
    runs: int | None = None
    """Random search with this many runs over the ranges of the grid; by default the grid itself."""
    cells: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    """By strategy: the only points of its grid to try, though all are paid for (see `PartOfGrid`)."""
    first: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    """By strategy: the points of its grid to begin with (see `GridFrom`)."""
    selection: Selection = field(default_factory=Selection)
    method: str | None = None
    seeds: int = 1
    seed: int | None = None
    validate_every: int | None = None
    patience: int | None = None
    prune: float | None = None
    workers: int = 1

    def settings(self) -> dict[str, Any]:
        """All that decides what is done, as plain data."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        del plain["workers"]
        for name in ("prune", "first"):
            if not plain[name]:
                del plain[name]
        return plain | {
            "task": self.task.facts(), "selection": repr(self.selection), "cells": repr(self.cells),
            **({"first": repr(self.first)} if self.first else {}),
            "strategies": list(self.strategies), "epsilons": [repr(one) for one in self.epsilons],
            **({} if self.selection.metric is None else {"metric": self.selection.metric}),
        }  # fmt: skip

    def search(self, strategy: str, epsilon: float, folder: Path) -> Search:
        """The search for one strategy at one budget, in ``folder``."""
        return Search(
            self.space(strategy), self.task.trainer, Budget(epsilon, self.delta), strategy=strategy,
            selection=replace(self.selection, bound=self.task.bound), method=self.method, seeds=self.seeds,
            seed=self.seed, workers=self.workers, folder=folder, validate_every=self.validate_every,
            patience=self.patience, prune=self.prune,
        )  # fmt: skip

    def space(self, strategy: str) -> Space:
        """Where the configurations of ``strategy`` come from."""
        grid = named(strategy).grid(self.granularity)
        if strategy in self.cells:
            return PartOfGrid(grid, self.cells[strategy])
        if strategy in self.first:
            return GridFrom(grid, self.first[strategy])
        return grid if self.runs is None or not grid.axes else spanning(grid.axes, self.runs)


def compare(
    plan: ComparisonPlan,
    folder: Path,
    *,
    resume: bool = False,
    ledger: Ledger | None = None,
    dataset_budget: str | None = None,
    watch: Watch | None = None,
) -> SearchComparison:
    """Do all searches of ``plan``, each in a folder of its own below ``folder``.

    Args:
        plan: What to compare.
        folder: Where; held until all searches have ended.
        resume: Continue the comparison in ``folder``.
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
        comparison = SearchComparison(plan.task, plan.selection, tuple(entries))
        comparison.save(held)
    if any(entry.outcome.scheme.stopping is not None for entry in entries):
        runner.date_back(folder, min(began, (folder / JOURNAL).stat().st_mtime))
    return comparison


def _entry(plan: ComparisonPlan, strategy: str, epsilon: float, outcome: Outcome) -> ComparisonRow:
    if outcome.score is not None and outcome.metric is not None:
        return ComparisonRow(strategy, epsilon, outcome, outcome.metric, outcome.score)
    scores = evaluate(outcome.model, plan.task.loss, plan.task.data().test)
    metric = metric_of(scores, plan.selection.metric)
    return ComparisonRow(strategy, epsilon, outcome, metric, scores[metric])
