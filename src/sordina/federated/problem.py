"""A federation ready to be trained, and how good its models are for clients that took no part.

Randomised client metrics: held-out clients tell how well a model fits them without trusting the server.

In every validation each client answers once, at ``epsilon / validations``: its loss (cut at a public bound) and its
share of right classes by `Hybrid`, and which model it chose by `Frequency`, with half of that for the loss and the
rest shared. Coins come from a secure generator of the client's own, or from the given one where a run is repeatable.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina._arguments import checked
from sordina.accounting import Event, PureDP, Repeated
from sordina.errors import BudgetRefused
from sordina.fairness import Fairness, measure
from sordina.federated import losses
from sordina.federated.algorithms.ifca import best, client_losses
from sordina.federated.data.partition import Federation
from sordina.federated.objective import Objective, flat_parameters, of_module
from sordina.federated.population import Cohort, Population
from sordina.mechanisms.mechanism import settle, whole
from sordina.models import build
from sordina.models.metrics import predicted_class
from sordina.privacy import Adjacency, Guarantee, Trust, Unit, check_epsilon, check_positive, format_up
from sordina.statistics.local import Frequency, Hybrid

# Randomised client metrics: held-out clients tell how well a model fits them without trusting the server.

Floats = NDArray[np.float64]


@checked
@dataclass(frozen=True)
class RandomizedMetrics:
    """What held-out clients may tell, and how often.

    Args:
        epsilon: Of all that one client tells, in all validations together.
        validations: How often clients are asked at most; the next time is refused.
        largest_loss: Losses above count as this.
        seed: Makes the answers repeatable, for experiments: it protects nobody.
    """

    epsilon: float
    validations: int
    largest_loss: float
    seed: int | None = None
    _asked: list[int] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        settle(self, epsilon=check_epsilon(self.epsilon), validations=whole("validations", self.validations))
        settle(self, largest_loss=check_positive("largest_loss", self.largest_loss))

    @property
    def guarantee(self) -> Guarantee:
        """For all data of one held-out client, against everybody."""
        return Guarantee(self.epsilon, 0.0, Adjacency.REPLACE_ONE, Unit.USER, Trust.LOCAL)

    def event(self) -> Event:
        """All validations."""
        return Repeated(PureDP(self.epsilon / self.validations), self.validations)

    def check(self, times: int) -> None:
        """Refuse a run that would ask more often than clients agreed to, before it begins.

        Args:
            times: How often it would ask.
        """
        if len(self._asked) + times > self.validations:
            raise BudgetRefused(
                f"held-out clients answer {self.validations} times, for epsilon {format_up(self.epsilon)} in all, and "
                f"the run would ask {len(self._asked) + times} times: validate less often, or agree on more before it."
            )

    def ask(
        self, losses: Floats, right: Floats | None, chosen: NDArray[np.int64], models: int
    ) -> tuple[float, float | None, tuple[float, ...]]:
        """Mean loss, mean share of right classes, and share of clients for each model, from one answer of each client.

        Args:
            losses: Of each client with the model it chose; what is not finite counts as the largest loss.
            right: The share of right classes of each client, where there are classes.
            chosen: The model that fits each client best.
            models: How many models there are.
        """
        self.check(1)
        turn = len(self._asked)
        self._asked.append(turn)
        rng = None if self.seed is None else np.random.default_rng((self.seed, turn))
        others = (right is not None) + (models > 1)
        share = self.epsilon / self.validations
        first = share if not others else share / 2
        rest = share / 2 / max(1, others)
        told = Hybrid(0.0, self.largest_loss, first)
        cut = np.nan_to_num(losses, nan=self.largest_loss, posinf=self.largest_loss, neginf=0.0)
        loss = float(np.clip(told.estimate(told.randomize(cut, rng)).values[0], 0.0, self.largest_loss))
        accuracy = None
        if right is not None:
            asked = Hybrid(0.0, 1.0, rest)
            accuracy = float(np.clip(asked.estimate(asked.randomize(right, rng)).values[0], 0.0, 1.0))
        shares = (1.0,)
        if models > 1:
            vote = Frequency(models, rest)
            shares = tuple(vote.estimate(vote.randomize(chosen, rng)).consistent().values.tolist())
        return loss, accuracy, shares


# A federation ready to be trained, and how good its models are for clients that took no part.

# How good the models are for clients that took no part in training.
#
# Every held-out client uses the model that fits its own rows best, as it would in use. These clients' losses are read
# as they are: validation is not covered by any guarantee of the training clients. With `RandomizedMetrics` they are not
# read: every client tells a randomised answer, under a guarantee of its own.


@dataclass(frozen=True)
class Score:
    """The mean over clients of their loss, and the share of right classes where there are classes."""

    loss: float
    accuracy: float | None = None
    shares: tuple[float, ...] = ()
    """The share of clients that each model fits best."""


@dataclass(frozen=True)
class Validation:
    """Held-out clients; ``sample`` of them each time, or all."""

    objective: Objective
    population: Population
    classes: bool = False
    sample: int | None = None
    metrics: RandomizedMetrics | None = None
    """How clients tell, if not in the clear."""

    def score(self, models: Tensor, rng: np.random.Generator) -> Score:
        """Let every client choose, then measure."""
        count = len(self.population)
        ids = np.arange(count)
        if self.sample is not None and self.sample < count:
            ids = rng.choice(count, self.sample, replace=False)
        cohort = self.population.cohort(ids)
        table = client_losses(self.objective, models, cohort)
        best, chosen = torch.where(table.isfinite(), table, torch.inf).min(dim=1)
        accuracy = None
        if self.metrics is not None:
            right = self._right(models, cohort, chosen) if self.classes else None
            told = self.metrics.ask(best.double().numpy(), right, chosen.numpy(), len(models))
            return Score(*told)
        if self.classes:
            outputs, targets = choose(self.objective, models, cohort, chosen)
            accuracy = float((predicted_class(outputs) == targets).double().mean())
        shares = torch.bincount(chosen, minlength=len(models)).double() / len(cohort)
        return Score(float(best.double().mean()), accuracy, tuple(shares.tolist()))

    def _right(self, models: Tensor, cohort: Cohort, chosen: Tensor) -> NDArray[np.float64]:
        """The share of right classes of every client."""
        owner = cohort.rows()[2].numpy()
        outputs, targets = choose(self.objective, models, cohort, chosen)
        right = (predicted_class(outputs) == targets).double().numpy()
        rows = np.maximum(np.bincount(owner, minlength=len(cohort)), 1)
        return np.asarray(np.bincount(owner, weights=right, minlength=len(cohort)) / rows)


def choose(objective: Objective, models: Tensor, cohort: Cohort, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs on all rows of the cohort, each by the model its client chose, and the targets."""
    x, y, owner = cohort.rows()
    outputs: Tensor | None = None
    for index, model in enumerate(models):
        mine = chosen[owner] == index
        if not bool(mine.any()):
            continue
        part = objective.predict(model, x[mine])
        if outputs is None:
            outputs = part.new_zeros(len(x), *part.shape[1:])
        outputs[mine] = part
    assert outputs is not None
    return outputs, y


