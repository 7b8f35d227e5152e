"""`make_private`: bind model, optimiser and data to a budget, for people who own their loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sordina import randomness
from sordina.accounting.ledger import Ledger
from sordina.arguments import checked
from sordina.clipping import Online, Policy
from sordina.clipping.per_layer import PerLayer
from sordina.errors import InvalidInput
from sordina.sampling import FixedSize, Poisson, Sampler, Users
from sordina.training.batches import Collate, as_rows
from sordina.training.keeping import RunKeeper
from sordina.training.plan import check_steps, check_whole, make_plan
from sordina.training.private import Private
from sordina.training.rate import Rate
from sordina.types import Budget, Unit

MOST_EPOCHS = 1e12


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
    population = units if population is None else check_whole("population", population)
    sampler = make_sampler(sampling, batch_size, population)
    if steps is None:
        if isinstance(epochs, bool) or not isinstance(epochs, (int, float, np.number)) or not 0 < epochs < MOST_EPOCHS:
            raise InvalidInput(f"epochs must be positive and at most {MOST_EPOCHS:.0e}, got {epochs!r:.40}.")
        steps = max(1, round(float(epochs) * population / batch_size))
    check_steps(steps)
    return sampler, steps


@checked
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
    public_buffers: Sequence[str] = (),
    seed: int | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    ledger: Ledger | None = None,
    dataset_budget: str | None = None,
    checkpoint_every: int | None = None,
    collate_fn: Collate | None = None,
) -> Private:
    """Bind ``model``, ``optimizer`` and ``data`` to a budget; iterate over the result, call ``step``, then ``finish``.

    Args:
        model: What is trained; its per-sample gradients are clipped.
        optimizer: Any ``torch.optim`` optimiser over the model's parameters.
        data: A TensorDataset, a tuple of tensors, or a map-style Dataset.
        budget: What the whole run may cost.
        batch_size: The expected size of a batch.
        epochs: Passes over the data, on average.
        steps: Optimiser steps, instead of ``epochs``.
        clipping: The policy; left out, `sordina.clipping.Online`.
        sampling: "poisson" (add-remove neighbours) or "fixed-size" (replace-one neighbours).
        population: The public number of units that the sampling rate is computed from; left out, the size of the data
            is taken, and thereby treated as public.
        users: Who owns which row, for privacy of users instead of records.
        noise_multiplier: More noise than the budget needs; less is refused.
        accountant: Who judges the cost.
        microbatch: Units held in memory at once.
        learning_rate: A rule that sets the optimiser's rate from released values.
        raw: Collect statistics that are NOT private (`sordina.training.raw`).
        public_buffers: Names of buffers that a forward pass may change, because what they hold does not depend on the
            data (a count of steps). Any other buffer that changes is refused.
        seed: Repeatable noise; such a model must not be released.
        folder: Where model, checkpoints and guarantee are kept; a killed run goes on from there.
        resume: Go on with the run in ``folder``; its settings must be the same.
        ledger: Where the whole price is reserved before the first batch is drawn, and settled by ``finish``.
        dataset_budget: The ledger's data set to book on.
        checkpoint_every: Steps between checkpoints; left out, as often as is cheap.
        collate_fn: What makes a batch of a list of items, for data sets of items of different sizes.
    """
    for name, rule in (("clipping", clipping), ("learning_rate", learning_rate)):
        if not (rule is None or isinstance(rule, PerLayer) or callable(getattr(rule, "init", None))):
            raise InvalidInput(
                f"{name} is a rule of sordina.clipping or sordina.training, got a {type(rule).__name__}."
            )
    units = len(users) if users is not None else as_rows(data).size
    if not units:
        raise InvalidInput("the data are empty: there is nobody to train on.")
    sampler, steps = make_schedule(
        units, batch_size=batch_size, epochs=epochs, steps=steps, sampling=sampling, population=population
    )
    unit = Unit.RECORD if users is None else Unit.USER
    plan = make_plan(budget, sampler, steps, unit=unit, accountant=accountant, noise_multiplier=noise_multiplier)
    private = Private(
        model, optimizer, data, plan, clipping or Online(),
        rng=randomness.generator(seed), users=users, microbatch=microbatch, learning_rate=learning_rate,
        raw=raw, public_buffers=public_buffers, collate_fn=collate_fn,
    )  # fmt: skip
    if folder is not None or ledger is not None or dataset_budget is not None or resume:
        private.keeper = RunKeeper.open(
            private, folder=folder, resume=resume, ledger=ledger, dataset_budget=dataset_budget,
            checkpoint_every=checkpoint_every, settings={"loop": "own"},
        )  # fmt: skip
    return private
