"""Estimates are unbiased, their variance is the stated one, their intervals cover, and the planner picks the best."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sordina.accounting import PureDP, Repeated
from sordina.privacy import Adjacency, Trust
from sordina.random import secure, seeded
from sordina.statistics.local import (
    MEANS,
    OLH,
    OUE,
    PROTOCOLS,
    BoxVector,
    CommonStrings,
    Frequency,
    GaussianVector,
    Memoised,
    mean_protocol,
)

PEOPLE = 500


def shares(values):
    """Uneven, with empty values."""
    weights = np.maximum(np.arange(values)[::-1] - values // 3, 0.0) ** 2 + (np.arange(values) == 0)
    return weights / weights.sum()


def answered(values, people):
    """The values of people whose shares are `shares`, up to rounding, and the true shares."""
    held = np.searchsorted(np.cumsum(shares(values)), (np.arange(people) + 0.5) / people).clip(max=values - 1)
    return held, np.bincount(held, minlength=values) / people


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(("values", "epsilon"), [(2, 1.0), (5, 0.5), (16, 2.0), (16, 4.0), (100, 1.0)])
def test_variance_is_within_five_percent_of_the_formula(name, values, epsilon):
    """Over all values together; 20 000 squared errors or more have a standard error of about 1 %."""
    protocol = Frequency(values, epsilon, protocol=name)
    held, true = answered(values, PEOPLE)
    repeats = max(400, 20_000 // values)
    rng = seeded(values)
    errors = np.array([protocol.estimate(protocol.randomize(held, rng)).values - true for _ in range(repeats)])
    stated = protocol.variances(true, PEOPLE)
    assert np.mean(errors**2) == pytest.approx(stated.mean(), rel=0.05)
    assert stated.mean() == pytest.approx(protocol.error(PEOPLE) ** 2, rel=0.05 if name != "hadamard" else 0.3)
    assert stated.mean() <= protocol.error(PEOPLE) ** 2 * (1 + 1e-9)
    assert (np.abs(errors.mean(axis=0)) < 5 * np.sqrt(stated / repeats)).all()


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("population", [False, True])
def test_intervals_cover_at_their_level(name, population):
    protocol, rng = Frequency(8, 1.0, protocol=name), seeded(5)
    held, true = answered(8, 2000)
    covered = 0
    for _ in range(500):
        drawn = rng.choice(8, size=2000, p=shares(8)) if population else held
        target = shares(8) if population else true
        found = protocol.estimate(protocol.randomize(drawn, rng), population=population)
        covered += ((found.low <= target) & (target <= found.high)).sum()
    assert 0.935 <= covered / 4000 <= 0.965


def test_consistent_shares_are_closer_and_marked():
    protocol, (held, true) = Frequency(64, 0.5), answered(64, 2000)
    found = protocol.estimate(protocol.randomize(held, seeded(6)))
    better = found.consistent()
    assert better.biased
    assert not found.biased
    assert ((better.values - true) ** 2).sum() < ((found.values - true) ** 2).sum()


@pytest.mark.parametrize("values", [2, 16, 256])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_the_planner_picks_the_best_measured(values, epsilon):
    """Its measured error is the least, up to the chance of the measurement; `benchmarks/local.py` has K = 4096 too."""
    people = 400
    held, true = answered(values, people)
    rng = seeded(values)
    measured = {}
    for name in PROTOCOLS:
        protocol = Frequency(values, epsilon, protocol=name)
        runs = [protocol.estimate(protocol.randomize(held, rng)).values for _ in range(max(30, 4000 // values))]
        measured[name] = float(np.mean((np.array(runs) - true) ** 2))
    assert measured[Frequency(values, epsilon).name] <= min(measured.values()) * 1.08


def test_the_slow_way_of_hashes_agrees_with_the_transform():
    protocol = OLH(200, 2.0)
    answers = protocol.randomize(seeded(7).integers(0, 200, size=500), seeded(8))
    assert np.array_equal(protocol._transformed(answers), protocol._compared(answers))


def test_a_guarantee_names_the_local_model_and_its_event():
    for name in PROTOCOLS:
        protocol = Frequency(8, 1.5, protocol=name)
        assert (protocol.guarantee.trust, protocol.guarantee.adjacency) == (Trust.LOCAL, Adjacency.REPLACE_ONE)
        assert protocol.event() == PureDP(1.5)
    assert Memoised(8, 3.0, 0.5, epochs=3).event() == Repeated(PureDP(1.0), 3)


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 1.0])
def test_means_have_the_stated_variance(name, epsilon, place):
    protocol = mean_protocol(-10.0, 30.0, epsilon, name)
    value = -10.0 + 40.0 * place
    answers = protocol.randomize(np.full(200_000, value), seeded(9))
    assert answers.var() == pytest.approx(protocol.variance(value), rel=0.05)
    assert abs(answers.mean() - value) < 5 * math.sqrt(protocol.variance(value) / 200_000)
    assert protocol.variance(value) <= protocol.error(1) ** 2 * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 5.0])
def test_variances_are_those_of_the_papers(epsilon):
    half, full = math.exp(epsilon / 2), math.exp(epsilon)
    assert mean_protocol(-1.0, 1.0, epsilon, "duchi").variance(0.5) == pytest.approx(
        ((full + 1) / (full - 1)) ** 2 - 0.25
    )
    assert mean_protocol(-1.0, 1.0, epsilon, "piecewise").variance(0.5) == pytest.approx(
        0.25 / (half - 1) + (half + 3) / (3 * (half - 1) ** 2), rel=1e-6
    )
    empty = {
        name: float(Frequency(5000, epsilon, protocol=name).variances(np.zeros(5000), 1)[0])
        for name in ("grr", "oue", "olh")
    }
    assert empty["grr"] == pytest.approx((full + 4998) / (full - 1) ** 2)
    assert empty["oue"] == pytest.approx(4 * full / (full - 1) ** 2)
    assert empty["oue"] <= empty["olh"] * (1 + 1e-9) <= 1.05 * empty["oue"]


def test_numbers_beyond_the_range_count_as_its_ends():
    protocol = mean_protocol(0.0, 1.0, 50.0, "duchi")
    assert np.abs(protocol.randomize([-1e300, 5.0], seeded(0)) - [0.0, 1.0]).max() < 1e-6


def test_means_cover():
    rng, protocol = seeded(10), mean_protocol(0.0, 1.0, 1.0)
    covered = 0
    for _ in range(1000):
        found = protocol.estimate(protocol.randomize(rng.beta(2, 5, size=400), rng))
        covered += bool(found.low[0] <= 2 / 7 <= found.high[0])
    assert 0.93 <= covered / 1000 <= 0.97


def test_vectors_in_a_ball():
    protocol = GaussianVector(3, radius=2.0, epsilon=1.0, delta=1e-6)
    vectors = np.tile([3.0, 0.0, 4.0], (50_000, 1))
    answers = protocol.randomize(vectors, seeded(11))
    assert answers.std(axis=0) == pytest.approx(protocol.sigma, rel=0.02)
    found = protocol.estimate(answers)
    assert (np.abs(found.values - [1.2, 0.0, 1.6]) < 5 * found.standard_errors).all()
    huge = protocol.randomize(np.full((2, 3), 1e300), seeded(0))
    assert np.isfinite(huge).all()


@pytest.mark.parametrize("epsilon", [1.0, 6.0, 12.0])
def test_vectors_in_a_box(epsilon):
    protocol = BoxVector(5, -1.0, 1.0, epsilon)
    vectors = np.tile([-1.0, -0.5, 0.0, 0.5, 1.0], (40_000, 1))
    found = protocol.estimate(protocol.randomize(vectors, seeded(12)))
    assert (np.abs(found.values - vectors[0]) < 5 * found.standard_errors + 1e-12).all()
    assert found.standard_errors.max() <= protocol.error(40_000) * 1.1


def test_common_strings_are_found_and_rare_ones_are_not():
    strings = ["lisinopril"] * 6000 + ["Metformin"] * 5000 + ["aspirin"] * 4000 + ["zz"] * 3000
    strings += [f"only{place}" for place in range(2000)] + [""] * 2000 + ["naïve"] * 2000
    question = CommonStrings(6, epsilon=4.0)
    found = question.estimate(question.randomize(strings, seeded(13)))
    assert set(found.strings[:4]) == {"lisino", "metfor", "aspiri", "zz"}
    assert set(found.strings) <= {"lisino", "metfor", "aspiri", "zz", "only1", "only", "", "na?ve"} | {
        f"only{place:02d}" for place in range(100)
    }
    first = dict(zip(found.strings, found.shares.values, strict=True))["lisino"]
    assert first == pytest.approx(6000 / len(strings), abs=5 * question.error(len(strings)))


def test_strings_and_numbers_go_back_and_forth():
    question = CommonStrings(5, 1.0)
    told = ["", "a", "Zoë", "longer than five", "it's", "x\0y", "🦉"]
    back = [question.string(int(code), 5) for code in question.numbers(told)]
    assert back == ["", "a", "zo?", "longe", "it's", "x", "?"]


def test_many_reports_of_a_memoised_answer_say_no_more_than_it_does():
    memo, (held, true) = Memoised(4, 2.0, 0.5), answered(4, 3000)
    kept = memo.memoise(held, seeded(14))
    rounds = [memo.estimate(memo.randomize(kept, seeded(100 + turn))).values for turn in range(200)]
    permanent = memo.permanent.estimate(kept).values
    assert np.abs(np.mean(rounds, axis=0) - permanent).max() < 5 * memo.error(3000) / math.sqrt(200)
    errors = np.mean([(one - true) ** 2 for one in rounds])
    assert errors == pytest.approx(memo.error(3000) ** 2, rel=0.5)


def test_without_a_generator_answers_are_secure_and_differ():
    protocol = OUE(100, 1.0)
    assert not np.array_equal(protocol.randomize([3] * 50), protocol.randomize([3] * 50))
    assert protocol.randomize(3, secure()).shape == (1, 2)
