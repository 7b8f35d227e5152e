"""For people who own their loop: privately sampled batches, and a step that takes per-sample losses.

private = sd.make_private(model, optimizer, data, budget=sd.Budget(3, 1e-5), batch_size=512, epochs=10)
for x, y in private:
    losses = F.cross_entropy(model(x), y, reduction="none")
    private.step(losses)
print(private.epsilon)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina import randomness
from sordina.accounting import Account
from sordina.clipping import Online, Policy, arrange
from sordina.clipping.per_layer import PerLayer
from sordina.errors import InvalidInput, TrainingFailed
from sordina.gradients import Engine, check_losses
from sordina.sampling import FixedSize, Poisson, Sampler, Users
from sordina.seam import Released, Tape
from sordina.training.batches import MicroBatch, as_rows, split
from sordina.training.journal import Journal
from sordina.training.parallel import team
from sordina.training.plan import Plan, make_plan
from sordina.training.rate import Rate, Start, typical_size
from sordina.training.raw import raw_statistics
from sordina.training.step import PrivateStep, finite
from sordina.types import Budget, Guarantee, Unit


class Private:
    """A model, an optimiser and data, bound together by one `Plan`. Made by `make_private`.

    Iterating draws batches until the plan's steps are used up; every drawn batch is on the account before anybody sees
    it. `step` takes the per-sample losses of the batch just drawn, and no other.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        plan: Plan,
        clipping: Policy[Any] | PerLayer,
        *,
        rng: np.random.Generator,
        users: Users | None = None,
        microbatch: int | None = None,
        learning_rate: Rate[Any] | None = None,
        raw: bool = False,
    ) -> None:
        self.model, self.optimizer, self.plan = model, optimizer, plan
        self.rows = as_rows(data)
        self.users, self.microbatch, self.rng = users, microbatch, rng
        if users is not None and len(np.asarray(users.owners)) != self.rows.size:
            raise InvalidInput(f"owners name {len(np.asarray(users.owners))} rows but the data has {self.rows.size}.")
        self.team = team()
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        parts = arrange(clipping, names)
        self.engine = Engine(model, [part.names for part in parts]) if plan.private else None
        parameters = dict(model.named_parameters())
        self._parameters = [[parameters[name] for name in part.names] for part in parts]
        sizes = [sum(parameter.numel() for parameter in members) for members in self._parameters]
        self.private_step = PrivateStep(plan, parts, sizes, self.team)
        self.account = Account(plan.accountant, plan.adjacency)
        self.rule = learning_rate
        self._base_rates = [group["lr"] for group in optimizer.param_groups]
        start = Start(plan.steps, self._base_rates[0], sum(sizes), typical_size(model))
        self.rate_state = learning_rate.init(start) if learning_rate else None
        self.steps_taken = 0
        self.journal: Journal | None = None
        self.raw: dict[str, float] | None = {} if raw else None
        self._expected: MicroBatch | None = None
        self._event = self.private_step.event()

    @property
    def epsilon(self) -> float:
        """What was spent so far, at the plan's delta."""
        return self.guarantee.epsilon

    @property
    def guarantee(self) -> Guarantee:
        """The claim for what was spent so far."""
        return self.plan.guarantee(self.steps_taken)

    @property
    def releasable(self) -> bool:
        """False for a seeded run: who knows the seed can take the noise away."""
        return randomness.releasable(self.rng)

    def __iter__(self) -> Iterator[Any]:
        """Batches (or micro-batches), until the budget is used."""
        while self.steps_taken < self.plan.steps:
            pieces = self._draw()
            if not pieces:
                self._finish()
            for piece in pieces:
                self._expected = piece
                yield self.rows.take(piece.rows)
                if self._expected is not None:
                    raise InvalidInput(
                        "a batch was drawn but step(losses) was not called for it; its cost is on record."
                    )

    def book(self, steps: int) -> None:
        """Put steps on the account until ``steps`` are on it."""
        if steps > self.steps_taken:
            self.account.record(self._event, steps - self.steps_taken)
            self.steps_taken = steps

    def _draw(self) -> list[MicroBatch]:
        """Book the next step, then draw its units."""
        if self.journal is not None:
            self.journal.claim(self.steps_taken + 1, self.plan.steps)
        self.book(self.steps_taken + 1)
        table = None
        if self.team.leads:
            table = self.plan.sampler.draw(len(self.users) if self.users else self.rows.size, self.rng)
            if self.users is not None:
                table = self.users.rows(table, self.rng)
        return split(self.team.portion(self.team.share(table)), self.microbatch)

    def step(self, losses: Tensor) -> bool:
        """Take the per-sample ``losses`` of the batch just drawn; true when this completed an optimiser step."""
        piece, self._expected = self._expected, None
        if piece is None:
            raise InvalidInput("step(losses) goes with a batch just drawn, once: iterate over the private object.")
        check_losses(losses, len(piece.rows))
        if not finite(losses):
            raise TrainingFailed(
                f"the loss is not finite at step {self.steps_taken}, so training stopped; the steps taken stay on "
                "record. Lower the learning rate or check the data for NaN."
            )
        if piece.weights is not None:
            losses = losses * piece.weights.to(losses)
        if self.engine is None:
            torch.autograd.backward(losses.sum() / self.plan.sampler.expected_batch)
        else:
            tape = self.engine.record(losses, rows_per_unit=piece.rows_per_unit)
            if self.raw is not None:
                self.raw = raw_statistics(losses, tape.scalars().norms, self.private_step.thresholds[0])
            self.private_step.absorb(tape)
        return self._complete(piece)

    def step_with(self, tape: Tape) -> bool:
        """As `step`, for who has recorded the batch just drawn on a tape already (several models at once)."""
        piece, self._expected = self._expected, None
        if piece is None or self.engine is None:
            raise InvalidInput("step_with(tape) goes with a batch just drawn, once, under a finite budget.")
        self.private_step.absorb(tape)
        return self._complete(piece)

    def _complete(self, piece: MicroBatch) -> bool:
        if piece.last:
            self._finish()
        return piece.last

    def _finish(self) -> None:
        if self.engine is None:
            self._finish_without_privacy()
            return
        released = self.private_step.finish(self._parameters[0][0].detach(), self.rng)
        means = [answer.mean() for answer in released]
        for mean, members in zip(means, self._parameters, strict=True):
            _give_gradients(mean, members)
        self._set_learning_rate(released, means)
        self.optimizer.step()
        for members in self._parameters:
            for parameter in members:
                parameter.grad = None

    def _finish_without_privacy(self) -> None:
        for members in self._parameters:
            for parameter in members:
                if self.team.size > 1:
                    parameter.grad = self.team.add(
                        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _set_learning_rate(self, released: list[Released], means: list[Tensor]) -> None:
        noise = max(answer.noise[0] / answer.divisor for answer in released)
        if self.rule is not None and self.rate_state is not None:
            gradient = means[0] if len(means) == 1 else torch.cat(means)
            self.rate_state = self.rule.adapt(self.rate_state, gradient, noise)
        for group, base in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            if self.rule is not None and self.rate_state is not None:
                group["lr"] = self.rule.learning_rate(self.rate_state, base)
            if "noise" in group:
                group["noise"] = noise


def _give_gradients(vector: Tensor, parameters: list[nn.Parameter]) -> None:
    parts = vector.split_with_sizes([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view(parameter.shape)


def make_sampler(kind: str, batch_size: int, population: int) -> Sampler:
    """``"poisson"`` (add/remove neighbours) or ``"fixed-size"`` (replace-one neighbours)."""
    if kind == "poisson":
        return Poisson(batch_size, population)
    if kind == "fixed-size":
        return FixedSize(batch_size, population)
    raise InvalidInput(f"unknown sampling {kind!r}: use 'poisson' or 'fixed-size'.")


def make_schedule(
    units: int, *, batch_size: int, epochs: float, steps: int | None, sampling: str, population: int | None
) -> tuple[Sampler, int]:
    """The sampler and the number of steps of a run over ``units`` units."""
    population = units if population is None else population
    sampler = make_sampler(sampling, batch_size, population)
    return sampler, max(1, round(epochs * population / batch_size)) if steps is None else steps


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    budget: Budget,
    batch_size: int,
    epochs: float = 1,
    steps: int | None = None,
    clipping: Policy[Any] | PerLayer | None = None,
    sampling: str = "poisson",
    population: int | None = None,
    users: Users | None = None,
    noise_multiplier: float | None = None,
    accountant: str = "pld",
    microbatch: int | None = None,
    learning_rate: Rate[Any] | None = None,
    raw: bool = False,
    seed: int | None = None,
) -> Private:
    """Bind ``model``, ``optimizer`` and ``data`` to a budget; iterate over the result and call its ``step``.

    ``batch_size`` is the expected size of a batch. ``population`` is the public number of units that the sampling rate
    is computed from; left out, the size of the data is taken, and thereby treated as public. ``raw=True`` collects
    statistics that are NOT private (`sordina.training.raw`).
    """
    units = len(users) if users is not None else as_rows(data).size
    sampler, steps = make_schedule(
        units, batch_size=batch_size, epochs=epochs, steps=steps, sampling=sampling, population=population
    )
    unit = Unit.RECORD if users is None else Unit.USER
    plan = make_plan(budget, sampler, steps, unit=unit, accountant=accountant, noise_multiplier=noise_multiplier)
    return Private(
        model, optimizer, data, plan, clipping or Online(),
        rng=randomness.generator(seed), users=users, microbatch=microbatch, learning_rate=learning_rate,
        raw=raw,
    )  # fmt: skip
