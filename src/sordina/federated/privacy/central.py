"""Central privacy: a trusted server adds clipped updates up and noises the sum, for user-level (epsilon, delta).

A client's update is to the server what a sample's gradient is to the optimiser: the policies of `sordina.clipping`, the
noise of `sordina.training` and the plan's accounting serve here unchanged. Clipping happens at the client, with the
public state of the policy; the sum is all the server's half looks at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sordina.accounting import Event, Gaussian, Repeated, accountant
from sordina.clipping import Fixed, PerLayer, Policy, Sector
from sordina.clipping.per_layer import arrange
from sordina.clipping.policy import split_at, spread
from sordina.errors import BudgetRefused, InvalidInput, Unsupported
from sordina.federated.messages import ClientResult, ClientUpdate, Release
from sordina.federated.population import ClientSelection, SampledClients
from sordina.federated.privacy.accounts import Leakage
from sordina.federated.privacy.placement import UNIFORM, ClientWeights, Facts, FederationFacts, Placed, PrivacyStatement
from sordina.gradients.explicit import MatrixTape
from sordina.plan import Plan, make_plan
from sordina.privacy import Adjacency, Budget, Unit, format_up
from sordina.private_step import clipped_sums, noised
from sordina.sampling import FixedSize, Poisson, Sampler

if TYPE_CHECKING:
    from sordina.federated.algorithms.algorithm import ClientWork
    from sordina.federated.objective import Objective


@dataclass(frozen=True)
class CentralDP:
    """(epsilon, delta) for every client with all its rows, trusting the server, which adds the noise to a sum.

    Args:
        budget: What the whole run may spend.
        clipping: How clients clip their updates; any policy of `sordina.clipping`, one for all layers or `PerLayer`.
        accountant: One of `sordina.accounting.NAMES`.
    """

    budget: Budget
    clipping: Policy[Any] | PerLayer = field(default_factory=Fixed)
    accountant: str = "pld"
    name: ClassVar[str] = "central"

    def place(self, objective: Objective, work: ClientWork, facts: FederationFacts) -> Placed:
        """See `FederatedPrivacy`."""
        policy = self.clipping.policy if isinstance(self.clipping, PerLayer) else self.clipping
        sampler: Sampler = Poisson(facts.clients_per_round, facts.clients)
        if isinstance(policy, Sector):  # it lives in the bounded model only
            sampler = FixedSize(facts.clients_per_round, facts.clients)
        plan = make_plan(self.budget, sampler, facts.rounds, unit=Unit.USER, accountant=self.accountant)
        layers = layers_of(objective.names, objective.lengths)
        return Placed(work, Central(plan, self.clipping, layers=layers), SampledClients(sampler))


@dataclass(frozen=True)
class CentralState:
    """The length of a client's vector and the states of the policies: public, for clients to clip with."""

    size: int
    policies: tuple[Any, ...]


