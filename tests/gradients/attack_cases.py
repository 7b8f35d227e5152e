"""Further ways for samples to mix, hide or change places: rows of docs/reference/supported-models.md.

Each was once answered wrongly. The models are small, the losses those of a user's own loop.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from tests.gradients.brute_force import Losses, Outcome, Verdict
from tests.gradients.life_cases import gradients, tried
from tests.gradients.model_cases import Case, Made, draw, squares
from tests.gradients.random_blocks import Op
from torch import Tensor, nn

from sordina.errors import SordinaError
from sordina.gradients import Engine


def two(between: Callable[[Any, Tensor], Tensor], **parts: Any) -> nn.Module:
    """Two layers with something between them."""
    return Op(lambda s, x: s.b(between(s, s.a(x).tanh())), a=nn.Linear(4, 4), b=nn.Linear(4, 2), **parts)


def case(make: Callable[[], nn.Module], batch: Any, losses: Losses = squares, **options: Any) -> Case:
    def made() -> Made:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return make().double().train(), losses, batch

    return Case(made, **options)


class Scaled(torch.autograd.Function):
    """Nothing forward; backward, the gradients of a batch become smaller if one of them is large."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient / max(1.0, float(gradient.abs().max()) / 1e3)


def limited(self: Any, h: Tensor) -> Tensor:
    if h.requires_grad:
        h.register_hook(lambda g: g * min(1.0, 100 / float(g.norm().clamp_min(1e-9))))
    return h


def sorted_rows(x: Tensor, keys: Tensor, layer: nn.Module) -> Tensor:
    order = keys.argsort()
    return layer(x[order])[order.argsort()]


def in_chunks(self: Any, x: Tensor) -> Tensor:
    h = x.reshape(-1, 4)
    return self.b(torch.cat([self.a(rows).tanh() for rows in h.split(64)]).view(len(x), -1, 4).mean(1))


def sometimes(self: Any, x: Tensor, coin: Callable[[], float]) -> Tensor:
    return 0.5 * x + 0.5 * x[torch.randperm(len(x))] if coin() < 0.3 else x


def noisy(self: Any, h: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(int((h.detach() > 0).sum()))
    return h * torch.rand(h.shape, generator=generator, dtype=h.dtype)


def reseeded(self: Any, h: Tensor) -> Tensor:
    torch.manual_seed(int((h.detach() > 0).sum()))
    return F.dropout(h, 0.5)


class Balanced(nn.Module):
    """Keeps a term over the batch where the losses find it."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.a, self.b, self.where = nn.Linear(4, 4), nn.Linear(4, 2), where

    def forward(self, x: Tensor) -> Any:
        h = self.a(x).tanh()
        term = (h.softmax(-1).mean(0) ** 2).sum() * 5
        if self.where == "attribute":
            self.term = term
            return self.b(h)
        return self.b(h), SimpleNamespace(term=term)


def with_term(model: nn.Module, x: Tensor) -> Tensor:
    found = model(x)
    out, term = found if isinstance(found, tuple) else (found, model.term)
    return (out - 0.3).square().sum(1) + (term.term if isinstance(term, SimpleNamespace) else term)


def remembered(self: Any, h: Tensor) -> Tensor:
    self.queue.append(h.detach().mean(0))
    return h - self.queue[0]


def queue() -> nn.Module:
    model = two(remembered)
    model.queue = deque(maxlen=2)
    return model


def hooked(hook: Callable[..., Any], before: bool = False) -> nn.Module:
    model = two(lambda s, h: h)
    if before:
        model.register_forward_pre_hook(hook)
    else:
        model.register_forward_hook(hook)
    return model


def energy(self: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.b(self.a(x).tanh()).sum(), x, create_graph=True)[0]


class Gaussian(nn.Module):
    """Draws from a distribution that checks its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.distributions.Normal(self.a(x), torch.ones(4, dtype=x.dtype)).mean)


