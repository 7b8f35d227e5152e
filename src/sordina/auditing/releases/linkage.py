"""Linkage: a table without names, joined with a public list of names on columns that both have (Sweeney 1997)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sordina import statistics
from sordina.auditing.releases.release_study import ReleaseStudy, StudyCurve, StudyLine
from sordina.errors import InvalidInput
from sordina.privacy import Budget, check_delta, check_epsilon, format_up
from sordina.random import generator, releasable

COLUMNS = ("age", "education", "occupation", "relationship", "hours_per_week")
SECRET = "income"
_BANDS = (1, 5, 10, 20, 40, 100)
"""Widths to which numbers are coarsened, one after the other."""

Table = Mapping[str, Sequence[Any]]


def adult_table() -> dict[str, list[str]]:
    """The training part of UCI Adult, as text."""
    from sordina.datasets import adult
    from sordina.datasets.files import obtain

    return adult.read(obtain(adult.FILES["train"], "adult/train.csv"))


def linkage_study(
    table: Table | None = None,
    *,
    columns: Sequence[str] = COLUMNS,
    secret: str = SECRET,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    group_size: int = 5,
    seed: int | None = None,
) -> ReleaseStudy:
    """How many rows can be joined to one name; how many people of a k-anonymous table still have no secret; and ours.

    Ours is `sordina.statistics.Table.count` by the same columns, whose values nobody listed: cells are shown only where
    their noisy count passes the stability threshold. A row is linked if it is alone in a cell that is shown.

    Args:
        table: Columns of equal length; UCI Adult if left out.
        columns: What the public list has, too.
        secret: The column that nobody should learn.
        epsilon: Of our release.
        delta: Of our release.
        group_size: The k of the k-anonymous release.
        seed: Makes the study repeatable.
    """
    check_epsilon(epsilon), check_delta(delta)
    table = adult_table() if table is None else table
    for name in (*columns, secret):
        if name not in table:
            raise InvalidInput(f"the table has no column {name!r}.")
    rows = len(table[secret])
    shares = [_alone(table, columns[:count]) / rows for count in range(1, len(columns) + 1)]
    width, kept, exposed = _homogeneity(table, columns, secret, group_size)
    rng = generator(seed)
    ours = _linked_in_ours(table, columns, epsilon, delta, rng) / rows
    return ReleaseStudy(
        attack="linkage",
        title="Rows joined to one name",
        data=f"{rows} rows, linked by {', '.join(columns)}",
        private=f"counts of the same columns, ({format_up(epsilon)}, {format_up(delta)})-DP per row",
        verdict=(
            f"{shares[-1]:.1%} of the rows are alone with their {len(columns)} values and join to one name. Made "
            f"{group_size}-anonymous (numbers in bands of {width}, {1 - kept:.1%} of the rows suppressed), "
            f"{exposed:.1%} of the rest still share their {secret} with everybody in their group, so it is known all "
            f"the same. Of our release {ours:.1%} can be linked."
        ),
        lines=(
            StudyLine("rows joined to one name", shares[-1], ours, 0.0),
            StudyLine(f"{secret} known from a {group_size}-anonymous table", exposed, None),
            StudyLine("rows suppressed to be anonymous", 1 - kept, None),
        ),
        x="columns that the public list has",
        y="share of rows joined to one name",
        curves=(
            StudyCurve("table without names", tuple(range(1, len(columns) + 1)), tuple(shares)),
            StudyCurve("our counts", (1, len(columns)), (ours, ours)),
        ),
        releasable=releasable(rng),
    )


def _cells(table: Table, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name] for name in columns), strict=True))


def _alone(table: Table, columns: Sequence[str]) -> int:
    return sum(count == 1 for count in Counter(_cells(table, columns)).values())


def _homogeneity(table: Table, columns: Sequence[str], secret: str, size: int) -> tuple[int, float, float]:
    """The band width at which at most a tenth is suppressed, the share that is kept, and of it what is homogeneous."""
    rows = len(table[secret])
    width, kept, exposed = 0, 0.0, 0.0
    for width in _BANDS:
        coarse = {name: _banded(table[name], width) for name in columns}
        groups: dict[tuple[Any, ...], list[Any]] = {}
        for cell, value in zip(_cells(coarse, columns), table[secret], strict=True):
            groups.setdefault(cell, []).append(value)
        whole = [values for values in groups.values() if len(values) >= size]
        kept = sum(map(len, whole)) / rows
        exposed = sum(len(values) for values in whole if len(set(values)) == 1) / max(1.0, kept * rows)
        if kept >= 0.9:
            break
    return width, kept, exposed


def _banded(values: Sequence[Any], width: int) -> Sequence[Any]:
    """Numbers in bands; anything else as it is, until bands are 20 wide: then its first letter."""
    try:
        return [float(value) // width for value in values]
    except (TypeError, ValueError):
        return [str(value)[:1] for value in values] if width >= 20 else values


def _linked_in_ours(
    table: Table, columns: Sequence[str], epsilon: float, delta: float, rng: np.random.Generator
) -> int:
    """How many rows are alone in a cell that our table of counts shows."""
    texts = {name: [str(value) for value in table[name]] for name in columns}
    schema = {"columns": {name: {"kind": "category"} for name in columns}}
    release = statistics.Table(_frame(texts), schema=schema, budget=Budget(epsilon, delta), seed=rng)
    shown = set(map(tuple, release.count(by=list(columns)).release().groups))
    counts = Counter(_cells(texts, columns))
    return sum(count == 1 and cell in shown for cell, count in counts.items())


def _frame(columns: Table) -> Any:
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise InvalidInput("tables in memory need pandas: pip install 'sordina[tables]'.") from error
    return DataFrame(dict(columns))
