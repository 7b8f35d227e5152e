"""Bad arguments for everything public that takes numbers, names and events: an answer, or one `InvalidInput`.

The short form is a test (`test_fuzzed_arguments.py`); `python -m tests.faults.fuzz_arguments` tries pairs of them.
"""

from __future__ import annotations

import itertools
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import sordina as sd
from sordina import accounting, clipping, mechanisms, sampling
from sordina.errors import SordinaError
from sordina.privacy import Adjacency, Budget, Guarantee

NAN, INF = float("nan"), float("inf")
BAD: tuple[Any, ...] = (
    None, True, "x", "", b"1", NAN, INF, -INF, -1, 0, 0.5, -0.0, 1e-320, 1e308, 2**63, 10**400, 3 + 4j, [], {}, (1, 2),
    object(), np.array([1.0, 2.0]), np.float64("nan"), np.int64(-3), print, Budget(1, 1e-5), "replace-one",
)  # fmt: skip
SECONDS = 20
STEP = accounting.PoissonSampled(0.01, accounting.Gaussian(1.0))
BUDGET = Budget(1.0, 1e-5)


def _make_private(**given: Any) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sd.make_private(model, optimizer, (torch.zeros(8, 2), torch.zeros(8, 1)), budget=Budget(INF, 0.0), **given)


