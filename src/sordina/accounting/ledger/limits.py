"""When a spend does not fit: refused beforehand, or found out too late and said so."""

from __future__ import annotations

from dataclasses import dataclass

from sordina.accounting.events import Event
from sordina.accounting.ledger import costs
from sordina.accounting.ledger.costs import ComposedSpends
from sordina.accounting.ledger.entries import Entry
from sordina.accounting.ledger.state import DataSet, Spend, State, Statement, Status
from sordina.errors import BudgetRefused
from sordina.types import format_down, format_up

_ROUNDING = 1e-6
"""Relative distance below which two epsilons of one accountant do not count as different."""


@dataclass(frozen=True)
class Fit:
    """What a spend would cost, alone and with all that was spent before."""

    dataset: DataSet
    alone: float
    spent: float
    together: float

    @property
    def fits(self) -> bool:
        """Whether the budget holds all of it."""
        return self.together <= self.dataset.budget.epsilon

    def __str__(self) -> str:
        budget, left = self.dataset.budget, max(0.0, self.dataset.budget.epsilon - self.spent)
        alone, spent, together = format_up(self.alone), format_up(self.spent), format_up(self.together)
        sentence = (
            f"{'fits' if self.fits else 'does not fit'}: alone it costs epsilon {alone}, with the {spent} spent it "
            f"comes to {together} of {budget.epsilon:g} at delta {budget.delta:g}."
        )
        if self.fits and self.alone > left:
            sentence += (
                f" That it is more than the remaining {format_down(left)} is no mistake: epsilons do not simply add up."
                f" The noise of several releases composes as a whole: {spent} and {alone} together are {together}, not"
                f" {format_up(self.spent + self.alone)}."
            )
        if not self.fits and self.alone <= left:
            sentence += " What is known only by its epsilon and delta brings its own delta, which adds to the others'."
        return sentence


def fit_of(state: State, terms: DataSet, event: Event, stored: ComposedSpends | None) -> Fit:
    """What ``event`` would cost beside all that was spent.

    Args:
        state: What the history means.
        terms: Of the data set.
        event: What may be spent.
        stored: The past as it was kept last.
    """
    spend = Spend(0, terms.name, event, Status.OPEN, "", "", "")
    return Fit(
        terms,
        terms.epsilon(event),
        costs.epsilon(terms, state.spends_on(terms), stored),
        costs.epsilon(terms, state.spends_on(terms, instead=spend), stored),
    )


def refuse_over_budget(state: State, terms: DataSet, spend: Spend, stored: ComposedSpends | None) -> None:
    """Refuse ``spend`` if everything spent and reserved on its data set, composed with it, passes the budget."""
    wanted = costs.epsilon(terms, state.spends_on(terms, instead=spend), stored)
    if wanted <= terms.budget.epsilon:
        return
    statement = costs.statement(state, terms, stored)
    waiting = len(statement.having(Status.OPEN))
    raise BudgetRefused(
        f"{spend.what!r} would bring {terms.name!r} to epsilon {format_up(wanted, 6)} of {terms.budget.epsilon:g} "
        f"(delta {terms.budget.delta:g}, {terms.accountant}); {format_up(statement.spent, 6)} are spent, counting "
        f"{waiting} open reservation{'' if waiting == 1 else 's'}. Nothing was read or written."
    )


def overrun(state: State, terms: DataSet, before: Spend, after: Spend, stored: ComposedSpends | None) -> str:
    """What is wrong with settling ``before`` as ``after``; empty if nothing is."""
    if before.status is Status.RELEASED:
        return "was settled after it had been released"
    if after.event == before.event:
        return ""
    planned = costs.epsilon(terms, state.spends_on(terms, instead=before), stored)
    actual = costs.epsilon(terms, state.spends_on(terms, instead=after), stored)
    return "" if actual <= planned * (1 + _ROUNDING) else "spent more than it had reserved"


def refuse_overspent(statement: Statement, entry: Entry) -> None:
    """Refuse the result of a settled spend that, against its reservation, brought the data set over its budget."""
    budget = statement.dataset.budget
    if not statement.spent <= budget.epsilon:
        raise BudgetRefused(
            f"{entry.what!r} {entry.note}, and brings {entry.dataset!r} to epsilon {format_up(statement.spent, 6)} of "
            f"{budget.epsilon:g}. This is recorded; do not release its result."
        )