# A federation ready to be trained: its objective, its clients and its first models.


@dataclass(frozen=True)
class FederatedProblem:
    """What is to be learnt, and from whom."""

    federation: Federation
    objective: Objective
    train: Population
    held_out: Population | None
    """None: there is nothing to validate on."""
    names: tuple[str, ...] = ()
    """The clients' names, where they have any."""

    @classmethod
    def of(cls, federation: Federation, *, loss: str | None = None, root: bool | None = None) -> FederatedProblem:
        """The problem of a federation; ``loss`` and ``root`` replace what the federation says."""
        module = build(federation.model, **federation.options)
        chosen = losses.named(loss or federation.loss)
        objective = of_module(module, chosen, root=federation.root if root is None else root)
        return cls(federation, objective, Population.of(federation.train), Population.of(federation.validation))

    @property
    def classes(self) -> bool:
        """Whether rows have classes, so that accuracy means something."""
        return self.federation.metric == "accuracy"

    def initial(self, count: int, rng: np.random.Generator) -> Tensor:
        """``count`` independent first models ``(count, P)``, as the model's own initialisation draws them."""
        seeds = [int(seed) for seed in rng.integers(2**31, size=count)]
        name, options = self.federation.model, self.federation.options
        return torch.stack([flat_parameters(build(name, seed=seed, **options)) for seed in seeds])

    def name(self, client: int) -> str:
        """What client number ``client`` is called."""
        return self.names[client] if self.names else str(client)

    def validation(self, sample: int | None = None) -> Validation | None:
        """The held-out clients, if there are any."""
        if self.held_out is None:
            return None
        return Validation(self.objective, self.held_out, self.classes, sample)

    def fairness(self, models: Tensor) -> dict[str, Fairness]:
        """How the groups among the held-out clients fare, each client using the model that fits it best.

        Nothing where there is no decision between two answers: for numbers, or for more classes.
        """
        if not self.federation.groups or self.held_out is None:
            return {}
        cohort = self.held_out.cohort(np.arange(len(self.held_out)))
        outputs, targets = choose(self.objective, models, cohort, best(self.objective, models, cohort))
        if self.federation.outcome is None and not (self.classes and outputs.shape[-1] <= 2):
            return {}
        values = predicted_class(outputs) if self.classes else outputs
        report = {}
        for name, groups in self.federation.groups.items():
            codes = torch.cat(groups.validation)
            judge = self.federation.outcome
            truth, decided = (targets, values) if judge is None else (judge(targets, codes), judge(values, codes))
            report[name] = measure(truth.numpy(), decided.numpy(), codes.numpy(), names=groups.names)
        return report


def distance_to_optima(models: Tensor, optima: tuple[Tensor, ...]) -> float:
    """The largest distance of an optimum to the model meant for it, under the best matching of models to optima.

    With fewer models than optima, a model may serve several.

    >>> distance_to_optima(torch.tensor([[0.0, 1.0], [5.0, 5.0]]), (torch.tensor([5.0, 5.0]), torch.tensor([0.0, 0.0])))
    1.0
    """
    from scipy.optimize import linear_sum_assignment

    table = torch.cdist(torch.stack(list(optima)).double(), models.double()).numpy()
    if len(models) < len(optima):
        return float(table.min(axis=1).max())
    bounds = np.unique(table)
    for bound in bounds:
        rows, columns = linear_sum_assignment(table > bound)
        if not (table[rows, columns] > bound).any():
            return float(bound)
    return float(bounds[-1])
