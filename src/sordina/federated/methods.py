"""Named methods: compositions of a strategy and the client work it goes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sordina.errors import InvalidInput
from sordina.federated.clients.gradient import LocalGradient
from sordina.federated.clients.hypotheses import BestModel, BestUpdate
from sordina.federated.clients.scaffold import Scaffold
from sordina.federated.clients.training import LocalTraining
from sordina.federated.clients.work import ClientWork, LocalSteps
from sordina.federated.objective import Objective
from sordina.federated.strategies.ifca import Ifca
from sordina.federated.strategies.mean import AddMean
from sordina.federated.strategies.metric_pfl import MetricPfl
from sordina.federated.strategies.scaffold import ScaffoldServer
from sordina.federated.strategies.steady_pfl import SteadyPfl
from sordina.federated.strategies.strategy import Strategy


@dataclass(frozen=True)
class Options:
    """What the named methods need to know, beside the objective."""

    steps: LocalSteps
    server_rate: float = 1.0
    momentum: float = 0.0
    share: float = 1.0
    """The share of clients in a round, for SCAFFOLD."""
    mu: float = 0.1
    """FedProx's proximal weight."""
    nu: float = 0.0
    """The clients' noise multiplier, for the steady server of metric PFL."""
    drought: int = 20
    seed: int = 0


NAMES = ("fedsgd", "fedavg", "fedprox", "scaffold", "ifca", "metric-pfl", "metric-pfl-steady")
PERSONAL = ("ifca", "metric-pfl", "metric-pfl-steady")
"""Those that train several hypotheses."""


def named(name: str, objective: Objective, options: Options) -> tuple[Strategy[Any], ClientWork]:
    """The strategy and the client work called ``name``."""
    steps, rate = options.steps, options.server_rate
    mean = AddMean(rate, options.momentum)
    if name == "fedsgd":
        return AddMean(rate * steps.rate, options.momentum), LocalGradient(objective)
    if name == "fedavg":
        return mean, LocalTraining(objective, steps)
    if name == "fedprox":
        return mean, LocalTraining(objective, steps, options.mu)
    if name == "scaffold":
        return ScaffoldServer(options.share, steps.rate, rate), Scaffold(objective, steps)
    if name == "ifca":
        return Ifca(rate), BestUpdate(objective, steps)
    if name == "metric-pfl":
        return MetricPfl(), BestModel(objective, steps)
    if name == "metric-pfl-steady":
        return SteadyPfl(options.nu, rate, options.drought, seed=options.seed), BestModel(objective, steps)
    raise InvalidInput(f"unknown strategy {name!r}: choose one of {', '.join(NAMES)}.")
