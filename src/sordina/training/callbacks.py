"""What watches a run: a progress bar, a metrics file, TensorBoard. All of it sees released values only."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from sordina import private_files
from sordina.privacy import format_up
from sordina.progress import Progress


class StopTraining(Exception):
    """Raised by a watcher's `report` to end a run before its plan does; the run counts as spent in full.

    Watchers see released values, so stopping reveals nothing new; but that the steps left out cost nothing holds for a
    number of steps fixed in advance, not for one that depends on what was seen. So nothing is given back.
    """


class Callback(Protocol):
    """Is told of every reported step; entered before the first and left after the last, also when the run fails."""

    def __enter__(self) -> Any:
        """Before the first step; what is told of the steps."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After the last step."""
        ...

    def report(self, entry: dict[str, Any]) -> None:
        """One reported step: step, steps, epsilon, threshold, learning_rate and sometimes validation."""
        ...


_SHOWN = ("loss", "accuracy", "auc", "rmse")
"""The validation scores that a line has room for; files have them all."""


class ProgressBar:
    """A Rich progress bar with validation loss, threshold, epsilon so far and time left.

    Args:
        steps: How many there will be.
        title: What the bar is called.
    """

    def __init__(self, steps: int, title: str = "training") -> None:
        from rich import progress as rich
        from rich.console import Console

        self._bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TimeRemainingColumn(),
            rich.TextColumn("{task.fields[facts]}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(title, total=steps, facts="")
        self._validation: dict[str, float] = {}

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def report(self, entry: dict[str, Any]) -> None:
        """Move the bar."""
        self._validation = entry.get("validation", self._validation)
        facts = [f"{name} {self._validation[name]:.4g}" for name in _SHOWN if name in self._validation]
        threshold, epsilon = entry["threshold"], entry["epsilon"]
        facts += ["not private" if threshold is None else f"threshold {threshold:.3g}"]
        facts += [] if epsilon is None else [f"ε {format_up(epsilon)}"]
        self._bar.update(self._task, completed=entry["step"], facts="  ".join(facts))


class ToldProgress:
    """Tells a `sordina.progress.Progress` how many steps are taken.

    Args:
        progress: Called with the steps taken and the steps of the run.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __enter__(self) -> ToldProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def report(self, entry: dict[str, Any]) -> None:
        """Tell the step."""
        self._progress(entry["step"], entry["steps"])


class MetricsFile:
    """Metrics as JSON lines, flushed as they come.

    Args:
        path: The file, one JSON object a line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> MetricsFile:
        self._file = private_files.open_to_append(self._path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with private_files.explained("write", self._path):
            self._file.close()

    def report(self, entry: dict[str, Any]) -> None:
        """Append one line."""
        with private_files.explained("write", self._path):
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()


class TensorBoard:
    """The same numbers for TensorBoard.

    Args:
        folder: Where its events go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> TensorBoard:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def report(self, entry: dict[str, Any]) -> None:
        """Write every number of the entry."""
        numbers = {key: value for key, value in entry.items() if isinstance(value, float)}
        numbers |= {f"validation/{name}": value for name, value in entry.get("validation", {}).items()}
        for name, value in numbers.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, entry["step"], walltime=float(entry["step"]))