KEYS = torch.tensor([2, 4, 1, 3, 9, 5])
ATTACKS: dict[str, Case] = {
    "a term over the batch, kept as an attribute": case(
        lambda: Balanced("attribute"), draw(6, 4), with_term, mixes=True
    ),
    "a term over the batch, in an object": case(lambda: Balanced("object"), draw(6, 4), with_term, mixes=True),
    "a hook that scales the batch's gradient": case(
        lambda: two(limited), draw(6, 4), lambda m, x: 1e3 * squares(m, x), mixes=True
    ),
    "a backward pass that looks across the batch": case(
        lambda: two(lambda s, h: Scaled.apply(h)), draw(6, 4), lambda m, x: 1e5 * squares(m, x), mixes=True
    ),
    "a forward hook of the model": case(
        lambda: hooked(lambda m, i, o: o / o.detach().abs().max()), draw(6, 4), mixes=True
    ),
    "a pre-hook of the model": case(
        lambda: hooked(lambda m, i: (i[0] - i[0].mean(0),), before=True), draw(6, 4), mixes=True
    ),
    "mixing by the toss of a coin": case(
        lambda: Op(
            lambda s, x: s.a(sometimes(s, x, lambda: float(torch.rand(())))), a=nn.Linear(4, 2)
        ), draw(6, 4), mixes=True
    ),
    "the same, a coin of Python's": case(
        lambda: Op(lambda s, x: s.a(sometimes(s, x, random.random)), a=nn.Linear(4, 2)), draw(6, 4), mixes=True
    ),
    "dropout seeded by the batch": case(lambda: two(reseeded), draw(6, 4), mixes=True),
    "noise from a generator seeded by the batch": case(lambda: two(noisy), draw(6, 4), mixes=True),
    "a queue of earlier batches": case(queue, draw(6, 4), mixes=True),
    "samples sorted by a number of theirs": case(
        lambda: Op(lambda s, x: s.b(sorted_rows(x[0], x[1], s.a).tanh()), a=nn.Linear(4, 4), b=nn.Linear(4, 2)),
        (draw(6, 4), KEYS),
    ),
    "samples sorted by their first feature": case(
        lambda: Op(lambda s, x: s.b(sorted_rows(x, x[:, 0], s.a).tanh()), a=nn.Linear(4, 4), b=nn.Linear(4, 2)),
        draw(6, 4),
    ),
    "tokens of all samples in chunks": case(
        lambda: Op(in_chunks, a=nn.Linear(4, 4), b=nn.Linear(4, 2)), draw(33, 4, 4), sizes=(32,)
    ),
    "forces from an energy": case(lambda: Op(energy, a=nn.Linear(4, 4), b=nn.Linear(4, 2)), draw(6, 4)),
    "distributions that check their arguments": case(Gaussian, draw(6, 4)),
    "tied weights, transposed": case(
        lambda: Op(lambda s, x: F.linear(s.a(x).tanh(), s.a.weight.t()), a=nn.Linear(4, 3)), draw(6, 5, 4)
    ),
}  # fmt: skip


# What only an engine on one model shows -----------------------------------------------------------------------------


def model_of(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().double().train()


def longer_later() -> str:
    """A structure that was learned on short sequences is not taken for longer ones."""

    def forward(self: Any, x: Tensor) -> Tensor:
        rows, time, width = x.shape
        if time > 3:
            h = self.a(x.transpose(0, 1).reshape(-1, width)).view(time, rows, width).transpose(0, 1)
        else:
            h = self.a(x.reshape(-1, width)).view(rows, time, width)
        return self.b(h.tanh().mean(1))

    model = model_of(lambda: Op(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 2)))
    with Engine(model) as engine:
        engine.record(squares(model, draw(5, 3, 4)))
        norms = engine.record(squares(model, draw(5, 6, 4))).scalars().norms
    truth = torch.cat(list(gradients(model, draw(5, 6, 4)).values()), 1).norm(dim=1)
    return "" if torch.allclose(norms, truth) else "norms are not autograd's"


