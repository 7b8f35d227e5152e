"""The private step: sums are clipped, noised and adapted to, in this order and nowhere else.

queries  = policy.ask(tape.scalars(policy.direction(state)), state)      numbers to numbers, pointwise
totals  += tape.contract(queries)                                        one backward, any number of micro-batches
released = release(totals, policy.bounds(state, adjacency), multipliers) the bound travels with what it bounds
state    = policy.adapt(state, released)                                 released values only
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sordina.accounting import Event
from sordina.clipping import Part, Policy
from sordina.clipping.policy import split_at, spread
from sordina.errors import InvalidInput
from sordina.mechanisms import correlated
from sordina.plan import Plan
from sordina.queries import Query, Released, ScalarQuery, Scalars, Tape, VectorQuery
from sordina.random import add_gaussian
from sordina.sampling import Indices

# The release: sums become noised sums, and only here.
#
# `add_noise` has the exact law of the Gaussian mechanism, rounded to a public grid (`sordina.random.noise`): nothing is
# added to delta. What that theorem leaves open is how far the *computed* sums of neighbouring data sets are apart.
#
# **Rounding before the noise.** A sum of n clipped gradients, each of norm C at most, is accumulated in the model's
# precision, with unit roundoff u (2^-24 in single precision). In whatever order n terms are added, and products with
# the coefficients included, every coordinate is off by at most ``(n + 1) u / (1 - (n + 1) u)`` times the sum of the
# terms' sizes (Higham 2002, equation 3.5), so the vector by about ``(n + 1) u n C`` in L2. Two neighbouring sums are
# then apart by at most ``C (1 + 2 n (n + 1) u)``: `sum_error` gives the factor. That is a worst case, all rounding
# errors of all samples in one direction: 1.03 for 512 samples in single precision, 3.0 for 4096. What one finds is near
# ``1 + sqrt(n) u``. It holds where a sample is one term; where a weight is used at many positions of a sample (a
# convolution, a sequence) the terms of one sample may be larger than their sum, and there is no bound as simple.
# Noise is not raised for it: claims are made for sums over the reals. This is the one caveat of floating point that
# is left, and
# `privacy.json` states it.

_NATIVE = (torch.float32, torch.float64)


def add_noise(values: Tensor, sigma: float, rng: np.random.Generator) -> Tensor:
    """Add Gaussian noise of standard deviation ``sigma`` to ``values``, in place; returns them.

    Args:
        values: Floats of any kind, on any device. Kinds other than float32 and float64 are noised as float32.
        sigma: The standard deviation.
        rng: A secure generator if what comes out is to be released.
    """
    inner = values.detach()
    if inner.dtype in _NATIVE and inner.device.type == "cpu" and inner.is_contiguous():
        add_gaussian(inner.numpy(), sigma, rng)
        return values
    wide = inner.dtype if inner.dtype in _NATIVE else torch.float32
    copy = inner.to(device="cpu", dtype=wide, copy=True).contiguous()
    add_gaussian(copy.numpy(), sigma, rng)
    inner.copy_(copy)
    return values


def release(
    totals: Sequence[Tensor],
    bounds: Sequence[float],
    multipliers: Sequence[float],
    divisor: float,
    rng: np.random.Generator,
    past: PastNoise | None = None,
) -> Released:
    """Add Gaussian noise of standard deviation ``multiplier * bound`` to each total, in place.

    The bound travels with what it bounds: each total is noised by the sensitivity its own policy stated for it.

    Args:
        totals: What a step asked; the first is the sum of gradients.
        bounds: Their sensitivities.
        multipliers: Noise over sensitivity, for each.
        divisor: What sums are divided by.
        rng: A secure generator if what comes out is to be released.
        past: Noise of earlier steps that the first total's is correlated with.
    """
    scales = [bound * multiplier for bound, multiplier in zip(bounds, multipliers, strict=True)]
    for place, (total, scale) in enumerate(zip(totals, scales, strict=True)):
        if place == 0 and past is not None and scale:
            scales[0] = past.release(total, scale, rng)
        else:
            add_noise(total, float(np.nextafter(scale, np.inf)) if scale else 0.0, rng)
    return Released(tuple(totals), tuple(scales), divisor)


class PastNoise:
    """The noise of the last steps on one total, for noise that is correlated over them (`mechanisms.correlated`).

    ``noise`` holds the noise of earlier steps in units of their standard deviation ``bound * multiplier``, the last one
    first; where the coefficients of C are ``decay^k`` it is one vector, ``sum_k decay^k noise_(t-k)``. Whoever has it
    can take the noise off what was released: it never leaves the process, but for seeded runs.

    Args:
        coefficients: Of the matrix C.
        steps: How many steps there are, at most.
        decay: The ratio of all successive coefficients, if they have one.
    """

    def __init__(self, coefficients: Sequence[float], steps: int, decay: float | None = None) -> None:
        self.coefficients, self._decay = tuple(coefficients), decay
        self.noise: list[Tensor] = []
        self.step = 0
        """How many rows of C are used up."""
        self.due = 0
        """How many are to be, before the next step."""
        self._spread = np.sqrt(np.cumsum(correlated.inverse(self.coefficients, steps) ** 2))

    def release(self, total: Tensor, scale: float, rng: np.random.Generator) -> float:
        """Noise ``total`` in place; the standard deviation of the noise is returned.

        Args:
            total: The sum of a step.
            scale: Its bound times its noise multiplier.
            rng: A secure generator if what comes out is to be released.
        """
        first, *later = self.coefficients if self._decay is None else self.coefficients[:2]
        plain = total.detach().to(device="cpu", dtype=torch.float64, copy=True)
        noised = plain.clone()
        for coefficient, noise in zip(later, self.noise, strict=False):
            noised.sub_(noise, alpha=scale * coefficient / first)
        add_noise(noised, float(np.nextafter(scale / first, np.inf)), rng)
        if later:
            latest = noised.sub(plain).div_(scale)
            if self._decay is not None and self.noise:
                latest.add_(self.noise[0], alpha=self._decay)
            self.noise = [latest, *self.noise][: len(later)]
        total.detach().copy_(noised)
        self.step += 1
        return scale * float(self._spread[min(self.step, len(self._spread)) - 1])

    def begin(self, size: int, rng: np.random.Generator) -> None:
        """Before a step draws its batch: a step that was left without a release uses up its row of C all the same.

        Else rows would fall behind turns, and a unit would meet its own noise again before its turn is over.

        Args:
            size: The length of the total.
            rng: A secure generator if anything is to be released.
        """
        while self.step < self.due:
            self.release(torch.zeros(size, dtype=torch.float64), 1.0, rng)
        self.due += 1

    def state(self) -> dict[str, Any]:
        """For the checkpoint of a seeded run, and of no other."""
        return {"step": self.step, "noise": list(self.noise)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.step, self.noise = int(state["step"]), list(state["noise"])
        self.due = self.step


def sum_error(terms: int, unit_roundoff: float = 2.0**-24) -> float:
    """By what factor rounding stretches the distance of neighbouring sums of ``terms`` clipped gradients, at most.

    >>> round(sum_error(512), 3)
    1.031
    """
    share = (terms + 1) * unit_roundoff
    return 1 + 2 * terms * share / (1 - share) if share < 1 else float("inf")


# The private step: sums are clipped, noised and adapted to, in this order and nowhere else.

_ROUNDING = 1e-9
"""Relative distance below which two noise multipliers are the same one, computed in another order."""


def clipped_sums(tape: Tape, policy: Policy[Any], state: Any, group: int = 0) -> list[Tensor]:
    """Clip every unit of ``tape`` with the policy's public state and add them up: one total per query.

    A unit whose own vector is not finite adds nothing, and is neither seen nor heard.

    Args:
        tape: Per-unit vectors: gradients of samples, or updates of clients.
        policy: Bounds what one unit may add.
        state: The policy's state, the same for all units of a step.
        group: Which group of parameters of the tape.
    """
    direction = policy.direction(state)
    return _finite_sums(tape, policy.ask(tape.scalars(direction, group), state), direction, group)


def noised(
    totals: Sequence[Tensor],
    policy: Policy[Any],
    state: Any,
    multipliers: Sequence[float],
    plan: Plan,
    rng: np.random.Generator,
    past: PastNoise | None = None,
) -> Released:
    """Noise the totals of a step by the bounds the policy states for them under the plan's adjacency.

    Args:
        totals: What `clipped_sums` gave, added up over the step; noised in place.
        policy: The policy that clipped them.
        state: The state it clipped them with.
        multipliers: One noise multiplier per query.
        plan: Whose adjacency and divisor count.
        rng: A secure generator if what comes out is to be released.
        past: Where noise is correlated with that of earlier steps: what is kept of it.
    """
    bounds = policy.bounds(state, plan.adjacency)
    return release(totals, bounds, multipliers, plan.sampler.expected_batch_size, rng, past)


def _refuse_too_much_past(steps: int, weights: int) -> None:
    """Refuse noise of earlier steps that this machine cannot keep, before a run is half-way and out of memory."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return
    needed = 8 * steps * weights
    if needed > memory > 0:
        raise InvalidInput(
            f"the noise of {steps} earlier steps on {weights} weights takes {needed / 2**30:.0f} GB, more than there "
            "is: take BandedNoise with fewer bands, or LambdaCGD, which keeps one vector."
        )


