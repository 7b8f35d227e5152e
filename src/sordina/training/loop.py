"""Privately sampled batches and a private step, for the trainer and for people who own their loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina import random
from sordina.accounting import Account
from sordina.clipping import Policy, arrange, policy_facts
from sordina.clipping.per_layer import PerLayer
from sordina.clipping.policy import ReleasedNorm, released_norm
from sordina.errors import InvalidInput, TrainingFailed
from sordina.gradients import Engine, check_losses
from sordina.gradients._rehearsal import Attributes
from sordina.gradients.layout import widen
from sordina.gradients.removal import RemovalSchedule
from sordina.journal import BLOCK, Journal
from sordina.plan import Plan, check_whole, spent
from sordina.privacy import Guarantee
from sordina.private_step import PrivateStep, finite, team
from sordina.queries import Released, Tape
from sordina.sampling import CyclicPoisson, Indices, Users
from sordina.training.augmentation import Augmentation, augmented, check_augmentation, readings
from sordina.training.averaging import Averaging, WeightAverage
from sordina.training.batches import Collate, MicroBatch, as_rows, blank_batch, split
from sordina.training.components import components_of, find_components
from sordina.training.last_steps import LastSteps
from sordina.training.learning_rates import AutomaticRate, Rate, Start, turning_length, typical_size
from sordina.training.optimizers import known, refuse_listeners
from sordina.training.run import Earlier, HeldWeights, Run, UntrainedState, raw_statistics, weights_digest
from sordina.training.secret_chance import SecretChance

if TYPE_CHECKING:
    from sordina.training.run_keeper import RunKeeper


# For people who own their loop: privately sampled batches, and a step that takes per-sample losses.
#
# private = sd.make_private(model, optimizer, data, budget=sd.Budget(3, 1e-5), batch_size=512, epochs=10)
# for x, y in private:
#     losses = F.cross_entropy(model(x), y, reduction="none")
#     private.step(losses)
# run = private.finish()
# print(run.statement())

_STEPPING: set[int] = set()
"""The optimisers, by identity, whose step is being taken on noised gradients."""


def _refuse_by_hand(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Called before every step of a bound optimiser."""
    if id(optimizer) not in _STEPPING:
        raise InvalidInput(
            "the optimiser is bound to a private run: step(losses) of that run takes its step, on noised gradients. "
            "backward() and optimizer.step() by hand would train on the gradients of the data themselves: leave them "
            "out."
        )


_CERTAIN = 3
"""So many micro-batches of the last step, and its last one, are tested for certain whether samples stay apart."""
LOOKS = 20
"""How often in a run the weights, which are released, are looked at: infinite ones end it."""


