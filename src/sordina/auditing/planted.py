"""Mistakes of the library itself, planted while a check runs that must then fail (`sordina.auditing.self_audit`).

Each is one that was found in this library by attack, or a relative of one. Those of `sordina.auditing.faults` spoil one
run; these replace a function of the library while the check runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from sordina.accounting.search import search_noise
from sordina.auditing import faults, self_checks
from sordina.auditing.self_checks import Check
from sordina.clipping import Fixed
from sordina.errors import TrainingFailed
from sordina.federated.messages import Outcome
from sordina.federated.privacy import local
from sordina.gradients.explicit import MatrixTape
from sordina.gradients.tape import GhostTape
from sordina.random import generators
from sordina.seam import Scalars, VectorQuery
from sordina.training import losses, noise, step

Plant = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class PlantedFault:
    """A fault, and the check that must notice it."""

    name: str
    check: Check
    plant: Plant = nullcontext


def _small_norms(factor: float, kind: type[Any]) -> Plant:
    genuine = kind.scalars

    def scalars(self: Any, *arguments: Any) -> Scalars:
        found: Scalars = genuine(self, *arguments)
        return replace(found, norms=found.norms * factor)

    return lambda: patch.object(kind, "scalars", scalars)


def _rolled_weights() -> AbstractContextManager[Any]:
    """The coefficient of one record is applied to its neighbour."""
    genuine = GhostTape._weights
    return patch.object(GhostTape, "_weights", lambda self, own: genuine(self, own).roll(1))


def _plain_floats(values: Tensor, sigma: float, rng: np.random.Generator) -> Tensor:
    drawn = rng.standard_normal(tuple(values.shape), np.float32)
    return values.add_(torch.from_numpy(drawn).to(values), alpha=sigma)


def _less_noise(factor: float) -> Callable[[Tensor, float, np.random.Generator], Tensor]:
    genuine = noise.add_noise
    return lambda values, sigma, rng: genuine(values, factor * sigma, rng)


def _stopping_sums(tape: Any, queries: Any, direction: Any, group: int) -> list[Tensor]:
    """What stood here before: a sum that is not finite stops the run."""
    answers: list[Tensor] = tape.contract(queries, direction, group)
    if not all(bool(answer.isfinite().all()) for answer in answers) or not bool(tape.scalars().norms.isfinite().all()):
        raise TrainingFailed("a gradient is not finite.")
    return answers


def _unfiltered(vectors: Tensor, clip: float) -> Tensor:
    norms = vectors.norm(dim=1, keepdim=True)
    shrunk: Tensor = vectors * (clip / norms).clamp(max=1.0)
    return shrunk


@contextmanager
def _diverged_shows() -> Iterator[None]:
    """Three things have to fail before it shows: the client's own check, the clipping and the noise."""
    plain = patch.object(local, "add_noise", _plain_floats)
    with patch.object(local, "_shrink", _unfiltered), patch.object(Outcome, "steady", lambda self: self), plain:
        yield


@contextmanager
def _any_loss() -> Iterator[None]:
    """Nothing is tried or compared before the loss is called: (n, 1) and (n,) become (n, n), then a mean of rows."""
    with patch.object(losses, "_refuse_mixing", lambda *_: None):
        yield


def _cheap_runs(name: str) -> Check:
    """A search whose runs have a third of the noise that a run alone would need."""
    genuine = search_noise

    def cheap(make_event: Any, budget: Any, runs: int, **options: Any) -> Any:
        found = genuine(make_event, budget, runs, **options)
        alone = genuine(make_event, budget, 1, method="composition")
        return replace(found, noise_multiplier=alone.noise_multiplier / 3)

    inner = self_checks.search_check(name)

    def check(rng: np.random.Generator) -> self_checks.CheckResult:
        with patch.object(self_checks, "search_noise", cheap):
            return inner(rng)

    return check


def _twice(norms: Tensor, threshold: float) -> Tensor:
    """Clips to twice the threshold that is stated."""
    return (2 * threshold / norms.clamp(min=1e-30)).clamp(max=1.0)


def _own_everything(self: Any, scalars: Scalars, state: None) -> tuple[VectorQuery, ...]:
    return (VectorQuery(_twice(scalars.norms, self.C)),)


def planted_faults() -> tuple[PlantedFault, ...]:
    """All of them, with what must catch them."""
    training = [
        PlantedFault(name, self_checks.policy_check("fixed", sampling="every record", plant=faults.FAULTS[name]))
        for name in ("no-noise", "half-noise", "no-clipping")
    ]
    layers = {name: self_checks.layer_check(name) for name in ("Linear", "Conv2d", "Embedding", "LSTM", "LayerNorm")}
    return (
        *training,
        PlantedFault("raw-threshold", self_checks.one_canary_check("threshold", faults.FAULTS["raw-threshold"])),
        PlantedFault("sticky-sampler", self_checks.sticky_check(faults.FAULTS["sticky-sampler"])),
        *[PlantedFault(f"norms of {k} too small", c, _small_norms(0.7, GhostTape)) for k, c in layers.items()],
        *[PlantedFault(f"weights of {k} go to a neighbour", c, _rolled_weights) for k, c in layers.items()],
        PlantedFault("users clipped too late", self_checks.users_check, _small_norms(0.7, GhostTape)),
        PlantedFault(
            "a policy clips to twice its threshold",
            self_checks.layer_check("Linear"),
            lambda: patch.object(Fixed, "ask", _own_everything),
        ),
        PlantedFault("clients clip too late", self_checks.placement_check("central"), _small_norms(0.2, MatrixTape)),
        PlantedFault(
            "half of the local noise",
            self_checks.placement_check("local"),
            lambda: patch.object(local, "add_noise", _less_noise(0.5)),
        ),
        PlantedFault(
            "half of the record noise",
            self_checks.placement_check("record"),
            lambda: patch.object(local, "add_noise", _less_noise(0.5)),
        ),
        PlantedFault(
            "half of the server's noise",
            self_checks.placement_check("central"),
            lambda: patch.object(noise, "add_noise", _less_noise(0.5)),
        ),
        PlantedFault("a client announces that it diverged", self_checks.diverged_check, _diverged_shows),
        PlantedFault("too little noise in a search", _cheap_runs("composition")),
        PlantedFault("too little noise in a stopped search", _cheap_runs("random-stopping")),
        PlantedFault(
            "one record stops the run",
            self_checks.one_record_check,
            lambda: patch.object(step, "_finite_sums", _stopping_sums),
        ),
        PlantedFault("losses broadcast", self_checks.losses_check, _any_loss),
        PlantedFault(
            "epsilon from the plan, not from the noise",
            self_checks.account_check,
            lambda: patch.object(step.PrivateStep, "_refuse_other_noise", lambda self: None),
        ),
        PlantedFault(
            "noise of plain floats", self_checks.noise_check, lambda: patch.object(noise, "add_noise", _plain_floats)
        ),
        PlantedFault(
            "noise that is three per cent too small",
            self_checks.noise_check,
            lambda: patch.object(noise, "add_noise", _less_noise(0.97)),
        ),
        PlantedFault(
            "a fork repeats the stream",
            self_checks.fork_check,
            lambda: patch.object(generators.SecureGenerator, "_refresh", lambda self: None),
        ),
    )
