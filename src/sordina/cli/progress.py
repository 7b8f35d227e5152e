"""Progress bars on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def rounds_bar(name: str, rounds: int, *, shown: bool = True) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar over rounds that also shows the last validation loss and leakage."""
    if not shown:
        yield lambda facts: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    last = TextColumn("{task.fields[last]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), last)
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=rounds, last="")

        def tick(facts: dict[str, Any]) -> None:
            parts = [
                f"{key.replace('_', ' ')} {facts[key]:.4g}"
                for key in ("validation_loss", "validation_accuracy", "leakage_max")
                if key in facts
            ]
            progress.advance(task)
            if parts:
                progress.update(task, last=", ".join(parts))

        yield tick
