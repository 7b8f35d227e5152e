"""Training without a server: gossip SGD, DECOR and random walks among parties that keep their data.

`gossip`
    In every round all parties compute a clipped update at the *common* model and average it by gossip; the estimate of
    one party, the leader, is then passed on from neighbour to neighbour, and everybody takes the same step. That is
    what makes rounds compose: if states stayed different, a party's data would live on in states that an observer
    has not seen, and the loss of later rounds would not be that of a fresh mechanism given the observer's view. (Rounds
    with states that stay different are not accounted for here.) What is passed on is part of every view
    (`GossipPlan.leader`).
`decor`
    Allouah et al. 2024. Every party takes a noisy step of its own and sends its model to its neighbours; part of the
    noise is shared by neighbours with opposite signs. Account: whoever sees *all* messages and knows the noises of a
    share of the parties (`gopa`), so states are known and rounds compose.
`walk`
    A token goes round (`walk`); for convex losses only.

The unit is a party, its neighbours in the sense of privacy are itself without an effect (an update of zero).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina._stacked_models import Chain
from sordina.accounting import (
    Event,
    Gaussian,
    Repeated,
    ZeroConcentrated,
    accountant,
    linear_gaussian,
    noise_multiplier,
)
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.decentralized.gopa import clipped, worst_losses
from sordina.federated.decentralized.gossip import ACCELERATED, MESSAGE_NOISE, GossipPlan, average, pair_losses
from sordina.federated.decentralized.graphs import CommunicationGraph, named
from sordina.federated.decentralized.lattice import add_fine_gaussian, drawn, effective, step_for
from sordina.federated.decentralized.walk import CAVEAT, WalkPlan, linear_bounds, walk_noise
from sordina.federated.population import Population
from sordina.federated.privacy.placement import PrivacyStatement, clipped_rows
from sordina.federated.problem import FederatedProblem, Score
from sordina.privacy import Adjacency, Budget, Unit, check_positive, check_seed, delta_warning, format_up
from sordina.random import add_gaussian, generator, releasable

TOPOLOGIES = ("gossip", "walk", "decor")
PROTECT = ("worst", "mean")
_ADJACENCY = Adjacency.ADD_REMOVE
_OBSERVERS = 24
_CHUNK = 128
_MOST_SEEN = 400
"""Messages in a view that is accounted without being asked for: seconds."""
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class PeerSettings:
    """All that is public of a run without a server.

    Args:
        topology: gossip, walk or decor.
        graph: complete, ring, grid, exponential, erdos-renyi:P, k-out:K or a file of edges.
        rounds: Steps of training; of a walk, the visits that each party can expect.
        epsilon: Of every party against any other (decor: against everybody who sees all messages).
        delta: Likewise.
        threshold: The bound of a party's update.
        learning_rate: The step.
        gossip_rounds: Rounds of averaging in a step; as many as the graph needs if left out.
        accelerated: Chebyshev's weights in gossip.
        protect: worst: no pair is above epsilon. mean: only the mean over pairs is at it, and neighbours are above.
        honest_share: Of decor: the share of parties that does not collude.
        pairwise: Of decor: the noise that a pair shares over the noise of a single party.
        seed: Makes the noise repeatable; such models must not be released.
    """

    topology: str = "gossip"
    graph: str = "exponential"
    rounds: int = 50
    epsilon: float = 3.0
    delta: float = 1e-5
    threshold: float = 1.0
    learning_rate: float = 0.5
    gossip_rounds: int | None = None
    accelerated: bool = False
    protect: str = "worst"
    honest_share: float = 0.7
    pairwise: float = 30.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.topology not in TOPOLOGIES:
            raise InvalidInput(f"unknown topology {self.topology!r}: choose one of {', '.join(TOPOLOGIES)}.")
        if self.protect not in PROTECT:
            raise InvalidInput(f"protect is one of {', '.join(PROTECT)}, got {self.protect!r}.")
        for name in ("rounds", "gossip_rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name.replace('_', ' ')} must be at least 1, got {value}.")
        for name in ("threshold", "learning_rate", "pairwise"):
            check_positive(name.replace("_", " "), getattr(self, name))
        if not 0 < self.honest_share <= 1:
            raise InvalidInput(f"the honest share must lie in (0, 1], got {self.honest_share}.")
        if self.topology == "walk" and self.graph not in ("complete", "ring"):
            raise Unsupported(f"a walk is accounted for on the complete graph and the ring, not on {self.graph}.")
        if math.isinf(Budget(self.epsilon, self.delta).epsilon):
            raise InvalidInput("training without a server needs a finite epsilon.")
        if self.seed is not None:
            check_seed(self.seed)

    @property
    def budget(self) -> Budget:
        """Epsilon and delta."""
        return Budget(self.epsilon, self.delta)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class PeerAccount:
    """What a run tells whom about whom."""

    statement: PrivacyStatement
    observers: NDArray[np.int64]
    """Rows of ``losses``."""
    losses: Doubles | None
    """mu^2 of the whole run for each observer (row) and owner (column), where pairs have accounts of their own."""
    distances: Doubles | None
    concentrated: bool = False
    """Whether ``losses`` are ``2 rho`` of concentrated privacy (walks), not mu^2 of Gaussians."""

    def epsilons(self, delta: float) -> Doubles:
        """Epsilon of every pair in ``losses``, at ``delta``."""
        assert self.losses is not None
        rounded = np.unique(np.ceil(self.losses.ravel() * 1e6) / 1e6)
        table = {float(value): self._epsilon(float(value), delta) for value in rounded}
        found = [table[value] for value in np.ceil(self.losses.ravel() * 1e6) / 1e6]
        return np.array(found).reshape(self.losses.shape)

    def _epsilon(self, squared: float, delta: float) -> float:
        if not self.concentrated:
            return _epsilon(squared, delta)
        return accountant("pld").epsilon(ZeroConcentrated(squared / 2), delta, _ADJACENCY) if squared else 0.0


@dataclass
class PeerResult:
    """What a run without a server ended with."""

    settings: PeerSettings
    model: Tensor
    account: PeerAccount
    scores: list[Score] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    """Of gossip: the mean squared error due to noise after 0, 1, ... rounds of averaging, per coordinate."""
    graph: CommunicationGraph | None = None
    releasable: bool = False

    @property
    def statement(self) -> PrivacyStatement:
        """The guarantee."""
        return self.account.statement


Plan = GossipPlan | WalkPlan | float
"""Of decor: the independent noise."""


@dataclass(frozen=True)
class PeerPlan:
    """Settings, graph and noise, ready to run."""

    settings: PeerSettings
    graph: CommunicationGraph
    plan: Plan
    account: PeerAccount
    parties: int


def plan_peers(settings: PeerSettings, parties: int, graph_seed: int | None = None) -> PeerPlan:
    """Draw the graph and find the noise that the budget asks for.

    Args:
        settings: What is wanted.
        parties: How many parties there are.
        graph_seed: Draws the graph, which is public; the run's seed does if left out.
    """
    rng = np.random.default_rng(settings.seed if graph_seed is None else graph_seed)
    if settings.topology == "walk":
        return _plan_walk(settings, parties)
    graph = named(settings.graph, parties, rng)
    rate = noise_multiplier(lambda x: Repeated(Gaussian(x), settings.rounds), settings.budget, _ADJACENCY)
    if settings.topology == "decor":
        return _plan_decor(settings, graph, rate, rng)
    ratio = ACCELERATED if settings.accelerated else MESSAGE_NOISE
    plan = GossipPlan(
        graph, settings.gossip_rounds or _enough_rounds(graph), 1.0, ratio, settings.accelerated, leader=0
    )
    observers = np.unique(np.linspace(0, parties - 1, min(parties, _OBSERVERS)).astype(np.int64))
    losses = pair_losses(plan, observers)
    others = losses.sum() / (losses.size - len(observers))
    noise = drawn(rate) if settings.protect == "worst" else drawn(rate * math.sqrt(float(others)))
    plan = GossipPlan(graph, plan.rounds, noise, plan.message_noise, plan.accelerated, plan.leader)
    losses = losses * (settings.rounds / (effective(noise) / effective(1.0)) ** 2)
    statement = _gossip_statement(settings, plan, losses, observers)
    distances = np.stack([graph.distances(int(one)) for one in observers])
    return PeerPlan(settings, graph, plan, PeerAccount(statement, observers, losses, distances), parties)


def _enough_rounds(graph: CommunicationGraph) -> int:
    """Until the noise that has not spread is below a tenth of the noise of the mean, as far as accounts reach."""
    mixing = GossipPlan(graph, 1).mixing
    wanted = math.ceil(math.log(10 * graph.parties) / (2 * -math.log(min(mixing, 1 - 1e-9)))) if mixing > 1e-9 else 1
    return max(1, min(wanted, _MOST_SEEN // int(graph.degrees.max())))


def _gossip_statement(
    settings: PeerSettings, plan: GossipPlan, losses: Doubles, observers: NDArray[np.int64]
) -> PrivacyStatement:
    """The worst pair is bounded by the value with its own noise, which no view tells more than."""
    worst = 1 / effective(plan.noise)
    event = Repeated(linear_gaussian.event(worst), settings.rounds)
    epsilon = accountant("pld").epsilon(event, settings.delta, _ADJACENCY)
    mean = _epsilon(float(losses.sum() / (losses.size - len(observers))), settings.delta)
    details = {
        "graph": plan.graph.name, "gossip_rounds": plan.rounds, "noise_multiplier": plan.noise,
        "message_noise": plan.tau, "protect": settings.protect, "epsilon_of_the_mean_pair": mean,
        "observers_accounted": len(observers),
    }  # fmt: skip
    words = (
        f"Network differential privacy (gossip): what any other party learns about a party's data in all "
        f"{settings.rounds} rounds is ({format_up(epsilon)}, {format_up(settings.delta)})-DP ({_ADJACENCY} neighbours: "
        f"its update against one of zero); the mean pair is at {format_up(mean)}. Parties that collude put their views "
        "together: no more than the same epsilon. Everybody sees its neighbours' messages and the steps that are "
        f"taken.{_remark(settings.delta, plan.graph.parties)}"
    )
    return PrivacyStatement("network", words, True, epsilon, settings.delta, Unit.USER, details, event, _ADJACENCY)


def _plan_decor(settings: PeerSettings, graph: CommunicationGraph, rate: float, rng: np.random.Generator) -> PeerPlan:
    if not graph.connected:
        raise InvalidInput(f"the graph {graph.name} does not connect its parties.")
    honest = math.floor(settings.honest_share * graph.parties)
    losses = worst_losses(graph, honest, 0, settings.pairwise, 3, rng)
    noise = drawn(rate * math.sqrt(float(losses.max())) * (1 + 1e-12))
    mu = math.sqrt(float(losses.max())) / effective(noise) * (1 + 1e-12)
    event: Event = Repeated(linear_gaussian.event(mu), settings.rounds)
    epsilon = accountant("pld").epsilon(event, settings.delta, _ADJACENCY)
    words = (
        f"Differential privacy with correlated noise (DECOR): every honest party has ({format_up(epsilon)}, "
        f"{format_up(settings.delta)})-DP for all its data ({_ADJACENCY} neighbours: its update against one of zero) "
        f"against whoever sees all messages of {settings.rounds} rounds and knows the noises of "
        f"{graph.parties - honest} of {graph.parties} parties: the worst of 3 such coalitions drawn at random."
        f"{_remark(settings.delta, graph.parties)}"
    )
    details = {"graph": graph.name, "noise_multiplier": noise, "pairwise": settings.pairwise, "mu_per_round": mu}
    statement = PrivacyStatement("network", words, True, epsilon, settings.delta, Unit.USER, details, event, _ADJACENCY)
    account = PeerAccount(statement, np.zeros(0, dtype=np.int64), None, None)
    return PeerPlan(settings, graph, noise, account, graph.parties)


def _plan_walk(settings: PeerSettings, parties: int) -> PeerPlan:
    ring = settings.graph == "ring"
    cap = settings.rounds if ring else math.ceil(settings.rounds + 3 * math.sqrt(settings.rounds))
    plan = walk_noise(settings.budget, parties, cap, ring=ring)
    event = plan.event(settings.delta)
    epsilon = plan.epsilon(settings.delta)
    words = (
        f"Network differential privacy (random walk): what any other party learns about a party's data is "
        f"({format_up(epsilon)}, {format_up(settings.delta)})-DP ({_ADJACENCY} neighbours: its steps against steps of "
        f"zero), also if it knows the whole path of the token and the model at the end; no party makes more than {cap} "
        f"steps with its data. {CAVEAT}{_remark(settings.delta, parties)}"
    )
    details = {"graph": settings.graph, "noise_multiplier": plan.noise_multiplier, "contributions": cap}
    statement = PrivacyStatement("network", words, True, epsilon, settings.delta, Unit.USER, details, event, _ADJACENCY)
    graph = named("ring", parties)
    losses = distances = None
    observers = np.zeros(0, dtype=np.int64)
    if ring:
        observers = np.unique(np.linspace(0, parties - 1, min(parties, _OBSERVERS)).astype(np.int64))
        losses = np.array([[2 * plan.pair_event(u, int(v)).rho for u in range(parties)] for v in observers])  # type: ignore[union-attr]
        distances = np.array([[(int(v) - u) % parties for u in range(parties)] for v in observers], dtype=np.float64)
    return PeerPlan(settings, graph, plan, PeerAccount(statement, observers, losses, distances, True), parties)


def _epsilon(squared: float, delta: float) -> float:
    from sordina.accounting import gaussian_epsilon

    return gaussian_epsilon(1 / math.sqrt(squared), delta) if squared else 0.0


def _remark(delta: float, parties: int) -> str:
    warning = delta_warning(delta, parties, "party")
    return "" if warning is None else f" {warning}"


@dataclass(frozen=True)
class PeerState:
    """Where a run stands between two rounds: what whoever is accounted for has seen.

    Args:
        number: The next round.
        models: The common model; of decor, one row for each party. None before the first round.
        scores: The validations so far.
        judge: Draws the held-out parties to look at.
        rng: Draws the noise.
    """

    number: int
    models: Tensor | None
    scores: list[Score]
    judge: np.random.Generator
    rng: np.random.Generator


def train_peers(
    ready: PeerPlan,
    problem: FederatedProblem,
    *,
    initial: Tensor | None = None,
    claim: Callable[[int], None] | None = None,
    observe: Callable[[int, Score | None], None] | None = None,
    resumed: Callable[[PeerState], PeerState] | None = None,
    keep: Callable[[PeerState], None] | None = None,
) -> PeerResult:
    """Train, all parties in one process.

    Args:
        ready: What `plan_peers` gave for as many parties as the problem has.
        problem: Model, loss, parties, held-out parties.
        initial: The first model, flat; the problem's own if left out.
        claim: Told of every round before anything of it is drawn.
        observe: Told of every round and its validation.
        resumed: Says where to go on, given where a new run begins.
        keep: Keeps where the run stands, after every round; not of a walk, whose token nobody may look at on its way.
    """
    settings = ready.settings
    if len(problem.train) != ready.parties:
        raise InvalidInput(f"the plan is for {ready.parties} parties, the data have {len(problem.train)}.")
    rng = generator(settings.seed)
    model = (problem.initial(1, rng)[0] if initial is None else initial).double()
    now = PeerState(0, None, [], np.random.default_rng(0), rng)
    if resumed is not None:
        now = resumed(now)
    walks = settings.topology == "walk"
    validation, scores = problem.validation(), now.scores
    steps = {"gossip": _gossip_steps, "decor": _decor_steps, "walk": _walk_steps}[settings.topology]
    state = model if now.models is None else now.models
    moves = steps(ready, problem, state, rng, claim, now.number)
    for number, state in enumerate(moves, start=now.number):
        score = None
        if validation is not None and not walks:  # a walk's account covers visits and the end, no look in between
            score = validation.score(_shown(state)[None].float(), now.judge)
            scores.append(score)
        if observe is not None:
            observe(number, score)
        if keep is not None and not walks:
            keep(PeerState(number + 1, state, scores, now.judge, rng))
    model = _shown(state)
    if walks and validation is not None:
        scores.append(validation.score(model[None].float(), now.judge))
    errors = []
    if isinstance(ready.plan, GossipPlan) and ready.parties <= 2000:
        errors = [ready.plan.error(k) for k in range(ready.plan.rounds + 1)]
    return PeerResult(settings, model.float(), ready.account, scores, errors, ready.graph, releasable(rng))


def _shown(state: Tensor) -> Tensor:
    """The model of a state: the common one, or the mean over parties."""
    return state if state.ndim == 1 else state.mean(dim=0)


def _gradients(problem: FederatedProblem, models: Tensor, population: Population) -> Doubles:
    """Every party's gradient of the mean loss over its rows, at its own row of ``models``."""
    found = np.zeros((len(population), problem.objective.size))
    order = np.argsort(-population.sizes, kind="stable")
    for first in range(0, len(order), _CHUNK):
        ids = order[first : first + _CHUNK]
        batch = population.cohort(ids).whole()
        rows = torch.from_numpy(ids)
        flat = models[rows] if len(models) > 1 else models.expand(len(ids), -1)
        found[ids] = problem.objective.gradient(flat.float().contiguous(), batch).double().numpy()
    return found


