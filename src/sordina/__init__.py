"""Sordina: train models on personal data under a privacy budget, and prove it.

Names are loaded when first used, so that a command that only accounts never imports torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from sordina._renamed import find_former_modules
from sordina.errors import SordinaError
from sordina.privacy import Adjacency, Budget, Guarantee, Trust, Unit

if TYPE_CHECKING:
    from sordina import (
        accounting,
        auditing,
        clipping,
        datasets,
        estimators,
        fairness,
        federated,
        gradients,
        integrations,
        mechanisms,
        models,
        random,
        reports,
        sampling,
        statistics,
        tables,
        training,
        tuning,
    )
    from sordina.accounting.ledger import Ledger
    from sordina.auditing.audit import audit
    from sordina.estimators.table_model import load
    from sordina.gradients import check, fix
    from sordina.reports.rendering import report
    from sordina.training import Run, Trainer, make_private
    from sordina.tuning import Search

__version__ = importlib.metadata.version("sordina")
find_former_modules()

_ROOMS = (
    "accounting",
    "auditing",
    "clipping",
    "datasets",
    "estimators",
    "fairness",
    "federated",
    "gradients",
    "integrations",
    "mechanisms",
    "models",
    "random",
    "reports",
    "sampling",
    "statistics",
    "tables",
    "training",
    "tuning",
)
_NAMES: dict[str, str] = {
    "Trainer": "sordina.training",
    "make_private": "sordina.training",
    "Run": "sordina.training",
    "fix": "sordina.gradients",
    "check": "sordina.gradients",
    "Ledger": "sordina.accounting.ledger",
    "audit": "sordina.auditing.audit",
    "load": "sordina.estimators.table_model",
    "Search": "sordina.tuning",
    "report": "sordina.reports.rendering",
}

__all__ = [
    "Adjacency",
    "Budget",
    "Guarantee",
    "Ledger",
    "Run",
    "Search",
    "SordinaError",
    "Trainer",
    "Trust",
    "Unit",
    "accounting",
    "audit",
    "auditing",
    "check",
    "clipping",
    "datasets",
    "estimators",
    "fairness",
    "federated",
    "fix",
    "gradients",
    "integrations",
    "load",
    "make_private",
    "mechanisms",
    "models",
    "random",
    "report",
    "reports",
    "sampling",
    "statistics",
    "tables",
    "training",
    "tuning",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"sordina.{name}")
    raise AttributeError(f"module 'sordina' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