class PrivateStep:
    """Gathers the queries of a logical batch over any number of tapes, then releases their noised answers once.

    ``sizes`` are the lengths of the parts' vectors. Until `finish` the policies keep the state with which every tape of
    the batch was clipped.

    Args:
        plan: What a step may cost.
        team: The processes that train together.
    """

    def __init__(self, plan: Plan, parts: Sequence[Part], sizes: Sequence[int], team: Team | None = None) -> None:
        self.plan = plan
        self.parts = tuple(parts)
        self.sizes = tuple(sizes)
        self.team = team or Team()
        self.states: list[Any] = [part.policy.init(size) for part, size in zip(self.parts, self.sizes, strict=True)]
        self.split()
        for part, state in zip(self.parts, self.states, strict=True):
            part.policy.bounds(state, plan.adjacency)
        self._totals: list[list[Tensor] | None] = [None] * len(self.parts)
        self.past: list[PastNoise | None] = [None] * len(self.parts)
        if plan.noise is not None and plan.private:
            decay = plan.noise.decay if isinstance(plan.noise, correlated.LambdaCGD) else None
            if decay is None:
                _refuse_too_much_past(len(plan.coefficients) - 1, sum(self.sizes))
            self.past = [PastNoise(plan.coefficients, plan.steps, decay) for _ in self.parts]

    def split(self) -> list[tuple[float, ...]]:
        """One noise multiplier per query of the next step, for each part: checked to cost what the plan states."""
        share = self.plan.noise_multiplier * len(self.parts) ** 0.5
        parts = zip(self.parts, self.states, strict=True)
        multipliers = [split_at(part.policy, share, state) for part, state in parts]
        self._refuse_other_noise(multipliers)
        return multipliers

    def event(self) -> Event:
        """What is paid for a step, or once for several: the plan's, since the noise was found to add up to it."""
        return self.plan.charged(1)[0]

    def _refuse_other_noise(self, multipliers: Sequence[Sequence[float]]) -> None:
        """Refuse policies whose queries together cost anything but what the plan states for a step."""
        wanted = self.plan.noise_multiplier
        added = spread([nu for shares in multipliers for nu in shares])
        if not math.isclose(added, wanted, rel_tol=_ROUNDING):
            names = ", ".join(sorted({type(part.policy).__name__ for part in self.parts}))
            raise InvalidInput(
                f"the noise of {names} does not add up: its queries cost what noise multiplier {added:.6g} costs, but "
                f"the plan states {wanted:.6g}. Its split must keep sum(nu_k^-2) = nu^-2 (clipping.policy.side_query)."
            )

    def begin(self, rng: np.random.Generator) -> None:
        """Before a batch is drawn: nothing of one that was left without a release is in its totals.

        Args:
            rng: A secure generator if anything is to be released.
        """
        self._totals = [None] * len(self.parts)
        for past, size in zip(self.past, self.sizes, strict=True):
            if past is not None:
                past.begin(size, rng)

    def absorb(self, tape: Tape) -> None:
        """Clip the samples of one tape and add them to the batch's totals."""
        together = zip(self.parts, self.states, strict=True)
        found = [clipped_sums(tape, part.policy, state, group) for group, (part, state) in enumerate(together)]
        for group, answers in enumerate(found):  # all of them or none: a way back that fails adds nothing
            totals = self._totals[group]
            self._totals[group] = (
                answers if totals is None else [t.add_(a) for t, a in zip(totals, answers, strict=True)]
            )

    def finish(self, like: Tensor, rng: np.random.Generator) -> list[Released]:
        """Noise the totals of the batch, adapt the policies to what was released, and return it, part by part."""
        released = []
        multipliers = self.split()
        for group, part in enumerate(self.parts):
            totals = self._collect(group, like)
            answer = noised(
                totals, part.policy, self.states[group], multipliers[group], self.plan, rng, self.past[group]
            )
            for total in answer.answers:
                self.team.agree(total)
            self.states[group] = part.policy.adapt(self.states[group], answer)
            released.append(answer)
        self._totals = [None] * len(self.parts)
        return released

    def _collect(self, group: int, like: Tensor) -> list[Tensor]:
        totals = self._totals[group]
        if totals is None:
            totals = self._zeros(group, like)
        return [self.team.add(total) for total in totals]

    def _zeros(self, group: int, like: Tensor) -> list[Tensor]:
        """The totals of an empty batch: zero vectors and zero counts, in the shapes the policy's queries have."""
        nobody = like.new_zeros(0)
        policy, state = self.parts[group].policy, self.states[group]
        direction = policy.direction(state)
        queries = policy.ask(Scalars(nobody, None if direction is None else nobody), state)
        return [like.new_zeros(self.sizes[group] if isinstance(query, VectorQuery) else ()) for query in queries]

    @property
    def thresholds(self) -> list[float]:
        """The current threshold of each part."""
        return [part.policy.current_threshold(state) for part, state in zip(self.parts, self.states, strict=True)]


