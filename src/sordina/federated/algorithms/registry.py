"""Federated algorithms: what the server does with what it receives, and what a client does with what it is sent.

An algorithm is plain data that a person writes, ``FedAvg(local_epochs=2)``; its `parts` are the server's and the
client's half that a run is made of. Any algorithm runs under any privacy it is compatible with, on any engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

from sordina.errors import InvalidInput
from sordina.federated.algorithms.algorithm import ClientWork, LocalSteps, ServerStrategy
from sordina.federated.algorithms.fedavg import AddMean, LocalGradient, LocalTraining
from sordina.federated.algorithms.feddyn import DynamicRegulariser, FedDynServer
from sordina.federated.algorithms.fedem import Mixture
from sordina.federated.algorithms.fsvrg import FsvrgServer, VarianceReduced
from sordina.federated.algorithms.ifca import BestModel, BestUpdate, IfcaServer
from sordina.federated.algorithms.metric_pfl import MetricPflServer, SteadyPflServer
from sordina.federated.algorithms.per_fedavg import MetaTraining
from sordina.federated.algorithms.personal import GraphNeighbours, GraphServer, NearMean
from sordina.federated.algorithms.scaffold import ScaffoldClient, ScaffoldServer
from sordina.federated.algorithms.sub_fedavg import Intersection, SubNetwork
from sordina.federated.objective import Objective
from sordina.federated.privacy.placement import FederationFacts
from sordina.plan import check_whole
from sordina.privacy import check_positive

Parts: TypeAlias = tuple[ServerStrategy[Any], ClientWork]
MOST_MODELS = 10_000


@dataclass(frozen=True, kw_only=True)
class FederatedAlgorithm(ABC):
    """A server half and a client half that belong together."""

    name: ClassVar[str]
    """What the command line calls it."""
    several: ClassVar[bool] = False
    """Whether it trains several models, which clients choose from."""
    takes_turns: ClassVar[bool] = False
    """Whether it wants everybody once before anybody twice."""

    @property
    def count(self) -> int:
        """How many models it trains."""
        return int(getattr(self, "models", 1)) if self.several else 1

    @abstractmethod
    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """The server's half and the client's.

        Args:
            objective: Model and loss.
            facts: What is public about the run.
        """


@dataclass(frozen=True, kw_only=True)
class FedSGD(FederatedAlgorithm):
    """One gradient per client and round, averaged (004 2.4.2).

    Args:
        learning_rate: The server's step along the mean gradient.
        momentum: Of the server.
    """

    name: ClassVar[str] = "fedsgd"
    learning_rate: float = 0.1
    momentum: float = 0.0

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        return AddMean(self.learning_rate, self.momentum), LocalGradient(objective)


@dataclass(frozen=True, kw_only=True)
class LocalAlgorithm(FederatedAlgorithm):
    """An algorithm whose clients take several steps of SGD on rows of their own.

    Args:
        local_epochs: Passes over a client's rows in a round.
        local_steps: Instead of epochs: exactly so many steps, whatever a client's size.
        learning_rate: The client's step.
        batch_size: Rows in a client's step.
        server_learning_rate: The server's step along the mean update.
        momentum: Of the server, where it adds a mean.
    """

    local_epochs: int = 1
    local_steps: int | None = None
    learning_rate: float = 0.1
    batch_size: int = 32
    server_learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_whole("local epochs", self.local_epochs)
        check_whole("batch size", self.batch_size)
        if self.local_steps is not None:
            check_whole("local steps", self.local_steps)
        check_positive("learning rate", self.learning_rate)
        check_positive("server learning rate", self.server_learning_rate)
        if self.several and not 1 <= self.count <= MOST_MODELS:
            raise InvalidInput(f"at least one model, at most {MOST_MODELS}, got {self.count}.")

    @property
    def steps(self) -> LocalSteps:
        """A client's steps."""
        return LocalSteps(self.learning_rate, self.batch_size, self.local_epochs, self.local_steps)

    @property
    def mean(self) -> AddMean:
        """A server that adds the mean update."""
        return AddMean(self.server_learning_rate, self.momentum)


@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalAlgorithm):
    """Local SGD, and the mean of the clients' updates (002; 004 2.3).

    >>> FedAvg(local_epochs=2).local_epochs
    2
    """

    name: ClassVar[str] = "fedavg"

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        return self.mean, LocalTraining(objective, self.steps)


@dataclass(frozen=True, kw_only=True)
class FedProx(LocalAlgorithm):
    """FedAvg whose clients are held to the global model by ``mu/2 |theta - theta_t|^2`` (002).

    Args:
        mu: The weight of that term.
    """

    name: ClassVar[str] = "fedprox"
    mu: float = 0.1

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        return self.mean, LocalTraining(objective, self.steps, self.mu)


@dataclass(frozen=True, kw_only=True)
class Scaffold(LocalAlgorithm):
    """SCAFFOLD: control variates correct the drift of clients whose data differ (002)."""

    name: ClassVar[str] = "scaffold"

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        server = ScaffoldServer(facts.share, self.learning_rate, self.server_learning_rate)
        return server, ScaffoldClient(objective, self.steps)


@dataclass(frozen=True, kw_only=True)
class FedDyn(LocalAlgorithm):
    """A dynamic regulariser aligns the clients' optima with the global one (004 2.4.5).

    Args:
        alpha: Its weight.
    """

    name: ClassVar[str] = "feddyn"
    alpha: float = 0.1

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        return FedDynServer(facts.share), DynamicRegulariser(objective, self.steps, self.alpha)


