"""Released gradients do not tell by their last bits whether anything stood under the noise.

The row of a rare word in an embedding is zero unless its only owner is in the batch. Noise computed in floating point
and added to zero lies on a lattice of its own: the floats that are ``sigma`` times a float. Added to anything else it
does not. The attack looks at every value of the row, in every released gradient, for floats off that lattice.
"""

from __future__ import annotations

import numpy as np
import torch

from sordina.plan import make_plan
from sordina.privacy import Budget
from sordina.private_step import release
from sordina.random import secure
from sordina.sampling import Poisson

STEPS, WIDTH, SIZE, PEOPLE = 100, 64, 20_000, 20
PLAN = make_plan(Budget(0.5, 1e-6), Poisson(20, 1000), STEPS)


def released_rows(member, rng, draw):
    """The row of the word in the gradients of a run, in which its owner takes part or does not."""
    rows = []
    for _ in range(STEPS):
        total = torch.zeros(SIZE)
        if member and rng.random() < PLAN.sampler.rate:
            gradient = torch.from_numpy(rng.standard_normal(WIDTH).astype(np.float32))
            total[:WIDTH] = 0.999 * gradient / gradient.norm()
        (answer,) = release([total], [1.0], [PLAN.noise_multiplier], PLAN.sampler.expected_batch_size, draw).answers
        rows.append(answer[:WIDTH].numpy())
    return np.array(rows)


def off_the_lattice(rows, sigma):
    """How many values are no ``sigma z`` of a float z."""
    z = (rows / sigma).astype(np.float32)
    near = [z]
    for way in (np.inf, -np.inf):
        other = z
        for _ in range(2):
            other = np.nextafter(other, np.float32(way))
            near.append(other)
    return int((~np.any([np.float32(sigma) * other == rows for other in near], axis=0)).sum())


def area(members, others):
    """The chance that a member scores above another, ties halved."""
    members, others = np.array(members)[:, None], np.array(others)
    return float((members > others).mean() + (members == others).mean() / 2)


def test_the_last_bits_do_not_tell_who_took_part():
    draw, rng = secure(), np.random.default_rng(5)
    scores = {
        member: [off_the_lattice(released_rows(member, rng, draw), PLAN.noise_multiplier) for _ in range(PEOPLE)]
        for member in (True, False)
    }
    assert 0.2 < area(scores[True], scores[False]) < 0.8


def test_both_worlds_share_one_lattice():
    draw, rng = secure(), np.random.default_rng(6)
    step = 2.0 ** (np.floor(np.log2(PLAN.noise_multiplier)) - 6)
    for member in (True, False):
        rows = released_rows(member, rng, draw) / step
        assert np.array_equal(rows, np.rint(rows))


def test_the_attack_finds_noise_of_plain_floats(monkeypatch):
    """Planted: the noise of before, single-precision Gaussians times sigma."""
    import sordina.private_step as module

    def plain(values, sigma, rng):
        return values.add_(torch.from_numpy(rng.standard_normal(values.shape, np.float32)), alpha=sigma)

    monkeypatch.setattr(module, "add_noise", plain)
    draw, rng = secure(), np.random.default_rng(7)
    scores = {
        member: [off_the_lattice(released_rows(member, rng, draw), PLAN.noise_multiplier) for _ in range(30)]
        for member in (True, False)
    }
    assert area(scores[True], scores[False]) > 0.8
