"""Reconstruction (Dinur and Nissim 2003): a secret bit of everybody, from the answers to many counting questions.

A question is a random half of the people, its answer how many of them have the bit. With answers that are off by much
less than sqrt(n), almost all bits follow, by least squares or linear programming; with more noise, or fewer questions,
less and less does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.auditing.releases.release_study import ReleaseStudy, StudyCurve, StudyLine
from sordina.errors import InvalidInput, TrainingFailed
from sordina.mechanisms import DiscreteGaussian
from sordina.mechanisms.mechanism import whole
from sordina.privacy import check_delta, check_epsilon, format_up
from sordina.progress import Progress, silent
from sordina.random import generator, releasable

NOISES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_LARGEST_PROGRAM = 300

Bits = NDArray[np.int64]


def reconstruct_bits_study(
    *,
    people: int = 1000,
    questions: int = 4000,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    noises: Sequence[float] = NOISES,
    method: str = "least-squares",
    repeats: int = 5,
    seed: int | None = None,
    progress: Progress = silent,
) -> ReleaseStudy:
    """The share of bits that come out right: from exact answers, from ever noisier ones, and from ours.

    Ours is one release of all answers: a person is in at most all of them, so their L2 sensitivity is
    ``sqrt(questions)``, and discrete Gaussian noise for that makes all answers together (epsilon, delta)-DP.

    Args:
        people: Each with a fair bit.
        questions: Random halves of the people.
        epsilon: Of all our answers.
        delta: Of all our answers.
        noises: Standard deviations of naive noise to draw the curve with.
        method: least-squares, or linear-program (at most 300 people).
        repeats: How often ours is attacked, with fresh bits; the shares are means.
        seed: Makes the study repeatable.
        progress: Told how many attacks are done.
    """
    whole("people", people), whole("questions", questions), whole("repeats", repeats)
    check_epsilon(epsilon), check_delta(delta)
    if method not in ("least-squares", "linear-program"):
        raise InvalidInput(f"no method is called {method!r}: choose least-squares or linear-program.")
    if method == "linear-program" and people > _LARGEST_PROGRAM:
        raise InvalidInput(f"a linear program takes at most {_LARGEST_PROGRAM} people, got {people}.")
    rng, attacker = generator(seed), np.random.default_rng(seed)
    mechanism = DiscreteGaussian(math.sqrt(questions), epsilon, delta)
    total, done, naive, ours = len(noises) + repeats, 0, [], []
    asked = attacker.integers(0, 2, size=(questions, people))
    solve = _solver(asked, method)
    for noise in noises:
        bits = attacker.integers(0, 2, size=people)
        answers = asked @ bits + np.rint(attacker.normal(0, noise, size=questions)).astype(np.int64)
        naive.append(_right(solve(answers), bits))
        progress(done := done + 1, total)
    for _ in range(repeats):
        bits = attacker.integers(0, 2, size=people)
        ours.append(_right(solve(mechanism.release(asked @ bits, rng)), bits))
        progress(done := done + 1, total)
    found = float(np.mean(ours))
    return ReleaseStudy(
        attack="reconstruction",
        title="Secret bits from counts",
        data=f"{people} people with a bit each, {questions} random questions, {method}",
        private=f"all answers ({format_up(epsilon)}, {format_up(delta)})-DP, noise of {mechanism.sigma:.0f}",
        verdict=(
            f"From exact answers {naive[0]:.1%} of the bits come out right; from ours {found:.1%}, where a coin gives "
            f"50 %. Naive noise helps only when it passes sqrt(n) = {math.sqrt(people):.0f}."
        ),
        lines=(StudyLine("bits right", naive[0], found, 0.5),),
        x="standard deviation of the noise on an answer",
        y="share of bits right",
        curves=(
            StudyCurve("naive noise", tuple(max(noise, 0.3) for noise in noises), tuple(naive)),
            StudyCurve("ours", (mechanism.sigma,), (found,)),
            StudyCurve("guessing", (0.3, max(mechanism.sigma, *noises)), (0.5, 0.5)),
        ),
        log_x=True,
        releasable=releasable(rng),
    )


def _solver(asked: Bits, method: str) -> Any:
    if method == "linear-program":
        return lambda answers: _program(asked, answers)
    inverse = np.linalg.pinv(asked.astype(float))
    return lambda answers: inverse @ answers


def _program(asked: Bits, answers: Bits) -> NDArray[np.float64]:
    """Bits in [0, 1] with the least sum of absolute errors."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix, hstack, identity, vstack

    questions, people = asked.shape
    matrix, slack = csr_matrix(asked.astype(float)), identity(questions)
    limits: Any = vstack([hstack([matrix, -slack]), hstack([-matrix, -slack])])
    found = linprog(
        np.concatenate([np.zeros(people), np.ones(questions)]),
        A_ub=limits,
        b_ub=np.concatenate([answers, -answers]).astype(float),
        bounds=[(0, 1)] * people + [(0, None)] * questions,
        method="highs",
    )
    if found.x is None:
        raise TrainingFailed("the linear program was not solved: ask fewer questions.")
    return np.asarray(found.x[:people])


def _right(guessed: NDArray[np.float64], bits: Bits) -> float:
    return float(np.mean((guessed > 0.5) == (bits == 1)))