Claim = Callable[[int], None] | None


def _gossip_steps(
    ready: PeerPlan, problem: FederatedProblem, model: Tensor, rng: np.random.Generator, claim: Claim, first: int
) -> Iterator[Tensor]:
    settings, plan = ready.settings, ready.plan
    assert isinstance(plan, GossipPlan)
    for number in range(first, settings.rounds):
        if claim is not None:
            claim(number)
        values = clipped(_gradients(problem, model[None], problem.train), settings.threshold)
        ended = average(values, plan, rng, sensitivity=settings.threshold)
        told = np.ascontiguousarray(ended[[plan.leader or 0]])
        add_gaussian(told, plan.tau * settings.threshold, rng)
        model = model - settings.learning_rate * torch.from_numpy(told[0])
        yield model


def _decor_steps(
    ready: PeerPlan, problem: FederatedProblem, model: Tensor, rng: np.random.Generator, claim: Claim, first: int
) -> Iterator[Tensor]:
    settings, graph, noise = ready.settings, ready.graph, ready.plan
    assert isinstance(noise, float)
    scale = settings.threshold * settings.learning_rate
    own, shared = noise * scale, drawn(settings.pairwise * effective(noise)) * scale
    step, weights = step_for(own), graph.gossip_weights()
    models = model.clone() if model.ndim == 2 else model.expand(graph.parties, -1).clone()
    for number in range(first, settings.rounds):
        if claim is not None:
            claim(number)
        moved = clipped(_gradients(problem, models, problem.train), settings.threshold)
        messages = np.ascontiguousarray(models.numpy() - settings.learning_rate * moved)
        add_gaussian(messages, own, rng)
        pairs = np.zeros((len(graph.edges), messages.shape[1]))
        add_fine_gaussian(pairs, shared, step, rng)
        np.add.at(messages, graph.edges[:, 0], pairs)
        np.subtract.at(messages, graph.edges[:, 1], pairs)
        models = torch.from_numpy(weights @ messages)
        yield models


