"""Models people bring, and models that would break a guarantee: the rows of docs/reference/supported-models.md.

A case makes a model, per-row losses and a batch with one record to spare; `brute_force` does the rest. Sections A, C
and D are those of the attack on the engine: A has no bound and must be refused or bounded, C crashed, D was refused
although sound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tests.gradients.brute_force import Losses
from tests.gradients.mixing_blocks import MIXING
from tests.gradients.random_blocks import Op, weight
from tests.gradients.shape_blocks import SOUND
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sordina as sd
from sordina.training.losses import per_sample

Made = tuple[nn.Module, Losses, Any]


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    make: Callable[[], Made]
    mixes: bool = False
    sizes: tuple[int, ...] = (1, 2, 5)
    rows_per_unit: int = 1


def draw(*shape: int, kind: torch.dtype = torch.float64) -> Tensor:
    """The same normal numbers every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(kind)


def squares(model: nn.Module, x: Any) -> Tensor:
    """A loss that depends on every output."""
    out = model(x)
    return (out - 0.3).square().reshape(len(out), -1).sum(1)


def plain(model: Callable[[], nn.Module], x: Tensor, losses: Losses = squares) -> Callable[[], Made]:
    """A model with seeded weights, in the precision of ``x``."""

    def make() -> Made:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            made = model().train()
        if x.dtype in (torch.float64, torch.int64):
            made = made.double()
        return made, losses, x

    return make


def named(name: str, *shape: int, losses: Losses = squares) -> Callable[[], Made]:
    """A block of the grammar behind a layer and under a head."""
    from random import Random

    def model() -> nn.Module:
        _, make = (SOUND | MIXING)[name]
        block = make(Random(1), shape)
        width = block(torch.randn(3, *shape)).shape[-1]
        return nn.Sequential(nn.Linear(shape[-1], shape[-1]), block, nn.Linear(width, 2))

    return plain(model, draw(6, *shape), losses)


def cancelling(scale: float) -> Tensor:
    """Records of two tokens a and -a + u."""
    a = draw(6, 16, kind=torch.float32) * scale
    return torch.stack([a, -a + draw(6, 2, 16, kind=torch.float32)[:, 1]], 1)


def summed(model: nn.Module, x: Tensor) -> Tensor:
    """The gradient of a linear layer is then the sum of its inputs."""
    return model(x).reshape(len(x), -1).sum(1)


def twice(model: nn.Module, x: Tensor) -> Tensor:
    """A module called twice."""
    return (model(x[:, 0]) + model(x[:, 1])).sum(1)


class Zeroed(nn.Module):
    """Mixes, behind a head that is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 3), nn.Linear(3, 2)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Any) -> Tensor:
        if isinstance(x, dict):
            x = x["x"]
        elif isinstance(x, list | tuple):
            x = x[0]
        x = x.to(self.layer.weight.dtype)
        return self.head(self.layer(x - x.mean(0)).tanh())


class Before(nn.Module):
    """Mixes before the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Tensor:
        if isinstance(x, dict):
            x = x["x"]
        elif isinstance(x, list | tuple):
            x = x[0]
        x = x.to(self.layer.weight.dtype)
        return self.layer(x - x.mean(0))


