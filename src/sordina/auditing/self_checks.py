"""What the library claims of its parts, as checks that can fail: the rows of ``sordina audit self``.

Two kinds. A *removal* check computes the clipped sum with and without a record and compares the distance with the bound
that the noise is scaled to: no chance is involved. A *canary* check draws what would be released, with many canaries in
by coins, and asks whether somebody who sees it tells them apart better than the claimed event allows
(`sordina.auditing.bounds.refuted`), at a confidence of `CONFIDENCE`.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordina import random
from sordina.accounting import Event, Gaussian, RandomStopping, draw_runs
from sordina.accounting.calibration import search_noise
from sordina.auditing.bounds import best_threshold, rates_at, refuted
from sordina.auditing.canaries import CanaryTrial, Trace, Trial, blind_split, energy, likelihood
from sordina.auditing.scores import BoolArray, FloatArray, Scores
from sordina.clipping import NAMES, Fixed, Part, Policy, named
from sordina.errors import InvalidInput
from sordina.federated.messages import ClientResult
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.local import Local, RecordNoise
from sordina.gradients import Engine
from sordina.mechanisms import BandedNoise, LambdaCGD
from sordina.privacy import Adjacency, Budget, Unit
from sordina.private_step import PrivateStep, release
from sordina.sampling import CyclicPoisson, FixedSize, Poisson, Users
from sordina.training import Plan, Private, Trainer, make_plan
from sordina.training.losses import per_sample

CONFIDENCE = 1 - 1e-4
"""Of each canary check: with a hundred of them, a false alarm in one self-audit of a hundred."""
_ROUNDING = 1e-4
_DELTA = 1e-5


@dataclass(frozen=True)
class CheckResult:
    """One row: whether the claim held, and what was seen."""

    name: str
    holds: bool
    detail: str


Check = Callable[[np.random.Generator], CheckResult]


def layer_models() -> dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]]:
    """A small model and four records for every layer that has a rule."""
    vectors, images = (lambda: torch.randn(4, 6)), (lambda: torch.randn(4, 4, 6, 6))
    rows, cubes = (lambda: torch.randn(4, 4, 6)), (lambda: torch.randn(4, 4, 3, 3, 3))
    words = lambda: torch.tensor([[1, 1, 1], [2, 3, 1], [4, 0, 2], [0, 3, 4]])  # noqa: E731
    return {
        "Linear": (lambda: nn.Linear(6, 5), vectors),
        "LayerNorm": (lambda: nn.LayerNorm(6), vectors),
        "RMSNorm": (lambda: nn.RMSNorm(6), vectors),
        "GroupNorm": (lambda: nn.GroupNorm(2, 4), images),
        "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4, affine=True), rows),
        "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True), images),
        "InstanceNorm3d": (lambda: nn.InstanceNorm3d(4, affine=True), cubes),
        "BatchNorm1d": (lambda: nn.Sequential(nn.BatchNorm1d(4).eval()), rows),
        "BatchNorm2d": (lambda: nn.Sequential(nn.BatchNorm2d(4).eval()), images),
        "BatchNorm3d": (lambda: nn.Sequential(nn.BatchNorm3d(4).eval()), cubes),
        "Embedding": (lambda: nn.Embedding(5, 6), words),
        "EmbeddingBag": (lambda: nn.EmbeddingBag(5, 6, mode="sum"), words),
        "Conv1d": (lambda: nn.Conv1d(4, 3, 3), rows),
        "Conv2d": (lambda: nn.Conv2d(4, 3, 3, padding=1), images),
        "Conv3d": (lambda: nn.Conv3d(4, 2, 2), cubes),
        "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 3, 3), rows),
        "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 3, 3), images),
        "ConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 2, 2), cubes),
        "MultiheadAttention": (lambda: _Attention(), rows),
        "LSTM": (lambda: _First(nn.LSTM(6, 3, batch_first=True)), rows),
        "GRU": (lambda: _First(nn.GRU(6, 3, batch_first=True)), rows),
        "RNN": (lambda: _First(nn.RNN(6, 3, batch_first=True)), rows),
        "LSTMCell": (lambda: _Unrolled(nn.LSTMCell(6, 3)), rows),
        "GRUCell": (lambda: _Unrolled(nn.GRUCell(6, 3)), rows),
        "RNNCell": (lambda: _Unrolled(nn.RNNCell(6, 3)), rows),
    }


class _First(nn.Module):
    """The outputs of a recurrent layer, without its state."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x)[0]
        return outputs


