"""How common each of K values is, when K is large: hashed answers (OLH) and Hadamard response.

Both send a few bits, and both are decoded by a fast Fourier transform: n answers and K values cost ``n + K log K``
operations, not ``n K``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina._arguments import checked
from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import open_integers, source, whole
from sordina.privacy import Unit
from sordina.statistics.local.coins import (
    WHOLE,
    Floats,
    Integers,
    LocalEstimate,
    frequency_estimate,
    lie,
    some,
    toss,
)
from sordina.statistics.local.frequencies import (
    OneOfManyValues,
    estimate_two_chances,
    open_categories,
    two_chances,
)

_LARGEST_PRIME = 1021
_LARGEST_TABLE = 1 << 25
"""Cells of the table of counts that is transformed; beyond, every answer is compared with every value."""
_PAIRS_AT_ONCE = 1 << 24


@checked
@dataclass(frozen=True)
class OLH(OneOfManyValues):
    """Optimised local hashing (Wang et al. 2017): randomised response on a random hash of the value.

    The hash is linear: x as digits ``x_1 ... x_m`` in base g, a prime, and ``h_a(x) = sum_d a_d x_d mod g`` with random
    public digits a. For two different values ``h_a(x) - h_a(v)`` is uniform, so another value is supported with chance
    ``1/g`` exactly. Of all primes the one with the least error is taken, near ``e^epsilon + 1``, where the variance
    of an empty value is ``4 e^epsilon / (n (e^epsilon - 1)^2)``.

    *Proof.* The hash is drawn without looking at the value; given it, the answer is `GRR` over g values.

    An answer is a row (number of the hash, answer of the hash).

    Args:
        values: How many values there are, K.
        epsilon: Of every answer.
        unit: Who answers.
    """

    values: int
    epsilon: float
    unit: Unit = Unit.USER
    name = "olh"

    @cached_property
    def range(self) -> int:
        """The prime g."""
        most = min(_LARGEST_PRIME, 2 * math.exp(min(self.epsilon, 10.0)) + 5, 2 * self.values)
        return min(_primes(int(most)), key=self._error_with)

    def _error_with(self, prime: int) -> float:
        own = 1 - lie(self.epsilon, prime - 1) / WHOLE
        first, rest = two_chances(np.array([1.0, 0.0]), own, 1 / prime, 1)
        return float(first + (self.values - 1) * rest)

    @property
    def digits(self) -> int:
        """How many digits in base g tell all values apart."""
        digits = 1
        while self.range**digits < self.values:
            digits += 1
        return digits

    @property
    def bits(self) -> float:
        """``(m + 1) log2 g``."""
        return (self.digits + 1) * math.log2(self.range)

    @property
    def lie(self) -> int:
        """The chance of another hash, in 2^-63."""
        return lie(self.epsilon, self.range - 1)

    @property
    def chances(self) -> tuple[float, float]:
        """``p = 1 - L`` and ``q = 1/g``."""
        return 1 - self.lie / WHOLE, 1 / self.range

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> Integers:
        """One row (hash, answer) per value."""
        own, rng = open_categories(values, self.values), source(generator)
        hashes = rng.integers(0, self.range**self.digits, size=own.size)
        answers = self._hash(hashes, own)
        places = toss(self.lie, own.size, rng).nonzero()[0]
        answers[places] = (answers[places] + rng.integers(1, self.range, size=places.size)) % self.range
        return np.stack([hashes, answers], axis=1)

    def _hash(self, hashes: Integers, values: Integers) -> Integers:
        total = np.zeros(np.broadcast_shapes(hashes.shape, values.shape), np.int64)
        for _ in range(self.digits):
            total += (hashes % self.range) * (values % self.range)
            hashes, values = hashes // self.range, values // self.range
        total %= self.range
        return total

    def estimate(self, answers: Any, *, confidence: float = 0.95, population: bool = False) -> LocalEstimate:
        """``(c_v / n - 1/g) / (p - 1/g)``, c_v the answers that the hash of v agrees with."""
        given = self._open(answers)
        fast = self.range ** (self.digits + 1) <= _LARGEST_TABLE
        counts = self._transformed(given) if fast else self._compared(given)
        return estimate_two_chances(counts, *self.chances, some(given), confidence, population)

    def _open(self, answers: Any) -> Integers:
        given, _ = open_integers(answers)
        if given.ndim != 2 or given.shape[1] != 2:
            raise InvalidInput("answers must be rows (hash, answer), as `randomize` returns them.")
        limits = np.array([self.range**self.digits, self.range])
        if given.size and ((given < 0) | (given >= limits)).any():
            raise InvalidInput(f"a hash lies in 0..{limits[0] - 1} and its answer in 0..{limits[1] - 1}.")
        return given

    def _transformed(self, given: Integers) -> Integers:
        """``c_v = sum_a N(a, h_a(v)) = (1/g) sum_t N^(-t v, t)``: N counts answers, N^ is its Fourier transform."""
        g, m = self.range, self.digits
        counts = np.bincount(given[:, 0] * g + given[:, 1], minlength=g ** (m + 1))
        transform = np.fft.rfftn(counts.reshape((g,) * (m + 1))).reshape(g**m, -1)
        values = np.arange(self.values)
        digits = np.stack([values // g**d % g for d in range(m)])
        powers = g ** np.arange(m)
        total = np.zeros(self.values)
        for turn in range(g // 2 + 1):
            part = transform[(-turn * digits % g * powers[:, None]).sum(axis=0), turn].real
            total += part if turn in (0, g / 2) else 2 * part
        return np.rint(total / g).astype(np.int64)

    def _compared(self, given: Integers) -> Integers:
        block = max(1, _PAIRS_AT_ONCE // max(1, len(given)))
        counts = np.empty(self.values, np.int64)
        for start in range(0, self.values, block):
            some_values = np.arange(start, min(start + block, self.values))
            hashes = self._hash(given[:, :1], some_values[None, :])
            counts[start : start + block] = (hashes == given[:, 1:]).sum(axis=0)
        return counts


def _primes(most: int) -> list[int]:
    found: list[int] = []
    for candidate in range(2, max(most, 3) + 1):
        if all(candidate % prime for prime in found if prime * prime <= candidate):
            found.append(candidate)
    return found


@checked
@dataclass(frozen=True)
class HadamardResponse(OneOfManyValues):
    """Hadamard response (Acharya, Sun and Zhang 2019): an answer from the half of a block that the value marks.

    The answers are ``0 .. B b - 1``, B blocks of b. A value belongs to block ``x mod B`` and to a row
    ``r = 1 + x // B`` of the Hadamard matrix of size b; its own answers are the ``b/2`` places of its block where the
    row is +1.

    *Proof.* Own answers have chance ``(1 - L) / (b/2)`` each, all others ``L / (B b - b/2)``: their ratio is at most
    ``e^epsilon`` (`coins.lie`). How they are drawn: a uniform place of the block, moved to a place of the other
    sign (by a bit of r) if its sign is wrong, is uniform on the places of the right sign.

    The score of a value is the sign of its row in its block, 0 in others: rows are orthogonal, so other values score 0
    on average. B is chosen for the least error.

    Args:
        values: How many values there are, K.
        epsilon: Of every answer.
        unit: Who answers.
    """

    values: int
    epsilon: float
    unit: Unit = Unit.USER
    name = "hadamard"

    @cached_property
    def blocks(self) -> int:
        """B, a power of two."""
        choices = [1 << power for power in range(self.values.bit_length()) if 1 << power <= self.values]
        return min(choices, key=lambda blocks: _block_error(self.values, self.epsilon, blocks))

    @property
    def block(self) -> int:
        """b, the least power of two above the number of values in a block."""
        return _block_size(self.values, self.blocks)

    @property
    def bits(self) -> float:
        """``log2 (B b)``."""
        return math.log2(self.blocks * self.block)

    @property
    def lie(self) -> int:
        """The chance of an answer that is not among the own, in 2^-63."""
        return lie(self.epsilon, self.blocks * self.block - self.block // 2, self.block // 2)

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> Integers:
        """One answer per value."""
        own, rng = open_categories(values, self.values), source(generator)
        half, row, home = self.block // 2, 1 + own // self.blocks, own % self.blocks
        lies = toss(self.lie, own.size, rng)
        elsewhere = rng.integers(0, self.blocks * self.block - half, size=own.size) - half
        place = rng.integers(0, self.block, size=own.size)
        wrong = _odd(place & row) != (lies & (elsewhere < 0))
        place = np.where(wrong, place ^ (row & -row), place)
        answers = home * self.block + place
        moved = (lies & (elsewhere >= 0)).nonzero()[0]
        far = elsewhere[moved]
        answers[moved] = (far + self.block * (far // self.block >= home[moved])) if moved.size else far
        return answers

    def estimate(self, answers: Any, *, confidence: float = 0.95, population: bool = False) -> LocalEstimate:
        """The mean score of every value over its contrast ``(1 - L) - (b/2) L / (B b - b/2)``."""
        given = open_categories(answers, self.blocks * self.block)
        people = some(given)
        counts = np.bincount(given, minlength=self.blocks * self.block).reshape(self.blocks, self.block)
        scores = walsh_hadamard(counts)
        values = np.arange(self.values)
        means = scores[values % self.blocks, 1 + values // self.blocks] / people
        contrast = self._moments[0]
        squares = (counts.sum(axis=1) / people)[values % self.blocks]  # h_B m_1 + (1 - h_B) m_0 on average
        lost = means**2 if population else np.clip(means / contrast, 0.0, 1.0) * contrast**2
        return frequency_estimate(means, squares - lost, contrast, 0.0, people, confidence)

    @property
    def _moments(self) -> tuple[float, float, float]:
        return _moments(self.values, self.epsilon, self.blocks)

    def _variances(self, shares: Floats) -> Floats:
        """Of one score: ``h_B m_1 + (1 - h_B) m_0 - h c^2``, h_B the share of the value's block, data fixed."""
        contrast, inside, outside = self._moments
        homes = np.arange(self.values) % self.blocks
        block = np.bincount(homes, weights=shares, minlength=self.blocks)[homes]
        variances: Floats = block * inside + np.maximum(1 - block, 0.0) * outside - shares * contrast**2
        return variances

    def variances(self, shares: Floats, people: int) -> Floats:
        """Of every estimate; ``shares`` must name every value, for those of one block disturb each other."""
        if np.shape(shares) != (self.values,):
            raise InvalidInput(f"shares must be those of all {self.values} values.")
        return self._variances(np.asarray(shares, float)) / (whole("people", people) * self._moments[0] ** 2)

    def error(self, people: int) -> float:
        """On average over the values, if all people hold values of the fullest blocks: nearly met, never passed."""
        return math.sqrt(_block_error(self.values, self.epsilon, self.blocks) / whole("people", people) / self.values)


