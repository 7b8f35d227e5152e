"""What people do to a model while an engine listens: section B of the attack, where answers were silently wrong.

A case changes something between two batches. Afterwards the engine must answer rightly for what the model is then, or
raise an error of Sordina's. The truth comes from a twin of the model that never met an engine.
"""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from tests.gradients.brute_force import Outcome, Verdict, judge
from tests.gradients.model_cases import draw, squares
from tests.gradients.random_blocks import weight
from torch import Tensor, nn

import sordina as sd
from sordina.errors import SordinaError
from sordina.gradients import Engine
from sordina.queries import VectorQuery

X = draw(5, 4)


class Network(nn.Module):
    """Two layers and switches."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom, self.middle, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.skip = self.penalty = self.again = self.instead = False

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.skip else self.bottom(x).tanh()
        h = self.middle(h)
        h = F.linear(h, self.middle.weight) if self.instead else h.tanh().sin()
        if self.again:
            h = h + F.linear(h, self.middle.weight).sin()
        return self.head(h)


def network() -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Network().double().train()


def losses_of(model: nn.Module, x: Tensor) -> Tensor:
    each = squares(model, x)
    if getattr(model, "penalty", False):
        each = each + 0.1 * model.middle.weight.square().sum()  # type: ignore[union-attr, operator]
    return each


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """By name of a trainable parameter one gradient per record, each from a batch of one."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    rows = [
        torch.autograd.grad(losses_of(model, x[i : i + 1]).sum(), list(parameters.values()), allow_unused=True)
        for i in range(len(x))
    ]
    return {
        name: torch.stack([torch.zeros_like(p).flatten() if row[k] is None else row[k].flatten() for row in rows])
        for k, (name, p) in enumerate(parameters.items())
    }


def compared(engine: Engine, model: nn.Module, twin: nn.Module, x: Tensor) -> str:
    """What is wrong with the engine's answer for ``x``, or nothing."""
    tape = engine.record(losses_of(model, x))
    truth = gradients(twin, x)
    names = engine.layout().names
    if missing := set(truth) - set(names):
        return f"{min(missing)} is trained but has no gradient"
    if extra := set(names) - set(truth):
        return f"{min(extra)} is not trained but would be moved by noise"
    expected = torch.cat([truth[name] for name in names], 1)
    weights = torch.linspace(0.2, 1, len(x), dtype=torch.float64)
    total = tape.contract([VectorQuery(weights)])[0]
    if not torch.allclose(tape.scalars().norms, expected.norm(dim=1), rtol=1e-6):
        return "norms are not autograd's"
    if not torch.allclose(total, weights @ expected, rtol=1e-6, atol=1e-9):
        return "sums are not autograd's"
    return ""


def changed(change: Callable[[Any], Any], again: int = 3) -> Verdict:
    """One batch, the change, ``again`` more batches; ``change`` is applied to the twin too."""
    model, twin = network(), network()
    engine = Engine(model)
    try:
        if wrong := compared(engine, model, twin, X):
            return Verdict(Outcome.WRONG, wrong)
        change(model), change(twin)
        for _ in range(again):
            if wrong := compared(engine, model, twin, X):
                return Verdict(Outcome.WRONG, wrong)
    except SordinaError as refusal:
        return Verdict(Outcome.REFUSED, str(refusal))
    except Exception as crash:
        return Verdict(Outcome.CRASHED, f"{type(crash).__name__}: {crash}")
    finally:
        engine.close()
    return Verdict(Outcome.EXACT)


def tried(action: Callable[[], str]) -> Verdict:
    """An action that says what is wrong, or raises."""
    try:
        wrong = action()
    except SordinaError as refusal:
        return Verdict(Outcome.REFUSED, str(refusal))
    except Exception as crash:
        return Verdict(Outcome.CRASHED, f"{type(crash).__name__}: {crash}")
    return Verdict(Outcome.WRONG, wrong) if wrong else Verdict(Outcome.EXACT)