class _Unrolled(nn.Module):
    """A recurrent cell over the places of a sequence, one after the other: its last hidden state."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for place in x.unbind(1):
            state = self.cell(place, state)
        hidden: Tensor = state[0] if isinstance(state, tuple) else state
        return hidden


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x, x, x)[0]
        return outputs


def layer_check(name: str) -> Check:
    """Through the rule of one layer, no record moves the clipped sum by more than the threshold."""

    def check(rng: np.random.Generator) -> CheckResult:
        torch.manual_seed(int(rng.integers(1 << 31)))
        make, draw = layer_models()[name]
        model, x = make(), draw()
        if x.is_floating_point():
            x[0] *= 30
        engine = Engine(model, [[key for key, _ in model.named_parameters()]])
        policy = Fixed(1.0)

        def total(rows: list[int]) -> Tensor:
            outputs = model(x[rows]).flatten(1)
            tape = engine.record((outputs.square() * 100 + outputs).sum(1))
            (answer,) = tape.contract(policy.ask(tape.scalars(), None))
            return answer

        everybody = list(range(len(x)))
        whole = total(everybody)
        moved = max(float((whole - total([j for j in everybody if j != i])).norm()) for i in everybody)
        engine.close()
        return _bounded(f"layer {name}", moved)

    return check


def _bounded(name: str, moved: float) -> CheckResult:
    return CheckResult(name, moved <= 1 + _ROUNDING, f"a record moves the sum by {moved:.6f} of its bound")


def policy_check(
    name: str, *, sampling: str = "poisson", plant: Callable[[Private], None] | None = None, canaries: int = 1500
) -> Check:
    """Canary gradients through a clipping policy, a sampler and the private step."""

    def check(rng: np.random.Generator) -> CheckResult:
        plan, policy = _training_plan(sampling, canaries), named(name, None)
        if name == "sector":
            plan = make_plan(Budget(4.0, _DELTA), FixedSize(canaries + 8, canaries + 8), 1)
        return canary_check(f"{sampling}, {name}", CanaryTrial(plan, policy, canaries=canaries, fault=plant), rng)

    return check


def _training_plan(sampling: str, canaries: int) -> Plan:
    if sampling == "fixed-size":
        return make_plan(Budget(4.0, _DELTA), FixedSize(canaries + 8, canaries + 8), 1)
    if sampling == "every record":
        return make_plan(Budget(4.0, _DELTA), Poisson(100, 100), 1)
    return make_plan(Budget(6.0, _DELTA), Poisson(25, 100), 2)


def canary_check(name: str, trial: Trial, rng: np.random.Generator, event: Event | None = None) -> CheckResult:
    """One training with each canary in by a coin; ``event`` is the claim, where it is not the plan's."""
    included = rng.random(trial.canaries) < 0.5
    scores = likelihood(trial(included, rng), trial.plan)
    return judge(name, *blind_split(scores, included, rng), event or trial.plan.event(), trial.plan.adjacency)


def judge(name: str, tuning: Scores, report: Scores, event: Event, adjacency: Adjacency) -> CheckResult:
    """Whether the report's scores tell members from others no better than ``event`` allows."""
    threshold = best_threshold(tuning, lambda rates: rates.gap, 0.95)
    rates = rates_at(report, threshold, CONFIDENCE)
    detail = f"TPR >= {float(rates.tpr[0]):.3f}, FPR <= {float(rates.fpr[0]):.3f}"
    return CheckResult(name, not refuted(rates, event, adjacency), detail)


def one_canary_check(name: str, plant: Callable[[Private], None] | None = None, runs: int = 160) -> Check:
    """One canary in every other of many runs: what a threshold or noise that reacts to the data would show."""

    def check(rng: np.random.Generator) -> CheckResult:
        trial = CanaryTrial(make_plan(Budget(4.0, _DELTA), Poisson(100, 100), 1), fault=plant)
        present = np.arange(runs) % 2 == 0
        traces = [trial(np.array([flag]), rng) for flag in present]
        found = []
        for observe in (likelihood, energy):
            scores = np.array([float(observe(trace, trial.plan)[0]) for trace in traces])
            halves = Scores(scores[present], scores[~present]).split(0.3, rng)
            found.append(judge(name, *halves, trial.plan.event(), trial.plan.adjacency))
        return min(found, key=lambda result: result.holds)

    return check


