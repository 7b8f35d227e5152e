"""What a budget can buy, said before it is spent: from the plan and the size of the model, nothing of the data.

A step releases the mean of gradients that were clipped to C, with noise of standard deviation ``nu C / B`` on every
weight. If all gradients agreed, T steps would add up to ``T C`` in one direction, and their noise to
``nu C sqrt(T d) / B`` in all d of them. The ratio,

    strength = B sqrt(T) / (nu sqrt(d)),

does not depend on C. Real gradients agree in part, so a run of strength below one learns next to nothing, and one
above five is limited by its data rather than by its noise (development pool: digits, Adult, synthetic tables).
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from sordina.clipping import FallingNorm, Policy, TypicalNorm
from sordina.errors import InvalidInput, SordinaError
from sordina.mechanisms.correlated import BandedNoise, CorrelatedNoise, LambdaCGD, ToeplitzNoise, sum_error
from sordina.plan import Plan, make_plan
from sordina.privacy import Budget
from sordina.sampling import CyclicPoisson, Poisson
from sordina.training.batches import Rows, as_rows, blank_batch, inputs_and_target
from sordina.training.losses import Loss, check_takes

_HOPELESS, _ENOUGH = 1.0, 5.0
_EPOCHS = (5.0, 10.0, 20.0, 40.0)
_SIZES = (64, 256, 1024, 2048, 4096)
_FEWEST_STEPS = 150
"""A shorter run does not come to its end, however strong its steps are."""
_ENOUGH_STEPS = 300
_MANY_NUMBERS = 16
"""Fewer may be the shares of so many classes, beside as many inputs."""
_GOOD, _FAIR = 0.9, 0.88
"""The length of a run is the least whose strength is `_GOOD` times the best one's. Within it, runs of fewer than
`_ENOUGH_STEPS` get smaller batches, as far as a strength of `_FAIR` allows: a step's signal is bounded, so that few
steps do not get far however little noise they have (`small-cnn` on spoilt training rows of MNIST)."""


@dataclass(frozen=True)
class PlanReport:
    """What a run can be expected to learn; all of it is public.

    Args:
        population: The public number of units.
        weights: How many weights are trained.
        batch_size: Expected size of a batch.
        steps: Planned steps.
        noise_multiplier: Noise over sensitivity.
        noise_per_weight: Standard deviation of the noise on a weight's mean gradient, over the longest mean gradient.
        strength: What all steps could add up to at most, over what their noise adds up to.
        useful_after: Steps after which agreeing gradients stand out of the noise.
        verdict: In a sentence.
        suggestion: What would help, if anything.
    """

    population: int
    weights: int
    batch_size: float
    steps: int
    noise_multiplier: float
    noise_per_weight: float
    strength: float
    useful_after: int
    verdict: str
    suggestion: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.steps} steps of {self.batch_size:g} of {self.population} rows, {self.weights} weights, noise "
            f"multiplier {self.noise_multiplier:.4g}: the noise on a weight is {self.noise_per_weight:.3g} of the "
            f"longest mean gradient. Strength {self.strength:.3g}. {self.verdict} {self.suggestion}".rstrip()
        )


def strength(plan: Plan, weights: int) -> float:
    """What the gradients of a run could add up to, over what its noise adds up to.

    Args:
        plan: The plan of the run.
        weights: How many weights are trained.
    """
    if plan.noise_multiplier == 0:
        return math.inf
    added_up = plan.noise_multiplier * plan.noise_of_sum * math.sqrt(weights)
    return float(plan.sampler.expected_batch_size * plan.steps / added_up)


def verdict(plan: Plan, weights: int) -> str:
    """What a plan can be expected to come to, in a sentence.

    Args:
        plan: The plan of the run.
        weights: How many weights are trained.
    """
    if not plan.private:
        return "NOT PRIVATE: without a budget no noise is added, and nothing is guaranteed to anybody."
    found = strength(plan, weights)
    if found < _HOPELESS:
        return "Next to nothing can be learnt at this budget: noise outweighs all gradients together."
    if found < _ENOUGH:
        return "The noise will limit what is learnt."
    return "The budget is enough for this model and schedule."


def hopeless(plan: Plan, weights: int, population: int) -> str | None:
    """What to warn of before a run that can learn next to nothing; None for any other.

    Args:
        plan: The plan of the run.
        weights: How many weights are trained.
        population: The public number of units.
    """
    if strength(plan, weights) >= _HOPELESS:
        return None
    report = plan_report(plan, weights, population)
    return f"{report.verdict} (Strength {report.strength:.2g}.) {report.suggestion}"


def plan_report(plan: Plan, weights: int, population: int, *, linear: int | None = None) -> PlanReport:
    """Judge a plan before anything is spent.

    Args:
        plan: The plan of the run.
        weights: How many weights are trained.
        population: The public number of units.
        linear: How many weights a linear model of such rows has, if that is known.
    """
    found, batch = strength(plan, weights), float(plan.sampler.expected_batch_size)
    needed = math.ceil((plan.noise_multiplier / batch) ** 2 * weights)
    suggestion = "" if found >= _ENOUGH else _suggestion(plan, weights, population, found, linear)
    return PlanReport(
        population, weights, batch, plan.steps, plan.noise_multiplier, plan.noise_multiplier / batch, found,
        max(1, needed), verdict(plan, weights), suggestion,
    )  # fmt: skip


def _suggestion(plan: Plan, weights: int, population: int, found: float, linear: int | None) -> str:
    batch_size, epochs = planned_schedule(plan.budget, population, weights)
    better = _tried(plan.budget, population, batch_size, epochs, weights)
    parts = []
    if better > 1.2 * found:
        parts.append(f"a batch size of {batch_size} over {epochs:g} epochs (strength {better:.3g})")
    fewer = int(weights * (max(better, found) / _ENOUGH) ** 2)
    if max(better, found) < _ENOUGH and fewer >= 2:
        parts.append(f"a model of at most {fewer} weights{_example(fewer, weights, linear)}")
    if not parts:
        return "More rows or a larger budget would help; nothing else will."
    return f"Try {' and '.join(parts)}."


def _example(fewer: int, weights: int, linear: int | None) -> str:
    """A model of at most ``fewer`` weights, if a linear one is so small; else what that takes."""
    if linear is None:
        return ""
    if linear <= fewer:
        return f", for instance a linear one, which has {linear}"
    return f" (a linear one has {linear}: it takes fewer inputs)" if linear <= weights else ""


def weights_of_linear(model: nn.Module, loss: Loss, rows: Rows) -> int | None:
    """How many weights a linear model of such rows has, if that can be said; refuses rows that ``model`` does not take.

    The model runs on zeros (where it takes none of them for a whole number, on ones) in the shapes of ``rows``.

    Args:
        model: What is to be trained; it is left as it was.
        loss: Of one value per sample.
        rows: The data, of which only shapes and types count.
    """
    results: list[Any] = []
    listener = model.register_forward_hook(lambda _module, _inputs, outputs: results.append(outputs))
    refused: list[InvalidInput] = []
    try:
        for whole in (0, 1):
            batch, length = blank_batch(rows, whole)
            if not isinstance(batch, (tuple, list)) or not all(isinstance(part, Tensor) for part in batch):
                return None
            try:
                check_takes(model, loss, Rows(tuple(batch), length))
                break
            except InvalidInput as error:
                refused.append(error)
        else:
            raise refused[0]
    finally:
        listener.remove()
    inputs, _ = inputs_and_target(tuple(batch))
    if len(inputs) > 1 or not inputs[0].is_floating_point() or not results or not isinstance(results[-1], Tensor):
        return None
    return int((inputs[0][0].numel() + 1) * results[-1][0].numel())


@functools.lru_cache(maxsize=1024)
def _tried(budget: Budget, population: int, batch_size: int, epochs: float, weights: int) -> float:
    steps = max(1, round(epochs * population / batch_size))
    try:
        plan = make_plan(budget, Poisson(batch_size, population), steps, accountant="rdp")
    except SordinaError:
        return 0.0
    return strength(plan, weights)


NOISES = ("independent", "banded", "toeplitz", "lambda-cgd")
_BANDS = (1, 2, 4, 8, 16, 32)
_DECAY = 0.9


def planned_noise(
    name: str | None,
    budget: Budget,
    population: int,
    batch_size: int,
    epochs: float,
    *,
    bands: int | None = None,
    decay: float | None = None,
) -> CorrelatedNoise | None:
    """The noise called ``name``; of banded noise the number of bands whose prefix sums are the least noisy.

    Args:
        name: independent (or None), banded, toeplitz or lambda-cgd.
        budget: What the run may cost.
        population: The public number of units.
        batch_size: Expected size of a batch.
        epochs: Passes over the data.
        bands: How many; None chooses from public facts.
        decay: The lambda of lambda-CGD; None takes 0.9.
    """
    if name not in (None, *NOISES):
        raise InvalidInput(f"no noise is called {name!r}: choose one of {', '.join(NOISES)}.")
    if (bands is not None and name != "banded") or (decay is not None and name != "lambda-cgd"):
        raise InvalidInput("bands go with banded noise, a decay with lambda-cgd.")
    if name in (None, "independent"):
        return None
    if name == "toeplitz":
        return ToeplitzNoise()
    if name == "lambda-cgd":
        return LambdaCGD(_DECAY if decay is None else decay)
    if bands is not None or math.isinf(budget.epsilon):
        return BandedNoise(bands or 1)
    steps = max(1, round(epochs * population / batch_size))

    def error(noise: BandedNoise) -> float:
        turn = noise.bands
        whole = max(1, round(steps / turn)) * turn
        plan = make_plan(budget, CyclicPoisson(batch_size, population, turn), whole, accountant="rdp", noise=noise)
        return plan.noise_multiplier * sum_error(plan.coefficients, whole)

    tried = [BandedNoise(one) for one in _BANDS if one <= steps and one * batch_size <= population]
    return min(tried, key=error)


def planned_schedule(
    budget: Budget, population: int, weights: int, *, batch_size: int | None = None, epochs: float | None = None
) -> tuple[int, float]:
    """Batch size and epochs for who states none: the cheapest of a few schedules that is nearly as strong as any.

    Where its steps would be few, batches are smaller and steps more, at some loss of strength.

    Args:
        budget: What the run may cost.
        population: The public number of units.
        weights: How many weights are trained.
        batch_size: What is settled already.
        epochs: What is settled already.
    """
    if math.isinf(budget.epsilon):
        return batch_size or max(1, min(256, population)), epochs or 10.0
    largest = max(1, population // 2)
    sizes = [batch_size] if batch_size else sorted({min(largest, max(1, size)) for size in _SIZES})
    lengths = [epochs] if epochs else _EPOCHS
    every = [(length, size) for length in lengths for size in sizes]
    long = [(length, size) for length, size in every if length * population / size >= _FEWEST_STEPS]
    tried = long or [max(every, key=lambda one: one[0] / one[1])]
    found = {(length, size): _tried(budget, population, size, length, weights) for length, size in tried}
    best = max(found.values())
    length, size = next(one for one in sorted(found) if found[one] >= _GOOD * best)
    fair = [one[1] for one in found if one[0] == length and one[1] <= size and found[one] >= _FAIR * best]
    return max((one for one in fair if length * population / one >= _ENOUGH_STEPS), default=size), length


def planned_clipping(data: Any) -> Policy[Any]:
    """How gradients are clipped for who does not say, from the form of a target.

    Where a model gives back what it is shown (a picture, a signal) all gradients shrink as it learns, and the threshold
    with them. Classes can be rare, also as one number each or as shares, so there it stays.

    Args:
        data: What is trained on; only shapes and types count.
    """
    batch, _ = blank_batch(as_rows(data))
    try:
        inputs, target = inputs_and_target(batch)
        alike = any(each.shape == target.shape for each in inputs)
        gives_back = alike and target.is_floating_point() and target[0].numel() >= _MANY_NUMBERS
    except (AttributeError, TypeError, KeyError, IndexError):  # a batch of another form: its loss knows what is what
        gives_back = False
    return FallingNorm() if gives_back else TypicalNorm()
