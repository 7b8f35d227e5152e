"""What local protocols share: coins tossed exactly, and estimates with their errors.

A protocol's *lie* is the coin that decides against the person's value. Its chance is rounded **up**, to no information
at all at most; every protocol here proves that its odds fall when a lie gets likelier. So the epsilon of the rounded
coins is at most the epsilon that is claimed, never above it, and estimates use the rounded chances: no bias.

The only floating point is ``e^-epsilon``, right to 2^-52 of itself; the chance is raised by 2^-48 of itself first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sordina.accounting import events
from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import check_confidence, number
from sordina.privacy import Adjacency, Guarantee, Trust, Unit, check_epsilon
from sordina.random.generators import BitStream, bit_stream

BITS = 63
WHOLE = 1 << BITS
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

_LEAST_EPSILON = 1e-6
_WORDS_AT_ONCE = 1 << 15
"""A quarter of a megabyte: what fits near the processor."""
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def local_epsilon(epsilon: object) -> float:
    """``epsilon`` if coins can tell it from 0, else refused."""
    checked = check_epsilon(number("epsilon", epsilon))
    if checked < _LEAST_EPSILON:
        raise InvalidInput(f"an answer at epsilon {checked:g} says nothing: choose at least {_LEAST_EPSILON:g}.")
    return checked


def lie(epsilon: float, others: int, own: int = 1) -> int:
    """The chance, in 2^-63, of any of ``others`` answers when each of ``own`` is ``e^epsilon`` times as likely.

    ``others / (own e^epsilon + others)``, rounded up. With L the rounded chance the odds of an own answer against
    another one are ``(1 - L) others / (L own)``, which falls in L: at most ``e^epsilon``.

    >>> lie(math.log(3), 1) / WHOLE
    0.2500000000000009

    Args:
        epsilon: What is claimed.
        others: How many answers are less likely.
        own: How many are more likely.
    """
    weight = others * math.exp(-epsilon)
    wanted = math.ceil(weight / (own + weight) * (1 + 2.0**-48) * 2.0**BITS)
    return min(max(1, wanted), (others << BITS) // (own + others))


def toss(chance: int, size: int, rng: np.random.Generator) -> Flags:
    """``size`` independent coins, each true with probability ``chance / 2^63``."""
    flags: Flags = rng.integers(0, WHOLE, size=size) < chance
    return flags


def toss_words(chance: int, words: int, rng: np.random.Generator) -> Words:
    """The same coins, 64 to a word.

    A uniform number of 63 bits is compared with ``chance`` from its first bit on, for 64 numbers at once; a number is
    decided at the first bit that differs, which after eight bits is so for 255 of 256. The rest go on by themselves.
    """
    stream = bit_stream(rng)
    result = np.empty(words, np.uint64)
    for start in range(0, words, _WORDS_AT_ONCE):
        _toss_block(chance, result[start : start + _WORDS_AT_ONCE], stream)
    return result


def _toss_block(chance: int, out: Words, stream: BitStream) -> None:
    drawn, spare = np.empty_like(out), np.empty_like(out)
    undecided = np.full_like(out, _ALL)
    out[:] = 0
    for place in range(8):
        stream.fill(drawn.data.cast("B"))
        undecided, spare = _compare(chance >> (BITS - 1 - place) & 1, drawn, undecided, out, spare)
    left = undecided.nonzero()[0]
    some, open_, spare = out[left], undecided[left], spare[left]
    for place in range(8, BITS):
        if not open_.any():
            break
        further = np.empty_like(open_)
        stream.fill(further.data.cast("B"))
        open_, spare = _compare(chance >> (BITS - 1 - place) & 1, further, open_, some, spare)
    out[left] = some


def _compare(bit: int, drawn: Words, undecided: Words, result: Words, spare: Words) -> tuple[Words, Words]:
    """One bit of 64 numbers a word: what is still undecided, and memory to use next.

    Against a 1 of the chance a drawn 0 is below it (true). Against a 0 a number whose bit is 1 is above it (false);
    there ``drawn`` stands for the complement of the numbers' bits, which is as fair.
    """
    if not bit:
        undecided &= drawn
        return undecided, spare
    np.bitwise_and(undecided, drawn, out=spare)
    undecided ^= spare
    result |= undecided
    return spare, undecided


def column_sums(words: Words, columns: int) -> Integers:
    """How many rows have each of the first ``columns`` bits set.

    Three rows are added bit by bit into a row of sums and a row of carries, so two thirds of the rows remain to be
    counted (a third of them twice), and so on: about five operations a word in all.

    Args:
        words: One row per answer; the bit ``64 w + i`` of a row is bit i of its word w.
        columns: How many bits count.
    """
    rows = len(words)
    block = max(48, (_WORDS_AT_ONCE * 4) // max(1, words.shape[1]))
    if rows > 2 * block:
        parts = (column_sums(words[start : start + block], columns) for start in range(0, rows, block))
        summed: Integers = np.sum(list(parts), axis=0, dtype=np.int64)
        return summed
    if rows < 48:
        bits = np.unpackbits(words.view(np.uint8).reshape(rows, -1), axis=1, count=columns, bitorder="little")
        counts: Integers = bits.sum(axis=0, dtype=np.int64)
        return counts
    third = rows // 3
    first, second, last = words[:third], words[third : 2 * third], words[2 * third : 3 * third]
    either = first ^ second
    carries = (first & second) | (either & last)
    either ^= last
    total = column_sums(either, columns) + 2 * column_sums(carries, columns)
    return total + column_sums(words[3 * third :], columns) if rows > 3 * third else total


# What answers say: estimates with their standard errors and intervals, and the projection that makes shares add up.

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LocalEstimate:
    """Unbiased estimates from randomised answers.

    Args:
        values: One estimate per value, or per coordinate.
        standard_errors: Of each; of the noise alone, or of noise and sampling (see ``estimate`` of a protocol).
        people: How many answers there were.
        confidence: Of every single interval.
        biased: Whether the estimates were made consistent, which moves small shares up and large ones down.
    """

    values: Floats
    standard_errors: Floats
    people: int
    confidence: float
    biased: bool = False

    @property
    def low(self) -> Floats:
        """Lower ends of the intervals, by the normal limit."""
        return self.values - self._margin

    @property
    def high(self) -> Floats:
        """Upper ends."""
        return self.values + self._margin

    @property
    def _margin(self) -> Floats:
        margin: Floats = float(ndtri(0.5 + self.confidence / 2)) * self.standard_errors
        return margin

    def consistent(self) -> LocalEstimate:
        """The nearest shares that are not negative and sum to one: post-processing, so it costs nothing.

        The intervals keep the width of the unbiased estimates.
        """
        return replace(self, values=projected(self.values), biased=True)


def projected(shares: Floats) -> Floats:
    """The point of the probability simplex nearest to ``shares`` (Duchi et al. 2008, figure 1).

    >>> projected(np.array([0.9, 0.3, -0.2])).round(2).tolist()
    [0.8, 0.2, 0.0]
    """
    ordered = np.sort(shares)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(ordered) + 1)
    last = int(np.flatnonzero(ordered > excess)[-1])
    result: Floats = np.maximum(shares - excess[last], 0.0)
    return result


def frequency_estimate(
    means: Floats, variances: Floats, contrast: float, base: float, people: int, confidence: float
) -> LocalEstimate:
    """From the mean score of every value: ``(mean - base) / contrast``.

    Args:
        means: Of the scores; a value's score is ``base`` on average without the value, ``base + contrast`` with it.
        variances: Of one score, for every value.
        contrast: How much a person's own value adds to its score.
        base: The score of another value.
        people: How many answers.
        confidence: Of the intervals.
    """
    errors = np.sqrt(np.maximum(variances, 0.0) / people) / contrast
    return LocalEstimate((means - base) / contrast, errors, people, check_confidence(confidence))


def local_guarantee(epsilon: float, unit: Unit) -> Guarantee:
    """Any value of one person against any other, with nobody to be trusted."""
    return Guarantee(epsilon, 0.0, Adjacency.REPLACE_ONE, unit, Trust.LOCAL)


class PureAnswer:
    """What one pure answer is worth: shared by protocols, each of which states its ``epsilon`` and its ``unit``."""

    epsilon: float
    unit: Unit

    @property
    def guarantee(self) -> Guarantee:
        """Pure epsilon-DP in the local model."""
        return local_guarantee(self.epsilon, self.unit)

    def event(self) -> events.Event:
        """Pure epsilon-DP, for each person's one answer."""
        return events.PureDP(self.epsilon)


def some(answers: NDArray[np.generic] | Floats) -> int:
    """How many answers there are; none is refused."""
    if len(answers) == 0:
        raise InvalidInput("no answers to estimate from.")
    return len(answers)
