"""What ends a run early, or remembers its best moment: watchers that look at released weights and exact public scores.

Weights after a private step are released values, so stopping on them is post-processing. Nothing is given back for the
steps left out (see `sordina.training.StopTraining`): early stopping saves time, not budget. Validation scores are
looked at only where the selection is exact anyway; under private selection they would be a query of their own.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from sordina import private_files
from sordina.training import StopTraining
from sordina.training.rate import typical_size

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

    Accuracy counts where there is one (higher is better), the mean loss otherwise (lower is better). What it remembers
    is in the file ``path``, so that a run that was killed remembers it too.
    """

    def __init__(self, model: nn.Module, path: Path, patience: int | None = None) -> None:
        self._model, self._path, self._patience = model, path, patience
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
        self.metric = "accuracy" if "accuracy" in entry["validation"] else "loss"
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


def better(metric: str, value: float | None, than: float | None) -> bool:
    """Whether ``value`` of ``metric`` beats ``than``; no value, and what is not a number, never does.

    >>> better("accuracy", 0.9, 0.8), better("loss", 0.9, 0.8), better("loss", float("nan"), None)
    (True, False, False)
    """
    if value is None or math.isnan(value):
        return False
    return than is None or (value > than if metric == "accuracy" else value < than)