class Private:
    """A model, an optimiser and data, bound together by one `Plan`. Made by `make_private`.

    Iterating draws batches until the plan's steps are used up; every drawn batch is on the account before anybody sees
    it. `step` takes the per-sample losses of the batch just drawn, and no other. `finish` ends the run, and pays for
    the whole plan: also for one that was left early, because when to leave may have been chosen from what was seen.

    Args:
        optimizer: Takes the noised gradients.
        clipping: A policy, or a policy per layer.
        rng: Where batches and noise come from.
        users: Who owns each row, for a guarantee per person.
        microbatch: Samples at once, where memory is short.
        learning_rate: A rule that sets the optimiser's rate; None leaves it.
        augment: Changes a row that was drawn (`sordina.training.augmentation`).
        views: How often a unit is taken in a step, each time changed by ``augment``; their gradients are averaged.
        averaging: Which of the released weights are averaged; the average is what the run ends with.
        raw: Whether to compute statistics of raw data, which makes a run not releasable.
        public_buffers: Buffers, and parameters that are not trained, which change and hold nothing of the data.
        collate_fn: How rows become a batch.
        engine: One that watches the model already, from an earlier run on it: what it learned of the model holds on.
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
        augment: Augmentation | None = None,
        views: int = 1,
        averaging: Averaging | None = None,
        raw: bool = False,
        public_buffers: Sequence[str] = (),
        collate_fn: Collate | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.model, self.optimizer, self.plan = model, optimizer, plan
        self.rows = as_rows(data, collate_fn)
        if microbatch is not None:
            check_whole("microbatch", microbatch)
        self.users, self.microbatch, self.rng = users, microbatch, rng
        if users is not None and len(np.asarray(users.owners)) != self.rows.size:
            raise InvalidInput(f"owners name {len(np.asarray(users.owners))} rows but the data has {self.rows.size}.")
        if augment is not None or views != 1:
            check_augmentation(augment, views, blank_batch(self.rows)[0], self.rows.source)
        self.augment, self.views = augment, views
        self.team = team()
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        parts = arrange(clipping, names)
        groups = [part.names for part in parts]
        if engine is not None and (
            engine.model is not model or engine.group_names != [tuple(names) for names in groups]
        ):
            raise InvalidInput("the engine watches another model, or clips other parameters together: make it anew.")
        self.engine = (engine or Engine(model, groups, public_buffers)) if plan.private else None
        self.stirs = lambda: readings(self.rows, augment)
        if self.engine is not None:
            self.engine.read_beside(self.stirs)
        parameters = dict(model.named_parameters())
        self._parameters = [[parameters[name] for name in part.names] for part in parts]
        self._ours = {id(parameter) for members in self._parameters for parameter in members}
        self._refuse_strangers()
        if plan.private:
            refuse_listeners(optimizer, model)
        sizes = [sum(parameter.numel() for parameter in members) for members in self._parameters]
        self.private_step = PrivateStep(plan, parts, sizes, self.team)
        self.account = Account(plan.accountant, plan.adjacency)
        self.rule = learning_rate
        self.last_steps = LastSteps(plan.steps)
        self._base_rates = [group["lr"] for group in optimizer.param_groups]
        matrices = sum(one.dim() > 1 for members in self._parameters for one in members)
        self.start = Start(
            plan.steps, self._base_rates[0], sum(sizes), typical_size(model), matrices, plan.adds_up,
            turning_length(model),
        )  # fmt: skip
        self.rate_state = learning_rate.init(self.start) if learning_rate else None
        trained = [one for members in self._parameters for one in members]
        self.average = None if averaging is None else WeightAverage(averaging, trained, plan.steps)
        self.steps_taken, self.trained_steps, self.lost_steps = 0, 0, 0
        """Steps on the account; steps whose result is in the weights; steps paid for whose result a crash took."""
        self.clipping = policy_facts(clipping)
        self.public_buffers = tuple(public_buffers)
        self._untrained = UntrainedState(model, self.public_buffers) if plan.private else None
        self._held = HeldWeights({name: parameters[name] for part in parts for name in part.names})
        if self.engine is not None:
            self.engine.on_call = self.hold
        self.tested: list[RemovalSchedule] = []
        """Whose time comes, for certain, with the last batch: what began late must not go unseen."""
        self.kept: Callable[[], Callable[[], None]] = lambda: Attributes(model).restore
        """Remembers what the model (and the loss) keeps, and gives what puts it back."""
        self.own_loop = True
        self.history: list[dict[str, Any]] = []
        self.on_step: Callable[[], None] | None = None
        """Called after every step, also one whose batch was empty: it must not show that it was."""
        self.keeper: RunKeeper | None = None
        self.journal: Journal | None = None
        self.block = BLOCK
        self.earlier = Earlier.of(model)
        self._run: Run | None = None
        self._begun = time.perf_counter()
        self.raw: dict[str, float] | None = {} if raw else None
        self._expected: MicroBatch | None = None
        self._by_hand = optimizer.register_step_pre_hook(_refuse_by_hand) if plan.private else None
        self.chance = SecretChance(model, self.rows.source, self.rows.collate, augment)
        self._charged = plan.charged
        self._divided: Indices | None = None
        """Whose turn is when, for noise that is correlated over steps: as secret as who is in a batch."""
        self._drawn_batches = 0
        """Of this process: a loop that another one has overtaken goes no further."""
        self._process = os.getpid()

    @property
    def epsilon(self) -> float:
        """What a model that leaves this loop costs, whenever it leaves: see `guarantee`."""
        return self.guarantee.epsilon

    @property
    def guarantee(self) -> Guarantee:
        """The claim that holds however the loop is left: that of the whole plan (`so_far`: of the steps taken)."""
        return self.plan.guarantee()

    @property
    def so_far(self) -> Guarantee:
        """What the steps taken cost. No claim for a run that was left early: the steps left out are not given back."""
        return spent(self.plan, self.account)

    def statement(self) -> str:
        """Which guarantee holds now, and which part of it was used, in a sentence."""
        if self._run is not None or not self.plan.private:
            return self.result().statement()
        return (
            f"{self.guarantee}, for the whole plan of {self.plan.steps} steps. {self.steps_taken} are on the account; "
            "a run that is left early pays for the plan: call finish()."
        )

    def __len__(self) -> int:
        """The planned steps. With micro-batches a step takes several iterations, with an empty batch none."""
        return self.plan.steps

    @property
    def releasable(self) -> bool:
        """False for a seeded run: who knows the seed can take the noise away."""
        return random.releasable(self.rng)

    def __iter__(self) -> Iterator[Any]:
        """Batches (or micro-batches), until the budget is used."""
        if self._run is not None and self.steps_taken < self.plan.steps:
            raise InvalidInput("this run has ended: bind model and data anew by make_private.")
        while self.steps_taken < self.plan.steps:
            pieces = self._draw()
            drawn, last = self._drawn_batches, self.steps_taken == self.plan.steps
            certain = _CERTAIN if last else 0
            if not pieces:
                self._complete_step()
            again: Callable[[], None] | None = None
            for piece in pieces:
                if last:
                    self.rows.schedule.force()
                readable = self.rows.readable(piece)
                if not readable:
                    self._complete(piece)
                for part, batch in readable:
                    if again is not None:
                        again()  # how many micro-batches there are depends on who was drawn: a step is counted once
                    elif len(pieces) > 1 or len(readable) > 1:
                        again = self.kept()
                    if drawn != self._drawn_batches:
                        raise InvalidInput(
                            "another loop over this run has drawn a batch since: what is left of this one adds nothing."
                        )
                    self._expected = part
                    if last and len(part.rows) > 1 and (certain > 0 or part.last):
                        self._test_for_certain()
                        certain -= 1
                    if self.engine is not None:
                        self.engine.expect(len(part.rows))
                    yield batch if self.augment is None else self._augmented(batch, self.augment)
                    if self._expected is not None:
                        raise InvalidInput(
                            "a batch was drawn but step(losses) was not called for it; its cost is on record."
                        )
            self._after_step()

    def hold(self) -> None:
        """The model is called: until the optimiser's step its trained parameters stay what they are."""
        if self._expected is not None:
            self._held.hold()

    def _test_for_certain(self) -> None:
        """Whether samples stay apart is tested on the next batch."""
        if self.engine is not None:
            self.engine.demand_tests()
        for schedule in self.tested:
            schedule.force()

    def _after_step(self) -> None:
        """What depends on the step's number and on released values only."""
        last = self.steps_taken == self.plan.steps
        if self.trained_steps == 1 and not last:
            self.check_untrained()  # what a loop writes in every step is refused before all are spent
        if last or self.steps_taken % max(1, self.plan.steps // LOOKS) == 0:
            self._refuse_infinite_weights()
        if self.on_step is not None:
            self.on_step()
        if self.keeper is not None:
            self.keeper.after_step(last=last)

    def _refuse_infinite_weights(self) -> None:
        if not all(finite(parameter) for members in self._parameters for parameter in members):
            raise TrainingFailed(
                f"the weights are no longer finite after step {self.steps_taken}, so training stopped. Lower the "
                "learning rate."
            )

    def book(self, steps: int) -> None:
        """Put steps on the account until ``steps`` are on it, but never more than the plan has.

        Args:
            steps: How many steps are to be on the account.
        """
        steps = min(steps, self.plan.steps)
        if steps > self.steps_taken:
            if self.steps_taken == 0 and self.plan.before is not None:
                self.account.record(self.plan.before)
            (event, before), (_, after) = self._charged(self.steps_taken), self._charged(steps)
            if after > before:
                self.account.record(event, after - before)
            self.steps_taken = steps

    def book_lost(self, claimed: int) -> None:
        """Put steps on the account that somebody may have seen and that are lost, up to where noise can begin anew.

        Correlated noise begins anew at the next turn (`sordina.mechanisms.correlated`, breaks): the noise of the steps
        before it is gone, as it must never be written down.

        Args:
            claimed: The journal's word on how many steps may have been taken.
        """
        turn = self.plan.turn
        self.book(-(-max(claimed, self.steps_taken) // turn) * turn if claimed or self.steps_taken else 0)

    def renew_chance(self) -> None:
        """Code of the user's ran between two steps: what it may have seeded is seeded in secret again."""
        if self.plan.private and self.releasable:
            self.chance.renew()

    def _draw(self) -> list[MicroBatch]:
        """Book the next step, then draw its units; what could not be trained is refused before anything is spent."""
        if os.getpid() != self._process:
            raise InvalidInput(
                "this process was forked from the one that began the run: both would draw its steps, and one is paid "
                "for. Go on in that one."
            )
        if self.engine is not None:
            self.engine.ready(self._parameters)
        if self.journal is not None:
            self.journal.claim(self.steps_taken + 1, self.plan.steps, block=self.block)
        if self.plan.private and self.releasable and torch.initial_seed() != self.chance.seed:
            self.chance.renew()
        self.earlier.begin(self.plan, self.account)
        first = self.steps_taken == 0
        self.book(self.steps_taken + 1)
        self._expected = None
        self._held.drop()
        self._drawn_batches += 1
        self.private_step.begin(self.rng)
        self._find_components(first=first)
        table = None
        if self.team.leads:
            table = self._drawn(len(self.users) if self.users else self.rows.size)
            if self.users is not None:
                table = self.users.rows(table, self.rng)
        portion = self.team.portion(self.team.share(table))
        if self.views > 1:  # a unit of as many rows, all its own: averaged before it is clipped
            portion = np.repeat(portion.reshape(len(portion), -1), self.views, axis=1)
        return split(portion, self.microbatch)

    def _find_components(self, *, first: bool) -> None:
        """With the first step on the account: what the model's first layer needs of the data, once (`components`)."""
        layer = components_of(self.model)
        if layer is None:
            return
        if self.plan.private and (self.plan.before is None or not first):
            raise InvalidInput("the principal components of the model's first layer are not paid for by this run.")
        self.check_untrained()
        if self.team.leads:
            find_components(layer, self.rows, self.plan.before, self.rng)
        self.team.agree(layer.weight.detach())
        layer.released.fill_(True)
        self.check_untrained(restored=True)  # from here on
        if self.keeper is not None:
            self.keeper.save()

    @property
    def components_lost(self) -> bool:
        """Whether components may have been released and were lost in a crash: a second release is not paid for."""
        return self.plan.before is not None and self.steps_taken > 0 and components_of(self.model) is not None

    def _drawn(self, size: int) -> Indices:
        """The units of the step just booked."""
        sampler = self.plan.sampler
        if not isinstance(sampler, CyclicPoisson):
            return sampler.draw(size, self.rng)
        if self._divided is None:
            self._divided = sampler.divide(size, self.rng)
        return sampler.draw_part(self._divided, self.steps_taken - 1, self.rng)

    def noise_state(self) -> dict[str, Any] | None:
        """What a *seeded* run with correlated noise must remember to be repeated bit for bit."""
        if self.plan.turn == 1 and self.plan.noise is None:
            return None
        return {
            "past": [None if one is None else one.state() for one in self.private_step.past],
            "divided": None if self._divided is None else torch.from_numpy(self._divided),
        }

    def load_noise(self, state: dict[str, Any] | None) -> None:
        """Go on from `noise_state`.

        Args:
            state: What it gave.
        """
        if state is not None:
            for one, kept in zip(self.private_step.past, state["past"], strict=True):
                if one is not None:
                    one.load(kept)
            self._divided = None if state["divided"] is None else state["divided"].numpy()

    def _augmented(self, batch: Any, augment: Augmentation) -> Any:
        return augmented(batch, augment, int(self.rng.integers(2**63)))

    def step(self, losses: Tensor) -> bool:
        """Take the per-sample ``losses`` of the batch just drawn; true when this completed an optimiser step."""
        piece, self._expected = self._expected, None
        if piece is None:
            raise InvalidInput("step(losses) goes with a batch just drawn, once: iterate over the private object.")
        check_losses(losses, len(piece.rows))
        if piece.weights is not None:
            losses = losses * piece.weights.to(losses)
        if self.engine is None:
            torch.autograd.backward(losses.sum() / self.plan.sampler.expected_batch_size)
        else:
            try:
                tape = self.engine.record(losses, rows_per_unit=piece.rows_per_unit)
                if self.raw is not None:
                    self.raw = raw_statistics(losses, tape.scalars().norms, self.private_step.thresholds[0])
                self.private_step.absorb(tape)
            except BaseException:
                self._expected = piece  # nothing was added: the batch may come again without what fails
                raise
            del tape  # with all it holds of the backward pass, before the noise needs room
            if self.own_loop and self._held.few:  # between the pieces of a step it is the user's turn
                self._held.check()
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
            self._complete_step()
        return piece.last

    def _complete_step(self) -> None:
        self.trained_steps += 1
        if self.engine is None:
            self._complete_without_privacy()
        else:
            self._complete_with_noise()
        if self.average is not None:
            self.average.add(self.steps_taken)

    def averaged(self) -> AbstractContextManager[None]:
        """A context in which the model has the weights that the run would end with now: their average, if asked for."""
        return nullcontext() if self.average is None else self.average.shown()

    def _complete_with_noise(self) -> None:
        self._held.check()
        released = self.private_step.finish(widen(self._parameters[0][0].detach().new_empty(0)), self.rng)
        means = [answer.used_up() for answer in released]
        for mean, members in zip(means, self._parameters, strict=True):
            _give_gradients(mean, members)
        self._set_learning_rate(released, means)
        self._step_optimizer()
        for members in self._parameters:
            for parameter in members:
                parameter.grad = None

    def _step_optimizer(self) -> None:
        """The optimiser's step, on noised gradients and nothing else."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._ours:
                    parameter.grad = None
        _STEPPING.add(id(self.optimizer))
        try:
            self.optimizer.step()
        finally:
            _STEPPING.discard(id(self.optimizer))

    def _refuse_strangers(self) -> None:
        """Parameters of the optimiser that are not the model's would get gradients without noise, or none."""
        groups = self.optimizer.param_groups
        strangers = sum(one.requires_grad and id(one) not in self._ours for group in groups for one in group["params"])
        if strangers and self.plan.private:
            raise InvalidInput(
                f"{strangers} of the optimiser's parameters are not the model's, so no noise would be added for them. "
                "Make them part of the model, or leave them out of the optimiser."
            )

    def _complete_without_privacy(self) -> None:
        for members in self._parameters:
            for parameter in members:
                if self.team.size > 1:
                    parameter.grad = self.team.add(
                        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def check_untrained(self, *, restored: bool = False) -> None:
        """Refuse to save a model in which anything but trained parameters has changed (`UntrainedState`).

        Args:
            restored: The state was read from a checkpoint, where it was checked, or released: compare with this one.
        """
        if self._untrained is not None and restored:
            self._untrained = UntrainedState(self.model, self.public_buffers)
        elif self._untrained is not None:
            self._untrained.check(self.model)

    def finish(self) -> Run:
        """End the run and say what it cost: the whole plan. Saves and settles where a folder and a ledger were given.

        May be called again: a run ends once.
        """
        if self._run is None:
            self.check_untrained()
            self.book(self.plan.steps)
            if self.average is not None:
                self.average.adopt()
            run = replace(self.result(), weights=weights_digest(self.model))
            if self.keeper is not None:
                self.keeper.finish(run)
            self.close()
            self._run = run
        return self._run

    def result(self) -> Run:
        """The run as it stands: its guarantee is that of the steps on the account."""
        if self._run is not None:
            return self._run
        return Run(
            self.model, self.plan, self.account, self.steps_taken, self.clipping, self.releasable,
            time.perf_counter() - self._begun, self.history, lost_steps=self.lost_steps, own_loop=self.own_loop,
            earlier=self.earlier.guarantees(), public_buffers=self.public_buffers,
            own_items=self.rows.own, unknown_optimizer=None if known(self.optimizer) else type(self.optimizer).__name__,
        )  # fmt: skip

    def save(self, folder: str | Path) -> Path:
        """End the run and write model, metrics and guarantee into ``folder``.

        Args:
            folder: A folder that holds no run yet; not needed where `make_private` was given one.
        """
        return self.finish().save(folder)

    def close(self) -> None:
        """Leave the model as it was found and let go of the folder; a run that has not ended can be resumed."""
        if self.engine is not None:
            self.engine.close()
        if self._by_hand is not None:
            self._by_hand.remove()
        if self.keeper is not None:
            self.keeper.close()

    def __enter__(self) -> Private:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
            return
        if self.keeper is not None and self._run is None:
            self.keeper.failed(error)
        self.close()

    def _set_learning_rate(self, released: list[Released], means: list[Tensor]) -> None:
        noise = max(answer.noise[0] / answer.divisor for answer in released)
        if self.rule is not None and self.rate_state is not None:
            gradient = means[0] if len(means) == 1 else torch.cat(means)
            self.rate_state = self.rule.adapt(self.rate_state, gradient, noise, self._typical_norm())
            if isinstance(self.rule, AutomaticRate) and self.plan.noise is None and len(means) == 1:
                self.last_steps.take(self.steps_taken, gradient, noise)
        for group, base in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            if self.rule is not None and self.rate_state is not None:
                group["lr"] = self.rule.learning_rate(self.rate_state, base)
            if "noise" in group:
                group["noise"] = noise

    def _typical_norm(self) -> ReleasedNorm | None:
        """What the policy released of it; nothing where every layer has a policy of its own."""
        step = self.private_step
        return released_norm(step.parts[0].policy, step.states[0]) if len(step.parts) == 1 else None


def _give_gradients(vector: Tensor, parameters: list[nn.Parameter]) -> None:
    parts = torch._utils._unflatten_dense_tensors(vector, parameters)  # type: ignore[no-untyped-call]
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.to(parameter.dtype)  # noised already: weights in bfloat16 take it rounded
