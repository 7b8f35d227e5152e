"""The options of layers, and the ways models use them, held to autograd to 1e-9; beyond one example per family."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sordina.gradients import Engine, _study
from sordina.gradients.removal import RemovalSchedule
from sordina.queries import VectorQuery

B = 5


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tokens(*shape: int, high: int = 7) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(2))


def loss(output: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(0.5, 1.5, output[0].numel(), dtype=output.dtype).view_as(output[0])
    return ((output * weights).sin() + 0.1 * output.square()).flatten(1).sum(1)


def brute_force(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = []
    for i in range(len(x)):
        gradients = torch.autograd.grad(loss(model(x[i : i + 1])).sum(), parameters, allow_unused=True)
        parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


class Attend(nn.Module):
    """Attention of a sample's halves to each other, with whatever options; samples first or second."""

    def __init__(self, mask: bool = False, padding: bool = False, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, **options)
        self.mask, self.padding = mask, padding

    def forward(self, x):
        query, other = x[:, :3], x[:, 3:]
        key = other[..., : self.attention.kdim]
        value = other[..., : self.attention.vdim]
        masks = {}
        if self.mask:
            masks["attn_mask"] = torch.triu(torch.ones(3, 4, dtype=torch.bool), 2)
        if self.padding:
            masks["key_padding_mask"] = (torch.arange(4) > 2).expand(len(x), 4)
        if self.attention.batch_first:
            return self.attention(query, key, value, **masks)[0]
        turned = (part.transpose(0, 1) for part in (query, key, value))
        return self.attention(*turned, **masks)[0].transpose(0, 1)


class Packed(nn.Module):
    """A recurrent layer over sequences of different lengths."""

    def __init__(self, kind: type[nn.Module], **options) -> None:
        super().__init__()
        self.cell = kind(3, 4, **options)

    def forward(self, x):
        lengths = 1 + (x[:, 0, 0] > 0).long() + (x[:, 0, 1] > 0).long()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.cell(packed)[0], batch_first=True, total_length=x.shape[1])
        return states


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **options) -> None:
        super().__init__()
        self.cell = kind(3, 4, **options)

    def forward(self, x):
        if self.cell.batch_first:
            return self.cell(x)[0]
        return self.cell(x.transpose(0, 1))[0].transpose(0, 1)


class Bag(nn.Module):
    """Bags given by offsets, with or without a weight for each place."""

    def __init__(self, weighted: bool, **options) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 4, **options)
        self.weighted = weighted

    def forward(self, x):
        flat, offsets = x.flatten(), torch.arange(len(x)) * x.shape[1]
        weights = torch.linspace(0.5, 2, x.shape[1], dtype=torch.float64).repeat(len(x)) if self.weighted else None
        return self.bag(flat, offsets, weights)


class ClassToken(nn.Module):
    """A learned token in front of every sequence, and positions looked up from a table."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Embedding(9, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.out(x + self.positions(torch.arange(x.shape[1])))


class OnParameters(nn.Module):
    """A layer that is called without samples: what it makes of a parameter meets them afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(3, 4))
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(torch.tanh(x + self.mix(self.prompt)))


class Adapted(nn.Module):
    """LoRA as the usual packages do it: bare matrices beside a frozen layer, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 6).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(6, 2))

    def forward(self, x):
        return self.base(x) + 0.5 * (x @ self.a.T) @ self.b.T


class SharedBlock(nn.Module):
    """One convolution called three times, at two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x):
        x = torch.tanh(self.conv(torch.tanh(self.conv(x))))
        return self.conv(nn.functional.avg_pool2d(x, 2))