def _block_size(values: int, blocks: int) -> int:
    return 1 << (-(-values // blocks)).bit_length()


def _moments(values: int, epsilon: float, blocks: int) -> tuple[float, float, float]:
    """The mean score of the own value, and the mean squared score of a value inside and outside the person's block."""
    block = _block_size(values, blocks)
    others, half = blocks * block - block // 2, block // 2
    miss = lie(epsilon, others, half) / WHOLE
    return 1 - miss - half * miss / others, 1 - miss + half * miss / others, block * miss / others


def _block_error(values: int, epsilon: float, blocks: int) -> float:
    """The sum of the variances of all estimates from one answer."""
    contrast, inside, outside = _moments(values, epsilon, blocks)
    together = -(-values // blocks)
    return (together * inside + (values - together) * outside) / contrast**2 - 1


def walsh_hadamard(rows: NDArray[Any]) -> Integers:
    """Every row times the Hadamard matrix ``(-1)^popcount(i & j)``; rows have a power of two places."""
    result = np.array(rows, np.int64)
    count, size = result.shape
    width = 1
    while width < size:
        pairs = result.reshape(count, -1, 2, width)
        result = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        width *= 2
    return result.reshape(count, size)


def _odd(numbers: Integers) -> NDArray[np.bool_]:
    """Whether an odd number of bits is set."""
    folded = numbers.copy()
    for shift in (32, 16, 8, 4, 2, 1):
        folded ^= folded >> shift
    return (folded & 1).astype(np.bool_)