@dataclass(frozen=True)
class Central:
    """``mean = (sum_k clip(w_k v_k) + noise) / expected clients``, with the noise and the sampler of ``plan``.

    Weights come before clipping and are bounded, so whatever they are, one client changes the sum by no more than the
    policy says. ``layers`` names and measures the parts of a vector, for clipping layer by layer; a vector of several
    models (IFCA, SCAFFOLD) repeats them.
    """

    plan: Plan
    clipping: Policy[Any] | PerLayer
    weights: ClientWeights = UNIFORM
    layers: tuple[tuple[str, int], ...] = ()
    vectors_released: bool = False
    hides_failures: bool = True

    def __post_init__(self) -> None:
        if not self.plan.private:
            raise InvalidInput("central privacy needs a finite epsilon; use privacy 'none' to train without.")
        if self.plan.unit is not Unit.USER:
            raise InvalidInput(
                f"a client's whole update is clipped, so the unit is the user, not the {self.plan.unit}."
            )
        if not self.weights.bounded:
            raise Unsupported(
                "a mean weighted by sample counts has no sensitivity: one client may weigh any amount. Use equal "
                "weights, or cap the counts: Weights(by_samples=True, cap=...)."
            )

    def columns(self, size: int) -> list[tuple[Tensor | slice, int, Policy[Any]]]:
        """Which numbers of a vector are clipped together, how many they are, and by which policy."""
        if not isinstance(self.clipping, PerLayer):
            return [(slice(None), size, self.clipping)]
        once = sum(length for _, length in self.layers)
        if not once or size % once:
            raise InvalidInput(f"clipping by layer needs the layers of the model: {once} numbers do not divide {size}.")
        first, places = 0, {}
        for name, length in self.layers:
            places[name] = torch.arange(first, first + length)
            first += length
        groups: list[tuple[Tensor | slice, int, Policy[Any]]] = []
        for copy in range(size // once):
            for part in arrange(self.clipping, [name for name, _ in self.layers]):
                index = torch.cat([places[name] for name in part.names]) + copy * once
                groups.append((index, len(index), part.policy))
        return groups

    def check(self, selection: ClientSelection, rounds: int) -> None:
        """The clients must be drawn as the plan accounts for, and not more often than it pays for."""
        if selection != SampledClients(self.plan.sampler):
            raise InvalidInput(
                "central privacy accounts for its plan's sampler: select clients with Sampled(plan.sampler)."
            )
        if rounds > self.plan.steps:
            raise BudgetRefused(
                f"{rounds} rounds were asked for, but the noise is calibrated for {self.plan.steps}: plan for all."
            )

    def start(self, size: int) -> CentralState:
        """The policies' first states; a policy that has no bound under the sampler's adjacency is refused here."""
        columns = self.columns(size)
        state = CentralState(size, tuple(policy.init(length) for _, length, policy in columns))
        for (_, _, policy), current in zip(columns, state.policies, strict=True):
            policy.bounds(current, self.plan.adjacency)
        return state

    def cost(self, size: int) -> Fraction:
        """The server keeps the account."""
        return Fraction()

    def leakage(self, size: int) -> Leakage:
        """Nothing, to whom the server's noise protects; against the server itself nothing is promised."""
        return Leakage(clear=Fraction(1))

    def seal(self, outcome: ClientResult, state: CentralState, rng: np.random.Generator) -> ClientUpdate:
        """Weigh and clip at the client; what leaves is a sum (of one, on a real network)."""
        vectors = outcome.vectors
        if self.weights.by_samples:
            vectors = vectors * self.weights.of(outcome)[:, None]
        sums: list[Tensor] = []
        for (place, _, policy), current in zip(self.columns(state.size), state.policies, strict=True):
            sums += clipped_sums(MatrixTape(vectors[:, place]), policy, current)
        return ClientUpdate(tuple(sums))

    def open(self, update: ClientUpdate, state: CentralState, rng: np.random.Generator) -> tuple[Release, CentralState]:
        """Noise the sums, adapt the policies to what was released, divide by the expected number of clients."""
        columns = self.columns(state.size)
        left = list((update + self._missing(update, state, rng)).sums)
        mean = left[0].new_empty(state.size)
        policies = []
        share = self.plan.noise_multiplier * len(columns) ** 0.5
        for (place, _, policy), current in zip(columns, state.policies, strict=True):
            nus = split_at(policy, share, current)
            totals, left = left[: len(nus)], left[len(nus) :]
            released = noised(totals, policy, current, nus, self.plan, rng)
            mean[place] = released.mean()
            policies.append(policy.adapt(current, released))
        return Release(mean), CentralState(state.size, tuple(policies))

    def _missing(self, update: ClientUpdate, state: CentralState, rng: np.random.Generator) -> ClientUpdate:
        """Zero updates in place of clients that sent nothing usable.

        Under replace-one the number of terms is part of the guarantee: a sector does not hold the zero vector, so a
        client that stays silent would change the sum by more than the sector's diameter. Under add/remove silence is
        absence.
        """
        fixed = self.plan.adjacency is Adjacency.REPLACE_ONE
        count = max(0, round(self.plan.sampler.expected_batch_size) - update.answered) if fixed else 0
        dtype = update.sums[0].dtype if update.sums else torch.get_default_dtype()
        return self.seal(ClientResult(torch.zeros(count, state.size, dtype=dtype), torch.zeros(count)), state, rng)

    def multipliers(self, groups: int) -> list[tuple[float, ...]]:
        """One noise multiplier per query; all of them together cost as much as the plan's."""
        policy = self.clipping.policy if isinstance(self.clipping, PerLayer) else self.clipping
        return [policy.split(self.plan.noise_multiplier * groups**0.5)] * groups

    def event(self, groups: int = 1) -> Event:
        """What one round costs, from the noise that is really added."""
        nus = [nu for shares in self.multipliers(groups) for nu in shares]
        return self.plan.sampler.event(Gaussian(spread(nus)))

    def statement(self, facts: Facts) -> PrivacyStatement:
        """(epsilon, delta) per user after the rounds that are paid for."""
        event = Repeated(self.event(len(self.columns(facts.size))), facts.rounds)
        epsilon = accountant(self.plan.accountant).epsilon(event, self.plan.budget.delta, self.plan.adjacency)
        sampling = "Poisson" if self.plan.adjacency is Adjacency.ADD_REMOVE else "fixed-size"
        words = (
            f"Central differential privacy: ({format_up(epsilon)}, {format_up(self.plan.budget.delta)})-DP per client "
            f"({self.plan.adjacency} neighbours) of every released model, trusting the server; {sampling} client "
            f"sampling, {facts.rounds} rounds. Validation clients are not covered."
            f"{facts.remarks(self.plan.budget.delta)}"
        )
        details = {
            "adjacency": str(self.plan.adjacency),
            "accountant": self.plan.accountant,
            "noise_multiplier": self.plan.noise_multiplier,
            "budget_epsilon": self.plan.budget.epsilon,
        }
        delta, adjacency = self.plan.budget.delta, self.plan.adjacency
        return PrivacyStatement("central", words, True, epsilon, delta, Unit.USER, details, event, adjacency)


def layers_of(names: tuple[str, ...], lengths: list[int]) -> tuple[tuple[str, int], ...]:
    """Name and length of every parameter, as `Central` wants them."""
    return tuple(zip(names, lengths, strict=True))
