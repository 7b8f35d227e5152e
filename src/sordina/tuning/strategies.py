"""The strategies that 000 section 3.7 compares: what each leaves to tune, and how a configuration becomes a trainer.

=======================  ==============  ===========  ================================================================
strategy                 varies          runs         clipping, learning rate
=======================  ==============  ===========  ================================================================
`online`                 rho             k            `Online` with its defaults, `SteadyRate` of reach 0.35 rho
`online-as-in-thesis`    rho             k            Algorithm 3 as printed: ``rho_c = rho_r = 2.5e-3``, ``C0 = 0.1``
`fixed-threshold`        rho, C          k * k        `Fixed`, constant rate
`fixed-quantile`         rho, gamma      5 k          `Quantile` from ``C0 = 0.1`` at update rate 0.2, constant rate
`adam-wosm`              C               k            `Fixed`, `AdamWOSM` with alpha = 1e-3
`automatic`              nothing         1            `TypicalNorm` and `AutomaticRate`: no search, one run
=======================  ==============  ===========  ================================================================

Ranges: rho in [10^-2.5, 10^1.5], C in [10^-2, 10^2], k values each, evenly apart in the logarithm; gamma as listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sordina._renamed import current_names
from sordina.clipping import Decay, Fixed, Online, Quantile, TypicalNorm
from sordina.errors import InvalidInput
from sordina.training import AdamWOSM, AutomaticRate, LearningRateRule, SteadyRate
from sordina.tuning.space import Configuration, Grid, log_spaced

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
    return {"clipping": TypicalNorm(), "learning_rate": AutomaticRate()}


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