def second_engine() -> str:
    model = network()
    with Engine(model), Engine(model) as engine:
        return compared(engine, model, network(), X)


def first_of_two() -> str:
    model = network()
    with Engine(model) as engine, Engine(model):
        return compared(engine, model, network(), X)


def after_close() -> str:
    model = network()
    engine = Engine(model)
    wrong = compared(engine, model, network(), X)
    engine.close()
    return wrong or compared(engine, model, network(), X)


def another_engine_later() -> str:
    model = network()
    for _ in range(2):
        with Engine(model) as engine:
            if wrong := compared(engine, model, network(), X):
                return wrong
    return ""


def many_batches() -> str:
    """Results of a batch live on while the next one runs, as in any loop."""
    model, twin = network(), network()
    with Engine(model) as engine:
        for _ in range(1500):
            out = model(X)
            engine.record((out - 0.3).square().sum(1))
        return compared(engine, model, twin, X)


def copied() -> str:
    """A copy made while an engine listens has weights of its own."""
    model = network()
    with Engine(model) as engine:
        compared(engine, model, network(), X)
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        if twin(X).abs().max() > 0:
            return "the copy runs the weights of the original"
        return compared(engine, model, network(), X)


def averaged() -> str:
    model = network()
    with Engine(model) as engine:
        compared(engine, model, network(), X)
        average = torch.optim.swa_utils.AveragedModel(model)
        with torch.no_grad():
            for parameter in average.parameters():
                parameter.zero_()
        return "the average runs the weights of the original" if average(X).abs().max() > 0 else ""


def pickled() -> str:
    model = network()
    with Engine(model) as engine:
        compared(engine, model, network(), X)
        twin = pickle.loads(pickle.dumps(model))
        if not torch.equal(twin(X), network()(X)):
            return "the copy answers otherwise"
    return "" if torch.equal(pickle.loads(pickle.dumps(model))(X), network()(X)) else "the copy answers otherwise"


class Own(nn.Conv2d):
    def _conv_forward(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, 0.1 * w, bias)


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = weight(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.w, padding_idx=-1)


class BatchNormAct(nn.BatchNorm2d):
    """A norm with an activation inside, as in timm."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))


def fused_activation() -> str:
    model = nn.Sequential(nn.Conv2d(2, 4, 2), BatchNormAct(4)).double()
    out = sd.fix(model).train()(draw(5, 2, 4, 4))
    return "the activation is gone" if bool((out < 0).any()) else ""


def own_forward() -> str:
    model = network()
    given = model.bottom.forward
    model.bottom.forward = lambda x: given(x) * 2  # type: ignore[method-assign]
    mine = model.bottom.forward
    before = model(X)
    with Engine(model):
        pass
    if model.bottom.__dict__.get("forward") is not mine:
        return "a user's own forward was deleted"
    return "" if torch.equal(before, model(X)) else "the model answers otherwise afterwards"


def own_forward_later() -> str:
    """A forward that a user sets while an engine listens is not taken away by close()."""
    model = network()
    with Engine(model):
        given = model.bottom.forward
        model.bottom.forward = mine = lambda x: given(x) * 2  # type: ignore[method-assign]
    return "" if model.bottom.__dict__.get("forward") is mine else "a user's own forward was deleted"


def unrecorded() -> str:
    """Forwards in training mode that nobody records do not pile up."""
    model = network()
    with Engine(model) as engine:
        compared(engine, model, network(), X)
        held = []
        for _ in range(3):
            for _ in range(20):
                model(X)
            gc.collect()
            held.append(sum(isinstance(value, torch.Tensor) for value in gc.get_objects()))
    return f"{held[2] - held[1]} tensors are kept for every 20 forwards" if held[2] - held[1] > 5 else ""


class Ramped(nn.Module):
    """Looks at the batch's mean, but not in the first ten batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        h = self.layer(x)
        return h - h.mean(0) if self.calls > 10 else h