@dataclass(frozen=True, kw_only=True)
class FSVRG(LocalAlgorithm):
    """Federated SVRG: a full gradient, then variance-reduced local steps (004 2.4.4)."""

    name: ClassVar[str] = "fsvrg"

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        return FsvrgServer(self.learning_rate, self.server_learning_rate), VarianceReduced(objective, self.steps)


@dataclass(frozen=True, kw_only=True)
class SubFedAvg(LocalAlgorithm):
    """Personal sub-networks by pruning, averaged where they overlap (004 2.4.6).

    Args:
        prune: The share of weights that a client ends up without.
    """

    name: ClassVar[str] = "sub-fedavg"
    prune: float = 0.5

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        return Intersection(self.learning_rate), SubNetwork(objective, self.steps, self.prune)


@dataclass(frozen=True, kw_only=True)
class MeanRegularised(LocalAlgorithm):
    """Each client keeps a model of its own, held to their mean (002).

    Args:
        weight: How strongly.
    """

    name: ClassVar[str] = "mean-regularised"
    weight: float = 0.1

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        return self.mean, NearMean(objective, self.steps, self.weight)


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(LocalAlgorithm):
    """Per-FedAvg: one model from which every client gets to its own in a step (002).

    Args:
        inner_learning_rate: The step a client adapts with; None: the local learning rate.
    """

    name: ClassVar[str] = "per-fedavg"
    inner_learning_rate: float | None = None

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        inner = self.learning_rate if self.inner_learning_rate is None else self.inner_learning_rate
        return self.mean, MetaTraining(objective, self.steps, inner)


@dataclass(frozen=True, kw_only=True)
class GraphRegularised(LocalAlgorithm):
    """Each client keeps a model of its own, held to those of clients like it in a graph that is learnt (002).

    Args:
        weight: How strongly.
        neighbours: Of each client in the graph.
    """

    name: ClassVar[str] = "graph-regularised"
    weight: float = 0.1
    neighbours: int = 5

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        nearest = max(1, min(self.neighbours, facts.clients - 1))
        return GraphServer(facts.clients, nearest), GraphNeighbours(objective, self.steps, self.weight)


@dataclass(frozen=True, kw_only=True)
class FedEM(LocalAlgorithm):
    """Every client is a mixture of the same few models, in shares of its own (002).

    Args:
        models: How many models.
    """

    name: ClassVar[str] = "fedem"
    several: ClassVar[bool] = True
    models: int = 2

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        return IfcaServer(self.server_learning_rate), Mixture(objective, self.steps, self.models)


@dataclass(frozen=True, kw_only=True)
class IFCA(LocalAlgorithm):
    """Several models; each client trains the one that fits it best, the server averages (Ghosh et al. 2020).

    Args:
        models: How many models.
    """

    name: ClassVar[str] = "ifca"
    several: ClassVar[bool] = True
    models: int = 2

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        return IfcaServer(self.server_learning_rate), BestUpdate(objective, self.steps)


@dataclass(frozen=True, kw_only=True)
class MetricPFL(LocalAlgorithm):
    """IFCA whose clients send sanitised models, which the server sorts by k-means (Algorithm 1 of 000 and 001).

    Args:
        models: How many models.
    """

    name: ClassVar[str] = "metric-pfl"
    several: ClassVar[bool] = True
    models: int = 2

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        return MetricPflServer(), BestModel(objective, self.steps)


@dataclass(frozen=True, kw_only=True)
class SteadyMetricPFL(LocalAlgorithm):
    """Metric PFL with a server that makes more of the same sanitised models (`strategies.steady_pfl`).

    Args:
        models: How many models.
        drought: After how many vectors that came near no other a model is moved beside the most popular one.
    """

    name: ClassVar[str] = "metric-pfl-steady"
    several: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    models: int = 2
    drought: int = 20

    def parts(self, objective: Objective, facts: FederationFacts) -> Parts:
        """Server and client."""
        server = SteadyPflServer(facts.noise_multiplier, self.server_learning_rate, self.drought, seed=facts.seed or 0)
        return server, BestModel(objective, self.steps)


_ALL: tuple[type[FederatedAlgorithm], ...] = (
    FedSGD, FedAvg, FedProx, Scaffold, FedDyn, FSVRG, SubFedAvg, MeanRegularised, PerFedAvg, GraphRegularised, FedEM,
    IFCA, MetricPFL, SteadyMetricPFL,
)  # fmt: skip
ALGORITHMS: dict[str, type[FederatedAlgorithm]] = {one.name: one for one in _ALL}
NAMES = tuple(ALGORITHMS)
PERSONAL = tuple(name for name, one in ALGORITHMS.items() if one.several)
"""Those that train several models."""


def named(name: str, options: Mapping[str, Any] | None = None) -> FederatedAlgorithm:
    """The algorithm called ``name``, with those of ``options`` that it has.

    Args:
        name: One of `NAMES`.
        options: Values for its fields; what an algorithm does not have is passed over.

    >>> named("fedprox", {"mu": 0.5, "prune": 0.1}).mu
    0.5
    """
    if name not in ALGORITHMS:
        raise InvalidInput(f"unknown strategy {name!r}: choose one of {', '.join(NAMES)}.")
    kind = ALGORITHMS[name]
    known = {field.name for field in fields(kind)}
    return kind(**{key: value for key, value in (options or {}).items() if key in known})