GOOD: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Budget": (Budget, {"epsilon": 1.0, "delta": 1e-5}),
    "Guarantee": (Guarantee, {"epsilon": 1.0, "delta": 1e-5, "adjacency": Adjacency.ADD_REMOVE}),
    "Gaussian event": (accounting.Gaussian, {"noise_multiplier": 1.0}),
    "Laplace event": (accounting.Laplace, {"noise_multiplier": 1.0}),
    "PureDP": (accounting.PureDP, {"epsilon": 1.0}),
    "ApproximateDP": (accounting.ApproximateDP, {"epsilon": 1.0, "delta": 0.1}),
    "ZeroConcentrated": (accounting.ZeroConcentrated, {"rho": 1.0}),
    "PoissonSampled": (accounting.PoissonSampled, {"rate": 0.1, "event": STEP}),
    "GroupSampled": (accounting.GroupSampled, {"rate": 0.1, "size": 2, "event": STEP}),
    "FixedSizeSampled": (accounting.FixedSizeSampled, {"batch_size": 1, "population": 10, "event": STEP}),
    "Repeated": (accounting.Repeated, {"event": STEP, "count": 3}),
    "Composed": (accounting.Composed, {"events": (STEP,)}),
    "RandomStopping": (accounting.RandomStopping, {"event": STEP, "eta": 1.0, "gamma": 0.5, "mean": 2.0}),
    "random_stopping": (accounting.random_stopping, {"event": STEP, "mean": 2.0, "eta": 0.5}),
    "accountant": (accounting.accountant, {"name": "pld"}),
    "group": (accounting.group, {"event": STEP, "size": 2}),
    "group_epsilon": (
        accounting.group_epsilon,
        {"event": accounting.Gaussian(3.0), "delta": 1e-5, "size": 2, "adjacency": Adjacency.ADD_REMOVE},
    ),
    "joint": (accounting.joint, {"noise_multiplier": 1.0, "inflation": 0.01}),
    "noise_multiplier": (
        accounting.noise_multiplier,
        {"make_event": accounting.Gaussian, "budget": BUDGET, "adjacency": Adjacency.ADD_REMOVE, "accountant": "rdp"},
    ),
    "search_noise": (
        accounting.search_noise,
        {"make_event": accounting.Gaussian, "budget": BUDGET, "runs": 3, "method": "composition", "accountant": "rdp"},
    ),
    "from_dict": (accounting.from_dict, {"data": accounting.to_dict(STEP)}),
    "Account": (accounting.Account, {"accountant": "pld", "adjacency": Adjacency.ADD_REMOVE}),
    "Account.record": (lambda **given: accounting.Account().record(**given), {"event": STEP, "count": 2}),
    "Account.epsilon": (lambda **given: accounting.Account().epsilon(**given), {"delta": 1e-5}),
    "Laplace": (mechanisms.LaplaceMechanism, {"sensitivity": 1.0, "epsilon": 1.0, "adjacency": Adjacency.ADD_REMOVE}),
    "Gaussian": (mechanisms.GaussianMechanism, {"sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5}),
    "DiscreteLaplace": (mechanisms.DiscreteLaplace, {"sensitivity": 1, "epsilon": 1.0}),
    "DiscreteGaussian": (mechanisms.DiscreteGaussian, {"sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5}),
    "Exponential": (mechanisms.Exponential, {"sensitivity": 1.0, "epsilon": 1.0, "monotonic": False}),
    "MetricLaplace": (mechanisms.MetricLaplace, {"epsilon": 1.0}),
    "RandomizedResponse": (mechanisms.RandomizedResponse, {"epsilon": 1.0, "categories": 3}),
    "SparseVector": (mechanisms.SparseVector, {"sensitivity": 1.0, "epsilon": 1.0, "threshold": 1.0, "limit": 1}),
    "Poisson": (sampling.Poisson, {"batch_size": 4.0, "population": 10}),
    "FixedSize": (sampling.FixedSize, {"batch_size": 4, "population": 10}),
    "Users": (sampling.Users, {"owners": np.array([0, 0, 1]), "rows_per_user": 2}),
    "Fixed": (clipping.Fixed, {"threshold": 1.0}),
    "Automatic": (clipping.Automatic, {"gamma": 0.01}),
    "Quantile": (clipping.Quantile, {"gamma": 0.5, "threshold": 0.1, "rate": 0.2, "inflation": 0.002}),
    "Online": (clipping.Online, {"threshold": 0.1, "memory": 0.9, "inflation": 0.01}),
    "Trailing": (clipping.Trailing, {"window": 10, "threshold": 1.0, "factor": 4.0}),
    "Sector": (clipping.Sector, {"threshold": 1.0, "low": 0.0, "angle": 1.5, "memory": 0.9}),
    "Decay": (clipping.Decay, {"first": 0.4, "halving": 25.0, "power": 2.0}),
    "make_private": (
        _make_private,
        {"batch_size": 4, "steps": 2, "microbatch": None, "seed": 0, "clipping": None, "learning_rate": None},
    ),
    "clipping by name": (clipping.named, {"name": "fixed", "threshold": 1.0}),
} | {
    f"{name}.{asked}": (getattr(accounting.accountant(name), asked), {"event": accounting.Gaussian(2.0), given: value})
    for name in ("pld", "rdp", "gdp", "zcdp", "advanced", "basic")
    for asked, given, value in (("epsilon", "delta", 1e-5), ("delta", "epsilon", 1.0))
}  # fmt: skip


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError if it takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def verdict(call: Callable[..., Any], given: dict[str, Any]) -> str:
    """``answered``, ``refused``, or what went wrong."""
    try:
        with limited(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            call(**given)
    except SordinaError as error:
        return "refused" if "\n" not in str(error) else f"more than one line: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "answered"


def tries(at_once: int = 1) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Every callable with ``at_once`` of its arguments replaced by bad values."""
    for name, (call, good) in GOOD.items():
        for places in itertools.combinations(good, min(at_once, len(good))):
            for values in itertools.product(BAD, repeat=len(places)):
                yield name, call, good | dict(zip(places, values, strict=True))


def main() -> int:
    """Single bad values, then pairs."""
    counts = {"answered": 0, "refused": 0, "failed": 0}
    for at_once in (1, 2):
        for name, call, given in tries(at_once):
            found = verdict(call, given)
            counts[found if found in counts else "failed"] += 1
            if found not in counts:
                print(f"{name}({', '.join(f'{key}={value!r}'[:60] for key, value in given.items())}): {found[:160]}")
    print(f"sordina {sd.__version__}: {counts}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
