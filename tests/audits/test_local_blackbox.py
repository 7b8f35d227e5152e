"""Every local protocol, seen from outside: what its answers give away never exceeds the claim, and a fault is caught.

The bound is that of `test_mechanisms_blackbox`: cells are chosen on one half of the answers, and judged on the other.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from sordina.random import seeded
from sordina.statistics.local import (
    GRR,
    OLH,
    OUE,
    BoxVector,
    CommonStrings,
    Duchi,
    GaussianVector,
    HadamardResponse,
    Hybrid,
    Memoised,
    Piecewise,
    frequencies,
    hashed,
    means,
    strings,
)

_spec = importlib.util.spec_from_file_location("blackbox", Path(__file__).with_name("test_mechanisms_blackbox.py"))
blackbox = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(blackbox)
RUNS = 40_000


def bits(words, places):
    """Some bits of unary answers, as one number."""
    return sum(
        ((words[:, place // 64] >> np.uint64(place % 64)) & np.uint64(1)).astype(int) << i
        for i, place in enumerate(places)
    )


def memoised(epsilon, held, rng):
    """Three reports of a permanent answer: together they are within the lifetime epsilon."""
    memo = Memoised(70, epsilon, epsilon / 2)
    kept = memo.memoise(held, rng)
    return sum(bits(memo.randomize(kept, rng), (1, 68)) << 2 * turn for turn in range(3))


def olh(epsilon, held, rng):
    answers = OLH(9, epsilon).randomize(held, rng)
    return answers[:, 0] * 100 + answers[:, 1]


def pem(epsilon, held, rng):
    """Whether the answer supports each of the two strings, in the group that tells all."""
    question = CommonStrings(2, epsilon)
    answers = question.randomize(np.where(held == 1, "ab", "zz").tolist(), rng)
    hashes = np.ascontiguousarray(answers[:, 1:4].T)
    codes = question.numbers(["ab", "zz"]).astype(np.uint64)
    return sum(
        (question._hash(hashes, np.full(len(held), code)) == answers[:, 4]).astype(int) << i
        for i, code in enumerate(codes)
    )


def box(epsilon, held, rng):
    answers = BoxVector(2, 0.0, 1.0, epsilon).randomize(np.tile((held == 1)[:, None].astype(float), (1, 2)), rng)
    return np.floor(answers[:, 1, 0] * 4) + 1000 * answers[:, 0, 0]


def ends(protocol):
    """Numbers at the two ends of a range."""
    return lambda epsilon, held, rng: np.floor(protocol(0.0, 1.0, epsilon).randomize((held == 1) * 1.0, rng) * 4)


PROTOCOLS = {
    "grr": lambda epsilon, held, rng: GRR(70, epsilon).randomize(held, rng),
    "oue": lambda epsilon, held, rng: bits(OUE(70, epsilon).randomize(held, rng), (1, 68)),
    "olh": lambda epsilon, held, rng: olh(epsilon, held % 9, rng),
    "hadamard": lambda epsilon, held, rng: HadamardResponse(4, epsilon).randomize(held % 4, rng),
    "duchi": ends(Duchi),
    "piecewise": ends(Piecewise),
    "hybrid": ends(Hybrid),
    "box": box,
    "pem": pem,
    "memoised": memoised,
}


def measured(name, epsilon, rng):
    return blackbox.epsilon_lower(*(PROTOCOLS[name](epsilon, np.full(RUNS, held), rng) for held in (1, 68)))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_claim_is_never_exceeded(name):
    found = measured(name, 1.0, seeded(40))
    print(name, found)
    assert 0.4 <= found <= 1.0


@pytest.mark.parametrize("name", PROTOCOLS)
def test_lies_half_as_likely_are_caught(name, monkeypatch):
    """The planted fault: the chance of a lie is that of twice the epsilon."""
    for module in (frequencies, hashed, means, strings):
        honest = module.lie
        monkeypatch.setattr(
            module, "lie", lambda epsilon, others, own=1, honest=honest: honest(2 * epsilon, others, own)
        )
    assert measured(name, 1.0, seeded(41)) > 1.0


def test_gaussian_vectors_keep_their_claim_and_half_the_noise_is_caught(monkeypatch):
    protocol = GaussianVector(2, 1.0, 1.0, 0.05)
    pair = [np.tile([x, 0.0], (RUNS, 1)) for x in (-1.0, 1.0)]

    def cells(rng):
        return [np.floor(protocol.randomize(rows, rng)[:, 0] * 2).clip(-20, 20) for rows in pair]

    assert 0.6 <= blackbox.epsilon_lower(*cells(seeded(42)), 0.05) <= 1.0
    object.__setattr__(protocol, "noise_multiplier", protocol.noise_multiplier / 2)
    assert blackbox.epsilon_lower(*cells(seeded(43)), 0.05) > 1.0
