"""All that commands print, and their progress bars: no name of a run or column can move a reader's terminal."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from sordina.privacy import format_up
from sordina.progress import Progress as Counted
from sordina.progress import silent

# All that commands print passes here, so that no name of a run, a data set or a column can move a reader's terminal.
#
# Text from outside may hold escape sequences, new lines, or characters that turn the direction of writing; each is
# shown as its code, ``\x1b``, instead. Cells of tables are plain text: nothing in them is markup.

_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories that a terminal obeys, or that nobody can see: controls, formats, surrogates, separators."""


def plain(text: object) -> str:
    """``text`` in one line, every character that is not shown replaced by its code.

    Args:
        text: Anything; its ``str`` is taken.

    >>> plain("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return "".join(_visible(character) for character in str(text))


def _visible(character: str) -> str:
    if character.isascii():
        return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
    if unicodedata.category(character) in _INVISIBLE:
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character


def say(text: object = "", *, alarm: bool = False) -> None:
    """Print one line.

    Args:
        text: What to say.
        alarm: In bold red on standard error.
    """
    if alarm:
        typer.secho(plain(text), fg=typer.colors.RED, bold=True, err=True)
    else:
        typer.echo(plain(text))


def number(name: str, value: float) -> str:
    """``value`` in six digits; an epsilon, delta or leakage rounded up, because it is a claim.

    Args:
        name: What it is called.
        value: The number.

    >>> number("epsilon", 1.0000001), number("loss", 1.0000001)
    ('1.00001', '1')
    """
    claimed = any(word in name for word in ("epsilon", "delta", "leak", "spent"))
    return format_up(value, 6) if claimed else f"{value:.6g}"


def say_json(data: Any, *, indent: int | None = None) -> None:
    """Print JSON in ASCII; it knows no infinity, which is written as the text "inf".

    Args:
        data: What `json` can write.
        indent: Spaces by which inner values are set in; None for one line.
    """
    typer.echo(json.dumps(finite(data), indent=indent, allow_nan=False))


def finite(value: Any) -> Any:
    """``value`` with every number that JSON does not know as text."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def say_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    right: Sequence[str] = (),
    unbroken: Sequence[str] = (),
) -> None:
    """Print a table.

    Args:
        columns: Their names.
        rows: A value for each column.
        title: Above the table.
        right: Names of columns to align right.
        unbroken: Names of columns whose lines are not broken.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(plain(title)) if title else None, title_justify="left")
    for column in columns:
        table.add_column(
            Text(plain(column)), overflow="fold", no_wrap=column in unbroken,
            justify="right" if column in right else "left",
        )  # fmt: skip
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    Console().print(table)


# Progress bars on standard error.


@contextmanager
def counted_bar(name: str, *, shown: bool = True) -> Iterator[Counted]:
    """A bar that is told how much is done; it appears with the first word, so that what takes no time has none.

    Args:
        name: What is counted.
        shown: Whether to show it.
    """
    if not shown:
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(name, total=None)

    def tell(done: int, total: int | None) -> None:
        if not bar.live.is_started:
            bar.start()
        bar.update(task, completed=done, total=total)
        if done == total:
            bar.stop()

    try:
        yield tell
    finally:
        if bar.live.is_started:
            bar.stop()


_SHOWN = ("validation_loss", "validation_accuracy", "leakage_max")


@contextmanager
def rounds_bar(name: str, rounds: int, *, shown: bool = True) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar over rounds that also shows the last facts; it appears with the first round, so refusals stay one line."""
    if not shown:
        yield lambda facts: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    last = TextColumn("{task.fields[last]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), last)
    progress = Progress(*columns, console=Console(stderr=True))
    task = progress.add_task(name, total=rounds, last="")

    def tick(facts: dict[str, Any]) -> None:
        progress.start()
        progress.advance(task)
        parts = [f"{key.replace('_', ' ')} {number(key, facts[key])}" for key in _SHOWN if key in facts]
        if parts:
            progress.update(task, last=", ".join(parts))

    try:
        yield tick
    finally:
        if progress.live.is_started:
            progress.stop()