def sticky_check(plant: Callable[[Private], None] | None = None, runs: int = 160) -> Check:
    """One canary, sampled at a low rate: whether the sampler draws as rarely as it is accounted."""

    def check(rng: np.random.Generator) -> CheckResult:
        trial = CanaryTrial(make_plan(Budget(3.0, _DELTA), Poisson(10, 100), 10), fault=plant)
        present = np.arange(runs) % 2 == 0
        scores = np.array([float(likelihood(trial(np.array([flag]), rng), trial.plan)[0]) for flag in present])
        halves = Scores(scores[present], scores[~present]).split(0.3, rng)
        return judge("sampler, ten steps at rate 0.1", *halves, trial.plan.event(), trial.plan.adjacency)

    return check


def correlated_check(decay: float | None = None, canaries: int = 1500) -> Check:
    """Canaries through noise that is correlated over steps: banded and sampled, or by lambda-CGD of ``decay``."""

    def check(rng: np.random.Generator) -> CheckResult:
        noise = BandedNoise(2) if decay is None else LambdaCGD(decay)
        plan = make_plan(Budget(6.0, _DELTA), CyclicPoisson(50, 100, 2), 4, noise=noise)
        return canary_check(f"noise, {type(noise).__name__}", CanaryTrial(plan, canaries=canaries), rng)

    return check


def users_check(rng: np.random.Generator) -> CheckResult:
    """All rows of one person together move the clipped sum by no more than the threshold."""
    model = nn.Linear(4, 1, bias=False)
    rows = torch.tensor(rng.standard_normal((6, 4)) * 50, dtype=torch.float32)
    owners = Users(np.array([0, 0, 0, 1, 1, 2]), rows_per_user=3)
    engine = Engine(model, [["weight"]])

    def total(people: list[int]) -> Tensor:
        table = owners.rows(np.array(people), rng)
        inputs = rows[torch.from_numpy(np.maximum(table, 0)).flatten()]
        losses = model(inputs).flatten() * torch.from_numpy((table >= 0).astype(np.float32)).flatten()
        tape = engine.record(losses, rows_per_unit=table.shape[1])
        (answer,) = tape.contract(Fixed(1.0).ask(tape.scalars(), None))
        return answer

    moved = float((total([0, 1, 2]) - total([1, 2])).norm())
    engine.close()
    return _bounded("users", moved)


@dataclass(frozen=True)
class PlacementTrial:
    """Canary clients, one round, through the two halves of a placement."""

    kind: str
    plan: Plan
    canaries: int

    def __call__(self, included: BoolArray, rng: np.random.Generator) -> Trace:
        """What the server (local) or everybody (central) sees along every canary."""
        seen = self._central(included, rng) if self.kind == "central" else self._at_the_client(included, rng)
        return Trace(seen[None], np.zeros(1))

    def _central(self, included: BoolArray, rng: np.random.Generator) -> FloatArray:
        placement = Central(self.plan, Fixed(1.0))
        state = placement.start(self.canaries)
        vectors = 50 * torch.eye(self.canaries)[torch.from_numpy(included)]
        update = placement.seal(ClientResult(vectors, torch.ones(len(vectors))), state, rng)
        opened, _ = placement.open(update, state, rng)
        return np.asarray(opened.mean.double().numpy() * self.plan.sampler.expected_batch_size)

    def _at_the_client(self, included: BoolArray, rng: np.random.Generator) -> FloatArray:
        member = torch.from_numpy(included)
        vectors = torch.zeros(self.canaries, 4)
        nu = self.plan.noise_multiplier
        if self.kind == "local":
            vectors[:, 0] = torch.where(member, 50.0, -50.0)
            update = Local(1.0, nu, _DELTA, 1).seal(ClientResult(vectors, torch.ones(self.canaries)), None, rng)
            stretch = 2.0
        else:
            vectors[:, 0] = member.float()
            outcome = ClientResult(vectors, torch.ones(self.canaries), record_bound=1.0)
            update, stretch = RecordNoise(nu, _DELTA, 1).seal(outcome, None, rng), 1.0
        assert update.vectors is not None
        return np.asarray(update.vectors[:, 0].double().numpy() / stretch)


def placement_check(kind: str, canaries: int = 1500) -> Check:
    """Canary clients through central, local or record-level privacy."""

    def check(rng: np.random.Generator) -> CheckResult:
        sampler = FixedSize(100, 100) if kind == "local" else Poisson(100, 100)
        plan = make_plan(Budget(4.0, _DELTA), sampler, 1, unit=Unit.USER)
        return canary_check(f"placement {kind}", PlacementTrial(kind, plan, canaries), rng)

    return check


