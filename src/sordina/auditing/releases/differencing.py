"""Differencing: the mean before and after one person joined gives that person away (002 section 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sordina.auditing.releases.release_study import ReleaseStudy, StudyCurve, StudyLine
from sordina.errors import InvalidInput
from sordina.mechanisms import DiscreteLaplace
from sordina.mechanisms.mechanism import whole
from sordina.privacy import check_epsilon, format_up
from sordina.random import generator, releasable

_CLOSE = 1.0


def differencing_study(
    values: Sequence[float] | None = None,
    *,
    low: int = 17,
    high: int = 90,
    people: int = 1000,
    targets: int = 500,
    epsilon: float = 1.0,
    seed: int | None = None,
) -> ReleaseStudy:
    """The value of a person who joins ``people`` others, from two means; exact ones, and noisy ones.

    Ours is a noisy sum and a noisy count, each at ``epsilon / 2`` (discrete Laplace; the values are whole numbers in a
    public range), so both releases together are ``2 epsilon``-DP for the person who joined.

    Args:
        values: Whole numbers; made up, evenly over the range, if left out.
        low: The least possible value.
        high: The largest.
        people: Who were there before.
        targets: How many people join, each by themselves.
        epsilon: Of each of the two releases.
        seed: Makes the study repeatable.
    """
    check_epsilon(epsilon), whole("people", people), whole("targets", targets)
    world = np.random.default_rng(seed)
    made_up = world.integers(low, high + 1, size=people + targets)
    known = made_up if values is None else np.clip(np.array(values, float), low, high).astype(np.int64)
    if len(known) < people + targets:
        raise InvalidInput(f"{people + targets} people are needed, and there are {len(known)}.")
    rng = generator(seed)
    drawn = known[world.permutation(len(known))]
    base, joining = drawn[:people], drawn[people : people + targets]
    before = int(base.sum())
    exact = (before + joining) / (people + 1) * (people + 1) - before / people * people
    sums, counts = DiscreteLaplace(max(abs(low), abs(high)), epsilon / 2), DiscreteLaplace(1, epsilon / 2)

    def mean(total: np.ndarray, count: int) -> np.ndarray:
        noisy_count = np.maximum(counts.release(np.full(targets, count), rng), 1)
        return np.asarray(np.clip(sums.release(total, rng) / noisy_count, low, high))

    first, second = mean(np.full(targets, before), people), mean(before + joining, people + 1)
    guessed = np.clip(second * (people + 1) - first * people, low, high)
    best = max(float(np.mean(np.abs(joining - guess) <= _CLOSE)) for guess in range(low, high + 1))
    naive, ours = (float(np.mean(np.abs(found - joining) <= _CLOSE)) for found in (exact, guessed))
    errors = [np.sort(np.abs(found - joining)) for found in (exact, guessed)]
    shares = tuple(np.linspace(0, 1, targets).tolist())
    return ReleaseStudy(
        attack="differencing",
        title="A value from two means",
        data=f"{targets} people, each joining {people} others",
        private=f"noisy sum and count, {format_up(epsilon)}-DP each time, {format_up(2 * epsilon)}-DP together",
        verdict=(
            f"From exact means {naive:.0%} of the values are known to within {_CLOSE:g}; from ours {ours:.1%}, where "
            f"the best guess that looks at nothing is right for {best:.1%}."
        ),
        lines=(
            StudyLine(f"values known to within {_CLOSE:g}", naive, ours, best),
            StudyLine("median error", float(np.median(errors[0])), float(np.median(errors[1]))),
        ),
        x="error of the guess",
        y="share of people with a smaller error",
        curves=(
            StudyCurve("exact means", tuple(errors[0].tolist()), shares),
            StudyCurve("our means", tuple(errors[1].tolist()), shares),
        ),
        releasable=releasable(rng),
    )
