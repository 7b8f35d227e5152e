"""Which configurations a search tries, and the strategies that 000 section 3.7 compares.

A configuration is plain data, a name and a value for everything that varies. The candidates are fixed before any data
are touched, so choosing them costs nothing.

The strategies that 000 section 3.7 compares: what each leaves to tune, and how a configuration becomes a trainer.

=======================  ==============  ===========  ================================================================
strategy                 varies          runs         clipping, learning rate
=======================  ==============  ===========  ================================================================
`online`                 rho             k            `Online` with its defaults, `SteadyRate` of reach 0.35 rho
`online-as-in-thesis`    rho             k            Algorithm 3 as printed: ``rho_c = rho_r = 2.5e-3``, ``C0 = 0.1``
`fixed-threshold`        rho, C          k * k        `Fixed`, constant rate
`fixed-quantile`         rho, gamma      5 k          `Quantile` from ``C0 = 0.1`` at update rate 0.2, constant rate
`adam-wosm`              C               k            `Fixed`, `AdamWOSM` with alpha = 1e-3
`automatic`              nothing         1            the trainer's own clipping and `AutomaticRate`: no search, one run
=======================  ==============  ===========  ================================================================

Ranges: rho in [10^-2.5, 10^1.5], C in [10^-2, 10^2], k values each, evenly apart in the logarithm; gamma as listed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from sordina._renamed import current_names
from sordina.clipping import Decay, Fixed, Online, Quantile
from sordina.errors import InvalidInput
from sordina.training import AdamWOSM, AutomaticRate, LearningRateRule, SteadyRate

Configuration: TypeAlias = dict[str, Any]
MOST_RUNS = 1_000_000
"""More runs than anybody waits for: a number beyond it is a mistake."""


class Space(Protocol):
    """Where configurations come from."""

    @property
    def runs(self) -> int:
        """How many configurations a search tries (on average, with random stopping)."""
        ...

    def configurations(self, rng: np.random.Generator) -> list[Configuration]:
        """The ``runs`` configurations of a search that tries each of them."""
        ...

    def draw(self, rng: np.random.Generator) -> Configuration:
        """One configuration at random, for a search that stops at random."""
        ...


def log_spaced(low: float, high: float, count: int) -> tuple[float, ...]:
    """``count`` values from ``low`` to ``high``, evenly apart on a logarithmic scale.

    >>> log_spaced(0.01, 100, 5)
    (0.01, 0.1, 1.0, 10.0, 100.0)
    """
    if not 0 < low <= high < math.inf or count < 1:
        raise InvalidInput(
            f"a logarithmic range needs 0 < low <= high and a count of 1 or more: {low}, {high}, {count}."
        )
    values = np.geomspace(low, high, count) if count > 1 else np.array([math.sqrt(low * high)])
    return tuple(float(f"{value:.6g}") for value in values)


@dataclass(frozen=True)
class Grid:
    """Every combination of the values of ``axes``; no axes make one empty configuration.

    >>> Grid({"rho": (0.1, 1.0), "C": (1.0,)}).configurations()
    [{'rho': 0.1, 'C': 1.0}, {'rho': 1.0, 'C': 1.0}]
    """

    axes: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if isinstance(values, str) or not len(values):
                raise InvalidInput(f"axis {name!r} of a grid needs a list of values, got {values!r}.")
            if other := [value for value in values if not isinstance(value, str | bool | int | float | None)]:
                raise InvalidInput(
                    f"axis {name!r} holds a {type(other[0]).__name__}; a configuration is written to disk, so it is "
                    "made of numbers and text. Give a function as strategy= that makes a trainer's fields of them."
                )

    @property
    def runs(self) -> int:
        """The number of points."""
        return math.prod(len(values) for values in self.axes.values())

    def configurations(self, rng: np.random.Generator | None = None) -> list[Configuration]:
        """All points, the last axis changing fastest."""
        return [dict(zip(self.axes, point, strict=True)) for point in itertools.product(*self.axes.values())]

    def draw(self, rng: np.random.Generator) -> Configuration:
        """A point, each as likely as any other."""
        return {name: values[int(rng.integers(len(values)))] for name, values in self.axes.items()}


@dataclass(frozen=True)
class PartOfGrid:
    """Some points of ``grid``, paid for as if all of it were tried: the nearest ones to the wanted ``points``.

    For reproductions that know from elsewhere where a large grid is good. What they find is at most what the whole grid
    would have found.

    >>> part = PartOfGrid(Grid({"rho": (0.1, 1.0), "C": (1.0, 10.0)}), ({"rho": 0.9, "C": 12.0},))
    >>> part.configurations(), part.runs
    ([{'rho': 1.0, 'C': 10.0}], 4)
    """

    grid: Grid
    points: Sequence[Mapping[str, float]]

    def __post_init__(self) -> None:
        _check_points(self.grid, self.points)

    @property
    def runs(self) -> int:
        """The number of points of the whole grid."""
        return self.grid.runs

    def configurations(self, rng: np.random.Generator | None = None) -> list[Configuration]:
        """The chosen points, each once."""
        return _nearest(self.grid, self.points)

    def draw(self, rng: np.random.Generator) -> Configuration:
        """One of the chosen points."""
        points = self.configurations()
        return points[int(rng.integers(len(points)))]


@dataclass(frozen=True)
class GridFrom:
    """All points of ``grid``, the nearest ones to the given ``points`` first.

    For a search that ends runs which are behind the others: what is known from elsewhere to be good goes ahead.

    >>> GridFrom(Grid({"C": (0.1, 1.0, 10.0)}), ({"C": 9.0},)).configurations()
    [{'C': 10.0}, {'C': 0.1}, {'C': 1.0}]
    """

    grid: Grid
    points: Sequence[Mapping[str, Any]]

    def __post_init__(self) -> None:
        _check_points(self.grid, self.points)

    @property
    def runs(self) -> int:
        """The number of points of the grid."""
        return self.grid.runs

    @property
    def ahead(self) -> list[Configuration]:
        """The points that are first."""
        return _nearest(self.grid, self.points)

    def configurations(self, rng: np.random.Generator | None = None) -> list[Configuration]:
        """All points, each once."""
        return self.ahead + [point for point in self.grid.configurations(rng) if point not in self.ahead]

    def draw(self, rng: np.random.Generator) -> Configuration:
        """One of the grid's."""
        return self.grid.draw(rng)