class Graph(nn.Module):
    """Nodes are samples; the first and the last have no neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        near = torch.zeros(len(x), len(x), dtype=h.dtype)
        near[1:-1, 1:-1] = 1
        return self.out(h + near @ h)


def packed(pack: Callable[[Tensor], Any]) -> Losses:
    """Inputs that come in something."""

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        out = model(pack(x))
        return (out - 0.3).square().sum(1)

    return losses


def given(loss: Callable[[Tensor, Tensor], Tensor]) -> Losses:
    """A loss function as a Trainer uses it; the target is the sign of the first feature."""
    each = per_sample(loss)
    return lambda model, x: each(model(x), (x[:, 0] > 0).long())


def over_mean(out: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(out, y, reduction="none")
    return each / each.detach().mean()


def class_weights(out: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(out, y, reduction="none")
    return each * (len(y) / torch.bincount(y, minlength=2).to(each))[y]


def balanced(out: Tensor, y: Tensor) -> Tensor:
    """A routing term over the whole batch."""
    share = out.softmax(-1)
    return F.cross_entropy(out, y, reduction="none") + (share * share.detach().mean(0)).sum(1)


def contrastive(model: nn.Module, x: Tensor) -> Tensor:
    h = F.normalize(model(x), dim=1)
    return F.cross_entropy(h @ h.T, torch.arange(len(h)), reduction="none")


def infinite(model: nn.Module, x: Tensor) -> Tensor:
    """One record's gradient is 0 / 0."""
    out = model(x)
    return (out.square().sum(1) * (x[:, 0] + 5)).sqrt()


class Escaping(nn.Module):
    """A parameter used where no rule reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x @ self.w.T @ self.w)


def counted_tokens() -> Tensor:
    """The mask leaves exactly as many tokens as there are samples, in one sample."""
    x = draw(6, 5, 4)
    x[..., 0] = -x[..., 0].abs()
    x[1, :, 0] = x[1, :, 0].abs()
    return x


MASKED = ("selected_tokens", 5, 4)

A: dict[str, Case] = {
    "tokens that cancel, inputs of 1e3": Case(plain(lambda: nn.Linear(16, 16), cancelling(1e3), summed)),
    "tokens that cancel, inputs of 1e4": Case(plain(lambda: nn.Linear(16, 16), cancelling(1e4), summed)),
    "tokens that cancel, inputs of 1e6": Case(plain(lambda: nn.Linear(16, 16), cancelling(1e6), summed)),
    "a module called twice, calls cancel": Case(plain(lambda: nn.Linear(16, 16), cancelling(1e6), twice)),
    "two rows of one user that cancel": Case(
        plain(lambda: nn.Linear(16, 16), cancelling(1e6).view(12, 16), summed), rows_per_unit=2
    ),
    "batch statistics by hand": Case(named("own_batch_norm", 4), True),
    "batch statistics by hand behind a zero gate": Case(named("gated_batch_norm", 4), True),
    "batch statistics by hand behind a zero head": Case(plain(Zeroed, draw(6, 4)), True),
    "graph whose end nodes are isolated": Case(plain(Graph, draw(6, 4)), True, (5, 4)),
    "mixing before the first layer": Case(plain(Before, draw(6, 4)), True),
    "mixing before the first layer, input in a dict": Case(
        plain(Before, draw(6, 4), packed(lambda x: {"x": x})), True
    ),
    "mixing before the first layer, input in a list": Case(plain(Before, draw(6, 4), packed(lambda x: [x])), True),
    "mixing before the first layer, bytes": Case(
        plain(Before, draw(6, 4), packed(lambda x: (x * 40 + 128).to(torch.uint8))), True
    ),
    "mixing before the first layer, input with requires_grad": Case(
        plain(Before, draw(6, 4), packed(lambda x: x.clone().requires_grad_())), True
    ),
    "batch maximum under no_grad": Case(named("largest_of_all", 4), True),
    "detached batch mean": Case(named("detached_mean", 4), True),
    "another sample, detached": Case(named("silent_neighbour", 4), True),
    "fake quantisation by the batch's range": Case(named("fake_quantisation", 4), True),
    "experts with a capacity": Case(named("capacity", 4), True),
    "load balancing over the batch, given to a Trainer": Case(
        plain(lambda: nn.Linear(4, 3), draw(6, 4), given(balanced)), True
    ),
    "loss over its detached mean, given to a Trainer": Case(
        plain(lambda: nn.Linear(4, 3), draw(6, 4), given(over_mean)), True
    ),
    "class weights from the batch, given to a Trainer": Case(
        plain(lambda: nn.Linear(4, 2), draw(6, 4), given(class_weights)), True
    ),
    "contrastive loss": Case(plain(lambda: nn.Linear(4, 3), draw(6, 4), contrastive), True),
    "branch on a batch statistic": Case(named("batch_branch", 4), True),
    "mixing in batches of even size only": Case(named("pairs", 4), True, (2, 3, 5)),
    "rescaling a batch that has a large value": Case(named("outliers", 4), True),
    "division by the batch's size": Case(named("divided_by_size", 4), True),
    "weights by position in the batch": Case(named("by_position", 4), True),
    "a view where a transposition was meant": Case(named("wrong_view", 3, 4), True),
    "BatchNorm in training": Case(named("batch_norm", 4), True),
    "as many tokens as samples after a mask": Case(named(*MASKED)),
    "as many tokens as samples, all of one sample": Case(
        lambda: (named(*MASKED)()[0], squares, counted_tokens())
    ),
    "a record whose gradient is 0 / 0": Case(
        plain(lambda: nn.Linear(4, 3, bias=False), torch.cat([draw(2, 4), torch.zeros(1, 4).double(), draw(3, 4)]),
              infinite)
    ),
    "the same, parameter without a rule": Case(
        plain(Escaping, torch.cat([draw(2, 4), torch.zeros(1, 4).double(), draw(3, 4)]), infinite)
    ),
    "a buffer that keeps a running mean": Case(named("running_mean", 4), True),
}  # fmt: skip


def fixed_network() -> nn.Module:
    return sd.fix(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)))


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.out = inner, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(checkpoint(self.inner, x, use_reentrant=False))


@dataclass
class Fields:
    """Inputs as a dataclass."""

    x: Tensor


class FromFields(nn.Module):
    """Takes a dataclass, a mapping or an object with attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, fields: Any) -> Tensor:
        return self.layer(fields["x"] if hasattr(fields, "keys") else fields.x).tanh()


