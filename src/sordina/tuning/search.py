"""Search: try many configurations, pay once, choose once."""

from __future__ import annotations

import functools
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sordina import random
from sordina.accounting import NOTHING, Composed, accountant, from_dict
from sordina.accounting.ledger import Ledger, Reservation
from sordina.errors import BudgetRefused, InvalidInput, TrainingFailed, Unsupported
from sordina.gradients import Engine
from sordina.plan import check_whole
from sordina.privacy import Budget, Unit, check_seed, format_up
from sordina.run_folder import RunFolder, read_json
from sordina.training import Trainer, evaluate
from sordina.training.batches import as_rows
from sordina.training.components import components_event, components_of
from sordina.training.losses import check_takes
from sordina.training.reservations import check_pair, refuse_settled_by_others, reserve_once, settle_once
from sordina.training.trainer import make_schedule, refuse_training_data
from sordina.tuning import runner
from sordina.tuning.chosen_schedule import ChosenSchedule, choose_schedule, configured, left_open
from sordina.tuning.outcome import Outcome
from sordina.tuning.parallel_runs import Given, Source, carry_out, stackable
from sordina.tuning.plan import (
    COMPOSITION,
    STOPPING,
    Decision,
    Scheme,
    TrainingSchedule,
    check_costs,
    decide,
    make_scheme,
    noise_seed,
)
from sordina.tuning.runner import Brief, MakeTrainer, RunOrder, RunResult, finished, trained
from sordina.tuning.selection import Selection, SelectionKind, better, metric_of, score, selection_of
from sordina.tuning.space import MOST_RUNS, Configuration, Fields, GridFrom, Space, fields_of

# The choice among finished runs. Written to disk before anybody sees it, so that it is drawn once and seen once.

CHOICE = "choice.json"


@dataclass(frozen=True)
class ChosenRun:
    """Which run won, and by which exact score, if the selection is exact."""

    number: int
    metric: str | None = None
    score: float | None = None
    spread: float | None = None

    def save(self, folder: RunFolder, *, hidden: bool) -> None:
        """Write `CHOICE` into ``folder``; a ``hidden`` one into its internal part."""
        if hidden:
            runner.write_json(folder, CHOICE, asdict(self))
        else:
            folder.write_json(CHOICE, asdict(self))

    @classmethod
    def load(cls, folder: RunFolder) -> ChosenRun | None:
        """The choice made in ``folder``, if one was."""
        for path in (folder.path / CHOICE, runner.part(folder.path) / CHOICE):
            if path.exists():
                try:
                    return cls(**read_json(path))
                except TypeError as error:
                    raise InvalidInput(f"{path} is damaged: begin a new search in another folder.") from error
        return None


def choose(
    brief: Brief, scheme: Scheme, orders: Sequence[RunOrder], results: Sequence[RunResult], source: Source,
    rng: np.random.Generator,
) -> ChosenRun:  # fmt: skip
    """The best run: privately, or by exact scores."""
    if brief.selection.kind is SelectionKind.TEST_SET:
        return _best_on_average(results)
    if brief.selection.exact:
        return _best(results, orders[0] if brief.secret else None)
    if len(orders) == 1:
        return ChosenRun(orders[0].number)
    _, validation = source()
    scores = []
    for order in orders:
        trainer = trained(brief, order)
        scores.append(
            score(trainer.model, trainer.loss, validation, brief.selection.bound, metric=brief.selection.metric)
        )
    if scheme.stopping is not None:
        scorer = brief.selection.scorer(brief.budget, scheme.adjacency)
        return ChosenRun(orders[int(np.argmax([scorer.release(one, rng) for one in scores]))].number)
    return ChosenRun(orders[brief.selection.chooser(brief.budget, scheme.adjacency).release(scores, rng)].number)