def _check_points(grid: Grid, points: Sequence[Mapping[str, Any]]) -> None:
    if not points or any(set(point) != set(grid.axes) for point in points):
        raise InvalidInput(f"the points of a grid need values for {', '.join(grid.axes)}.")


def _nearest(grid: Grid, points: Sequence[Mapping[str, Any]]) -> list[Configuration]:
    """The points of the grid that are nearest, each once."""
    chosen = [
        {name: _nearest_value(name, values, point[name]) for name, values in grid.axes.items()} for point in points
    ]
    return [point for place, point in enumerate(chosen) if point not in chosen[:place]]


def _nearest_value(name: str, values: Sequence[Any], wanted: Any) -> Any:
    if wanted in values:
        return wanted
    numbers = [one for one in (*values, wanted) if isinstance(one, (int, float)) and not isinstance(one, bool)]
    if len(numbers) <= len(values) or not 0 < min(numbers) <= max(numbers) < math.inf:
        raise InvalidInput(f"{name} has no value {wanted!r} in the grid: {', '.join(map(repr, values))}.")
    return min(values, key=lambda value: abs(math.log(value / wanted)))


@dataclass(frozen=True)
class Between:
    """A range to draw from: uniformly in the logarithm, or with ``log=False`` in the value itself.

    Args:
        low: The least value.
        high: The largest value.
    """

    low: float
    high: float
    log: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise InvalidInput(f"a range needs finite low <= high, got {self.low} and {self.high}.")
        if self.log and self.low <= 0:
            raise InvalidInput(f"a logarithmic range must be positive, got {self.low}. Say log=False for a linear one.")

    def draw(self, rng: np.random.Generator) -> float:
        """One value."""
        if self.log:
            return float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class Random:
    """``runs`` configurations, drawn independently; an axis is a `Between` or a list of values.

    Args:
        axes: What each name is drawn from.

    >>> point = Random({"rho": Between(0.1, 10)}, runs=3).draw(np.random.default_rng(0))
    >>> 0.1 <= point["rho"] <= 10
    True
    """

    axes: Mapping[str, Between | Sequence[Any]]
    runs: int

    def __post_init__(self) -> None:
        if not 1 <= self.runs <= MOST_RUNS:
            raise InvalidInput(f"a random search has 1 to {MOST_RUNS} runs, got {self.runs}.")
        Grid({name: axis for name, axis in self.axes.items() if not isinstance(axis, Between)})

    def configurations(self, rng: np.random.Generator) -> list[Configuration]:
        """``runs`` draws."""
        return [self.draw(rng) for _ in range(self.runs)]

    def draw(self, rng: np.random.Generator) -> Configuration:
        """One value per axis."""
        return {
            name: axis.draw(rng) if isinstance(axis, Between) else axis[int(rng.integers(len(axis)))]
            for name, axis in self.axes.items()
        }


