"""What every statistic can be asked, before it is bound to a table: its event, its error, its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sordina.accounting import Composed, Event
from sordina.accounting import events as happened
from sordina.errors import InvalidInput
from sordina.statistics.answers import Findings
from sordina.statistics.filters import Condition
from sordina.statistics.groups import Grouping
from sordina.statistics.noise import Choice
from sordina.statistics.rows import BoundedRows


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
