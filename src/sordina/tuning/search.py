"""Search: try many configurations, pay once.

search = sd.Search(tuning.Grid({"rho": (0.1, 1.0, 10.0)}), trainer=make_trainer, budget=sd.Budget(3, 1e-5),
                   strategy="online", selection="private")
found = search.fit(train, validation)
print(found.configuration, found.guarantee)

The noise of each run follows from the budget of all, the choice of the best is a private query of its own, and one
reservation in the ledger covers everything. Made with a folder, a search that was killed goes on where it was.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sordina import randomness
from sordina.accounting.ledger import Ledger, Status
from sordina.errors import BudgetRefused, InvalidInput, TrainingFailed
from sordina.training import Trainer
from sordina.training.batches import as_rows
from sordina.training.private import make_schedule
from sordina.tuning.choice import CHOICE, Choice, choose
from sordina.tuning.decision import PLAN, Decision, make_orders, noise_seed
from sordina.tuning.outcome import RESULTS, Outcome
from sordina.tuning.run import Brief, MakeTrainer, Order, finished, trained
from sordina.tuning.scheme import Schedule, make_scheme
from sordina.tuning.selection import Kind, Selection, selection_of
from sordina.tuning.space import Configuration, Space
from sordina.tuning.stacked import stackable
from sordina.tuning.strategies import Fields, fields_of
from sordina.tuning.workers import Given, Source, carry_out
from sordina.types import Budget, Unit

Watch = Callable[[Path], AbstractContextManager[Any]]
"""Shows a search in a folder while it runs."""
STACKED_AT_MOST = 32


@dataclass
class Search:
    """Everything about a private search but the data. Nothing is checked before `fit`.

    ``trainer`` makes a fresh `sordina.Trainer` (its argument seeds the first weights); ``strategy`` says which fields a
    configuration sets on it: a name of `sordina.tuning.STRATEGIES`, a function, or None for field names as they are.
    ``selection`` is "private", "public" or "thesis-test-set", or a `Selection`; ``method`` "composition" or
    "random-stopping", the cheaper one if left out. ``seeds`` trains every configuration that many times, and each
    time is paid for, except in the thesis's protocol. A ``seed`` makes all noise repeatable, and the result unfit
    for release. ``patience`` (exact selection only) ends runs that stopped improving.
    """

    space: Space
    trainer: MakeTrainer
    budget: Budget
    strategy: str | Fields | None = None
    selection: Selection | str = "private"
    method: str | None = None
    seeds: int = 1
    seed: int | None = None
    accountant: str = "pld"
    workers: int = 1
    folder: str | Path | None = None
    validate_every: int | None = None
    patience: int | None = None
    ledger: Ledger | None = None
    dataset_budget: str | None = None
    watch: Watch | None = None

    def fit(self, train: Any, validation: Any, *, resume: bool = False) -> Outcome:
        """Search for the configuration that trains the best model on ``train``, judged on ``validation``."""
        return self.fit_from(Given(train, validation), as_rows(train).size, resume=resume)

    def fit_from(self, source: Source, size: int, *, resume: bool = False) -> Outcome:
        """As `fit`, for data that every worker loads by itself; ``size`` is the number of training rows."""
        selection = self._check(resume)
        start = time.perf_counter()
        with nullcontext(self.folder) if self.folder else tempfile.TemporaryDirectory() as place:
            folder = Path(str(place))
            decision = self._decide(selection, size, folder, resume)
            if (folder / RESULTS).exists():
                return self._recall(decision, selection, folder)
            if not decision.orders:
                self._settle(decision)
                raise TrainingFailed(
                    "the random number of runs came out as 0, so there is no result. The budget counts as spent all "
                    "the same: the guarantee rests on this being possible."
                )
            brief = self._brief(decision, selection, folder)
            if not (folder / CHOICE).exists():
                with self.watch(folder) if self.watch else nullcontext():
                    carry_out(brief, self._groups(brief, decision.orders), source, self.workers)
            outcome = self._conclude(brief, decision, source, time.perf_counter() - start)
        return outcome

    def _check(self, resume: bool) -> Selection:
        selection = selection_of(self.selection)
        if (self.ledger is None) != (self.dataset_budget is None):
            raise InvalidInput("ledger and dataset_budget go together: which ledger, and which of its data sets.")
        if self.seeds < 1 or self.workers < 1:
            raise InvalidInput(f"seeds and workers are at least 1, got {self.seeds} and {self.workers}.")
        if self.patience is not None and not selection.exact:
            raise InvalidInput(
                "patience looks at validation scores, which private selection does not reveal: leave it out, or "
                "select on public data."
            )
        if resume and self.folder is None:
            raise InvalidInput("resume=True needs the folder of the search to resume: Search(..., folder=...).")
        if self.folder is not None and not resume and (Path(self.folder) / PLAN).exists():
            raise InvalidInput(f"{self.folder} holds a search already. Resume it, or choose another folder.")
        return selection

    def _decide(self, selection: Selection, size: int, folder: Path, resume: bool) -> Decision:
        """What to do: read from the folder when resuming, otherwise decided, reserved and written, in this order."""
        asked = self._asked(selection, size)
        if resume:
            return Decision.load(folder, asked)
        rng = randomness.generator(self.seed)
        configurations = self.space.configurations(rng)
        repetitions = 1 if selection.kind is Kind.TEST_SET else self.seeds
        base = self.trainer(0)
        schedules = [self._schedule(base, configuration, size) for configuration in configurations]
        schedules = (schedules + schedules[:1] * (self.space.runs - len(schedules))) * repetitions
        scheme = make_scheme(schedules, self.budget, selection, method=self.method, accountant=self.accountant)
        decision = Decision(asked, scheme, make_orders(self.space, scheme, configurations, self.seeds, self.seed, rng))
        if self.ledger is not None and self.dataset_budget is not None:
            reservation = self.ledger.reserve(
                self.dataset_budget, scheme.event, what=f"search over {len(configurations)} configurations",
                adjacency=scheme.adjacency, unit=scheme.unit,
            )  # fmt: skip
            decision = decision.reserved(reservation.id)
        folder.mkdir(parents=True, exist_ok=True)
        decision.save(folder)
        return decision

    def _schedule(self, base: Trainer, configuration: Configuration, size: int) -> Schedule:
        one = replace(base, **fields_of(self.strategy, configuration))
        units = size if one.users is None else len(one.users)
        sampler, steps = make_schedule(
            units, batch_size=one.batch_size, epochs=one.epochs, steps=one.steps,
            sampling=one.sampling, population=one.population,
        )  # fmt: skip
        return Schedule(sampler, steps, Unit.RECORD if one.users is None else Unit.USER)

    def _asked(self, selection: Selection, size: int) -> dict[str, Any]:
        strategy = (
            self.strategy if isinstance(self.strategy, str | None) else getattr(self.strategy, "__qualname__", "?")
        )
        return {
            "space": repr(self.space), "strategy": strategy, "selection": repr(selection), "budget": repr(self.budget),
            "method": self.method, "seeds": self.seeds, "seed": self.seed, "accountant": self.accountant,
            "rows": size, "validate_every": self.validate_every, "patience": self.patience,
        }  # fmt: skip

    def _brief(self, decision: Decision, selection: Selection, folder: Path) -> Brief:
        return Brief(
            self.trainer, self.strategy, self.budget, decision.scheme.noise_multiplier, self.accountant, selection,
            folder, self.validate_every, self.patience,
        )  # fmt: skip

    def _groups(self, brief: Brief, orders: tuple[Order, ...]) -> list[list[Order]]:
        """The runs still to do; those that are worth it together, as many at once as leave every worker a share."""
        left = [order for order in orders if finished(brief.place(order)) is None]
        if len(left) < 2 or brief.noise_multiplier == 0 or not stackable(brief.make(left[0])):
            return [[order] for order in left]
        size = min(STACKED_AT_MOST, -(-len(left) // self.workers))
        return [left[start : start + size] for start in range(0, len(left), size)]

    def _conclude(self, brief: Brief, decision: Decision, source: Source, seconds: float) -> Outcome:
        """Choose, settle with the ledger, and leave one model; the rest of a search that stops at random is erased."""
        choice = Choice.load(brief.folder)
        if choice is None:
            results = [result for order in decision.orders if (result := finished(brief.place(order)))]
            rng = randomness.generator(noise_seed(self.seed, len(decision.orders)))
            choice = choose(brief, decision.scheme, decision.orders, results, source, rng)
            choice.save(brief.folder)
        self._settle(decision)
        outcome = self._outcome(brief, decision, choice, seconds)
        if outcome.guarantee.epsilon > self.budget.epsilon:
            raise BudgetRefused(
                f"the runs of this search cost epsilon {outcome.guarantee.epsilon:.4g}, above its budget of "
                f"{self.budget.epsilon:.4g}. Its results in {brief.folder} must not be released."
            )
        outcome.save(brief.folder)
        if decision.scheme.stopping is not None:
            erase_runs(brief, decision)
        return outcome

    def _recall(self, decision: Decision, selection: Selection, folder: Path) -> Outcome:
        """The outcome of a search that has ended: choosing twice would cost twice."""
        brief = self._brief(decision, selection, folder)
        if decision.scheme.stopping is not None:
            erase_runs(brief, decision)
        return Outcome.load(folder, self.trainer(0).model, decision.scheme, selection)

    def _outcome(self, brief: Brief, decision: Decision, choice: Choice, seconds: float) -> Outcome:
        order = next(order for order in decision.orders if order.number == choice.number)
        runs = [result for order in decision.orders if (result := finished(brief.place(order)))]
        if decision.scheme.stopping is not None:
            runs = [replace(run, number=0, repetition=0) for run in runs if run.number == choice.number]
        thesis = brief.selection.kind is Kind.TEST_SET
        return Outcome(
            trained(brief, order).model, order.configuration, decision.scheme, brief.selection, tuple(runs),
            self.space.runs, self.seed is None and not thesis, seconds,
            choice.metric, choice.score, choice.spread, self.seeds if thesis else 1,
        )  # fmt: skip

    def _settle(self, decision: Decision) -> None:
        if self.ledger is None or self.dataset_budget is None or decision.reservation is None:
            return
        spends = self.ledger.statement(self.dataset_budget).having(Status.OPEN)
        if any(spend.id == decision.reservation for spend in spends):
            self.ledger.settle(decision.reservation, decision.scheme.event)


def erase_runs(brief: Brief, decision: Decision) -> None:
    """Leave nothing of a search that stops at random but its outcome: not the other runs, not how many there were."""
    shutil.rmtree(brief.folder / "runs", ignore_errors=True)
    (brief.folder / CHOICE).unlink(missing_ok=True)
    replace(decision, orders=()).save(brief.folder)
