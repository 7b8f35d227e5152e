"""Real numbers on a grid of powers of two, so that a proof about reals stays true of the floats that are released.

Adding floating-point noise to a floating-point secret leaks: the lowest bits of the sum tell which secret it was
(Mironov 2012). Laplace and Gaussian noise are therefore added in whole multiples of a public step g, about 2^-40 of the
noise scale:

1. the secret x is rounded to the nearest multiple m g. Neighbours that differ by S then differ by at most ``S + g`` per
   coordinate that changed, so by ``S + n g`` in L1 and ``S + sqrt(n) g`` in L2; the noise is scaled to that;
2. ``floor(m + Z)`` is drawn exactly, Z real-valued with a scale rounded up to whole multiples of g (see `exact`);
3. ``(floor(m + Z) + 1/2) g`` is computed from that integer.

Step 3 and the floor are post-processing of the ideal mechanism applied to step 1, so its guarantee and its accounting
event hold exactly. This assumes that the stated sensitivity bounds what is passed in, as a float; a sum that was itself
accumulated in floating point may have moved a little further than the same sum over the reals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordina.arguments import checked
from sordina.errors import InvalidInput

_FINENESS = 40
_RANGE = (2.0**-900, 2.0**900)
_ROUND_UP = 1 + 2.0**-48
_MOST_UNITS = 1 << 44


@checked
@dataclass(frozen=True)
class Grid:
    """The multiples of ``step``, a power of two."""

    step: float

    @staticmethod
    def under(scale: float, fineness: int = _FINENESS) -> Grid:
        """The grid whose step is ``2^-fineness`` of ``scale``, rounded down to a power of two.

        >>> Grid.under(8.0).step == 2.0**-37
        True
        """
        if not _RANGE[0] <= scale <= _RANGE[1]:
            raise InvalidInput(f"a noise scale of {scale:.3g} is out of range: change the unit of the query.")
        return Grid(math.ldexp(1.0, math.frexp(scale)[1] - 1 - fineness))

    def units(self, scale: float) -> int:
        """``scale`` in steps, rounded up."""
        units = scale / self.step * _ROUND_UP
        if not units <= _MOST_UNITS:
            raise InvalidInput(f"a noise scale of {scale:.3g} is out of range for this many components.")
        return math.ceil(units)

    def round(self, value: NDArray[np.float64], out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """``value`` in steps, to the nearest whole number. Beyond 2^1000 steps it saturates: no two move apart."""
        limit = math.ldexp(min(self.step, 1.0), 1000)
        counts = np.asarray(np.clip(value, -limit, limit, out=out))
        counts /= self.step
        return np.rint(counts, out=counts)

    def add(self, counts: NDArray[np.float64], noise: NDArray[np.int64]) -> NDArray[np.float64]:
        """The middle of the cell that ``counts + noise`` names.

        Noise stays below 2^53 steps (512 scales or more: never more than an exp(-512) chance that it does not), so the
        float sum is the true one, correctly rounded: a function of it.
        """
        return (counts + noise.reshape(counts.shape) + 0.5) * self.step
