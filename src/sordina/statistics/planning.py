"""How several questions share a budget: the noise of each, so that all together cost what may be spent.

Every question has an error that grows with its noise multiplier, ``c_i m_i``, counted in rows so that questions about
years and about euros can be compared. Two ways to share:

weights       the sum of ``w_i (c_i m_i)^2`` is least: ``m_i ~ (sqrt(w_i) c_i)^-1/2`` where costs add up as ``1 / m^2``
              (concentrated), ``^-2/3`` where they add up as ``1 / m`` (pure)
equal error   ``m_i ~ 1 / c_i``

All are then scaled by one factor, the least for which the privacy loss distributions of all events, those of earlier
releases included, compose to no more than the budget. That is done with Laplace noise everywhere, with Gaussian noise
everywhere and with what suits each question alone; the best of the three is taken.
"""

from __future__ import annotations

import math
from functools import lru_cache

from sordina.accounting import Composed, Event, accountant, noise_multiplier
from sordina.accounting import events as happened
from sordina.errors import BudgetRefused, InvalidInput
from sordina.privacy import Adjacency, Budget, format_up
from sordina.statistics.noise import Choice, Family
from sordina.statistics.statistic import Statistic, Terms

_CONFIDENCE = 0.95
_REST = 1e-3
"""A rest of less than this part of epsilon counts as nothing."""
Families = tuple[Family, ...]


def share_budget(
    statistics: tuple[Statistic, ...],
    terms: Terms,
    budget: Budget,
    *,
    spent: tuple[Event, ...] = (),
    weights: tuple[float, ...] | None = None,
    equal_error: bool = False,
) -> tuple[Choice, ...]:
    """What each statistic is to be answered with.

    Args:
        statistics: What is asked together.
        terms: Public facts of the table.
        budget: What all may cost, earlier releases included.
        spent: The events of earlier releases.
        weights: How much each question's squared error counts; all alike if None.
        equal_error: Whether all shall have the same error, counted in rows.
    """
    if math.isinf(budget.epsilon):
        raise InvalidInput("a release needs a finite epsilon: without privacy, use pandas itself.")
    if equal_error and weights is not None:
        raise InvalidInput("either weights or equal_error decides how a budget is shared, not both.")
    weights = (1.0,) * len(statistics) if weights is None else weights
    if len(weights) != len(statistics) or not all(math.isfinite(one) and one > 0 for one in weights):
        raise InvalidInput(f"weights must be one positive number for each of the {len(statistics)} questions.")
    return _shared(statistics, terms, budget, spent, weights, equal_error)


@lru_cache(maxsize=256)
def _shared(
    statistics: tuple[Statistic, ...],
    terms: Terms,
    budget: Budget,
    spent: tuple[Event, ...],
    weights: tuple[float, ...],
    equal_error: bool,
) -> tuple[Choice, ...]:
    refuse_spent(budget, spent)
    candidates: dict[Families, tuple[Choice, ...]] = {}
    for families in _assignments(statistics, terms, budget):
        relative = _relative(statistics, families, terms, weights, equal_error)
        candidates[families] = _calibrated(statistics, families, relative, terms, budget, spent)

    def badness(choices: tuple[Choice, ...]) -> float:
        errors = [one.rows_error(_CONFIDENCE, choice, terms) for one, choice in zip(statistics, choices, strict=True)]
        return max(errors) if equal_error else sum(w * e * e for w, e in zip(weights, errors, strict=True))

    return min(candidates.values(), key=badness)


def refuse_spent(budget: Budget, spent: tuple[Event, ...]) -> None:
    """Refuse to go on where nothing is left.

    Args:
        budget: The whole.
        spent: Events of earlier releases.
    """
    if not spent:
        return
    gone = cost(spent, budget.delta)
    if gone > budget.epsilon * (1 - _REST):
        raise BudgetRefused(
            f"the budget of epsilon {format_up(budget.epsilon)} at delta {format_up(budget.delta)} is spent "
            f"({format_up(gone)}): asking again would average the noise away. Nothing was read."
        )


@lru_cache(maxsize=1024)
def cost(events: tuple[Event, ...], delta: float) -> float:
    """The epsilon of all ``events`` together at ``delta``.

    Args:
        events: What happened, or may.
        delta: Of the budget.
    """
    return accountant("pld").epsilon(Composed(events), delta, Adjacency.ADD_REMOVE) if events else 0.0


def _assignments(statistics: tuple[Statistic, ...], terms: Terms, budget: Budget) -> list[Families]:
    if budget.delta == 0:
        return [(Family.PURE,) * len(statistics)]
    same = [(family,) * len(statistics) for family in Family]
    if len(statistics) == 1:
        return same

    def alone(statistic: Statistic) -> Family:
        share = Budget(budget.epsilon / math.sqrt(len(statistics)), budget.delta)
        return _shared((statistic,), terms, share, (), (1.0,), False)[0].family

    return list(dict.fromkeys([*same, tuple(alone(one) for one in statistics)]))


def _relative(
    statistics: tuple[Statistic, ...], families: Families, terms: Terms, weights: tuple[float, ...], equal_error: bool
) -> list[float]:
    """The multipliers up to a common factor, their geometric mean 1."""
    power = 1.0 if equal_error else 2 / 3 if set(families) == {Family.PURE} else 0.5
    found = []
    for statistic, family, weight in zip(statistics, families, weights, strict=True):
        difficulty = statistic.rows_error(_CONFIDENCE, Choice(family, 1.0), terms)
        found.append((difficulty if equal_error else difficulty * math.sqrt(weight)) ** -power)
    middle = math.exp(sum(map(math.log, found)) / len(found))
    return [one / middle for one in found]


def _calibrated(
    statistics: tuple[Statistic, ...],
    families: Families,
    relative: list[float],
    terms: Terms,
    budget: Budget,
    spent: tuple[Event, ...],
) -> tuple[Choice, ...]:
    def choices(factor: float) -> tuple[Choice, ...]:
        return tuple(Choice(family, factor * one) for family, one in zip(families, relative, strict=True))

    def event(factor: float) -> Event:
        if factor <= 0:
            return happened.Gaussian(0.0)
        new = (one.event(choice, terms) for one, choice in zip(statistics, choices(factor), strict=True))
        return Composed((*spent, *new))

    try:
        return choices(noise_multiplier(event, budget))
    except InvalidInput as error:
        raise BudgetRefused(
            f"no amount of noise answers {'these questions' if len(statistics) > 1 else 'this question'} within what "
            f"is left of epsilon {format_up(budget.epsilon)} at delta {format_up(budget.delta)}."
        ) from error
