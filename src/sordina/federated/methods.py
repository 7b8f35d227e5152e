"""Named methods: compositions of a strategy and the client work it goes with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sordina.errors import InvalidInput
from sordina.federated.clients.feddyn import DynamicRegulariser
from sordina.federated.clients.fsvrg import VarianceReduced
from sordina.federated.clients.gradient import LocalGradient
from sordina.federated.clients.graph import Neighbours
from sordina.federated.clients.hypotheses import BestModel, BestUpdate
from sordina.federated.clients.meta import MetaTraining
from sordina.federated.clients.mixture import Mixture
from sordina.federated.clients.near_mean import NearMean
from sordina.federated.clients.pruning import SubNetwork
from sordina.federated.clients.scaffold import Scaffold
from sordina.federated.clients.training import LocalTraining
from sordina.federated.clients.work import ClientWork, LocalSteps
from sordina.federated.objective import Objective
from sordina.federated.strategies.feddyn import FedDynServer
from sordina.federated.strategies.fsvrg import FsvrgServer
from sordina.federated.strategies.graph import GraphServer
from sordina.federated.strategies.ifca import Ifca
from sordina.federated.strategies.intersection import Intersection
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
    """The share of clients in a round, for SCAFFOLD and FedDyn."""
    mu: float = 0.1
    """The weight of a regulariser: FedProx's mu, FedDyn's alpha, lambda of mean- and graph-regularised."""
    nu: float = 0.0
    """The clients' noise multiplier, for the steady server of metric PFL."""
    drought: int = 20
    seed: int = 0
    models: int = 1
    """The components of FedEM."""
    clients: int = 1
    """All clients there are, for a graph of them."""
    nearest: int = 5
    """Neighbours of a client in a learnt graph."""
    inner_rate: float | None = None
    """Per-FedAvg's alpha, the step a client adapts with; None: the local rate."""
    prune: float = 0.5
    """The share of weights Sub-FedAvg's clients end up without."""


Parts: TypeAlias = tuple[Strategy[Any], ClientWork]


def _mean(o: Options, rate: float = 1.0) -> AddMean:
    return AddMean(o.server_rate * rate, o.momentum)


def _per_fedavg(f: Objective, o: Options) -> Parts:
    return _mean(o), MetaTraining(f, o.steps, o.steps.rate if o.inner_rate is None else o.inner_rate)


def _graph(f: Objective, o: Options) -> Parts:
    nearest = max(1, min(o.nearest, o.clients - 1))
    return GraphServer(o.clients, nearest), Neighbours(f, o.steps, o.mu)


_METHODS: dict[str, Callable[[Objective, Options], Parts]] = {
    "fedsgd": lambda f, o: (_mean(o, o.steps.rate), LocalGradient(f)),
    "fedavg": lambda f, o: (_mean(o), LocalTraining(f, o.steps)),
    "fedprox": lambda f, o: (_mean(o), LocalTraining(f, o.steps, o.mu)),
    "scaffold": lambda f, o: (ScaffoldServer(o.share, o.steps.rate, o.server_rate), Scaffold(f, o.steps)),
    "feddyn": lambda f, o: (FedDynServer(o.share), DynamicRegulariser(f, o.steps, o.mu)),
    "fsvrg": lambda f, o: (FsvrgServer(o.steps.rate, o.server_rate), VarianceReduced(f, o.steps)),
    "sub-fedavg": lambda f, o: (Intersection(o.steps.rate), SubNetwork(f, o.steps, o.prune)),
    "mean-regularised": lambda f, o: (_mean(o), NearMean(f, o.steps, o.mu)),
    "per-fedavg": _per_fedavg,
    "graph-regularised": _graph,
    "fedem": lambda f, o: (Ifca(o.server_rate), Mixture(f, o.steps, o.models)),
    "ifca": lambda f, o: (Ifca(o.server_rate), BestUpdate(f, o.steps)),
    "metric-pfl": lambda f, o: (MetricPfl(), BestModel(f, o.steps)),
    "metric-pfl-steady": lambda f, o: (
        SteadyPfl(o.nu, o.server_rate, o.drought, seed=o.seed),
        BestModel(f, o.steps),
    ),
}
NAMES = tuple(_METHODS)
PERSONAL = ("fedem", "ifca", "metric-pfl", "metric-pfl-steady")
"""Those that train several hypotheses."""


def named(name: str, objective: Objective, options: Options) -> Parts:
    """The strategy and the client work called ``name``."""
    if name not in _METHODS:
        raise InvalidInput(f"unknown strategy {name!r}: choose one of {', '.join(NAMES)}.")
    return _METHODS[name](objective, options)
