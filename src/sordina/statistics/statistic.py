"""What every statistic can be asked, the answers that come out, and how several questions share a budget.

How several questions share a budget: the noise of each, so that all together cost what may be spent.

Every question has an error that grows with its noise multiplier, ``c_i m_i``, counted in rows so that questions about
years and about euros can be compared. Two ways to share:

weights       the sum of ``w_i (c_i m_i)^2`` is least: ``m_i ~ (sqrt(w_i) c_i)^-1/2`` where costs add up as ``1 / m^2``
              (concentrated), ``^-2/3`` where they add up as ``1 / m`` (pure)
equal error   ``m_i ~ 1 / c_i``

All are then scaled by one factor, the least for which the privacy loss distributions of all events, those of earlier
releases included, compose to no more than the budget. That is done with Laplace noise everywhere, with Gaussian noise
everywhere and with what suits each question alone; the best of the three is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from sordina.accounting import Composed, Event, accountant, noise_multiplier
from sordina.accounting import events as happened
from sordina.accounting.events import to_dict as event_to_dict
from sordina.errors import BudgetRefused, InvalidInput
from sordina.privacy import Adjacency, Budget, Guarantee, format_up
from sordina.statistics.filters import Condition
from sordina.statistics.noise import Choice, Family
from sordina.statistics.rows import BoundedRows, Grouping, Label

# What comes out of a release: values, intervals, cost, and what a reader must know about them.

Pair = tuple[float, float]


@dataclass(frozen=True)
class Findings:
    """What a statistic found, before anybody says what it cost.

    Args:
        values: One per cell.
        intervals: One per cell; None where none was asked for.
        groups: The cells' labels; empty where the answer is one number.
        notes: What is biased, and how; never a function of a single row.
    """

    values: tuple[Any, ...]
    intervals: tuple[Pair | None, ...]
    groups: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A released answer. All of it may be published if `releasable`.

    Args:
        query: What was asked.
        findings: Values, intervals, cells and notes.
        confidence: Of each interval by itself.
        event: What the answer is to an accountant.
        guarantee: What it cost by itself, at the budget's delta.
        error: What was promised beforehand, if the question could say; see `TableQuery.error`.
        releasable: False if the noise came from a seed.
    """

    query: str
    findings: Findings
    confidence: float
    event: Event
    guarantee: Guarantee
    error: float | None = None
    releasable: bool = True

    @property
    def groups(self) -> tuple[Label, ...]:
        """The cells' labels; empty where the answer is one number."""
        return self.findings.groups

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: what is biased, what was found at a delta."""
        return self.findings.notes

    @property
    def value(self) -> Any:
        """One number, or one for every cell by its label."""
        values = self.findings.values
        return dict(zip(self.groups, values, strict=True)) if self.groups or len(values) != 1 else values[0]

    @property
    def interval(self) -> Any:
        """``(low, high)``, or one for every cell by its label; None where no interval was asked for."""
        pairs = self.findings.intervals
        return dict(zip(self.groups, pairs, strict=True)) if self.groups or len(pairs) != 1 else pairs[0]

    @property
    def cost(self) -> Guarantee:
        """What it cost by itself."""
        return self.guarantee

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        found = self.findings
        labels = found.groups or (None,) * len(found.values)
        cells = [
            {"group": list(label) if isinstance(label, tuple) else label}
            | {"value": value, "interval": None if pair is None else list(pair)}
            for label, value, pair in zip(labels, found.values, found.intervals, strict=True)
        ]
        return {
            "query": self.query,
            "answers": cells,
            "confidence": self.confidence,
            "error": self.error,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "unit": str(self.guarantee.unit),
            "adjacency": str(self.guarantee.adjacency),
            "event": event_to_dict(self.event),
            "notes": list(found.notes),
            "releasable": self.releasable,
        }

    def __str__(self) -> str:
        lines = [f"{self.query}  {self.guarantee}"]
        for cell in self.to_dict()["answers"]:
            name = "" if cell["group"] is None else f"{cell['group']}: "
            shown = cell["value"] if isinstance(cell["value"], str) else f"{cell['value']:.6g}"
            pair = cell["interval"]
            lines.append(f"  {name}{shown}" + (f"  [{pair[0]:.6g}, {pair[1]:.6g}]" if pair else ""))
        return "\n".join(lines)


# What every statistic can be asked, before it is bound to a table: its event, its error, its answer.


@dataclass(frozen=True)
class Terms:
    """The public facts that every statistic of a table shares.

    Args:
        rows_per_person: How many rows a unit of privacy has at most; 1 if every row is another person.
        persons: Whether the unit is a person rather than a row.
        rows: About how many rows there are, if that is public: errors are stated for it.
        exact_rows: Whether ``rows`` is exact and may be divided by.
    """

    rows_per_person: int = 1
    persons: bool = False
    rows: int | None = None
    exact_rows: bool = False

    def notes(self) -> tuple[str, ...]:
        """What has to be said of every answer."""
        if not self.persons:
            return ()
        return (
            f"At most {self.rows_per_person} row{'s' * (self.rows_per_person > 1)} of a person count; others, if there "
            "are any, were left out at random (biased if persons with more rows differ).",
        )


@dataclass(frozen=True)
class Subject:
    """Which rows, divided by what.

    Args:
        text: The question as a person would write it.
        where: The filter, if any.
        grouping: The cells.
    """

    text: str = "count"
    where: Condition | None = None
    grouping: Grouping = field(default_factory=Grouping)

    @property
    def names(self) -> set[str]:
        """The columns that deciding which row belongs where takes."""
        return set(self.grouping.names) | (self.where.names() if self.where is not None else set())

    def with_threshold(self, event: Event) -> Event:
        """``event``, and what showing unknown cells costs besides."""
        if self.grouping.known:
            return event
        return Composed((event, happened.ApproximateDP(0.0, self.grouping.delta)))

    def notes(self, threshold: float | None = None) -> tuple[str, ...]:
        """What has to be said of the cells."""
        if not self.grouping.dividers:
            return ()
        if self.grouping.known:
            return ("Rows with a value that is missing or not listed are in no group.",)
        return (
            f"Groups were not known beforehand: those with a noisy count of at least {threshold:.4g} are shown, at a "
            f"delta of {self.grouping.delta:.3g}; smaller groups are left out.",
        )

    def rows_per_cell(self, rows: int | None) -> float:
        """How many of ``rows`` a cell has if all have alike; refuses to guess the number of rows."""
        if rows is None:
            raise InvalidInput(
                f"the error of {self.text!r} depends on how many rows there are, which is a secret: say about how many,"
                " as rows= (--rows), from what you know without the data."
            )
        return rows / self.grouping.expected_cells


class Statistic(Protocol):
    """Public facts in fields, the secret in an argument."""

    @property
    def subject(self) -> Subject:
        """Which rows, divided by what."""
        ...

    def names(self) -> set[str]:
        """The columns it reads."""
        ...

    def event(self, choice: Choice, terms: Terms) -> Event:
        """What a release with ``choice`` is to an accountant."""
        ...

    def rows_error(self, confidence: float, choice: Choice, terms: Terms) -> float:
        """A bound on the error of one cell in the worst case, as a number of rows; linear in the multiplier."""
        ...

    def scale(self, terms: Terms) -> float:
        """What an error of one row means in the answer's own unit."""
        ...

    def answer(
        self, rows: BoundedRows, choice: Choice, terms: Terms, confidence: float, rng: np.random.Generator
    ) -> Findings:
        """The private answer."""
        ...


