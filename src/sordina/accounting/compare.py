"""The same event before every accountant, as rows and as a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordina.accounting.accountants import NAMES, accountant
from sordina.accounting.canonical import normal_form
from sordina.accounting.events import Event, FixedSizeSampled, PoissonSampled
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Adjacency


@dataclass(frozen=True)
class Verdict:
    """What one accountant says: an epsilon, or why there is none."""

    accountant: str
    epsilon: float | None
    note: str


def compare(event: Event, delta: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> list[Verdict]:
    """Every accountant's epsilon at ``delta``, tightest first.

    >>> from sordina.accounting.events import Gaussian
    >>> compare(Gaussian(1.0), 1e-5)[0]
    Verdict(accountant='pld', epsilon=4.37717..., note='the default: tightest')
    """
    verdicts = [_verdict(name, event, delta, adjacency) for name in NAMES]
    return sorted(verdicts, key=lambda verdict: float("inf") if verdict.epsilon is None else verdict.epsilon)


def _verdict(name: str, event: Event, delta: float, adjacency: Adjacency) -> Verdict:
    try:
        epsilon = accountant(name).epsilon(event, delta, adjacency)
    except Unsupported as error:
        return Verdict(name, None, str(error))
    return Verdict(name, epsilon, _note(name, event))


def _note(name: str, event: Event) -> str:
    sampled = any(isinstance(part, PoissonSampled | FixedSizeSampled) for part in normal_form(event))
    if name == "gdp" and sampled:
        return "central limit, raised to pld where too small"
    if name == "zcdp" and sampled:
        return "does not profit from sampling"
    return {
        "pld": "the default: tightest",
        "rdp": "best of 156 Renyi orders",
        "gdp": "exact",
        "zcdp": "one rho for all orders",
        "advanced": "delta split optimised, never above basic",
        "basic": "epsilons add up",
    }[name]


def plot(
    make_event: Callable[[int], Event],
    steps: int,
    delta: float,
    path: Path,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> None:
    """Epsilon against the number of steps, for every accountant that has an answer, saved as ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = np.unique(np.geomspace(1, max(steps, 2), 12).astype(int))
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name in NAMES:
        try:
            judge = accountant(name)
            epsilons = [judge.epsilon(make_event(int(count)), delta, adjacency) for count in counts]
        except Unsupported:
            continue
        axes.loglog(counts, epsilons, marker="o", markersize=3, label=name)
    axes.set_xlabel("steps")
    axes.set_ylabel(f"epsilon at delta = {delta:g}")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot write the plot to {path}: {error}.") from error
    finally:
        pyplot.close(figure)