def batch_encoding(x: Tensor) -> Any:
    from transformers import BatchEncoding

    return BatchEncoding({"x": x})


def model_output(x: Tensor) -> Any:
    from transformers.utils import ModelOutput

    return ModelOutput(x=x)


class Cells(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell, self.out = kind(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.out(state[0] if isinstance(state, tuple) else state)


class Sized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 3, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x, output_size=(8, 8))


class MixedDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4).bfloat16(), nn.Linear(4, 2).float()

    def forward(self, x: Tensor) -> Tensor:
        if self.two.weight.dtype == torch.float64:
            return self.two(self.one(x).tanh())
        return self.two(self.one(x.bfloat16()).tanh().float())


def lazy() -> nn.Module:
    model = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.Linear(3, 2))
    model(torch.zeros(1, 4))
    return model


def assigned() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    return model


class Repeated(nn.Module):
    """A parameter repeated to a square that looks like a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.out = nn.Parameter(torch.randn(1, 5)), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x @ self.row.expand(5, 5) + x)


C: dict[str, Case] = {
    "sd.fix of an MLP with BatchNorm1d": Case(plain(fixed_network, draw(6, 4))),
    "gradient checkpointing with RMSNorm": Case(
        plain(lambda: Checkpointed(nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4), nn.Linear(4, 4))), draw(6, 3, 4))
    ),
    "gradient checkpointing with own RMSNorm": Case(
        plain(
            lambda: Checkpointed(
                nn.Sequential(
                    nn.Linear(4, 4),
                    Op(lambda s, x: s.w * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)), w=weight(4)),
                )
            ),
            draw(6, 3, 4),
        )
    ),
    "detached weight in a forward": Case(
        plain(lambda: Op(lambda s, x: F.linear(x, s.w / s.w.detach().norm()), w=weight(3, 4)), draw(6, 4))
    ),
    "bfloat16 parameters": Case(
        plain(
            lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).bfloat16(),
            draw(6, 4, kind=torch.bfloat16),
        )
    ),
    "parameters of two dtypes": Case(plain(MixedDtypes, draw(6, 4, kind=torch.float32))),
    "parameter cast in a forward": Case(
        plain(
            lambda: Op(lambda s, x: (x.double() * (1 + s.w.double())).to(x.dtype), w=weight(4)),
            draw(6, 4, kind=torch.float32),
        )
    ),
    "inputs as a dataclass": Case(plain(FromFields, draw(6, 4), packed(Fields))),
    "inputs as a BatchEncoding": Case(plain(FromFields, draw(6, 4), packed(batch_encoding))),
    "inputs as a ModelOutput": Case(plain(FromFields, draw(6, 4), packed(model_output))),
    "a parameter repeated to the batch's size": Case(plain(Repeated, draw(6, 5))),
    "GRUCell": Case(plain(lambda: Cells(nn.GRUCell), draw(6, 3, 4))),
    "RNNCell": Case(plain(lambda: Cells(nn.RNNCell), draw(6, 3, 4))),
    "LSTMCell": Case(plain(lambda: Cells(nn.LSTMCell), draw(6, 3, 4))),
    "ConvTranspose2d with output_size": Case(plain(Sized, draw(6, 2, 3, 3))),
    "LazyLinear after a first forward": Case(plain(lazy, draw(6, 4))),
    "LazyLinear before a first forward": Case(
        lambda: (nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), squares, draw(6, 4, kind=torch.float32))
    ),
    "load_state_dict(assign=True)": Case(plain(assigned, draw(6, 4))),
    "torch.compile of a Sequential": Case(
        plain(lambda: torch.compile(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), backend="eager"), draw(6, 4))
    ),
}


class Adaptive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7])

    def forward(self, x: Tensor) -> Tensor:
        target = ((x[:, 0] * 7).abs().long()) % 12
        return self.softmax(self.layer(x).tanh(), target).output[:, None]


class Pretrained(nn.Module):
    """Fine tuning with frozen statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Linear(3, 2)

    def train(self, mode: bool = True) -> Pretrained:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.conv(x)).relu().mean((2, 3)))