# How several questions share a budget: the noise of each, so that all together cost what may be spent.

_CONFIDENCE = 0.95
_REST = 1e-3
"""A rest of less than this part of epsilon counts as nothing."""
Families = tuple[Family, ...]


def share_budget(
    statistics: tuple[Statistic, ...],
    terms: Terms,
    budget: Budget,
    *,
    spent: tuple[Event, ...] = (),
    weights: tuple[float, ...] | None = None,
    equal_error: bool = False,
) -> tuple[Choice, ...]:
    """What each statistic is to be answered with.

    Args:
        statistics: What is asked together.
        terms: Public facts of the table.
        budget: What all may cost, earlier releases included.
        spent: The events of earlier releases.
        weights: How much each question's squared error counts; all alike if None.
        equal_error: Whether all shall have the same error, counted in rows.
    """
    if math.isinf(budget.epsilon):
        raise InvalidInput("a release needs a finite epsilon: without privacy, use pandas itself.")
    if equal_error and weights is not None:
        raise InvalidInput("either weights or equal_error decides how a budget is shared, not both.")
    weights = (1.0,) * len(statistics) if weights is None else weights
    if len(weights) != len(statistics) or not all(math.isfinite(one) and one > 0 for one in weights):
        raise InvalidInput(f"weights must be one positive number for each of the {len(statistics)} questions.")
    return _shared(statistics, terms, budget, spent, weights, equal_error)