def growing(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """A contrastive term that is zero at first."""
    out = model(x)
    h = F.normalize(out, dim=1)
    return squares_of(out) + max(0, step - 10) * F.cross_entropy(h @ h.T, torch.arange(len(h)), reduction="none")


def squares_of(out: Tensor) -> Tensor:
    return (out - 0.3).square().sum(1)


def found_later(model: nn.Module, losses: Callable[[nn.Module, Tensor, int], Tensor]) -> str:
    """Mixing that starts after ten batches must be seen while the run goes on."""
    g = torch.Generator().manual_seed(0)
    with Engine(model) as engine:
        for step in range(300):
            x = torch.randn(5, 4, generator=g, dtype=torch.float64)
            engine.record(losses(model, x, step)).scalars()
    return "290 batches that mix were accepted"


def ones(model: nn.Module, x: Any) -> Callable[[], Verdict]:
    return lambda: judge(model, squares, x)


def new_head(model: Any) -> None:
    torch.manual_seed(4)
    model.head = nn.Linear(4, 2).double()


def parts(*names: str, value: bool) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for name in names:
            setattr(model, name, value)

    return change


def unfrozen() -> Verdict:
    model, twin = network(), network()
    for one in (model, twin):
        one.bottom.requires_grad_(False)
    engine = Engine(model)
    with suppress(SordinaError):
        compared(engine, model, twin, X)

    def action() -> str:
        model.bottom.requires_grad_(True)
        twin.bottom.requires_grad_(True)
        return compared(engine, model, twin, X)

    verdict = tried(action)
    engine.close()
    return verdict


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return make().double().train()


B: dict[str, Callable[[], Verdict]] = {
    "model.eval() after the first batch": lambda: changed(lambda model: model.eval()),
    "a second engine on the model": lambda: tried(second_engine),
    "the first of two engines": lambda: tried(first_of_two),
    "an engine after close()": lambda: tried(after_close),
    "one engine after another": lambda: tried(another_engine_later),
    "a thousand batches and more": lambda: tried(many_batches),
    "a bottom layer skipped later": lambda: changed(parts("skip", value=True)),
    "a weight penalty that comes later": lambda: changed(parts("penalty", value=True)),
    "F.linear(h, layer.weight) that comes later": lambda: changed(parts("again", value=True)),
    "F.linear(h, layer.weight) in the place of two operations": lambda: changed(parts("instead", value=True)),
    "mixing that starts at the tenth batch": lambda: tried(
        lambda: found_later(seeded(Ramped), lambda model, x, step: squares_of(model(x)))
    ),
    "a contrastive term that grows from zero": lambda: tried(
        lambda: found_later(seeded(lambda: nn.Linear(4, 3)), growing)
    ),
    "deepcopy(model) while an engine listens": lambda: tried(copied),
    "AveragedModel while an engine listens": lambda: tried(averaged),
    "pickle while an engine listens": lambda: tried(pickled),
    "Conv2d with its own _conv_forward": ones(seeded(lambda: Own(2, 3, 2)), draw(6, 2, 4, 4)),
    "F.embedding(padding_idx=-1)": ones(
        seeded(Padded), torch.randint(0, 5, (6, 4), generator=torch.Generator().manual_seed(0))
    ),
    "head replaced later": lambda: changed(new_head),
    "layer frozen later": lambda: changed(lambda model: model.bottom.requires_grad_(False)),
    "layer unfrozen later": unfrozen,
    "sd.fix with a fused activation": lambda: tried(fused_activation),
    "close() with a user's own forward": lambda: tried(own_forward),
    "a forward set while an engine listens": lambda: tried(own_forward_later),
    "forwards that are not recorded": lambda: tried(unrecorded),
    ".double() after the engine": lambda: tried(doubled),
    "load_state_dict(assign=True) after the engine": lambda: changed(
        lambda model: model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()}, assign=True)
    ),
}


def doubled() -> str:
    model = network().float()
    twin = network().float().double()
    with Engine(model) as engine:
        engine.record(losses_of(model, X.float())).scalars()
        model.double()
        return compared(engine, model, twin, X)
