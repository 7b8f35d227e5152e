"""What looks at a run of a search while it goes on: ends it early, or remembers its best moment.

Weights after a private step are released values, so stopping on them is post-processing. Nothing is given back for
the steps left out (see `sordina.training.StopTraining`): early stopping saves time, not budget. Validation scores are
looked at only where the selection is exact anyway; under private selection they would be a query of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from sordina import private_files
from sordina.run_folder import METRICS
from sordina.training import StopTraining
from sordina.training.learning_rates import typical_size
from sordina.tuning.selection import better, metric_of

TRAINING, BEST = "training", "best.pt"
"""In a run's folder: that of its training while it goes on, and the best weights so far."""
LARGE, GROWTH = 10.0, 100.0


class _Watcher:
    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Diverging(_Watcher):
    """Ends a run whose weights have left every reasonable scale.

    That is, their root mean square is not a number, or beyond both 10 and 100 times where it began. Noise alone brings
    a run there within a few steps when rate and threshold are both large, and no gradient brings it back.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._limit = max(LARGE, GROWTH * typical_size(model))
        self.stopped = False

    def report(self, entry: dict[str, Any]) -> None:
        """Look at the weights."""
        if not typical_size(self._model) <= self._limit:
            self.stopped = True
            raise StopTraining


class Best(_Watcher):
    """Remembers the weights with the best exact score; with ``patience``, ends a run that stopped improving.

    ``metric`` counts (`sordina.tuning.selection`); left out, accuracy where there is one, the mean loss otherwise.
    What it remembers is in the file ``path``, so that a run that was killed remembers it too.
    """

    def __init__(self, model: nn.Module, path: Path, patience: int | None = None, metric: str | None = None) -> None:
        self._model, self._path, self._patience, self._wanted = model, path, patience, metric
        self._since = 0
        self.metric: str | None = None
        self.value: float | None = None
        self.step: int | None = None
        self.stopped = False
        if path.exists():
            saved = torch.load(path, weights_only=True)
            self.metric, self.value, self.step = saved["metric"], saved["value"], saved["step"]

    def report(self, entry: dict[str, Any]) -> None:
        """Compare a validation with the best so far."""
        if "validation" not in entry:
            return
        self.metric = metric_of(entry["validation"], self._wanted)
        value = float(entry["validation"][self.metric])
        if better(self.metric, value, self.value):
            self.value, self.step, self._since = value, entry["step"], 0
            best = {"metric": self.metric, "value": value, "step": self.step, "weights": self._model.state_dict()}
            private_files.write(self._path, lambda file: torch.save(best, file))
            return
        self._since += 1
        if self._patience is not None and self._since >= self._patience:
            self.stopped = True
            raise StopTraining

    def recall(self) -> None:
        """Put the best weights back into the model."""
        if self.value is not None:
            self._model.load_state_dict(torch.load(self._path, weights_only=True)["weights"])


class Behind(_Watcher):
    """Ends a run that is behind a share of the other runs at the same step (percentile stopping).

    With a share of one half this is the median rule of Golovin et al. 2017. What counts is the best score that a run
    had up to a step. It is read from the metrics that runs leave in their folders, so it holds for runs side by side
    and for a search that was killed. Another run counts if it has come to this validation or to the one before, where
    the two are compared then: of two runs in step, either may be the one that is ended.
    """

    def __init__(self, folder: Path, share: float, metric: str | None = None, *, after: int = 2) -> None:
        self._folder, self._share, self._wanted, self._after = folder, share, metric, after
        self.stopped = False

    def report(self, entry: dict[str, Any]) -> None:
        """Compare a validation with what the other runs had at that step."""
        if "validation" not in entry:
            return
        metric = metric_of(entry["validation"], self._wanted)
        mine = [one for one in _validations(self._folder) if one["step"] < entry["step"]]
        since = mine[-1]["step"] if mine else entry["step"]
        mine.append(entry)
        others = [
            (_best_until(theirs, step, metric), _best_until(mine, step, metric))
            for folder in sorted(self._folder.parent.iterdir())
            if folder != self._folder and (theirs := _validations(folder))
            if (step := min(entry["step"], theirs[-1]["step"])) >= since
        ]
        ahead = sum(better(metric, other, own) for other, own in others)
        if len(others) >= self._after and ahead > self._share * len(others):
            self.stopped = True
            raise StopTraining


def _validations(folder: Path) -> list[dict[str, Any]]:
    """The validations in the folder of a run, whether it has ended or not."""
    for path in (folder / METRICS, folder / TRAINING / METRICS):
        if path.exists():
            lines = private_files.read(path).decode(errors="replace").splitlines()
            entries = []
            for line in lines:
                with suppress(ValueError):  # the last line of a run that was killed may be torn
                    entries.append(json.loads(line))
            return [entry for entry in entries if "validation" in entry]
    return []


def _best_until(entries: Sequence[dict[str, Any]], step: int, metric: str) -> float | None:
    found: float | None = None
    for entry in entries:
        value = entry["validation"].get(metric)
        if entry["step"] <= step and better(metric, value, found):
            found = value
    return found


@dataclass(frozen=True)
class Watchers:
    """What looks at a run of a search while it goes on."""

    best: Best
    diverging: Diverging
    behind: Behind | None

    @classmethod
    def of(
        cls, model: nn.Module, folder: Path, *, patience: int | None, prune: float | None, after: int,
        metric: str | None,
    ) -> Watchers:  # fmt: skip
        """Those that a search asks for.

        Args:
            model: What is trained.
            folder: The run's.
            patience: See `Best`.
            prune: The share of `Behind`.
            after: So many other runs must have come as far.
            metric: What counts.
        """
        behind = None if prune is None else Behind(folder, prune, metric, after=after)
        return cls(Best(model, folder / BEST, patience, metric), Diverging(model), behind)

    def __iter__(self) -> Iterator[Best | Diverging | Behind]:
        return iter([self.best, self.diverging, *([] if self.behind is None else [self.behind])])

    @property
    def stopped(self) -> str | None:
        """Why the run ended early, if one of them ended it."""
        if self.diverging.stopped:
            return "diverged"
        if self.behind is not None and self.behind.stopped:
            return "behind the others"
        return "no longer improving" if self.best.stopped else None