def _best(results: Sequence[RunResult], otherwise: RunOrder | None = None) -> ChosenRun:
    """The best score; where no run has one, ``otherwise``: that all failed must not show if K is secret."""
    found: RunResult | None = None
    for result in results:
        if better(result.metric or "accuracy", result.score, found.score if found else None):
            found = result
    if found is None and otherwise is not None:
        return ChosenRun(otherwise.number)
    if found is None:
        raise TrainingFailed(
            "no run of the search reached a validation score: all failed. Lower the rates of the grid."
        )
    return ChosenRun(found.number, found.metric, found.score)


def _best_on_average(results: Sequence[RunResult]) -> ChosenRun:
    """The thesis's rule: the configuration with the best mean over seeds; one failed run spoils a configuration."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(json.dumps(result.configuration, sort_keys=True), []).append(result)
    found: ChosenRun | None = None
    for members in groups.values():
        values = [math.nan if one.score is None else one.score for one in members]
        mean = math.fsum(values) / len(values)
        if better(members[0].metric or "accuracy", mean, found.score if found else None):
            spread = statistics.stdev(values) if len(values) > 1 else None
            found = ChosenRun(members[0].number, members[0].metric, mean, spread)
    if found is None:
        raise TrainingFailed("every configuration of the search failed. Lower the rates of the grid.")
    return found


# Search: try many configurations, pay once.
#
# search = sd.Search(tuning.Grid({"rho": (0.1, 1.0, 10.0)}), trainer=make_trainer, budget=sd.Budget(3, 1e-5),
#                    strategy="online", selection="private")
# found = search.fit(train, validation)
# print(found.configuration, found.guarantee)
#
# The noise of each run follows from the budget of all, the choice of the best is a private query of its own, and one
# reservation in the ledger covers everything. Made with a folder, a search that was killed goes on where it was.

Watch = Callable[[Path], AbstractContextManager[Any]]
"""Shows a search in a folder while it runs."""
Paid = tuple[Scheme, list[TrainingSchedule]]
"""How a search is paid for, and what each of its runs does."""
STACKED_AT_MOST = 32
_GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, modulo one, are spread evenly however many there are."""
_DESCRIBED = ("clipping", "learning_rate", "optimizer", "loss")
KIND = "tune"
NOTHING_DRAWN = (
    "the random number of runs came out as 0, so the search has no result. The budget counts as spent all the same: "
    "the guarantee rests on this being possible."
)


