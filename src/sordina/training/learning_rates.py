"""Learning rates that adapt to what was released: post-processing, so free, and good with every policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from sordina._renamed import renamed
from sordina.clipping.policy import Decay, ReleasedNorm
from sordina.privacy import check_positive

# Learning rates that adapt to what was released: post-processing, so free, and good with every policy.
#
# `LearningRateRule` is the thesis's, `SteadyRate` keeps one step length, `sordina.training.learning_rates` has the
# default.
#
# ``rho <- rho exp(r sign(g_t . g_{t-1}))`` (000 eq. 3.21; errata 9 on its sign). To first order the expected change of
# the loss in a step is ``-rho |g|^2 + rho^2/2 (g'Hg + sigma^2 tr H)``, and ``E[g_t . g_{t-1}]`` is minus its derivative
# by rho: the rule seeks the best step for this much noise.

S = TypeVar("S")


@renamed(lr="learning_rate")
@dataclass(frozen=True)
class Start:
    """Public facts of a run: its steps, the optimiser's own rate, how many weights and their typical size."""

    steps: int
    learning_rate: float
    weights: int
    size: float
    matrices: int = 2
    """How many weight matrices are trained; a model with one is linear in its weights, however it is written."""
    adds_up: float = 1.0
    """The noise of all steps together over what independent noise of a step's size would add up to."""
    turning: float = 0.0
    """Of a network with group norms, how long a step is that turns all of its matrices around (`turning_length`)."""
    unit: float = 1.0
    """By how much the loss changes per unit of an output, where that is known (`sordina.training.convexity`)."""


def fall(step: int, steps: int) -> float:
    """One in the first half of a run, then linearly to zero, which averages the noise of the last steps away."""
    return min(1.0, 2 * (1 - step / steps))


class Rate(Protocol[S]):
    """Decides the learning rate of every step from released values and public facts."""

    def init(self, start: Start) -> S:
        """The first state of a run."""
        ...

    def adapt(self, state: S, gradient: Tensor, noise: float, typical: ReleasedNorm | None = None) -> S:
        """The next state, from the released mean ``gradient`` and the standard deviation of the noise on it.

        ``typical`` is the typical norm of first gradients, where the clipping policy released it.
        """
        ...

    def learning_rate(self, state: S, base: float) -> float:
        """The rate, given the optimiser's own."""
        ...


@dataclass(frozen=True)
class RateState:
    """The factor found so far, the steps taken and the last released gradient."""

    factor: float = 1.0
    step: int = 0
    gradient: Tensor | None = None


@dataclass(frozen=True)
class LearningRateRule:
    """Grow the learning rate while successive gradients agree, shrink it when they turn against each other.

    The thesis's rule is ``LearningRateRule(Decay(2.5e-3))``.

    Args:
        rate: How fast it grows or shrinks.
        first: The learning rate of the first step; None takes the optimiser's own.
    """

    rate: Decay = Decay(0.05, 100)
    first: float | None = None

    def __post_init__(self) -> None:
        if self.first is not None:
            check_positive("first learning rate", self.first)

    def init(self, start: Start) -> RateState:
        """Factor one, nothing seen."""
        return RateState()

    def adapt(self, state: RateState, gradient: Tensor, noise: float, typical: ReleasedNorm | None = None) -> RateState:
        """The next factor, from the released ``gradient`` of this step."""
        factor = state.factor
        if state.gradient is not None:
            agreement = float(torch.sign(torch.dot(gradient, state.gradient)))
            factor *= math.exp(self.rate(state.step) * agreement)
        return RateState(factor, state.step + 1, gradient.clone())

    def learning_rate(self, state: RateState, base: float) -> float:
        """The first rate times the factor."""
        return (base if self.first is None else self.first) * state.factor


@dataclass(frozen=True)
class SteadyState:
    """The steps taken of how many, and the rate that follows (None: the optimiser's own)."""

    steps: int
    step: int = 0
    rate: float | None = None