CASES = {
    "conv1d circular": (lambda: nn.Conv1d(2, 4, 3, padding=2, padding_mode="circular"), draw(B, 2, 7)),
    "conv1d dilated groups": (lambda: nn.Conv1d(4, 4, 2, dilation=3, groups=4, bias=False), draw(B, 4, 9)),
    "conv3d everything": (
        lambda: nn.Conv3d(4, 6, (2, 1, 3), stride=(1, 2, 1), padding=(1, 0, 2), dilation=(2, 1, 1), groups=2),
        draw(B, 4, 4, 3, 4),
    ),
    "transposed 1d everything": (
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, output_padding=1),
        draw(B, 4, 5),
    ),
    "transposed 2d groups": (
        lambda: nn.ConvTranspose2d(4, 2, (3, 2), stride=(2, 1), padding=(1, 0), groups=2, bias=False),
        draw(B, 4, 3, 4),
    ),
    "transposed 3d everything": (
        lambda: nn.ConvTranspose3d(2, 4, 2, stride=2, padding=1, dilation=2, groups=2, output_padding=1),
        draw(B, 2, 3, 3, 3),
    ),
    "conv2d with long kernels": (lambda: nn.Conv2d(1, 8, 5), draw(B, 1, 6, 6)),
    "embedding bag by offsets": (lambda: Bag(False, mode="sum", padding_idx=2), tokens(B, 4)),
    "embedding bag weighted": (lambda: Bag(True, mode="sum"), tokens(B, 4)),
    "embedding of pairs": (lambda: nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 2)), tokens(B, 2, 3)),
    "layer norm of two dimensions": (lambda: nn.LayerNorm([3, 4]), draw(B, 2, 3, 4)),
    "rms norm with eps": (lambda: nn.RMSNorm([3, 4], eps=1e-3), draw(B, 3, 4)),
    "group norm in one group": (lambda: nn.GroupNorm(1, 4), draw(B, 4, 3)),
    "instance norm 1d": (lambda: nn.InstanceNorm1d(4, affine=True), draw(B, 4, 5)),
    "instance norm 3d": (lambda: nn.InstanceNorm3d(2, affine=True), draw(B, 2, 2, 3, 2)),
    "cross attention": (lambda: Attend(batch_first=True), draw(B, 7, 4)),
    "cross attention, samples second": (Attend, draw(B, 7, 4)),
    "attention with other widths": (lambda: Attend(kdim=3, vdim=2, batch_first=True), draw(B, 7, 4)),
    "attention with masks": (lambda: Attend(mask=True, padding=True, batch_first=True, bias=False), draw(B, 7, 4)),
    "attention with learned keys": (lambda: Attend(add_bias_kv=True, add_zero_attn=True), draw(B, 7, 4)),
    "lstm both ways, projected": (
        lambda: Recurrent(nn.LSTM, bidirectional=True, proj_size=2, num_layers=2, batch_first=True),
        draw(B, 3, 3),
    ),
    "gru both ways, samples second": (lambda: Recurrent(nn.GRU, bidirectional=True, bias=False), draw(B, 3, 3)),
    "rnn with relu": (lambda: Recurrent(nn.RNN, nonlinearity="relu", batch_first=True), draw(B, 4, 3)),
    "lstm over packed sequences": (lambda: Packed(nn.LSTM, batch_first=True), draw(B, 3, 3)),
    "gru over packed sequences": (lambda: Packed(nn.GRU, bidirectional=True, batch_first=True), draw(B, 3, 3)),
    "class token and positions": (ClassToken, draw(B, 3, 4)),
    "layer without samples": (OnParameters, draw(B, 3, 4)),
    "lora by hand": (Adapted, draw(B, 3, 4)),
    "convolution called thrice": (SharedBlock, draw(B, 2, 4, 4)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), draw(B, 4)),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.0, batch_first=True),
        draw(B, 3, 4),
    ),
}


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    maker, x = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return maker().double(), x


@pytest.mark.parametrize("name", CASES)
def test_the_tape_equals_autograd(name):
    model, x = build(name)
    expected = brute_force(model, x)
    direction = draw(expected.shape[1])
    weights = draw(B)
    with Engine(model) as engine:
        for _ in range(3):
            tape = engine.record(loss(model(x)))
            scalars = tape.scalars(direction)
            close(scalars.norms, expected.norm(dim=1))
            close(scalars.projections, expected @ direction)
            close(tape.contract([VectorQuery(weights)])[0], weights @ expected)