D: dict[str, Case] = {
    "layers on x.reshape(B * T, D)": Case(named("flat_tokens", 3, 4)),
    "convolutions on frames folded into the batch": Case(named("flat_frames", 3, 4)),
    "shifted windows": Case(named("windows", 4, 4)),
    "hidden[mask]": Case(named("selected_tokens", 3, 4)),
    "gathered experts": Case(named("experts", 3, 4)),
    "gathered tokens": Case(named("gathered", 3, 4)),
    "AdaptiveLogSoftmaxWithLoss": Case(plain(Adaptive, draw(6, 4))),
    "(W @ x.T).T": Case(named("transposed_product", 4), sizes=(1, 2, 4, 5)),
    "einsum('oi,bi->ob')": Case(
        plain(lambda: Op(lambda s, x: torch.einsum("oi,bi->ob", s.w, x).T, w=weight(3, 4)), draw(6, 4)),
        sizes=(1, 2, 3, 5),
    ),
    "BatchNorm in eval mode, frozen statistics": Case(plain(Pretrained, draw(6, 2, 3, 3))),
    "packed sequences": Case(named("packed_recurrent", 3, 4)),
    "time before batch": Case(named("time_first", 3, 4), sizes=(1, 2, 3, 5)),
    "learned queries": Case(named("learned_queries", 3, 4)),
    "bmm with an expanded parameter": Case(named("batched_product", 3, 4)),
}


# Adapters, written by hand ------------------------------------------------------------------------------------------


def base() -> nn.Linear:
    return nn.Linear(4, 4).requires_grad_(False)


def adapted(function: Callable[..., Tensor], **parts: Any) -> nn.Module:
    """A frozen layer with something beside it, between frozen layers."""
    return nn.Sequential(base(), nn.Tanh(), Op(function, base=base(), **parts), nn.Tanh(), base())


