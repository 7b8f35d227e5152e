"""Calibration of the noise multiplier by PLD, against dp-accounting and Opacus's PRV accountant.

The problem is that of MNIST: sampling rate 512/60000, 1170 steps, epsilon 3, delta 1e-5. Processor time, best of three
(dp-accounting: one, it is slow). Tightness is the noise multiplier each finds: the smaller, the tighter.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from sordina.accounting import Gaussian, PoissonSampled, Repeated, noise_multiplier
from sordina.privacy import Budget

RATE, STEPS, EPSILON, DELTA = 512 / 60000, 1170, 3.0, 1e-5


def ours() -> float:
    return noise_multiplier(lambda nu: Repeated(PoissonSampled(RATE, Gaussian(nu)), STEPS), Budget(EPSILON, DELTA))


def dp_accounting() -> float:
    import dp_accounting as dp
    from dp_accounting import pld

    def event(nu: float) -> dp.DpEvent:
        return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(RATE, dp.GaussianDpEvent(nu)), STEPS)

    return float(dp.calibrate_dp_mechanism(pld.PLDAccountant, event, EPSILON, DELTA, tol=1e-4))


def opacus() -> float:
    from opacus.accountants.utils import get_noise_multiplier

    problem = {"target_epsilon": EPSILON, "target_delta": DELTA, "sample_rate": RATE, "steps": STEPS}
    return float(get_noise_multiplier(**problem, accountant="prv", epsilon_tolerance=1e-3))


def timed(work: Callable[[], float], repetitions: int) -> tuple[float, float]:
    """The answer and the least processor time."""
    best, answer = float("inf"), 0.0
    for _ in range(repetitions):
        start = time.process_time()
        answer = work()
        best = min(best, time.process_time() - start)
    return answer, best


def run() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    reference, base = timed(ours, 3)
    table = Table("accountant", "noise multiplier", "seconds", "times ours", "looser by")
    table.add_row("Sordina pld", f"{reference:.5f}", f"{base:.3f}", "1", "")
    for name, work, repetitions in (("dp-accounting pld", dp_accounting, 1), ("Opacus prv", opacus, 3)):
        answer, seconds = timed(work, repetitions)
        cells = (f"{answer:.5f}", f"{seconds:.3f}", f"{seconds / base:.1f}", f"{100 * (answer / reference - 1):+.3f} %")
        table.add_row(name, *cells)
    Console().print(table)