def writes(change: Callable[[Any, Tensor], None]) -> Callable[[], str]:
    """A forward pass that writes into a parameter."""

    def action() -> str:
        def forward(self: Any, x: Tensor) -> Tensor:
            out = self.a(x)
            with torch.no_grad():
                change(self, x)
            return out

        kept = nn.Parameter(torch.zeros(4), requires_grad=False)
        model = model_of(lambda: Op(forward, a=nn.Linear(4, 2), m=kept))
        with Engine(model) as engine:
            engine.record(squares(model, draw(5, 4)))
        return "a parameter keeps raw data"

    return action


def renormalised() -> str:
    model = model_of(lambda: Op(lambda s, i: F.embedding(i, s.w, max_norm=1.0), w=nn.Parameter(torch.randn(9, 4) * 3)))
    with Engine(model) as engine:
        engine.record(squares(model, torch.arange(8).view(4, 2)))
    return "the rows that were looked up have changed"


def functional() -> str:
    """A model that is called with other parameters than it has."""
    model = model_of(lambda: two(lambda s, h: h))
    twice = {name: 2 * parameter for name, parameter in model.named_parameters()}
    with Engine(model) as engine:
        out = torch.func.functional_call(model, twice, (draw(5, 4),))
        engine.record((out - 0.3).square().sum(1))
    return "the gradient of parameters that are not the model's"


def input_changed() -> str:
    model = model_of(lambda: Op(lambda s, x: s.a(x.mul_(2)), a=nn.Linear(4, 2)))
    with Engine(model) as engine:
        engine.record(squares(model, draw(5, 4)))
    return "the batch is another one now"


def sparse() -> str:
    """Sparse gradients are as good as dense ones."""
    model = model_of(
        lambda: Op(lambda s, i: F.embedding(i, s.w, sparse=True).sum(1), w=nn.Parameter(torch.randn(9, 4)))
    )
    rows = torch.tensor([[1, 1, 2], [0, 3, 4], [5, 5, 5]])
    with Engine(model) as engine:
        norms = engine.record(squares(model, rows)).scalars().norms
    dense = model_of(lambda: Op(lambda s, i: F.embedding(i, s.w).sum(1), w=nn.Parameter(model.w.detach().clone())))
    truth = torch.cat(list(gradients(dense, rows).values()), 1).norm(dim=1)
    return "" if torch.allclose(norms, truth) else "norms are not autograd's"


def script() -> str:
    Engine(torch.jit.script(nn.Sequential(nn.Linear(4, 2))))
    return "nobody sees into it"


def complex_numbers() -> str:
    Engine(Op(lambda s, x: (x @ s.w).abs(), w=nn.Parameter(torch.randn(4, 3, dtype=torch.cdouble))))
    return "there is no rule for it"


def queue_later() -> Verdict:
    """A memory that is used from the twentieth batch on."""

    def kept(self: Any, h: Tensor) -> Tensor:
        self.queue.append(h.detach().mean(0))
        return h - self.queue[0] if len(self.queue) == 20 else h

    model = model_of(lambda: two(kept))
    model.queue = deque(maxlen=20)
    try:
        with Engine(model) as engine:
            for _ in range(600):
                engine.record(squares(model, draw(5, 4)))
    except SordinaError as refusal:
        return Verdict(Outcome.REFUSED, str(refusal))
    return Verdict(Outcome.WRONG, "never found")


LIVES: dict[str, Callable[[], Verdict]] = {
    "another algorithm for longer sequences": lambda: tried(longer_later),
    "a forward pass that writes into a frozen parameter": lambda: tried(writes(lambda s, x: s.m.lerp_(x.mean(0), 0.1))),
    "the same, by way of .data": lambda: tried(writes(lambda s, x: s.m.data.lerp_(x.mean(0), 0.1))),
    "F.embedding(max_norm=1)": lambda: tried(renormalised),
    "F.embedding(sparse=True)": lambda: tried(sparse),
    "functional_call with other parameters": lambda: tried(functional),
    "an input changed in place": lambda: tried(input_changed),
    "TorchScript": lambda: tried(script),
    "complex parameters": lambda: tried(complex_numbers),
    "a queue that is used later": queue_later,
}
