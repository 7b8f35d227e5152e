"""The odds are those that (epsilon, delta)-DP allows: reached by a known mechanism, never below it when shown."""

from __future__ import annotations

import math

import pytest

from sordina.errors import InvalidInput
from sordina.privacy import best_guess, most_found, odds_factor, percent_up, rounded_up


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
def test_randomised_response_reaches_the_best_guess(epsilon):
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert best_guess(epsilon) == pytest.approx(truthful)
    assert most_found(epsilon, 0.0, 1 - truthful) == pytest.approx(truthful)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_the_best_guess_is_the_best_over_all_tests(epsilon, delta):
    rates = [index / 20000 for index in range(20001)]
    best = max((1 + most_found(epsilon, delta, fpr) - fpr) / 2 for fpr in rates)
    assert best <= best_guess(epsilon, delta) + 1e-12
    assert best == pytest.approx(best_guess(epsilon, delta), abs=1e-3)


def test_without_privacy_everything_may_be_known():
    assert odds_factor(math.inf) == math.inf
    assert best_guess(math.inf, 1e-5) == 1.0
    assert most_found(math.inf, 1e-5, 0.01) == 1.0
    assert most_found(1000.0, 1e-5, 0.01) == 1.0


@pytest.mark.parametrize("value", [20.0855, 0.95263, 1.0001, 99.91, 123456.7, 1e-5, 1.01e-7])
def test_at_most_is_never_rounded_down(value):
    assert float(rounded_up(value).replace(",", "")) >= value * (1 - 1e-11)
    assert float(rounded_up(value).replace(",", "")) <= value * 1.011


@pytest.mark.parametrize("share", [0.5, 0.50001, 0.9526, 0.9989, 0.123456])
def test_per_cents_are_never_rounded_down(share):
    assert float(percent_up(share).split()[0]) >= share * 100 - 1e-9


def test_certainty_is_not_claimed_lightly():
    assert percent_up(0.9999) == "more than 99.9 %"
    assert percent_up(1.0) == "100 %"


def test_bad_numbers_are_refused():
    for epsilon in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidInput):
            best_guess(epsilon)