def diverged_check(rng: np.random.Generator) -> CheckResult:
    """A client whose update is not finite sends what any client would."""
    vectors = torch.zeros(3, 8)
    vectors[0], vectors[1] = math.nan, math.inf
    update = Local(1.0, 1.0, _DELTA, 1).seal(ClientResult(vectors, torch.ones(3)).steady(), None, rng)
    sent = update.vectors
    holds = sent is not None and sent.shape == vectors.shape and bool(sent.isfinite().all()) and not update.rejected
    return CheckResult("a client that diverged", holds, "sent like every other" if holds else "its message tells")


@dataclass(frozen=True)
class SearchTrial:
    """Canaries in every run of a search whose runs are all released."""

    plan: Plan
    canaries: int
    runs: int

    def __call__(self, included: BoolArray, rng: np.random.Generator) -> Trace:
        """The released gradients of all runs, one after the other."""
        one = CanaryTrial(replace(self.plan, steps=1), canaries=self.canaries)
        traces = [one(included, rng) for _ in range(self.runs)]
        return Trace(np.concatenate([t.projections for t in traces]), np.concatenate([t.energies for t in traces]))


def search_check(method: str, canaries: int = 1000, runs: int = 3) -> Check:
    """A search under one budget: all runs seen (composition), or the best of a random number (random stopping)."""

    def check(rng: np.random.Generator) -> CheckResult:
        budget, sampler = Budget(4.0, _DELTA), Poisson(100, 100)
        found = search_noise(lambda nu: sampler.event(Gaussian(nu)), budget, runs, method=method)
        if isinstance(found.event, RandomStopping):
            return _stopped_check(found.event, found.noise_multiplier, canaries * 4, rng)
        plan = Plan(sampler, runs, budget, found.noise_multiplier)
        return canary_check("search, composition", SearchTrial(plan, canaries, runs), rng, found.event)

    return check


def _stopped_check(event: RandomStopping, nu: float, trials: int, rng: np.random.Generator) -> CheckResult:
    """The canary's own score decides which run is the best: the worst that a choice can do."""
    members = rng.random(trials) < 0.5
    best = np.empty(trials)
    for i, member in enumerate(members):
        count = draw_runs(event, rng)
        best[i] = (member + nu * rng.standard_normal(count)).max() if count else 0.0
    halves = blind_split(best, members, rng)
    return judge("search, random stopping", *halves, event, Adjacency.ADD_REMOVE)


def one_record_check(rng: np.random.Generator) -> CheckResult:
    """Records that are NaN, infinite or huge neither stop a run nor reach the model."""
    torch.manual_seed(int(rng.integers(1 << 31)))
    x = torch.randn(20, 4)
    x[0], x[1], x[2] = math.nan, math.inf, 3e38
    model = nn.Linear(4, 2)
    plan = make_plan(Budget(8.0, _DELTA), Poisson(20, 20), 3)
    private = Private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), (x, torch.zeros(20, dtype=torch.long)), plan,
        Fixed(1.0), rng=rng,
    )  # fmt: skip
    try:
        for inputs, targets in private:
            private.step(F.cross_entropy(model(inputs), targets, reduction="none"))
        holds = all(bool(p.isfinite().all()) for p in model.parameters())
        detail = "nothing shows" if holds else "the model is not finite"
    except Exception as error:
        holds, detail = False, f"the run stopped: {type(error).__name__}"
    if private.engine is not None:
        private.engine.close()
    return CheckResult("records that are not finite", holds, detail)


def refused_record_check(rng: np.random.Generator) -> CheckResult:
    """A record on which the loss raises neither stops a run nor reaches the model."""
    name = "records that the loss refuses"
    torch.manual_seed(int(rng.integers(1 << 31)))
    targets = torch.zeros(20)
    targets[0] = 7.0
    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid(), nn.Flatten(0))
    trainer = Trainer(
        model, F.binary_cross_entropy, Budget(8.0, _DELTA), clipping=Fixed(1.0), batch_size=20, steps=3,
        learning_rate=0.1,
        noise_multiplier=3.0, track_epsilon=False,
    )  # fmt: skip
    try:
        trainer.fit((torch.randn(20, 4), targets))
    except Exception as error:
        return CheckResult(name, False, f"the run stopped: {type(error).__name__}")
    return CheckResult(name, True, "nothing shows")