def spanning(axes: Mapping[str, Sequence[Any]], runs: int) -> Random:
    """A random search over the ranges that the axes of a grid span; an axis that is no range stays a list.

    >>> spanning({"rho": (0.1, 1.0, 10.0), "mode": ("a", "b")}, 4).axes["rho"]
    Between(low=0.1, high=10.0, log=True)
    """
    return Random({name: _span(values) for name, values in axes.items()}, runs)


def _span(values: Sequence[Any]) -> Between | Sequence[Any]:
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) < len(values) or min(numbers) <= 0 or max(numbers) / min(numbers) < 10:
        return values
    return Between(float(min(numbers)), float(max(numbers)))


# The strategies that 000 section 3.7 compares: what each leaves to tune, and how a configuration becomes a trainer.

RHO = (10**-2.5, 10**1.5)
C = (1e-2, 1e2)
GAMMA = (0.1, 0.3, 0.5, 0.7, 0.9)
INITIAL = 0.1
RATE = 2.5e-3
REACH = 0.35
MOST_VALUES = 1000

Fields = Callable[[Configuration], dict[str, Any]]
"""From a configuration to fields of `sordina.Trainer`."""


@dataclass(frozen=True)
class Strategy:
    """A named way to train: the axes of its grid for a granularity, and the trainer's fields for a configuration.

    Args:
        name: How the command line calls it.
        title: How tables call it.
    """

    name: str
    title: str
    axes: Callable[[int], dict[str, tuple[float, ...]]]
    fields: Fields

    def grid(self, granularity: int) -> Grid:
        """The grid with ``granularity`` values per range."""
        if not 1 <= granularity <= MOST_VALUES:
            raise InvalidInput(f"the granularity of a grid lies between 1 and {MOST_VALUES}, got {granularity}.")
        return Grid(self.axes(granularity))


def _rho(granularity: int) -> dict[str, tuple[float, ...]]:
    return {"rho": log_spaced(*RHO, granularity)}


def _threshold(granularity: int) -> dict[str, tuple[float, ...]]:
    return {"C": log_spaced(*C, granularity)}


def _online(configuration: Configuration) -> dict[str, Any]:
    return {"clipping": Online(INITIAL), "learning_rate": SteadyRate(REACH * configuration["rho"])}


def _online_as_in_thesis(configuration: Configuration) -> dict[str, Any]:
    rule = LearningRateRule(Decay(RATE), first=configuration["rho"])
    return {"clipping": Online.as_in_thesis(INITIAL, RATE), "learning_rate": rule}


def _fixed_threshold(configuration: Configuration) -> dict[str, Any]:
    return {"clipping": Fixed(configuration["C"]), "learning_rate": configuration["rho"]}


def _fixed_quantile(configuration: Configuration) -> dict[str, Any]:
    return {"clipping": Quantile(configuration["gamma"], INITIAL, 0.2), "learning_rate": configuration["rho"]}


def _adam_wosm(configuration: Configuration) -> dict[str, Any]:
    return {"clipping": Fixed(configuration["C"]), "optimizer": AdamWOSM}


def _automatic(configuration: Configuration) -> dict[str, Any]:
    return {"clipping": None, "learning_rate": AutomaticRate()}


STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("online", "Online", _rho, _online),
        Strategy("online-as-in-thesis", "Online as in the thesis", _rho, _online_as_in_thesis),
        Strategy("fixed-threshold", "FixedThreshold", lambda k: _rho(k) | _threshold(k), _fixed_threshold),
        Strategy("fixed-quantile", "FixedQuantile", lambda k: _rho(k) | {"gamma": GAMMA}, _fixed_quantile),
        Strategy("adam-wosm", "AdamWOSM", _threshold, _adam_wosm),
        Strategy("automatic", "Automatic (no search)", lambda k: {}, _automatic),
    )
}


def named(name: str) -> Strategy:
    """The strategy called ``name``.

    >>> [named(name).grid(5).runs for name in STRATEGIES]
    [5, 5, 25, 25, 5, 1]
    """
    if name not in STRATEGIES:
        raise InvalidInput(f"unknown strategy {name!r}: choose one of {', '.join(STRATEGIES)}.")
    return STRATEGIES[name]


def fields_of(strategy: str | Fields | None, configuration: Configuration) -> dict[str, Any]:
    """What ``configuration`` sets on a trainer: by a named strategy, a function, or field by field."""
    if isinstance(strategy, str):
        return named(strategy).fields(configuration)
    fields = configuration if strategy is None else strategy(configuration)
    return current_names(fields, "a search's fields of Trainer", {"lr": "learning_rate"})
