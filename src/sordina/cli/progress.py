"""Progress bars on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sordina.cli.output import number

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
