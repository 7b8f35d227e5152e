"""Whether a model was still on its way when its run ended, from released values alone (post-processing).

In the last steps of a run that came to its end, gradients turn about: what is left of them points now here, now there.
Where inputs or targets are in the thousands, the default rule's steps, which are in units of the model's output, are
too short by as much: gradients then agree to the last, and each of them stands far above the noise. With g_t the
released gradients in units of the noise on them, d weights and k steps,

    |sum_t g_t|^2 - k d   over   k (sum_t |g_t|^2 - k d)

is one where the signals of all steps are the same vector and near zero where they have nothing in common; the numerator
over ``k sqrt(2 d)``, its standard deviation where there is no signal, says whether it stands above the noise. Measured
(`docs/sharp-edges.md`): 0.87 to 0.94 for targets x 100 and more and inputs x 1e5; at most 0.32 in ordinary runs of 30
steps or more, where it stood above the noise at all.
"""

from __future__ import annotations

import math

from torch import Tensor

_FEWEST = 30
"""A shorter run is on its way by its plan."""
_AT_LEAST = 5
_AGREE, _CLEAR = 0.7, 20.0
_LARGEST = 1 << 22
"""Of larger models nothing is kept, for their memory's sake."""


class LastSteps:
    """Adds up the released gradients of the last tenth of a run.

    Args:
        steps: Of the whole run.
    """

    def __init__(self, steps: int) -> None:
        self._last = max(_AT_LEAST, steps // 10) if steps >= _FEWEST else 0
        self._first = steps - self._last
        self._count, self._squares = 0, 0.0
        self._total: Tensor | None = None

    def take(self, step: int, gradient: Tensor, noise: float) -> None:
        """Take a released gradient; those before the last tenth of the run are let go.

        Args:
            step: Its number, from 1 on.
            gradient: As released.
            noise: The standard deviation of the noise on each of its numbers.
        """
        if step <= self._first or not self._last or len(gradient) > _LARGEST or not noise > 0:
            return
        scaled = gradient.detach().double() / noise
        self._count += 1
        self._squares += float(scaled.square().sum())
        self._total = scaled if self._total is None else self._total.add_(scaled)

    @property
    def warning(self) -> str | None:
        """What to say of a model that was still on its way, if it was."""
        if self._total is None or self._count < self._last:
            return None
        count, weights = self._count, len(self._total)
        common = float(self._total.square().sum()) - count * weights
        signal = self._squares - count * weights
        clear = common > _CLEAR * count * math.sqrt(2 * weights)
        if not clear or not math.isfinite(signal) or common < _AGREE * count * signal:
            return None
        return (
            f"The released gradients of the last {count} steps all point the same way, far above their noise: the "
            "model was still on its way when the run ended. If inputs or targets are far larger than one, divide them "
            "by a public constant, so that they are about one; else take more epochs."
        )
