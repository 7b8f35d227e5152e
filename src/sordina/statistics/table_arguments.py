"""Arguments of a table and its questions, checked before anything is read: what cannot be meant is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sordina.errors import InvalidInput
from sordina.privacy import Budget
from sordina.statistics.quantiles import CELLS
from sordina.statistics.statistic import Terms
from sordina.tables.schema import ColumnKind, ColumnSchema, Schema


def checked_budget(budget: Any) -> Budget:
    """A finite budget; refused otherwise.

    Args:
        budget: A `Budget`, or its epsilon and delta.
    """
    if isinstance(budget, Budget):
        found = budget
    elif isinstance(budget, Sequence) and len(budget) == 2 and not isinstance(budget, str):
        found = Budget(*budget)
    else:
        raise InvalidInput("budget must be a Budget, such as sordina.Budget(epsilon=1, delta=1e-6).")
    if math.isinf(found.epsilon):
        raise InvalidInput("a table needs a finite epsilon: without privacy, use pandas itself.")
    return found


def with_person(schema: Schema, person: str | None, rows_per_person: int | None) -> Schema:
    """The schema with the person's column and rows that a caller states instead of its own.

    Args:
        schema: What is public about the table.
        person: The column that says whose row it is; the schema's if None.
        rows_per_person: How many rows of one person count at most; the schema's if None.
    """
    if person is not None:
        if not isinstance(person, str):
            raise InvalidInput("person must be the name of a column.")
        owner = ColumnSchema(person, ColumnKind.PERSON)
        known = any(column.name == person for column in schema.columns)
        kept = [
            owner if column.name == person
            else replace(column, kind=ColumnKind.IGNORED) if column.kind is ColumnKind.PERSON
            else column
            for column in schema.columns
        ]  # fmt: skip
        groups = tuple(name for name in schema.groups if name != person)
        target = None if schema.target == person else schema.target
        columns = tuple(kept if known else [*kept, owner])
        schema = Schema(columns, target, person, schema.rows_per_person, groups, schema.missing, schema.rows)
    if rows_per_person is not None:
        if schema.person is None:
            raise InvalidInput("rows_per_person needs persons: say which column tells them apart, as person=.")
        schema = replace(schema, rows_per_person=whole_number("rows_per_person", rows_per_person))
    return schema


def public_terms(schema: Schema, rows: int | None) -> Terms:
    """What is public about the rows of a table.

    Args:
        schema: What is public about the table.
        rows: About how many rows there are; the schema's exact number if None.
    """
    persons = schema.person is not None
    stated = schema.rows if rows is None else whole_number("rows", rows)
    return Terms(
        (schema.rows_per_person or 1) if persons else 1, persons, stated, schema.rows is not None and rows is None
    )


def whole_number(name: str, value: Any) -> int:
    """A whole number of at least 1; refused otherwise.

    Args:
        name: Of the argument, for the refusal.
        value: The argument.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InvalidInput(f"{name} must be a whole number of at least 1.")
    return int(value)


def checked_weight(value: Any) -> float:
    """A positive, finite weight; refused otherwise.

    Args:
        value: The argument.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise InvalidInput("weights must be positive numbers, one for each question.")
    return float(value)


def checked_probabilities(probabilities: Any) -> tuple[float, ...]:
    """Probabilities of quantiles, increasing, each once; refused if one is not strictly between 0 and 1.

    Args:
        probabilities: One or several.
    """
    if isinstance(probabilities, (int, float)):
        probabilities = (probabilities,)
    if (
        isinstance(probabilities, str)
        or not isinstance(probabilities, (Sequence, np.ndarray))
        or not len(probabilities)
    ):
        raise InvalidInput("probabilities must be numbers strictly between 0 and 1, such as [0.25, 0.5, 0.75].")
    for one in probabilities:
        if isinstance(one, bool) or not isinstance(one, (int, float, np.floating)) or not 0 < one < 1:
            raise InvalidInput("probabilities must be numbers strictly between 0 and 1, such as [0.25, 0.5, 0.75].")
    found = tuple(sorted({float(one) for one in probabilities}))
    if len(found) > 1000:
        raise InvalidInput("ask for at most 1000 quantiles.")
    return found


def grid_points(column: ColumnSchema, step: Any) -> int:
    """How many points the grid of a column's values has.

    Args:
        column: A number or date with a range.
        step: All values are ``low`` plus whole multiples of this; None if nothing of the kind is public.
    """
    assert column.low is not None
    assert column.high is not None
    if step is None:
        if column.kind is not ColumnKind.DATE:
            return CELLS
        step = 1.0
    if isinstance(step, bool) or not isinstance(step, (int, float)) or not 0 < step < math.inf:
        raise InvalidInput("step must be a positive number, such as 1 for whole numbers.")
    if column.scale == "log":
        raise InvalidInput(f"column {column.name!r} has the scale log: its grid has no steps of one size.")
    steps = (column.high - column.low) / step
    if steps > CELLS or abs(steps - round(steps)) > 1e-6:
        raise InvalidInput(f"step must divide the range of {column.name!r} into at most {CELLS:,} whole steps.")
    return round(steps) + 1


def bin_edges(column: ColumnSchema, bins: Any) -> tuple[float, ...]:
    """The edges of bins, increasing; refused otherwise.

    Args:
        column: A number or date with a range.
        bins: How many bins of equal width, or their edges.
    """
    assert column.low is not None
    assert column.high is not None
    if isinstance(bins, (int, np.integer)) and not isinstance(bins, bool):
        if not 1 <= bins <= 100_000:
            raise InvalidInput("bins must be a whole number from 1 to 100000, or a list of edges.")
        return tuple(np.linspace(column.low, column.high, int(bins) + 1).tolist())
    try:
        edges = tuple(float(edge) for edge in bins)
    except (TypeError, ValueError):
        raise InvalidInput("bins must be a whole number from 1 to 100000, or a list of edges.") from None
    if len(edges) < 2 or not all(map(math.isfinite, edges)) or any(b <= a for a, b in itertools.pairwise(edges)):
        raise InvalidInput("the edges of bins must increase, and be at least two.")
    return edges
