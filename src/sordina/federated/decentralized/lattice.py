"""Noise on a grid, for protocols in which noises cancel or are averaged: to the last bit, and with known laws.

Values, noises and messages are multiples of public powers of two, held in float64 (or int64) and small enough that
sums and products with weights in multiples of 2^-24 are exact. Every noise is `sordina.random.add_gaussian`: the
ideal Gaussian s Z, rounded together with what it is added to, on a grid of step g with ``64 g <= s``.

**Theorem.** Let a protocol compute, one after the other, ``m_i = round_g(l_i(x, m_1, ..., m_i-1) + s_i Z_i)`` with
linear l_i and independent Z_i, and let a coalition see some of the m_i. Up to a total variation distance of 10^-76 for
each number computed, what it sees is a post-processing of the real-valued ``w_i = l_i(x, w_1, ...) + t_i Z_i`` with

    t_i^2 = s_i^2 - 9 g_i^2  >=  0.9978 s_i^2,

provided that every hidden m_j, given all the others, would have a standard deviation of at least 3 g_j in every
direction (*smoothness*; stated where a protocol is built). So the accountant of linear Gaussian views, asked about the
t_i (`effective`), bounds what the code really sends.

*Proof.* ``P(m) = prod_i f_i(m_i - l_i(x, m_<i))`` with f_i the density of ``s_i Z + U``, U uniform on a step: the
density F of a real-valued process, sampled on the lattice. (1) Summing F over the hidden lattice points instead of
integrating is, by Poisson's summation formula, off by its Fourier transform at the other lattice's points, at most
``(1 + 2.1 e^(-2 pi^2 9))^h - 1`` of it by smoothness, for h hidden numbers. (2) So the seen lattice points have the law
of the seen part of the real-valued process, sampled. Split off from each seen number's own noise an independent N(0, 9
g^2): given the rest v of the process, m has the chances ``H(m - v)`` with H the density of what was split off and of
all U; they sum to 1 up to ``(1 + 2.1 e^(-2 pi^2 9))^k - 1``, k the seen numbers, as the matrix that carries own noises
into seen numbers is triangular with ones on its diagonal. So m is drawn from v by a fixed kernel: post-processing of a
view whose noises have at least the variances t_i^2. ``2.1 e^(-177.6) < 10^-76``. QED

Adding to delta what 10^12 numbers cost (10^-64) would change no digit that is shown; nothing is added.

`add_fine_gaussian` is for a noise that is much wider than the step it must be given on: the rounded Gaussian, and then
further ones of 4 steps each on grids 16 times finer. Given its neighbours in this chain, each has at least 3.8 steps.
Accounts count the first one only.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

from sordina.errors import InvalidInput
from sordina.random import add_gaussian
from sordina.random.noise import grid_of

Floats64 = NDArray[np.float64]
WEIGHT_BITS = 24
"""Weights are multiples of 2^-24."""
_SPLIT = 9.0
_FINE = 64
_EXACT = 2.0**53


def effective(sigma: float) -> float:
    """The t of the theorem: the standard deviation that an account may count for a noise of ``sigma``.

    Args:
        sigma: The standard deviation that is drawn.

    >>> round(effective(1.0), 4)
    0.9989
    """
    step, _ = grid_of(sigma)
    return math.sqrt(max(0.0, sigma**2 - _SPLIT * step**2)) * (1 - 2.0**-50)


def drawn(sigma: float) -> float:
    """The standard deviation to draw so that an account may count ``sigma``.

    Args:
        sigma: What an account asks for.

    >>> effective(drawn(0.3)) >= 0.3
    True
    """
    return sigma / math.sqrt(1 - _SPLIT / _FINE**2) * (1 + 2.0**-48)


def step_for(sigma: float) -> float:
    """The grid of a noise of standard deviation ``sigma``: a power of two, at most ``sigma / 64``.

    Args:
        sigma: The narrowest noise of a protocol.
    """
    return grid_of(sigma)[0]


def add_fine_gaussian(values: Floats64, sigma: float, step: float, rng: np.random.Generator) -> None:
    """Gaussian noise of at least ``sigma`` on multiples of ``step``, in place.

    Args:
        values: float64, contiguous.
        sigma: The standard deviation, at least ``64 step``; what is added is wider by 0.4 % of the variance at most.
        step: A power of two.
        rng: A secure generator, or one made from a shared key (`keyed_generator`).
    """
    if not sigma >= _FINE * step or math.frexp(step)[0] != 0.5:
        raise InvalidInput(
            f"noise of {sigma:.3g} needs a grid of a power of two, at most a 64th of it; got {step:.3g}."
        )
    grid, scale = grid_of(sigma)[0], sigma
    add_gaussian(values, scale, rng)
    while grid > step:
        scale = max(4 * grid, _FINE * step)
        grid = grid_of(scale)[0]
        add_gaussian(values, scale, rng)


def check_exact(largest: float, step: float) -> None:
    """Refuse sizes for which sums of weighted grid points would be rounded.

    Args:
        largest: No value or message is larger, but with a chance that underflows.
        step: The grid.
    """
    if largest / step * 2.0**WEIGHT_BITS >= _EXACT:
        raise InvalidInput(
            f"values up to {largest:.3g} do not fit a grid of {step:.3g} exactly: use a smaller clipping threshold or "
            "more noise on every message."
        )


def whole_steps(values: Floats64, step: float) -> NDArray[np.int64]:
    """Multiples of ``step`` as whole numbers; exact."""
    return np.rint(values / step).astype(np.int64)


def keyed_generator(key: bytes) -> np.random.Generator:
    """A generator that a secret key determines, the same for everybody who has the key: AES-128 in counter mode.

    Args:
        key: Secret bytes, for one vector of noise.
    """
    digest = hashlib.sha256(b"sordina grid noise" + key).digest()
    return np.random.Generator(AESCounter(key=int.from_bytes(digest[:16], "little")))
