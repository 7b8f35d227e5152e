"""The integers have the law of a rounded Gaussian, whichever stage decides them."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import stats

from sordina.errors import InvalidInput
from sordina.random import add_gaussian, noise, secure, seeded
from sordina.random.generators import bit_stream
from sordina.random.noise import BLOCK, lines, round_block, settle

SIZE = 1_000_000


def draw(sigma, size=SIZE, seed=3, dtype=np.float32, start=0.0):
    values = np.full(size, start, dtype)
    add_gaussian(values, sigma, seeded(seed))
    return values


def chi_square(counts, offset, scale):
    """The p-value of counts against the cells of ``round(offset + scale Z)``, a few cells put together."""
    edges = np.arange(-4 * int(scale), 4 * int(scale) + 1, int(scale) // 8) + 0.5
    expected = np.diff(stats.norm.cdf((np.concatenate([[-np.inf], edges, [np.inf]]) - offset) / scale))
    found = np.histogram(counts, np.concatenate([[-1e9], edges, [1e9]]))[0]
    return stats.chisquare(found, expected * len(counts)).pvalue


@pytest.mark.parametrize("rng", [seeded(5), secure()], ids=["seeded", "secure"])
@pytest.mark.parametrize("offset", [0.0, 0.49, -0.31])
def test_the_cells_have_their_probability(offset, rng):
    scale, stream = np.float32(77.7), bit_stream(rng)
    offsets = np.full(BLOCK, offset, np.float32)
    counts = np.concatenate([round_block(offsets, scale, stream).copy() for _ in range(12)])
    assert chi_square(counts, offset, float(scale)) > 1e-6
    for wrong in (1.01, 0.99):
        assert chi_square(counts, offset, float(scale) * wrong) < 1e-6
    assert chi_square(counts, offset + 0.02 * float(scale), float(scale)) < 1e-6


def test_neighbouring_cells_have_their_probability():
    """Cell by cell near the middle, where a wrong rounding of single values would show."""
    counts = np.rint(draw(1.0) * 64).astype(int)
    cells = np.arange(-40, 41)
    expected = np.diff(stats.norm.cdf((np.append(cells, 41) - 0.5) / 64))
    found = np.array([(counts == cell).sum() for cell in cells])
    found, expected = np.append(found, SIZE - found.sum()), np.append(expected, 1 - expected.sum())
    assert stats.chisquare(found, SIZE * expected).pvalue > 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sigma", [1.0, 1.3, 1e-6, 7e5])
@pytest.mark.parametrize("start", [0.0, 3.7, -4321.5])
def test_the_noise_has_the_scale_asked_for(sigma, start, dtype):
    drawn = (draw(sigma, 300_000, dtype=dtype, start=start * sigma).astype(float) - start * sigma) / sigma
    assert abs(drawn.mean()) < 6 / 300_000**0.5
    assert abs(drawn.std() - 1) < 6 / 600_000**0.5
    for level in (1, 2, 3, 4):
        expected = 2 * stats.norm.sf(level - 0.5 / 64)
        assert (np.abs(drawn) > level).mean() < expected + 6 * (expected / 300_000) ** 0.5
        expected = 2 * stats.norm.sf(level + 0.5 / 64)
        assert (np.abs(drawn) > level).mean() > expected - 6 * (expected / 300_000) ** 0.5


def test_three_per_cent_of_scale_would_be_seen():
    drawn = draw(1.0, 300_000) * 1.03
    assert abs(drawn.std() - 1) > 6 / 600_000**0.5


def test_tails_go_on():
    """Beyond the lines of the first stage (3.8 standard deviations) and as often as they should."""
    drawn = np.concatenate([draw(1.0, seed=seed) for seed in range(4)])
    for level in (3.9, 4.2, 4.6):
        expected = 2 * stats.norm.sf(level) * len(drawn)
        assert abs((np.abs(drawn) > level).sum() - expected) < 6 * expected**0.5 + 0.1 * expected
    assert len(np.unique(drawn[np.abs(drawn) > 4])) > 40


def test_values_are_independent():
    drawn = draw(1.0)
    for lag in (1, 2, 7, BLOCK // 2, BLOCK):
        assert abs(np.corrcoef(drawn[lag:], drawn[:-lag])[0, 1]) < 6 / SIZE**0.5


class Recorded:
    """A stream that is read twice: the first 32 bits of every value are the same."""

    def __init__(self, first, seed):
        self.first, self.rest = first, bit_stream(seeded(seed))

    def fill(self, memory):
        if self.first is not None:
            memory[:] = self.first
            self.first = None
        else:
            self.rest.fill(memory)


def test_the_second_stage_confirms_the_first():
    """The same first bits, with and without the first stage: only values near a boundary depend on further bits."""
    scale = np.float32(100.3)
    offsets = seeded(8).uniform(-0.5, 0.5, 20_000).astype(np.float32)
    first = seeded(1).bytes(80_000)
    fast = round_block(offsets, scale, Recorded(first, 1)).copy()
    second = round_block(offsets, scale, Recorded(first, 2), margin=1.0).copy()
    differ = fast != second
    assert differ.sum() < 20
    assert np.abs(fast - second)[np.abs(fast) < 300].max() <= 1


def test_second_and_third_stage_agree():
    scale = np.float32(100.3)
    offsets = seeded(9).uniform(-0.5, 0.5, 400).astype(np.float32)
    first = seeded(2).bytes(1600)
    second = round_block(offsets, scale, Recorded(first, 7), margin=1.0).copy()
    third = round_block(offsets, scale, Recorded(first, 7), margin=1.0, second_margin=1.0).copy()
    assert np.array_equal(second, third)


def test_the_first_stage_errs_less_than_it_says():
    """Lines, evaluated in single precision, against mpmath, over all octaves and both signs."""
    found = lines()
    rng = seeded(10)
    with mpmath.workprec(80):
        worst = 0.0
        for _ in range(600):
            size = int(2.0 ** rng.uniform(18, 31))
            m = np.int32(size if rng.random() < 0.5 else -size)
            line = found.table[int(np.float32(m).view(np.uint32)) >> 15]
            value = float(np.float32(line.real) + np.float32(line.imag) * np.float32(m))
            for further in (0.0, 0.999):
                tail = abs(mpmath.mpf(int(m)) + further) / 2**32
                true = abs(mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail)) * (1 if m >= 0 else -1)
                worst = max(worst, abs(float(true - value)))
    assert worst < found.error < 2e-6


@pytest.mark.parametrize("side", [-1, 1])
def test_a_value_at_a_boundary_is_decided_by_its_further_bits(side):
    """s is chosen so that its first 96 bits do not tell on which side of 1/2 the value lies."""
    scale = 64.0
    with mpmath.workprec(300):
        chance = mpmath.erfc(mpmath.mpf(1) / 2 / 64 / mpmath.sqrt(2)) / 2
        drawn = int(mpmath.floor(chance * 2**96))
        rest = int(mpmath.floor((chance * 2**96 - drawn) * 2**64))

    class Next:
        def fill(self, memory):
            memory[:] = (rest - side * 5).to_bytes(8, "little")

    assert settle(drawn, 0.0, scale, Next(), guess=0) == (1 if side > 0 else 0)
    assert settle(drawn, 0.0, scale, Next(), guess=5) == (1 if side > 0 else 0)


@pytest.mark.parametrize("drawn", [0, 1, 2**96 - 1, 2**95, 2**95 - 1])
def test_extreme_bits_are_decided(drawn):
    count = settle(drawn, 0.25, 64.0, bit_stream(seeded(1)), guess=0)
    if drawn in (0, 1, 2**96 - 1):
        assert 64 * 11 < abs(count) < 64 * 12.5
    else:
        assert count == 0


def test_what_a_seed_gives_repeats_and_moves_the_generator_on():
    rng = seeded(11)
    first, second = np.zeros(100_000, np.float32), np.zeros(100_000, np.float32)
    add_gaussian(first, 1.0, rng)
    saved = rng.bit_generator.state
    add_gaussian(second, 1.0, rng)
    assert np.array_equal(first, draw(1.0, 100_000, seed=11))
    assert not np.array_equal(first, second)
    resumed, again = seeded(0), np.zeros(100_000, np.float32)
    resumed.bit_generator.state = saved
    add_gaussian(again, 1.0, resumed)
    assert np.array_equal(second, again)


def test_values_that_are_not_finite_count_as_zero():
    values = np.zeros(1000, np.float32)
    values[[3, 40, 500]] = np.nan, np.inf, -np.inf
    add_gaussian(values, 1.0, seeded(2))
    assert np.isfinite(values).all()
    assert np.abs(values).max() < 8


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sigma", [1e-28, 1.0, 1e28])
def test_no_value_stops_the_noise_or_loses_its_size(sigma, dtype):
    """From the smallest number of the type to the largest of single precision, against any noise."""
    limits, large = np.finfo(dtype), np.finfo(np.float32).max
    values = np.array([0, large, -large, limits.tiny, limits.smallest_subnormal, 1e30, -1e-30, 1], dtype)
    before = values.astype(np.longdouble)
    add_gaussian(values, sigma, seeded(2))
    assert np.isfinite(values).all()
    assert (np.abs(values - before) <= 8 * sigma + 2 * limits.eps * np.abs(before)).all()
    values[:] = limits.max
    add_gaussian(values, sigma, seeded(2))
    assert np.isfinite(values).all()


@pytest.mark.parametrize("values", [np.empty((4, 4))[:, ::2], np.empty(3, int), np.empty(3, np.float16)])
def test_what_cannot_be_noised_is_refused(values):
    with pytest.raises(InvalidInput):
        add_gaussian(values, 1.0, seeded(0))


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf"), 1e-40])
def test_scales_out_of_range_are_refused(sigma):
    with pytest.raises(InvalidInput):
        add_gaussian(np.zeros(3, np.float32), sigma, seeded(0))


@pytest.mark.parametrize("sigma", [1.0, 1.999999999, 0.7, 1e-3, 12345.678])
def test_the_scale_is_never_rounded_down(sigma):
    step, scale = noise.grid_of(sigma)
    assert sigma <= float(scale) * step < sigma * (1 + 2.0**-21)
    assert 64 <= float(scale) <= 128.001