@dataclass(frozen=True)
class SteadyRate:
    """Steps of one length in units of the noise, whatever the threshold and the noise multiplier are.

    A weight whose released gradient were one standard deviation of the noise in every step would move by ``reach`` in
    the run (by three quarters of it with the `fall`). That makes the best ``reach`` much the same from model to model.

    Args:
        reach: How far.
        falls: Whether steps get shorter from the middle of the run on; an average of the weights does without.
    """

    reach: float = 1.0
    falls: bool = True

    def __post_init__(self) -> None:
        check_positive("reach of the steady learning rate", self.reach)

    def init(self, start: Start) -> SteadyState:
        """Nothing seen."""
        return SteadyState(start.steps)

    def adapt(
        self, state: SteadyState, gradient: Tensor, noise: float, typical: ReleasedNorm | None = None
    ) -> SteadyState:
        """The next rate; without noise there is no unit, and the optimiser's own stays."""
        if noise == 0:
            return state
        rate = self.reach / state.steps / noise * (fall(state.step, state.steps) if self.falls else 1.0)
        return SteadyState(state.steps, state.step + 1, rate)

    def learning_rate(self, state: SteadyState, base: float) -> float:
        """The rate of the step, or ``base``."""
        return base if state.rate is None else state.rate


@torch.no_grad()
def typical_size(model: nn.Module) -> float:
    """The root mean square of the trainable matrices' weights, every matrix counting alike, whatever its size."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [weight for weight in weights if weight.dim() > 1] or weights
    return math.sqrt(sum(float(matrix.double().square().mean()) for matrix in matrices) / max(1, len(matrices)))


@torch.no_grad()
def turning_length(model: nn.Module) -> float:
    """How long a step must be to turn all trained matrices around; 0 for a network without group norms.

    Weights before a group norm may be multiplied by any number and the outputs stay: only their direction counts. L
    matrices that a step turns by an angle ``a`` each, ``|step|^2 = a^2 sum_l |W_l|^2`` in spectral norms, move an
    output by about ``L a`` of its size; so one is ``|step| = sqrt(sum_l |W_l|^2) / L``. For first weights, which are
    random, the spectral norm of an m x n matrix is its root mean square times ``sqrt(m) + sqrt(n)``.
    """
    norms = (nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
    if not any(isinstance(module, norms) for module in model.modules()):
        return 0.0
    trained = [each for each in model.parameters() if each.requires_grad and each.dim() > 1 and each.numel()]
    spectral = [
        float(one.double().square().mean()) * sum(math.sqrt(n) for n in one.shape) ** 2
        for one in (each.flatten(1) for each in trained)
    ]
    length = math.sqrt(sum(spectral)) / max(1, len(spectral))
    return length if math.isfinite(length) else 0.0


# How far the weights got over how hard they were pulled: a learning rate that finds itself.
#
# DoG (Ivgi, Hinder and Carmon 2023, eq. 1): ``rho_t = max_{i<=t} |theta_i - theta_0| / sqrt(sum_{i<=t} |g_i|^2)``. Both
# are known to everybody who sees the released gradients, so it is free. Here every gradient counts in units of the
# noise on it, so that a change of the clipping threshold does not change the length of the steps.
#
# A walk driven by noise alone gets ``sqrt(t)`` far in t steps, so noise neither raises nor lowers the rate. Where
# gradients agree the distance grows faster, and the rate with it; where they turn against each other it falls behind.
# From the middle of the run on the rate falls (`sordina.training.learning_rates.fall`).
#
# The rule takes weights to move by ``rho_t g_t``, as plain SGD moves them.

_USUAL_SIZE = 0.06


@dataclass(frozen=True)
class DistanceState:
    """Where the run is: what was summed up so far, and the rate that follows (None: the optimiser's own)."""

    steps: int
    first: float
    step: int = 0
    distance: float = 0.0
    squares: float = 0.0
    moved: Tensor | None = None
    rate: float | None = None


@dataclass(frozen=True)
class DistanceRate:
    """DoG from the optimiser's own rate on: what was given is the rate of the first step."""

    def init(self, start: Start) -> DistanceState:
        """Nothing seen."""
        return DistanceState(start.steps, start.learning_rate)

    def adapt(
        self, state: DistanceState, gradient: Tensor, noise: float, typical: ReleasedNorm | None = None
    ) -> DistanceState:
        """The next rate; without noise there is no unit, and the optimiser's own stays."""
        if noise == 0:
            return state
        norm = float(gradient.norm())
        distance = state.distance or state.first * norm
        squares = state.squares + (norm / noise) ** 2
        rate = distance / math.sqrt(squares) / noise * fall(state.step, state.steps)
        moved = gradient * rate if state.moved is None else state.moved.add(gradient, alpha=rate)
        distance = max(distance, float(moved.norm()))
        return DistanceState(state.steps, state.first, state.step + 1, distance, squares, moved, rate)

    def learning_rate(self, state: DistanceState, base: float) -> float:
        """The rate found, or ``base``."""
        return base if state.rate is None else state.rate


# The default rule: steps as long as what is surely signal may be, and as the noise allows.
#
# Let c be the typical norm of first gradients (`sordina.clipping.TypicalNorm` releases it). At the start a loss changes
# by about one per unit of a model's output, so c is also how far an output moves when the weights move by one. (Where
# outputs are bounded, so that it is known what the loss is at first, c is told in a `unit` of that.) In
# units of the *output*, then, two lengths are the same for every model and every scale of the inputs:
#
# - the noise of all T steps, at the rate rho, moves an output by ``c rho noise sqrt(T)``: at most `walk`;
# - the signal of one step, g, moves it by at most ``c rho |g|``: `reach` at first, and as gradients shrink from their
#   largest by the root of that, ``reach sqrt(|g| / largest |g|)``. So steps are bounded however little noise there is,
#   and a larger budget does no harm. In a network with group norms c is the larger the smaller the weights are, and
#   tells how an output moves with the first bit of a turn only: there steps may be longer, up to what turns all
#   matrices (`turning_length`, `_TURNED`).
#
# The rate is the smaller of both; from the middle of the run on it falls to zero. |g|^2 is the released |g + noise|^2
# less the noise's share of it, in the mean of the last `_MEMORY` steps; what the noise hides counts as signal, which
# shortens steps. Where what is surely signal is strong against the noise of the *whole* run (`_STRONG`) and can be seen
# within a step (`_CLEAR`, a share of the noise's square), the walk may be up to `_LONGER` times as long. Where not even
# gradients that all agree would stand out, it is shorter (`_HOPEFUL`). In a network noise on one layer meets noise on
# the next, which no derivative at the start can tell: there the walk of a weight is bounded by the size of first
# weights too (`_SWAMPED`). A model that is linear in its weights has a convex loss, and bears longer steps
# if there are enough of them (`_FEW`).
#
# That a loss changes by about one per unit of an output holds for classifiers. A mean square over the pixels of a
# picture has a hundredth of it, a sum over them a hundred times as much, and targets in the thousands a million. So the
# rate is multiplied by a *trust* in it, found from how the last step turned out, as a line search would: with the
# curvature H along a step, the next gradient is ``(1 - rho H)`` times the last one. Where both agree, steps may be
# longer, where the next one turns back by `_BACK` of the last, they were too long. Only what stands out of the noise
# counts. Runs of at least `_SHORT` steps begin with little trust and double it from step to step: what one long step
# has driven to where there is no gradient does not come back. Above one, where the loss must be of another unit, trust
# grows only while gradients are as long as at first, agree beyond doubt (`_SURE`), and have not turned back before. A
# model that is linear in its weights bears steps to and fro, and comes back from wherever it was: there trust begins at
# one, and is never less.
#
# With a policy that releases no typical norm the rule is DoG (above), from a first step for which the size of the first
# weights stands in: `travel` for the noise, and `_RELATIVE` for what is surely signal (four standard deviations).

_MEMORY = 5
_CERTAIN = 2.0
"""So many standard deviations of the noise's squared norm are in doubt: signal if that shortens steps, else noise."""
_CONVEX = 2.0
_FEW = 16
"""In runs of fewer steps those of a linear model are shorter in proportion: few are left to mend one too many."""
_HOPEFUL = 20.0
_STRONG, _CLEAR, _LONGER = 60.0, 0.0125, 4.0
_SWAMPED, _AMPLE, _CALM = 2.0, 1000.0, 0.35
"""In a network the noise of a run moves a weight by at most ``_SWAMPED`` times the size of first weights; by less, down
to the part ``_CALM`` of it, where gradients that agree would stand out of the whole noise more than ``_AMPLE`` times:
such a run gets far enough with shorter steps."""
_SHORT, _DOUBLING, _LEAST_TRUST, _MOST_TRUST = 32, 16, 1 / 32, 2.0**20
"""Trust begins at one half for every ``_DOUBLING`` steps of a run, at least at ``_LEAST_TRUST``."""
_AGREE, _GROWN, _BACK = 0.25, 1.5, 0.9
"""Gradients agree if the next one goes at least so far along the last, and not much further: there the loss is bent."""
_TURNED = 1.2
"""In a network with group norms a step may be this part of what turns all matrices around."""
_BACK_BOUNDED = 1.2
"""There gradients may turn back by so much, for matrices that swing to and fro grow, which makes the next turn smaller;
and so they may where outputs are bounded, which cannot swing far."""
_SURE = 3.0
_AGAIN, _SLOWLY = 1.5, 1.2
"""So trust grows again, in a step, after a turn back: where gradients agree, and where noise hides them."""
_LOOKED_AT = 2**24
"""Of a larger model every second, third, ... weight is looked at."""
_RELATIVE = 0.1
"""Where no typical norm is known, what is surely signal may move all weights by this part of their length at first."""


@dataclass(frozen=True)
class AutomaticState(DistanceState):
    """And the signal's mean square in units of the noise, the largest signal, and how many steps there were.

    Then what the rate is multiplied by, whether gradients ever turned back, the last one in units of its noise, and how
    long a step is that turns all matrices (0 where that is no measure), and the unit of the loss.
    """

    recent: float = 0.0
    largest: float = 0.0
    moving: int = 0
    convex: float = 1.0
    adds_up: float = 1.0
    trust: float = 1.0
    turned: bool = False
    last: Tensor | None = None
    last_noise: float = 1.0
    turning: float = 0.0
    unit: float = 1.0


@dataclass(frozen=True)
class AutomaticRate(DistanceRate):
    """Nothing to tune: steps short enough for the noise and for the loss, from released values and public facts.

    Args:
        travel: Where the policy knows no typical norm: how many times its size noise alone may move a weight in a run.
        walk: How far noise alone may move an output in a run.
        reach: How far the signal of one step may move an output.
    """

    travel: float = 1.5
    walk: float = 0.7
    reach: float = 3.0

    def __post_init__(self) -> None:
        for name in ("travel", "walk", "reach"):
            check_positive(f"{name} of the automatic learning rate", getattr(self, name))

    def init(self, start: Start) -> AutomaticState:
        """Nothing seen. ``first`` keeps the size of a weight, where a usual one stands in if all are zero."""
        convex = _CONVEX if start.matrices == 1 else 1.0
        size, trust = start.size or _USUAL_SIZE, 1.0
        if convex == 1 and _watched(start.steps, start.adds_up):
            trust = max(_LEAST_TRUST, 2.0 ** -(start.steps // _DOUBLING))
        turning = start.turning if convex == 1 else 0.0
        return AutomaticState(
            start.steps, size, convex=convex, adds_up=start.adds_up, trust=trust, turning=turning, unit=start.unit
        )

    def adapt(
        self, state: DistanceState, gradient: Tensor, noise: float, typical: ReleasedNorm | None = None
    ) -> DistanceState:
        """The next rate; without noise there is no unit, and the optimiser's own stays."""
        if noise == 0 or not isinstance(state, AutomaticState):
            return state
        if typical is None:
            return self._by_distance(state, gradient, noise)
        if not typical.found and 4 * (state.step + 1) < state.steps:
            return replace(state, step=state.step + 1, rate=0.0)
        weights, root = len(gradient), math.sqrt(state.steps)
        past = min(state.moving, _MEMORY - 1)
        ratio = float(gradient.norm()) / noise
        if not ratio < 1e100 or not all(1e-100 < one < 1e100 for one in (noise, typical.norm)):
            return replace(state, step=state.step + 1, rate=0.0)
        recent = (past * state.recent + ratio**2 - weights) / (past + 1)
        doubt = _CERTAIN * math.sqrt(2 * weights / (past + 1))
        signal = math.sqrt(max(recent, doubt, 1.0))
        largest = max(state.largest, signal)
        room = root / state.adds_up * typical.norm / noise
        walk = state.convex * state.unit * self.walk / typical.norm * min(1.0, room / _HOPEFUL)
        if state.convex == 1:
            walk = min(walk, _SWAMPED * state.first * min(1.0, max(_CALM, math.sqrt(_AMPLE / room))))
        strong = min(root / state.adds_up * math.sqrt(max(0.0, recent - doubt)) / _STRONG, recent / (_CLEAR * weights))
        walk *= min(max(1.0, strong), _LONGER)
        reach = max(state.convex * state.unit * self.reach / typical.norm, _TURNED * state.turning) * math.sqrt(
            signal / largest
        )
        if state.convex > 1:
            reach *= min(1.0, state.steps / _FEW)
        state = replace(state, step=state.step + 1, moving=state.moving + 1, recent=recent, largest=largest)
        if _watched(state.steps, state.adds_up):
            state = _trusted(state, gradient, noise)
        rate = min(reach / signal, walk / (root * state.adds_up)) / noise * fall(state.step - 1, state.steps)
        return replace(state, rate=rate * state.trust)

    def _by_distance(self, state: AutomaticState, gradient: Tensor, noise: float) -> DistanceState:
        norm = float(gradient.norm())
        distance = state.distance or self._first(state, len(gradient), norm, noise) * norm
        squares = state.squares + (norm / noise) ** 2
        rate = distance / math.sqrt(squares) / noise * fall(state.step, state.steps)
        moved = gradient * rate if state.moved is None else state.moved.add(gradient, alpha=rate)
        return replace(
            state, step=state.step + 1, squares=squares, moved=moved, rate=rate,
            distance=max(distance, float(moved.norm())),
        )  # fmt: skip

    def _first(self, state: AutomaticState, weights: int, norm: float, noise: float) -> float:
        whole = state.first * math.sqrt(weights)
        signal = math.sqrt(max(norm**2 - weights * noise**2, math.sqrt(32 * weights) * noise**2))
        limit = _RELATIVE * whole / signal if state.convex == 1 else math.inf
        return min(self.travel * whole / (max(norm, noise) * math.sqrt(state.steps)), limit)


def _watched(steps: int, adds_up: float) -> bool:
    """Whether trust is looked for: there are enough steps, and noise does not by itself turn back in the next one."""
    return steps >= _SHORT and adds_up == 1


def _trusted(state: AutomaticState, gradient: Tensor, noise: float) -> AutomaticState:
    """The state with the trust that follows from the released ``gradient``, which is kept to be compared."""
    part = gradient[:: -(-len(gradient) // _LOOKED_AT)] / noise
    trust, turned = state.trust, state.turned
    if state.last is not None:
        both = float(torch.dot(part, state.last))
        now, before = (max(0.0, float(one.square().sum()) - len(one)) for one in (part, state.last))
        doubt = _CERTAIN * math.sqrt(now + before + len(part))
        along = before * state.last_noise / noise
        agree = both > doubt and _AGREE * along < both < _GROWN * along
        if both < -max(doubt, (_BACK_BOUNDED if state.turning or state.unit < 1 else _BACK) * along):
            trust, turned = (max(1.0, trust / 2) if state.convex > 1 else trust / 2), True
        elif trust < 1 and agree:
            trust = min(1.0, trust * (_AGAIN if turned else 2.0))
        elif trust < 1 and abs(both) < doubt:
            trust = min(1.0, trust * (_SLOWLY if turned else 2.0))
        elif agree and not turned and both > _SURE * doubt and 4 * before > state.largest**2:
            trust = min(_MOST_TRUST, 2 * trust)
    return replace(state, trust=trust, turned=turned, last=part, last_noise=noise)