def _finite_sums(tape: Tape, queries: Sequence[Query], direction: Tensor | None, group: int) -> list[Tensor]:
    """The answers to ``queries``, without the units whose own vector is not finite after clipping.

    Such a unit must be neither seen nor heard: it adds nothing, the others add what they add, and nothing stops. The
    batch is halved until the unit is alone, so this costs something only when it happens.
    """
    answers = tape.contract(queries, direction, group)
    if all(map(finite, answers)):
        return answers
    units = len(_coefficients(queries[0])[0])
    totals = [torch.zeros_like(answer) for answer in answers]
    waiting = [(0, units // 2), (units // 2, units)] if units > 1 else []
    while waiting:
        start, stop = waiting.pop()
        part = tape.contract([_only(query, start, stop) for query in queries], direction, group)
        if all(map(finite, part)):
            totals = [total.add_(one) for total, one in zip(totals, part, strict=True)]
        elif stop - start > 1:
            middle = (start + stop) // 2
            waiting += [(start, middle), (middle, stop)]
    return totals


def _coefficients(query: Query) -> list[Tensor]:
    values = [query.own, query.ref] if isinstance(query, VectorQuery) else [query.value]
    return [value for value in values if value is not None]


def _only(query: Query, start: int, stop: int) -> Query:
    """``query`` about the units from ``start`` to ``stop`` alone."""

    def kept(values: Tensor) -> Tensor:
        inside = torch.zeros_like(values)
        inside[start:stop] = values[start:stop]
        return inside

    if isinstance(query, VectorQuery):
        return VectorQuery(kept(query.own), None if query.ref is None else kept(query.ref))
    return ScalarQuery(kept(query.value))


def finite(values: Tensor) -> bool:
    """Whether all values are finite; a finite sum says so in one pass."""
    return math.isfinite(float(values.detach().sum())) or bool(torch.isfinite(values).all())


# One process or several: who draws the batch, and how their sums meet.
#
# Rank 0 alone is random: it draws the batch of a step and the noise, and tells the others. So a run of several
# processes has the same law as a run of one: the same sampling, the same sum, the same single draw of noise.


@dataclass(frozen=True)
class Team:
    """The processes that train together; one process is a team of one."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process draws what is random."""
        return self.rank == 0

    def share(self, indices: Indices | None) -> Indices:
        """Rank 0's ``indices``, on every rank."""
        if self.size == 1:
            assert indices is not None
            return indices
        held = [indices]
        dist.broadcast_object_list(held, src=0)
        return np.asarray(held[0])

    def tell(self, value: Any) -> Any:
        """Rank 0's ``value``, plain data, on every rank."""
        if self.size == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def portion(self, units: Indices) -> Indices:
        """This rank's part of a batch."""
        return units[self.rank :: self.size]

    def add(self, total: Tensor) -> Tensor:
        """The sum of ``total`` over all ranks."""
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def agree(self, value: Tensor) -> Tensor:
        """Rank 0's ``value``, on every rank."""
        if self.size > 1:
            dist.broadcast(value, src=0)
        return value

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` holds on any rank."""
        return bool(self.add(torch.tensor(float(flag))) > 0) if self.size > 1 else flag


def team() -> Team:
    """The team of this process: that of ``torch.distributed`` where it was initialised."""
    if dist.is_available() and dist.is_initialized():
        return Team(dist.get_rank(), dist.get_world_size())
    return Team()