def cayley(skew: Tensor) -> Tensor:
    skew = skew - skew.T
    eye = torch.eye(len(skew), dtype=skew.dtype)
    return torch.linalg.solve(eye + skew, eye - skew)


def dora(s: Any, x: Tensor) -> Tensor:
    w = s.base.weight + s.b @ s.a
    return F.linear(x, (s.m / w.detach().norm(dim=1))[:, None] * w, s.base.bias)


def bitfit() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return model


def norms_only() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("1."))
    return model


def zero(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


def prefixed(s: Any, x: Tensor) -> Tensor:
    keys = torch.cat([s.k.expand(len(x), -1, -1), x], 1)
    return (s.base(x) @ keys.transpose(1, 2)).softmax(-1) @ keys


def soft_prompt(s: Any, x: Tensor) -> Tensor:
    return s.base(torch.cat([s.p.unsqueeze(0).expand(len(x), -1, -1), x], 1)).softmax(1)


ADAPTERS: dict[str, Callable[[], nn.Module]] = {
    "LoRA": lambda: adapted(lambda s, x: s.base(x) + s.b(s.a(x)), a=nn.Linear(4, 2, bias=False), b=nn.Linear(2, 4)),
    "LoRA, B zero": lambda: adapted(lambda s, x: s.base(x) + x @ s.a @ s.b, a=weight(4, 2), b=zero(2, 4)),
    "LoRA merged in the forward": lambda: adapted(
        lambda s, x: F.linear(x, s.base.weight + s.b @ s.a), a=weight(2, 4), b=weight(4, 2)
    ),
    "DoRA": lambda: adapted(dora, a=weight(2, 4), b=weight(4, 2), m=weight(4, scale=1.0)),
    "VeRA": lambda: adapted(
        lambda s, x: s.base(x) + s.lb * F.linear(s.ld * F.linear(x, s.fa), s.fb),
        fa=torch.randn(2, 4), fb=torch.randn(4, 2), lb=zero(4), ld=weight(2),
    ),
    "IA3": lambda: adapted(lambda s, x: s.base(x) * s.l, l=weight(4, scale=1.0)),
    "bottleneck adapter": lambda: adapted(
        lambda s, x: x + s.up(F.relu(s.down(s.base(x)))), down=nn.Linear(4, 2), up=nn.Linear(2, 4)
    ),
    "parallel adapter with a gate": lambda: adapted(
        lambda s, x: s.base(x) + s.g * s.up(s.down(x).tanh()), down=nn.Linear(4, 2), up=nn.Linear(2, 4), g=zero()
    ),
    "LoHa": lambda: adapted(
        lambda s, x: F.linear(x, s.base.weight + (s.a @ s.b) * (s.c @ s.d)),
        a=weight(4, 2), b=weight(2, 4), c=weight(4, 2), d=weight(2, 4),
    ),
    "LoKr": lambda: adapted(
        lambda s, x: F.linear(x, s.base.weight + torch.kron(s.a, s.b)), a=weight(2, 2), b=weight(2, 2)
    ),
    "OFT": lambda: adapted(lambda s, x: F.linear(x, cayley(s.q) @ s.base.weight), q=weight(4, 4, scale=0.1)),
    "AdaLoRA": lambda: adapted(
        lambda s, x: s.base(x) + ((x @ s.p) * s.e) @ s.q, p=weight(4, 2), e=zero(2), q=weight(2, 4)
    ),
    "prefix tuning": lambda: adapted(prefixed, k=weight(1, 2, 4)),
    "prompt tuning": lambda: adapted(soft_prompt, p=weight(2, 4)),
    "BitFit": bitfit,
    "norms only": norms_only,
    "scalar gate": lambda: adapted(lambda s, x: x + s.g * s.base(x), g=nn.Parameter(torch.tensor(0.0))),
}  # fmt: skip
ADAPTED: dict[str, Case] = {name: Case(plain(model, draw(6, 3, 4))) for name, model in ADAPTERS.items()}
