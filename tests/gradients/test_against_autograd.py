"""Norms, projections and weighted sums equal autograd, sample by sample, in float64 to 1e-9: for every layer family."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sordina.gradients import Engine
from sordina.queries import ScalarQuery, VectorQuery

B = 5


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tokens(*shape: int, high: int = 7) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(2))


class Positions(nn.Module):
    """A bare parameter added to every sample, and a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(4, 3))
        self.scale = nn.Parameter(torch.ones(3))
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        return self.out((x + self.positions) * self.scale)


class Tied(nn.Module):
    """An embedding whose weight is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        return self.out(torch.tanh(self.embedding(x)))


class Twice(nn.Module):
    """One layer called twice in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.attention(x, x, x, need_weights=False)[0])


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(3, 4, num_layers=2, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.cell(x)[0])


class LoRA(nn.Module):
    """A frozen layer and its low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.used(x)


class Strange(nn.Module):
    """Parameters used in a way no rule foresees."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return torch.sin(x @ self.weight.T @ self.weight)


CASES = {
    "linear": (lambda: nn.Linear(4, 3), draw(B, 4)),
    "linear on sequences": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), draw(B, 6, 4)),
    "linear on long sequences": (lambda: nn.Linear(3, 2), draw(B, 40, 3)),
    "linear on images of vectors": (lambda: nn.Linear(4, 3), draw(B, 2, 3, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), draw(B, 4, 9)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 2)), draw(B, 2, 6, 5)),
    "conv2d dilated": (lambda: nn.Conv2d(2, 4, 3, dilation=2, stride=(2, 1), padding=(2, 1)), draw(B, 2, 8, 7)),
    "conv2d same": (lambda: nn.Conv2d(2, 4, 3, padding="same"), draw(B, 2, 5, 5)),
    "conv2d reflect": (lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), draw(B, 2, 5, 5)),
    "conv2d depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), draw(B, 4, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=2), draw(B, 2, 4, 4, 4)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 2, 3, stride=2, output_padding=1, groups=2), draw(B, 4, 5)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, dilation=2), draw(B, 3, 4, 4)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 2, 2), draw(B, 2, 3, 3, 3)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 2)), tokens(B, 6)),
    "embedding bag": (lambda: nn.Sequential(nn.EmbeddingBag(7, 4, mode="mean"), nn.Linear(4, 2)), tokens(B, 6)),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), draw(B, 3, 4)),
    "rms norm": (lambda: nn.Sequential(nn.RMSNorm(4), nn.Linear(4, 2)), draw(B, 3, 4)),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 2)), draw(B, 4, 3, 3)),
    "instance norm": (lambda: nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.Conv2d(4, 2, 2)), draw(B, 4, 3, 3)),
    "attention": (Attention, draw(B, 3, 4)),
    "lstm": (lambda: Recurrent(nn.LSTM), draw(B, 3, 3)),
    "gru": (lambda: Recurrent(nn.GRU), draw(B, 3, 3)),
    "rnn": (lambda: Recurrent(nn.RNN), draw(B, 3, 3)),
    "bare parameters": (Positions, draw(B, 4, 3)),
    "tied weights": (Tied, tokens(B, 5)),
    "called twice": (Twice, draw(B, 4)),
    "lora": (LoRA, draw(B, 3, 4)),
    "unused parameters": (Unused, draw(B, 4)),
    "no rule": (Strange, draw(B, 4)),
}


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    maker, x = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return maker().double(), x


def loss(output: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(0.5, 1.5, output[0].numel(), dtype=output.dtype).view_as(output[0])
    return ((output * weights).sin() + 0.1 * output.square()).flatten(1).sum(1)


def brute_force(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = []
    for i in range(len(x)):
        gradients = torch.autograd.grad(loss(model(x[i : i + 1])).sum(), parameters, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten()
                    for p, g in zip(parameters, gradients, strict=True)
                ]
            )
        )
    return torch.stack(rows)


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_the_tape_equals_autograd(name):
    model, x = build(name)
    expected = brute_force(model, x)
    direction = draw(expected.shape[1])
    direction = direction / direction.norm()
    with Engine(model) as engine:
        tape = engine.record(loss(model(x)))
    scalars = tape.scalars(direction)
    close(scalars.norms, expected.norm(dim=1))
    close(scalars.projections, expected @ direction)
    own, other, ref = draw(B), draw(2 * B)[B:], draw(3 * B)[2 * B :]
    queries = [VectorQuery(own), ScalarQuery(ref), VectorQuery(other, ref)]
    first, second, third = tape.contract(queries, direction)
    close(first, own @ expected)
    close(second, ref.sum())
    close(third, other @ expected + ref.sum() * direction)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["linear on sequences", "conv2d", "embedding", "layer norm", "tied weights", "lora"])
def test_rows_of_one_unit_are_one_vector(name):
    model, x = build(name)
    x = torch.cat([x, x.flip(0)])[:6]
    expected = brute_force(model, x).view(3, 2, -1).sum(1)
    with Engine(model) as engine:
        tape = engine.record(loss(model(x)), rows_per_unit=2)
    close(tape.scalars().norms, expected.norm(dim=1))
    weights = draw(3)
    close(tape.contract([VectorQuery(weights)])[0], weights @ expected)


def test_groups_split_the_vector():
    model, x = build("conv2d")
    expected = brute_force(model, x)
    names = [name for name, _ in model.named_parameters()]
    first = sum(parameter.numel() for parameter in model[0].parameters())
    with Engine(model, [names[:2], names[2:]]) as engine:
        tape = engine.record(loss(model(x)))
    close(tape.scalars(group=0).norms, expected[:, :first].norm(dim=1))
    close(tape.scalars(group=1).norms, expected[:, first:].norm(dim=1))
    close(tape.contract([VectorQuery(torch.ones(B, dtype=torch.float64))], group=1)[0], expected[:, first:].sum(0))


def test_a_planted_fault_would_be_seen():
    model, x = build("linear")
    with Engine(model) as engine:
        tape = engine.record(loss(model(x)) * 1.001)
    assert not math.isclose(float(tape.scalars().norms[0]), float(brute_force(model, x).norm(dim=1)[0]), rel_tol=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_transformers_built_from_a_config(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
        model = transformers.GPT2LMHeadModel(config)
    elif kind == "bert":
        config = transformers.BertConfig(
            vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=8, hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_labels=3,
        )  # fmt: skip
        model = transformers.BertForSequenceClassification(config)
    else:
        config = transformers.LlamaConfig(
            vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=8,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    model = model.double().train()
    x = tokens(B, 6, high=11)

    class Logits(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, ids):
            return self.inner(input_ids=ids).logits

    wrapped = Logits(model)
    expected = brute_force(wrapped, x)
    with Engine(wrapped) as engine:
        tape = engine.record(loss(wrapped(x)))
    close(tape.scalars().norms, expected.norm(dim=1))
    weights = draw(B)
    close(tape.contract([VectorQuery(weights)])[0], weights @ expected)
