"""What a model was trained on before: a second private run on the same model adds to the first.

A guarantee speaks of one run. Whoever trains the same model object again, on the same people, spends both; so a run
whose model was trained before in this process says so, with the price of all of it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from torch import nn

from sordina.accounting import Account
from sordina.training.plan import Plan, spent
from sordina.types import Guarantee

_RUNS: weakref.WeakKeyDictionary[nn.Module, list[tuple[Plan, Account]]] = weakref.WeakKeyDictionary()


@dataclass
class Earlier:
    """The runs of a model before the present one."""

    model: weakref.ref[nn.Module]
    runs: list[tuple[Plan, Account]] = field(default_factory=list)
    begun: bool = False

    @classmethod
    def of(cls, model: nn.Module) -> Earlier:
        """What is known of ``model``."""
        return cls(weakref.ref(model), list(_RUNS.get(model, [])))

    def forget(self) -> None:
        """The weights were replaced by those of a saved run: what was trained into them before is gone."""
        self.runs = []
        if (model := self.model()) is not None:
            _RUNS.pop(model, None)

    def begin(self, plan: Plan, account: Account) -> None:
        """The present run draws its first batch: whoever comes later finds it."""
        if not self.begun and (model := self.model()) is not None:
            self.begun = True
            _RUNS.setdefault(model, []).append((plan, account))

    def guarantees(self) -> tuple[Guarantee, ...]:
        """What each earlier run cost."""
        return tuple(spent(plan, account) for plan, account in self.runs)