LAYERS = {
    "places": (lambda: nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40)), draw(40, 40, 40)),
    "rows": (lambda: nn.Sequential(nn.Linear(200, 210), nn.Tanh(), nn.Linear(210, 2)), draw(250, 200)),
    "images": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 2)), draw(12, 2, 6, 6)),
    "words": (lambda: nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3)), tokens(12, 6)),
}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("name", LAYERS)
def test_both_sums_of_online_clipping_whatever_share_is_clipped(name, share):
    """The pairs of weights for which the engine takes short cuts: (C/n, 1/n) where clipped, (1, 0) elsewhere."""
    maker, x = LAYERS[name]
    torch.manual_seed(0)
    model = maker().double()
    with Engine(model) as engine:
        tape = engine.record(loss(model(x)))
    norms = tape.scalars().norms
    order = norms.argsort(descending=True)
    clipped = torch.zeros(len(x), dtype=torch.bool)
    clipped[order[: round(share * len(x))]] = True
    threshold = 0.7
    own = torch.where(clipped, threshold / norms, 1.0)
    unit = torch.where(clipped, 1 / norms, 0.0)
    both = tape.contract([VectorQuery(own), VectorQuery(unit)])
    parameters = list(model.parameters())
    for weights, answer in zip((own, unit), both, strict=True):
        gradients = torch.autograd.grad((loss(model(x)) * weights).sum(), parameters)
        expected = torch.cat([gradient.flatten() for gradient in gradients])
        torch.testing.assert_close(answer, expected, rtol=1e-9, atol=1e-9 * (1 + float(expected.abs().max())))


def test_bfloat16_autocast_takes_norms_in_single_precision():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8))
    x = torch.randn(6, 1, 6, 6)
    with Engine(model) as engine, torch.autocast("cpu", torch.bfloat16):
        tape = engine.record(loss(model(x)).float())
        scalars = tape.scalars()
        total = tape.contract([VectorQuery(torch.ones(6))])[0]
    assert scalars.norms.dtype == total.dtype == torch.float32
    exact = brute_force(model, x)
    torch.testing.assert_close(scalars.norms, exact.norm(dim=1), rtol=0.05, atol=0)
    assert float((total - exact.sum(0)).norm()) < 0.05 * float(exact.sum(0).norm())


@pytest.mark.parametrize("limit", [0, _study.DOUBLE_LIMIT])
def test_a_study_under_autocast_leaves_the_batch_its_own_weights(monkeypatch, limit):
    """Autocast keeps what it has cast: a batch had run with the weights that the study of a large model had moved."""
    monkeypatch.setattr(_study, "DOUBLE_LIMIT", limit)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(5, 6)
    with Engine(model), torch.autocast("cpu", torch.bfloat16):
        found = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found, model(x))


def test_wide_layers_under_autocast_keep_their_rules(caplog, monkeypatch):
    """More features than a Gram matrix adds at once: the study once failed there, and ran such models row by row."""
    monkeypatch.setattr(_study, "DOUBLE_LIMIT", 0)  # large models are not studied in double precision
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(160, 160), nn.Tanh(), nn.Linear(160, 3))
    x = torch.randn(4, 5, 160)
    with Engine(model) as engine, torch.autocast("cpu", torch.bfloat16):
        engine.record(model(x).float().square().mean((1, 2))).scalars()
    assert "one sample at a time" not in caplog.text


def test_one_forward_and_one_backward_pass_per_step_whatever_is_asked(monkeypatch):
    """Counted in a layer of its own: when no check is due, each record runs it once forward and once backward."""

    class Counting(torch.autograd.Function):  # in the environment: what a forward pass leaves elsewhere is withheld
        @staticmethod
        def forward(context, x):
            os.environ["FORWARDS"] += "1"
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            os.environ["BACKWARDS"] += "1"
            return gradient

    class Middle(nn.Module):
        def forward(self, x):
            return Counting.apply(x)

    torch.manual_seed(0)
    monkeypatch.setenv("FORWARDS", "")
    monkeypatch.setenv("BACKWARDS", "")
    model = nn.Sequential(nn.Linear(4, 4), Middle(), nn.Linear(4, 2))
    x = torch.randn(6, 4)
    with Engine(model) as engine:
        engine.record(loss(model(x)))
        monkeypatch.setattr(RemovalSchedule, "due", lambda schedule: False)
        os.environ["FORWARDS"] = os.environ["BACKWARDS"] = ""
        for count in (1, 2, 3):
            tape = engine.record(loss(model(x)))
            direction = torch.ones(engine.layout().size)
            tape.scalars(direction)
            tape.contract([VectorQuery(torch.ones(6)), VectorQuery(torch.arange(6.0), torch.ones(6))], direction)
            assert (len(os.environ["FORWARDS"]), len(os.environ["BACKWARDS"])) == (count, count)