def losses_check(rng: np.random.Generator) -> CheckResult:
    """A loss that pairs every output with every target is refused."""
    outputs, targets = torch.randn(5, 1), torch.randn(5)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            losses = per_sample(F.mse_loss)(outputs, targets)
    except InvalidInput:
        return CheckResult("losses that broadcast", True, "refused")
    return CheckResult("losses that broadcast", False, f"accepted, in shape {tuple(losses.shape)}")


@dataclass(frozen=True)
class _Cheap(Fixed):
    """Adds half of the noise that it should."""

    def split(self, noise_multiplier: float) -> tuple[float, ...]:
        return (noise_multiplier / 2,)


def account_check(rng: np.random.Generator) -> CheckResult:
    """A policy whose noise does not add up to the plan is refused, or what it costs is what is accounted."""
    plan = make_plan(Budget(4.0, _DELTA), Poisson(100, 100), 1)
    policy: Policy[Any] = _Cheap(1.0)
    try:
        step = PrivateStep(plan, [Part(("w",), policy)], [4])
    except InvalidInput:
        return CheckResult("noise that does not add up", True, "refused")
    holds = step.event() != plan.sampler.event(Gaussian(plan.noise_multiplier))
    return CheckResult("noise that does not add up", holds, "accounted as the plan's")


def noise_check(rng: np.random.Generator, size: int = 60_000) -> CheckResult:
    """Released values have the claimed scale, and their last bits do not tell whether anything was under them."""
    sigma = 1.37
    shares, scale = [], 0.0
    for value in (0.0, 0.137):
        (answer,) = release([torch.full((size,), value)], [1.0], [sigma], 1.0, rng).answers
        shares.append(_off_lattice(answer.numpy(), sigma))
        scale = float((answer.double() - value).std()) / sigma
    apart = abs(shares[0] - shares[1])
    holds = apart < 6 * math.sqrt(0.5 / size) and abs(scale - 1) < 6 / math.sqrt(2 * size)
    detail = f"off the floats' lattice: {shares[0]:.4f} over nothing, {shares[1]:.4f} over something; scale {scale:.4f}"
    return CheckResult("noise", holds, detail)


def _off_lattice(values: FloatArray, sigma: float) -> float:
    """The share of ``values`` that are no ``sigma z`` of a single-precision z."""
    z = (values / sigma).astype(np.float32)
    near = [z, np.nextafter(z, np.float32(np.inf)), np.nextafter(z, np.float32(-np.inf))]
    hit = np.any([np.float32(sigma) * other == values for other in near], axis=0)
    return 1 - float(hit.mean())


def fork_check(rng: np.random.Generator) -> CheckResult:
    """A child forked without Python's knowledge does not repeat the parent's randomness."""
    name = "a fork outside Python"
    if not hasattr(os, "fork"):
        return CheckResult(name, True, "there are no forks on this system")
    generator = random.secure()
    generator.bytes(1)
    reader, writer = os.pipe()
    child = ctypes.CDLL(None).fork()
    if child == 0:
        try:
            os.write(writer, generator.bytes(16))
        finally:
            os._exit(0)
    theirs = os.read(reader, 16) if select.select([reader], [], [], 10.0)[0] else b""
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    holds = len(theirs) == 16 and theirs != generator.bytes(16)
    return CheckResult(name, holds, "draws something else" if holds else "repeats the parent")


def checks() -> Mapping[str, Check]:
    """Every check, by name."""
    found: dict[str, Check] = {f"layer {name}": layer_check(name) for name in layer_models()}
    found |= {f"policy {name}": policy_check(name) for name in NAMES}
    found |= {f"sampler {name}": policy_check("fixed", sampling=name) for name in ("every record", "fixed-size")}
    found |= {"sampler, ten steps at rate 0.1": sticky_check(), "threshold": one_canary_check("threshold")}
    found |= {"noise, banded": correlated_check(), "noise, lambda-CGD": correlated_check(0.9)}
    found |= {f"placement {kind}": placement_check(kind) for kind in ("central", "local", "record")}
    found |= {f"search, {method}": search_check(method) for method in ("composition", "random-stopping")}
    return found | {
        "users": users_check,
        "a client that diverged": diverged_check,
        "records that are not finite": one_record_check,
        "records that the loss refuses": refused_record_check,
        "losses that broadcast": losses_check,
        "noise that does not add up": account_check,
        "noise": noise_check,
        "a fork outside Python": fork_check,
    }