def _walk_steps(
    ready: PeerPlan, problem: FederatedProblem, model: Tensor, rng: np.random.Generator, claim: Claim, first: int
) -> Iterator[Tensor]:
    settings, plan = ready.settings, ready.plan
    assert isinstance(plan, WalkPlan)
    people, bound = _walkable(problem, settings)
    sigma = plan.noise_multiplier * bound * settings.learning_rate
    made = np.zeros(plan.parties, dtype=np.int64)
    for number in range(first, settings.rounds):
        if claim is not None:
            claim(number)
        path = np.arange(plan.parties) if plan.ring else rng.integers(plan.parties, size=plan.parties)
        for holder in path:
            token = model.clone()
            if made[holder] < plan.contributions:
                made[holder] += 1
                batch = people.cohort(np.array([holder])).whole()
                token -= settings.learning_rate * problem.objective.gradient(model[None].float(), batch)[0].double()
            values = token.numpy()
            add_gaussian(values, sigma, rng)
            model = torch.from_numpy(values)
        yield model


def _walkable(problem: FederatedProblem, settings: PeerSettings) -> tuple[Population, float]:
    """The parties with rows of norm at most 1, and the bound of a gradient; models that are not convex are refused."""
    from torch import nn

    inner = problem.objective.model
    layers = [one for one in inner.layers if not isinstance(one, nn.Flatten)] if isinstance(inner, Chain) else []
    if len(layers) != 1 or problem.objective.loss.name != "cross-entropy" or problem.objective.root:
        raise Unsupported(
            "a walk is private for convex losses only: use softmax regression (one linear layer, cross-entropy); for "
            "adult that is the model of --topology walk."
        )
    bound, smooth = linear_bounds(1.0)
    if settings.learning_rate > 2 / smooth:
        raise InvalidInput(f"a walk's learning rate is at most {2 / smooth:g}, or steps are no contractions.")
    people = problem.train
    safe = clipped_rows(people.x.flatten(1), 1 - 1e-5)
    return Population(safe.reshape(people.x.shape), people.y, people.sizes, people.numbers), bound
