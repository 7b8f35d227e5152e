"""Strings that nobody listed: heavy hitters by prefix extension (PEM; Wang, Li and Jha 2021).

People fall into as many groups as there are lengths of prefixes to ask about. Each person answers once, about the
prefix of their group's length, with the whole epsilon. The server extends the prefixes it found common by every
character, asks the next group's answers about those, and keeps the most common ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sordina._arguments import checked
from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import settle, source, whole, word
from sordina.privacy import Unit
from sordina.statistics.local.coins import (
    WHOLE,
    Integers,
    LocalEstimate,
    PureAnswer,
    Words,
    lie,
    local_epsilon,
    some,
    toss,
)
from sordina.statistics.local.frequencies import estimate_two_chances, two_chances

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 -'."
"""The characters that are told apart by default; capitals count as small letters."""
OTHER = "?"
"""What every character that is not in the alphabet becomes."""
_LOW = np.uint64(0xFFFFFFFF)
_AT_ONCE = 1 << 14
"""Answers that are compared with a candidate at once: what fits near the processor."""


@dataclass(frozen=True)
class HeavyHitters:
    """Common strings, the most common first, and their shares.

    Args:
        strings: As far as the alphabet and the length tell them.
        shares: Estimates with intervals. The strings were chosen because their estimates are large, so the last of
            them are on average a little too large.
    """

    strings: tuple[str, ...]
    shares: LocalEstimate


@checked
@dataclass(frozen=True)
class CommonStrings(PureAnswer):
    """Which strings are common, and how common.

    A prefix is hashed by ``(a_1 x_1 + a_2 x_2 + b mod 2^64) >> (64 - k)``, x_1 and x_2 the halves of its number, a_1,
    a_2 and b random and public: strongly universal (Dietzfelbinger 1996), so any other prefix is supported with chance
    ``2^-k`` exactly.

    *Proof.* Group and hash are drawn without looking at the string; given them, the answer is randomised response over
    2^k values (`coins.lie`), and there is one answer. So it is epsilon-DP.

    Args:
        length: How many characters count; longer strings are cut.
        epsilon: Of every answer.
        alphabet: The characters that are told apart.
        first: How many characters the first group tells.
        unit: Who answers.
    """

    length: int
    epsilon: float
    alphabet: str = LETTERS
    first: int = 2
    unit: Unit = Unit.USER
    name = "pem"

    def __post_init__(self) -> None:
        settle(self, length=whole("length", self.length), epsilon=local_epsilon(self.epsilon))
        settle(self, first=min(whole("first", self.first), self.length), unit=word("unit", Unit, self.unit))
        if len(set(self.alphabet)) != len(self.alphabet) or len(self.alphabet) < 2 or OTHER in self.alphabet:
            raise InvalidInput(f"an alphabet has two characters or more, each once, and not {OTHER!r}.")
        if self._base**self.length >= 1 << 63:
            most = int(63 / math.log2(self._base))
            raise InvalidInput(f"with this alphabet at most {most} characters can be told apart, got {self.length}.")
        if self._base**self.first > 1 << 20:
            raise InvalidInput("the first group's prefixes are too many to try: lower `first`.")

    @property
    def _base(self) -> int:
        """Every character, any other one, and the end of the string."""
        return len(self.alphabet) + 2

    @property
    def groups(self) -> int:
        """How many lengths are asked about."""
        return self.length - self.first + 1

    @cached_property
    def hash_bits(self) -> int:
        """k: the hash has 2^k values, near ``e^epsilon + 1``."""
        return min(range(1, 24), key=lambda bits: self._empty_variance(1 << bits))

    def _empty_variance(self, size: int) -> float:
        own = 1 - lie(self.epsilon, size - 1) / WHOLE
        return float(two_chances(np.zeros(1), own, 1 / size, 1)[0])

    @property
    def lie(self) -> int:
        """The chance of another hash, in 2^-63."""
        return lie(self.epsilon, (1 << self.hash_bits) - 1)

    def numbers(self, strings: Sequence[str]) -> Integers:
        """A string as a number in base ``characters + 2``, its first character leading; 0 is the end."""
        codes = {character: place + 2 for place, character in enumerate(self.alphabet)}
        fold = str.lower if self.alphabet == self.alphabet.lower() else str
        cut = np.array([fold(string)[: self.length] for string in strings], dtype=f"<U{self.length}")
        characters = cut.reshape(-1, 1).view(np.uint32)
        known = np.array(sorted(map(ord, codes)), np.uint32)
        digits = np.array([codes[chr(one)] for one in known], np.int64)
        place = np.minimum(np.searchsorted(known, characters), len(known) - 1)
        found = np.where(known[place] == characters, digits[place], np.where(characters == 0, 0, 1))
        ended = np.logical_or.accumulate(characters == 0, axis=1)
        result = np.zeros(len(strings), np.int64)
        for column in np.where(ended, 0, found).T:
            result = result * self._base + column
        return result

    def string(self, code: int, characters: int) -> str:
        """The characters of a prefix's number, up to its end."""
        found = []
        for _ in range(characters):
            code, digit = divmod(code, self._base)
            found.append("" if digit == 0 else OTHER if digit == 1 else self.alphabet[digit - 2])
        return "".join(reversed(found))

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> Words:
        """One row (group, a_1, a_2, b, answer) per string."""
        strings = [values] if isinstance(values, str) else list(values)
        if not all(isinstance(string, str) for string in strings):
            raise InvalidInput("only texts have prefixes: turn the values into texts first.")
        rng, people = source(generator), len(strings)
        group = rng.integers(0, self.groups, size=people)
        prefixes = self.numbers(strings) // self._base ** (self.groups - 1 - group)
        hashes = rng.integers(0, 1 << 64, size=(3, people), dtype=np.uint64)
        answers = self._hash(hashes, prefixes.astype(np.uint64)).astype(np.int64)
        places = toss(self.lie, people, rng).nonzero()[0]
        size = 1 << self.hash_bits
        answers[places] = (answers[places] + rng.integers(1, size, size=places.size)) % size
        return np.stack([group.astype(np.uint64), *hashes, answers.astype(np.uint64)], axis=1)

    def _hash(self, hashes: NDArray[Any], numbers: Words) -> Words:
        mixed: Words = hashes[0] * (numbers & _LOW) + hashes[1] * (numbers >> np.uint64(32)) + hashes[2]
        return mixed >> np.uint64(64 - self.hash_bits)

    def estimate(self, answers: Any, *, most: int = 32, confidence: float = 0.95) -> HeavyHitters:
        """The strings that are surely there: their answers are above what chance gives any candidate.

        Args:
            answers: What `randomize` returned.
            most: How many strings, and prefixes on the way, are kept at most.
            confidence: That no string is there by chance, and of every single interval.
        """
        given = np.asarray(answers)
        if given.dtype != np.uint64 or given.ndim != 2 or given.shape[1] != 5:
            raise InvalidInput("answers must be rows (group, hash, hash, hash, answer), as `randomize` returns them.")
        if len(given) and (int(given[:, 0].max()) >= self.groups or int(given[:, 4].max()) >= 1 << self.hash_bits):
            raise InvalidInput("some answers belong to another question.")
        some(given)
        kept: Integers = np.zeros(1, np.int64)
        extension = itertools.chain([self.first], itertools.repeat(1))
        found = LocalEstimate(np.zeros(1), np.zeros(1), 0, confidence)
        for group, characters in zip(range(self.groups), extension, strict=False):
            mine = given[given[:, 0] == group]
            candidates = self._extended(kept, characters, self.first + group)
            if not len(mine) or not len(candidates):
                return HeavyHitters((), LocalEstimate(np.zeros(0), np.zeros(0), len(given), confidence))
            own, other = 1 - self.lie / WHOLE, 1 / (1 << self.hash_bits)
            counts = self._support(mine, candidates)
            found = estimate_two_chances(counts, own, other, len(mine), confidence, population=True)
            noise = math.sqrt(float(two_chances(np.zeros(1), own, other, len(mine))[0]))
            bar = -float(ndtri((1 - confidence) / len(candidates))) * noise if group == self.groups - 1 else 0.0
            order = np.argsort(-found.values, kind="stable")[:most]
            order = order[found.values[order] > bar]
            kept = candidates[order]
            found = LocalEstimate(found.values[order], found.standard_errors[order], len(given), confidence)
        return HeavyHitters(tuple(self.string(int(one), self.length) for one in kept), found)

    def _extended(self, kept: Integers, characters: int, length: int) -> Integers:
        """Every continuation by so many characters that is a prefix of a string: nothing follows an end."""
        result = kept
        for _ in range(characters):
            digits = np.arange(self._base)
            grown = (result[:, None] * self._base + digits[None, :]).reshape(-1)
            before = np.repeat(result % self._base, self._base)
            started = np.repeat(result > 0, self._base)
            result = grown[(before != 0) | ~started | (grown % self._base == 0)]
        return np.unique(result)

    def _support(self, mine: Words, candidates: Integers) -> Integers:
        """How many answers support each: ``a_1 x_1 + a_2 x_2 + b - (y << (64 - k)) mod 2^64 < 2^(64 - k)``."""
        first, second, offset, answer = (np.ascontiguousarray(column) for column in mine[:, 1:].T)
        shift = np.uint64(64 - self.hash_bits)
        offset = offset - (answer << shift)
        limit = np.uint64(1) << shift
        counts = np.zeros(len(candidates), np.int64)
        mixed, other = np.empty((2, _AT_ONCE), np.uint64)
        below = np.empty(_AT_ONCE, np.bool_)
        for start in range(0, len(mine), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            a, c, b = first[part], second[part], offset[part]
            sums, more, flags = mixed[: len(a)], other[: len(a)], below[: len(a)]
            for place, code in enumerate(candidates.tolist()):
                np.multiply(a, np.uint64(code & 0xFFFFFFFF), out=sums)
                if code >> 32:
                    np.multiply(c, np.uint64(code >> 32), out=more)
                    np.add(sums, more, out=sums)
                np.add(sums, b, out=sums)
                np.less(sums, limit, out=flags)
                counts[place] += np.count_nonzero(flags)
        return counts

    def error(self, people: int) -> float:
        """The standard error of the share of a rare string, from the last group's answers."""
        return math.sqrt(self._empty_variance(1 << self.hash_bits) * self.groups / whole("people", people))