@lru_cache(maxsize=256)
def _shared(
    statistics: tuple[Statistic, ...],
    terms: Terms,
    budget: Budget,
    spent: tuple[Event, ...],
    weights: tuple[float, ...],
    equal_error: bool,
) -> tuple[Choice, ...]:
    refuse_spent(budget, spent)
    candidates: dict[Families, tuple[Choice, ...]] = {}
    for families in _assignments(statistics, terms, budget):
        relative = _relative(statistics, families, terms, weights, equal_error)
        candidates[families] = _calibrated(statistics, families, relative, terms, budget, spent)

    def badness(choices: tuple[Choice, ...]) -> float:
        errors = [one.rows_error(_CONFIDENCE, choice, terms) for one, choice in zip(statistics, choices, strict=True)]
        return max(errors) if equal_error else sum(w * e * e for w, e in zip(weights, errors, strict=True))

    return min(candidates.values(), key=badness)


def refuse_spent(budget: Budget, spent: tuple[Event, ...]) -> None:
    """Refuse to go on where nothing is left.

    Args:
        budget: The whole.
        spent: Events of earlier releases.
    """
    if not spent:
        return
    gone = cost(spent, budget.delta)
    if gone > budget.epsilon * (1 - _REST):
        raise BudgetRefused(
            f"the budget of epsilon {format_up(budget.epsilon)} at delta {format_up(budget.delta)} is spent "
            f"({format_up(gone)}): asking again would average the noise away. Nothing was read."
        )


@lru_cache(maxsize=1024)
def cost(events: tuple[Event, ...], delta: float) -> float:
    """The epsilon of all ``events`` together at ``delta``.

    Args:
        events: What happened, or may.
        delta: Of the budget.
    """
    return accountant("pld").epsilon(Composed(events), delta, Adjacency.ADD_REMOVE) if events else 0.0


def _assignments(statistics: tuple[Statistic, ...], terms: Terms, budget: Budget) -> list[Families]:
    if budget.delta == 0:
        return [(Family.PURE,) * len(statistics)]
    same = [(family,) * len(statistics) for family in Family]
    if len(statistics) == 1:
        return same

    def alone(statistic: Statistic) -> Family:
        share = Budget(budget.epsilon / math.sqrt(len(statistics)), budget.delta)
        return _shared((statistic,), terms, share, (), (1.0,), False)[0].family

    return list(dict.fromkeys([*same, tuple(alone(one) for one in statistics)]))


def _relative(
    statistics: tuple[Statistic, ...], families: Families, terms: Terms, weights: tuple[float, ...], equal_error: bool
) -> list[float]:
    """The multipliers up to a common factor, their geometric mean 1."""
    power = 1.0 if equal_error else 2 / 3 if set(families) == {Family.PURE} else 0.5
    found = []
    for statistic, family, weight in zip(statistics, families, weights, strict=True):
        difficulty = statistic.rows_error(_CONFIDENCE, Choice(family, 1.0), terms)
        found.append((difficulty if equal_error else difficulty * math.sqrt(weight)) ** -power)
    middle = math.exp(sum(map(math.log, found)) / len(found))
    return [one / middle for one in found]


def _calibrated(
    statistics: tuple[Statistic, ...],
    families: Families,
    relative: list[float],
    terms: Terms,
    budget: Budget,
    spent: tuple[Event, ...],
) -> tuple[Choice, ...]:
    def choices(factor: float) -> tuple[Choice, ...]:
        return tuple(Choice(family, factor * one) for family, one in zip(families, relative, strict=True))

    def event(factor: float) -> Event:
        if factor <= 0:
            return happened.Gaussian(0.0)
        new = (one.event(choice, terms) for one, choice in zip(statistics, choices(factor), strict=True))
        return Composed((*spent, *new))

    try:
        return choices(noise_multiplier(event, budget))
    except InvalidInput as error:
        raise BudgetRefused(
            f"no amount of noise answers {'these questions' if len(statistics) > 1 else 'this question'} within what "
            f"is left of epsilon {format_up(budget.epsilon)} at delta {format_up(budget.delta)}."
        ) from error