@dataclass
class Search:
    """Everything about a private search but the data. Nothing is checked before `fit`.

    ``trainer`` makes a fresh `sordina.Trainer` (its argument seeds the first weights); ``strategy`` says which fields a
    configuration sets on it: a name of `sordina.tuning.STRATEGIES`, a function, or None for field names as they are.
    ``selection`` is "private", "public" or "thesis-test-set", or a `Selection`; ``method`` "composition" or
    "random-stopping", the cheaper one by default. ``seeds`` trains every configuration that many times, and each
    time is paid for, except in the thesis's protocol. A ``seed`` makes all noise repeatable, and the result unfit
    for release. ``patience`` (exact selection only) ends runs that stopped improving, ``prune`` those that are behind
    that share of the other runs at the same step; both save time, not budget. Of a trainer with ``batch_size=None`` or
    ``epochs=None`` the search chooses the schedule, once for all runs, for what one run may cost; a configuration may
    set its own.

    Args:
        space: The configurations to try: a `Grid` or `Random` draws.
        budget: One epsilon and delta for the whole search.
        metric: By what the best run is best: accuracy, log_loss, loss, rmse or r2; on public validation data also auc
            or balanced_accuracy, of which no private choice is cheap. None: accuracy for classes, else the loss.
        accountant: The accountant's name: pld (the tightest), rdp, gdp, zcdp, advanced or basic.
        workers: Processes that train at the same time.
        folder: Where the search is kept and resumed.
        validate_every: Steps between looks at the validation data.
        ledger: The ledger that books the search.
        dataset_budget: The ledger's name of the data set.
        watch: Shown the search's folder while it runs.
    """

    space: Space
    trainer: MakeTrainer
    budget: Budget
    strategy: str | Fields | None = None
    selection: Selection | str = "private"
    metric: str | None = None
    method: str | None = None
    seeds: int = 1
    seed: int | None = None
    accountant: str = "pld"
    workers: int = 1
    folder: str | Path | None = None
    validate_every: int | None = None
    patience: int | None = None
    prune: float | None = None
    ledger: Ledger | None = None
    dataset_budget: str | None = None
    watch: Watch | None = None

    def fit(self, train: Any, validation: Any, *, resume: bool = False) -> Outcome:
        """Search for the configuration that trains the best model on ``train``, judged on ``validation``."""
        return self.fit_from(Given(train, validation), as_rows(train).size, resume=resume)

    def fit_from(self, source: Source, size: int, *, resume: bool = False) -> Outcome:
        """As `fit`, for data that every worker loads by itself.

        Args:
            source: Gives training and validation data.
            size: The number of training rows.
            resume: Continue the search in the folder.
        """
        selection = self._check(resume)
        with nullcontext(self.folder) if self.folder else tempfile.TemporaryDirectory() as place:
            path = Path(str(place))
            if not resume:
                self._check_data(source, selection)
            fresh = None if resume else self._decide(selection, size)
            with RunFolder.begin(path, KIND, self._settings(selection, size), resume=resume) as folder:
                decision = Decision.load(folder)
                if decision is None:
                    decision = fresh or self._decide(selection, size)
                    decision.save(folder)
                if folder.finished:
                    return self._recall(decision, selection, folder)
                reservation = self._reserve(decision, folder)
                if not decision.orders:
                    runner.erase(folder.path, decision.started)
                    folder.close_failed(NOTHING_DRAWN)
                    raise TrainingFailed(NOTHING_DRAWN)
                brief = self._brief(decision, selection, folder)
                if ChosenRun.load(folder) is None:
                    with self.watch(path) if self.watch else nullcontext():
                        groups = self._groups(brief, decision.orders)
                        workers = self.workers if brief.secret else max(1, min(self.workers, len(groups)))
                        carry_out(brief, groups, source, workers)
                return self._conclude(brief, decision, source, folder, reservation)

    def _check(self, resume: bool) -> Selection:
        selection = selection_of(self.selection)
        if self.metric is not None:
            selection = replace(selection, metric=self.metric)
        check_pair(self.ledger, self.dataset_budget)
        for name in ("seeds", "workers", "validate_every", "patience"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        if not hasattr(self.space, "configurations"):
            raise InvalidInput(
                f"space says which configurations to try, as Grid({{'C': [0.1, 1.0]}}) or Random(...), not as a "
                f"{type(self.space).__name__}."
            )
        if self.space.runs * self.seeds > MOST_RUNS:
            raise InvalidInput(f"a search has at most {MOST_RUNS} runs, not {self.space.runs} times {self.seeds}.")
        if self.seed is not None:
            check_seed(self.seed)
        if self.prune is not None and not 0 < self.prune < 1:
            raise InvalidInput(f"prune is a share of the other runs, between 0 and 1, got {self.prune:g}.")
        for name in ("patience", "prune"):
            if getattr(self, name) is not None and not selection.exact:
                raise InvalidInput(
                    f"{name} looks at validation scores, which private selection does not reveal: leave it out, or "
                    "select on public data."
                )
        if self.prune is not None and (own := self._schedules()):
            raise InvalidInput(
                f"prune compares runs at the same step, and these have schedules of their own ({', '.join(own)} in the "
                "space): leave it out, or give all runs one schedule."
            )
        if resume and self.folder is None:
            raise InvalidInput("resume=True needs the folder of the search to resume: Search(..., folder=...).")
        return selection

    def _schedules(self) -> list[str]:
        """Which parts of a schedule differ from run to run."""
        space: Any = self.space
        points = space.configurations(np.random.default_rng(0))
        made = [fields_of(self.strategy, point) for point in points]
        return [name for name in ("batch_size", "epochs", "steps") if any(name in one for one in made)]

    def _check_data(self, source: Source, selection: Selection) -> None:
        """Shapes, types, labels and whether samples stay apart, before anything is reserved.

        What there is to say of the model is said here: runs of which nobody may know how many there are say nothing.
        """
        base = self.trainer(0)
        given = source()
        if selection.exact and not math.isinf(self.budget.epsilon):
            refuse_training_data(*given)
        parts = [as_rows(rows) for rows in given]
        for rows in parts:
            check_takes(base.model, base.loss, rows)
        if selection.metric is not None and selection.exact:
            metric_of(evaluate(base.model, base.loss, parts[1]), selection.metric)
        elif not selection.exact:
            score(base.model, base.loss, parts[1], selection.bound, metric=selection.metric)
        if not math.isinf(self.budget.epsilon):
            base.model.train()
            with Engine(base.model, public_buffers=base.public_buffers) as engine:
                base.rehearse(parts[0], engine)

    def _decide(self, selection: Selection, size: int) -> Decision:
        """What to do, before anything is written or reserved; a budget that cannot hold it is refused here."""
        rng = random.generator(self.seed)
        configurations = self.space.configurations(rng)
        repetitions = 1 if selection.kind is SelectionKind.TEST_SET else self.seeds
        base = self.trainer(0)

        def paid(chosen: ChosenSchedule | None) -> Paid:
            schedules = [self._schedule(base, configuration, size, chosen) for configuration in configurations]
            schedules = (schedules + schedules[:1] * (self.space.runs - len(schedules))) * repetitions
            scheme = make_scheme(
                schedules, self.budget, selection, method=self._method(base), accountant=self.accountant
            )  # fmt: skip
            return replace(scheme, chosen=chosen), schedules

        chosen = self._choose_schedule(base, size, paid) if left_open(base) else None
        scheme, schedules = paid(chosen)
        decision = decide(self.space, scheme, configurations, self.seeds, rng, self.seed)
        check_costs(decision.orders, lambda one: self._schedule(base, one, size, chosen), scheme, schedules[0])
        if self.ledger is not None and self.dataset_budget is not None:
            self.ledger.check(self.dataset_budget, scheme.event, adjacency=scheme.adjacency, unit=scheme.unit)
        return decision

    def _choose_schedule(self, base: Trainer, size: int, paid: Callable[[ChosenSchedule], Paid]) -> ChosenSchedule:
        """The schedule for what one run may cost, from public facts; the one place of a search that decides it.

        What one run may cost hardly depends on the schedule, since many steps add up to one Gaussian mechanism whatever
        their number and size (digits, 5 runs: 1.92 at 512 over 10 epochs, 1.91 at 64 over 40). So it is read off a
        search at the schedule that a single run with the whole budget would have.
        """
        units = self._units(base, size)
        whole = choose_schedule(base, self.budget, units, self.budget.epsilon)
        if math.isinf(self.budget.epsilon):
            return whole
        scheme, schedules = paid(whole)
        judge = accountant(self.accountant)
        costs = [
            judge.epsilon(replace(one, before=None).event(scheme.noise_multiplier), self.budget.delta, scheme.adjacency)
            for one in set(schedules)
        ]
        return choose_schedule(base, self.budget, units, statistics.fmean(costs))

    def _units(self, base: Trainer, size: int) -> int:
        """The public number of units: the population, where it is stated."""
        if base.population is not None:
            return check_whole("population", base.population)
        return size if base.users is None else len(base.users)

    def _method(self, base: Trainer) -> str | None:
        """The method asked for; a trainer with watchers of its own shows every run, so all of them are paid for.

        So are runs that end by what others did: the theorem of random stopping is about runs that know nothing of each
        other.
        """
        if not base.callbacks and self.prune is None:
            return self.method
        if self.method == STOPPING and self.prune is not None:
            raise Unsupported(
                "random stopping rests on each run by itself, and prune ends runs by what others did: leave it out, or "
                "take composition."
            )
        if self.method == STOPPING:
            raise Unsupported(
                "random stopping keeps its runs secret, and the trainer's callbacks would see each of them: leave them "
                "out, or take composition."
            )
        return COMPOSITION

    def _reserve(self, decision: Decision, folder: RunFolder) -> Reservation | None:
        """One reservation for everything. A stopped search costs the same however many runs it makes: it is booked at
        once, because the time of a later settlement would tell how many they were."""
        scheme = decision.scheme
        reservation = reserve_once(
            folder, self.ledger, self.dataset_budget, scheme.event,
            what=f"search over {self.space.runs} configurations", adjacency=scheme.adjacency, unit=scheme.unit,
        )  # fmt: skip
        if scheme.stopping is not None:
            settle_once(reservation, scheme.event)
        else:
            refuse_settled_by_others(reservation, ChosenRun.load(folder) is not None)
        return reservation

    def _schedule(
        self, base: Trainer, configuration: Configuration, size: int, chosen: ChosenSchedule | None
    ) -> TrainingSchedule:
        one = configured(base, chosen, fields_of(self.strategy, configuration))
        units = size if one.users is None else len(one.users)
        sampler, steps = make_schedule(
            units, batch_size=one.batch_size, epochs=one.epochs, steps=one.steps,
            sampling=one.sampling, population=one.population, noise=one.noise,
        )  # fmt: skip
        layer = components_of(one.model)
        if layer is not None and layer.noise_multiplier is None:
            raise InvalidInput(
                f"in a search every run pays for what {type(layer).__name__} finds: state its noise, by "
                f"{type(layer).__name__}(noise_multiplier=20) or, for pca-mlp on the command line, by "
                "--components-noise 20."
            )
        before = components_event(one.model, self.budget, sampler.adjacency, users=one.users is not None)
        unit = Unit.RECORD if one.users is None else Unit.USER
        return TrainingSchedule(sampler, steps, unit, one.noise, before)

    def _settings(self, selection: Selection, size: int) -> dict[str, Any]:
        """All that decides what the search does: compared when it is resumed."""
        base = self.trainer(0)
        names = ("batch_size", "epochs", "steps", "sampling", "population", "microbatch", "raw")
        made: dict[str, Any] = {name: getattr(base, name) for name in names}
        made |= {"autocast": str(base.autocast), "public_buffers": list(base.public_buffers)}
        made["users"] = None if base.users is None else [len(base.users), base.users.rows_per_user]
        described = {name: describe(getattr(base, name)) for name in _DESCRIBED}
        layer = components_of(base.model)
        return {
            "space": repr(self.space), "strategy": describe(self.strategy), "selection": repr(selection),
            "budget": repr(self.budget), "method": self.method, "seeds": self.seeds, "seed": self.seed,
            "accountant": self.accountant, "rows": size, "validate_every": self.validate_every,
            "patience": self.patience, "trainer": made | described,
            "model": [[list(parameter.shape), parameter.requires_grad] for parameter in base.model.parameters()],
            **({} if selection.metric is None else {"metric": selection.metric}),
            **({} if self.prune is None else {"prune": self.prune}),
            **({} if base.noise is None else {"noise": repr(base.noise)}),
            **({} if layer is None else {"components": [layer.noise_multiplier, layer.row_norm]}),
        }  # fmt: skip

    def _brief(self, decision: Decision, selection: Selection, folder: RunFolder) -> Brief:
        """Runs that must not tell how many they are go one by one: in a group they would be rounded by its size."""
        hidden = decision.scheme.stopping is not None
        brief = Brief(
            self.trainer, self.strategy, self.budget, decision.scheme.noise_multiplier, self.accountant, selection,
            (runner.part(folder.path) if hidden else folder.path) / "runs", self.validate_every, self.patience,
            secret=hidden, chosen=decision.scheme.chosen, prune=self.prune,
            after=1 if isinstance(self.space, GridFrom) else 2,
        )  # fmt: skip
        if hidden or len(decision.orders) < 2 or brief.noise_multiplier == 0:
            return brief
        return replace(brief, stacked=stackable(brief.make(decision.orders[0])))

    def _groups(self, brief: Brief, orders: tuple[RunOrder, ...]) -> list[list[RunOrder]]:
        """The runs still to do; those that are worth it together, as many at once as leave every worker a share."""
        left = [order for order in orders if finished(brief.place(order)) is None]
        if brief.prune is not None:  # good and bad points of a grid in turn, so that there is something to be behind of
            ahead = self.space.ahead if isinstance(self.space, GridFrom) else []
            left.sort(key=lambda order: -1 if order.configuration in ahead else order.number * _GOLDEN % 1)
        if not brief.stacked:
            return [[order] for order in left]
        size = max(1, min(STACKED_AT_MOST, -(-len(left) // self.workers)))
        return [left[start : start + size] for start in range(0, len(left), size)]

    def _conclude(
        self,
        brief: Brief,
        decision: Decision,
        source: Source,
        folder: RunFolder,
        reservation: Reservation | None,
    ) -> Outcome:
        """Choose, leave one model, settle; what a stopped search must not tell is erased. May be killed anywhere."""
        choice = ChosenRun.load(folder)
        if choice is None:
            results = [result for order in decision.orders if (result := finished(brief.place(order)))]
            rng = random.generator(noise_seed(self.seed, 0 if brief.secret else len(decision.orders)))
            choice = choose(brief, decision.scheme, decision.orders, results, source, rng)
            choice.save(folder, hidden=brief.secret)
        outcome = self._outcome(brief, decision, choice)
        if outcome.guarantee.epsilon > self.budget.epsilon:
            raise BudgetRefused(
                f"the runs of this search cost epsilon {format_up(outcome.guarantee.epsilon)}, above its budget of "
                f"{self.budget.epsilon:g}. Its results in {folder.path} must not be released."
            )
        outcome.save(folder, lambda: settle_once(reservation, decision.scheme.event))
        if brief.secret:
            runner.erase(folder.path, decision.started)
        return outcome

    def _recall(self, decision: Decision, selection: Selection, folder: RunFolder) -> Outcome:
        """The outcome of a search that has ended: choosing twice would cost twice."""
        if decision.scheme.stopping is not None:
            runner.erase(folder.path, decision.started)
        return Outcome.load(folder.path, self.trainer(0).model, decision.scheme, selection)

    def _outcome(self, brief: Brief, decision: Decision, choice: ChosenRun) -> Outcome:
        order = next(order for order in decision.orders if order.number == choice.number)
        runs = [result for order in decision.orders if (result := finished(brief.place(order)))]
        if brief.secret:
            check_events(runs, decision.scheme)
            runs = [replace(run, number=0, repetition=0) for run in runs if run.number == choice.number]
        thesis = brief.selection.kind is SelectionKind.TEST_SET
        return Outcome(
            trained(brief, order).model, order.configuration, decision.scheme, brief.selection, tuple(runs),
            self.space.runs, self.seed is None and not thesis,
            choice.metric, choice.score, choice.spread, self.seeds if thesis else 1,
        )  # fmt: skip


def check_events(runs: Sequence[RunResult], scheme: Scheme) -> None:
    """Refuse the outcome of a stopped search of which a run did something else to the data than was paid for.

    Args:
        runs: All runs.
        scheme: How the search was paid for.
    """
    stop = scheme.stopping
    if stop is None:
        return
    paid = stop.event.events[0] if scheme.choice != NOTHING and isinstance(stop.event, Composed) else stop.event
    if any(from_dict(run.event) != paid for run in runs):
        raise BudgetRefused("a run of this search cost more than was paid for: its results must not be released.")


def describe(value: Any) -> Any:
    """``value`` as plain text that two alike have in common: a function by its name, an object by its fields."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, functools.partial):
        return f"{describe(value.func)}{value.args}{sorted(value.keywords.items())}"
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)
