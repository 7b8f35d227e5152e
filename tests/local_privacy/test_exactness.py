"""The chances that are tossed are whole numbers of 2^-63, and their epsilon, in as many digits as it takes, is no more
than the claim; and close to it, so that no privacy is given away for nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import log as exact_log
from mpmath import mp, mpf

from sordina.errors import InvalidInput
from sordina.random import seeded
from sordina.statistics.local import (
    GRR,
    OLH,
    OUE,
    BoxVector,
    CommonStrings,
    Duchi,
    Frequency,
    GaussianVector,
    HadamardResponse,
    Hybrid,
    Memoised,
    Piecewise,
    projected,
)
from sordina.statistics.local.coins import WHOLE, column_sums, lie, toss, toss_words
from sordina.statistics.local.means import _CELLS

EPSILONS = (1e-6, 0.01, 0.1, 0.5, math.log(3), 1.0, 2.0, 4.0, 8.0, 20.0, 50.0)


def odds(miss, others, own):
    """``ln((1 - L) others / (L own))`` with 60 digits."""
    with mp.workdps(60):
        chance = mpf(miss) / WHOLE
        return exact_log((1 - chance) * others / (chance * own))


def claims(epsilon, values):
    """Protocol, the chance of a lie, how many answers are lies, how many are own."""
    olh, hadamard = OLH(values, epsilon), HadamardResponse(values, epsilon)
    piecewise, strings = Piecewise(0.0, 1.0, epsilon), CommonStrings(4, epsilon)
    half = hadamard.block // 2
    return {
        "grr": (GRR(values, epsilon).lie, values - 1, 1),
        "oue": (OUE(values, epsilon).lie, 1, 1),
        "olh": (olh.lie, olh.range - 1, 1),
        "hadamard": (hadamard.lie, hadamard.blocks * hadamard.block - half, half),
        "duchi": (Duchi(0.0, 1.0, epsilon).lie, 1, 1),
        "piecewise": (piecewise.lie, _CELLS - piecewise.window, piecewise.window),
        "pem": (strings.lie, (1 << strings.hash_bits) - 1, 1),
    }


@pytest.mark.parametrize("values", [2, 3, 16, 1000, 4096])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_epsilon_of_the_rounded_chances_is_at_most_the_claim(epsilon, values):
    for name, (miss, others, own) in claims(epsilon, values).items():
        true = odds(miss, others, own)
        assert true <= mpf(epsilon), name
        if epsilon >= 0.01 and lie(epsilon, others, own) > 1 << 30:
            assert true >= epsilon * (1 - 1e-6), name


def test_a_chance_that_is_rounded_down_would_be_caught():
    miss = math.floor(WHOLE / (math.e + 1) * (1 - 2.0**-48))
    assert odds(miss, 1, 1) > 1


@pytest.mark.parametrize(
    ("lifetime", "report", "epochs"), [(2.0, 1.0, 1), (4.0, 0.5, 2), (1.0, 0.999, 1), (9.0, 1e-3, 3)]
)
def test_reports_of_a_memoised_answer_stay_below_both_claims(lifetime, report, epochs):
    memo = Memoised(10, lifetime, report, epochs)
    assert odds(memo.permanent.lie, 1, 1) * epochs <= lifetime
    with mp.workdps(60):
        q, flip = mpf(memo.permanent.lie) / WHOLE, mpf(memo.flip) / WHOLE
        other = q + flip * (1 - 2 * q)
        assert report * (1 - 1e-6) <= exact_log((1 - other) / other) <= report


@pytest.mark.parametrize("chance", [1, WHOLE // 3, WHOLE >> 1, (WHOLE >> 8) * 77, WHOLE - 1, lie(1.0, 1)])
def test_coins_in_words_have_the_law_of_single_coins(chance):
    words = toss_words(chance, 40_001, seeded(1))
    single = toss(chance, 200_000, seeded(2))
    share = chance / WHOLE
    for hits, size in ((np.unpackbits(words.view(np.uint8)).sum(), words.size * 64), (single.sum(), single.size)):
        assert abs(hits - size * share) <= 5 * math.sqrt(size * share * (1 - share)) + 1e-3
    columns = column_sums(words.reshape(-1, 1), 64)
    assert (np.abs(columns - 40_001 * share) <= 5.5 * math.sqrt(40_001 * share * (1 - share)) + 1e-3).all()


@pytest.mark.parametrize("rows", [1, 47, 48, 49, 50, 1000])
def test_columns_are_summed_exactly(rows):
    words = seeded(rows).integers(0, 1 << 64, size=(rows, 3), dtype=np.uint64)
    bits = np.unpackbits(words.view(np.uint8).reshape(rows, -1), axis=1, bitorder="little")
    assert np.array_equal(column_sums(words, 150), bits[:, :150].sum(axis=0))


def test_a_projection_is_the_nearest_distribution():
    rng = seeded(3)
    for _ in range(50):
        shares = rng.normal(0.2, 0.4, size=6)
        nearest = projected(shares)
        assert nearest.min() >= 0
        assert nearest.sum() == pytest.approx(1)
        others = rng.dirichlet(np.ones(6), size=400)
        assert ((others - shares) ** 2).sum(axis=1).min() >= ((nearest - shares) ** 2).sum() - 1e-12


@pytest.mark.parametrize(
    "make",
    [
        lambda: GRR(1, 1.0),
        lambda: GRR(4, 0.0),
        lambda: OUE(4, -1.0),
        lambda: OLH(4, math.nan),
        lambda: HadamardResponse(4, math.inf),
        lambda: GRR(4, 1e-9),
        lambda: Frequency(4, 1.0, protocol="rappor"),
        lambda: Duchi(1.0, 0.0, 1.0),
        lambda: Piecewise(0.0, math.inf, 1.0),
        lambda: Hybrid(0.0, 0.0, 1.0),
        lambda: GaussianVector(3, 1.0, 1.0, 0.0),
        lambda: GaussianVector(3, -1.0, 1.0, 1e-6),
        lambda: BoxVector(0, -1.0, 1.0, 1.0),
        lambda: CommonStrings(40, 1.0),
        lambda: CommonStrings(4, 1.0, alphabet="aa"),
        lambda: Memoised(4, 1.0, 1.0),
        lambda: Memoised(4, 1.0, 0.6, epochs=2),
        lambda: GRR(4, 1.0).randomize([4]),
        lambda: GRR(4, 1.0).randomize([0.5]),
        lambda: GRR(4, 1.0).estimate([]),
        lambda: OUE(4, 1.0).estimate([[1, 2]]),
        lambda: OLH(4, 1.0).estimate([[-1, 0]]),
        lambda: HadamardResponse(4, 1.0).estimate([99]),
        lambda: Duchi(0.0, 1.0, 1.0).randomize([math.nan]),
        lambda: CommonStrings(4, 1.0).randomize([1]),
        lambda: GRR(4, 1.0).estimate([1], confidence=1.0),
        lambda: GRR(4, 1.0).randomize([1], generator=7),
    ],
)
def test_what_cannot_work_is_refused(make):
    with pytest.raises(InvalidInput):
        make()
