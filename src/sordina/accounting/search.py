"""Whole searches: one (epsilon, delta) for all runs of a grid together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sordina.accounting.accountants import accountant as _accountant
from sordina.accounting.calibrate import noise_multiplier
from sordina.accounting.events import NOTHING, Composed, Event, Repeated
from sordina.errors import InvalidInput
from sordina.types import Adjacency, Budget

METHODS = ("composition", "random-stopping")


@dataclass(frozen=True)
class SearchPlan:
    """How to spend one budget on a whole search."""

    method: str
    runs: int
    noise_multiplier: float
    per_run_epsilon: float
    event: Event
    """The whole search, to be charged once."""
    reason: str
    noise_by_method: dict[str, float]


def search_noise(
    make_event: Callable[[float], Event],
    budget: Budget,
    runs: int,
    *,
    method: str | None = None,
    selection: Event = NOTHING,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
) -> SearchPlan:
    """The noise multiplier of each of ``runs`` runs such that all of them together cost ``budget``.

    ``make_event(noise)`` is one run; ``selection`` is what choosing the best costs on top.
    """
    if runs < 1:
        raise InvalidInput(f"runs must be at least 1, got {runs}.")
    if method not in (None, *METHODS):
        raise InvalidInput(f"no search method is called {method!r}. Choose one of {', '.join(METHODS)}.")

    def whole(noise: float) -> Event:
        return Composed((Repeated(make_event(noise), runs), selection))

    noise = noise_multiplier(whole, budget, adjacency, accountant)
    per_run = _accountant(accountant).epsilon(make_event(noise), budget.delta, adjacency)
    return SearchPlan("composition", runs, noise, per_run, whole(noise), "all runs composed.", {"composition": noise})
