"""Records made to break a bound: magnitudes up to the largest float, places that cancel, and climbing from the worst.

A record is an input and the gradient it sends into the model's output, so that both sides of every product are free.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from sordina.clipping import Automatic, Fixed, Online
from sordina.gradients import Engine
from sordina.privacy import Adjacency
from sordina.queries import VectorQuery


class Twice(nn.Module):
    """One layer at two places whose gradients a record can set against each other."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        half = x.shape[1] // 2
        return torch.cat([self.layer(x[:, :half]), self.layer(x[:, half:])], 1)


class Tied(nn.Module):
    """A table that is looked up and multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 12)

    def forward(self, x):
        embedded = self.table(x)
        return torch.cat([embedded, embedded @ self.table.weight.T], -1)


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x[:, :1], x, x, need_weights=False)[0]


class Bare(nn.Module):
    """Operations between parameters and samples outside of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.matrix = nn.Parameter(torch.ones(3, 12)), nn.Parameter(torch.randn(12, 12) / 4)
        self.kernel = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        product = torch.einsum("btd,tk->bdk", x, self.kernel)
        return torch.cat([((x * self.scale) @ self.matrix).flatten(1), product.flatten(1)], 1)


class Recur(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(12, 12, batch_first=True)

    def forward(self, x):
        return self.cell(x)[0]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(12, 9), (12,)),
    "linear over places": (lambda: nn.Linear(16, 16), (3, 16)),
    "linear over many places": (lambda: nn.Linear(3, 2), (16, 3)),
    "two layers": (lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)), (3, 16)),
    "linear called twice": (lambda: Twice(nn.Linear(16, 16)), (2, 16)),
    "convolution": (lambda: nn.Conv2d(8, 8, 3, padding=1), (8, 3, 3)),
    "small convolution": (lambda: nn.Conv2d(1, 2, 2), (1, 4, 4)),
    "convolution called twice": (lambda: Twice(nn.Conv1d(1, 3, 2)), (2, 6)),
    "transposed convolution": (lambda: nn.ConvTranspose1d(8, 8, 3, stride=2), (8, 4)),
    "layer norm": (lambda: nn.LayerNorm(12), (3, 12)),
    "group norm": (lambda: nn.GroupNorm(2, 8), (8, 5)),
    "attention": (Attend, (3, 12)),
    "lstm": (lambda: Recur(nn.LSTM), (3, 12)),
    "gru": (lambda: Recur(nn.GRU), (3, 12)),
    "bare parameters": (Bare, (3, 12)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(12, 9)), (12,)),
    "embedding": (lambda: nn.Embedding(9, 12), ()),
    "tied": (Tied, ()),
}


@dataclass
class Search:
    """Looks for a record of one model whose clipped contribution exceeds its bound."""

    name: str
    rows_per_unit: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        maker, self.shape = MODELS[self.name]
        self.model = maker().float()
        self.discrete = not self.shape
        self.rng = torch.Generator().manual_seed(self.seed + 1)
        self.output = self.model(self._inputs(1)).shape[1:]
        self.engine = Engine(self.model)

    def _inputs(self, rows: int) -> Tensor:
        if self.discrete:
            return torch.randint(0, 9, (rows, 4), generator=self.rng)
        return torch.randn(rows, *self.shape, generator=self.rng)

    def _magnitude(self, rows: int) -> Tensor:
        low, high = (-45.0, 38.5) if self._coin(0.5) else (-3.0, 8.0)
        powers = low + (high - low) * torch.rand(rows, generator=self.rng, dtype=torch.float64)
        return 10.0**powers

    def _coin(self, probability: float) -> bool:
        return float(torch.rand((), generator=self.rng)) < probability

    def records(self, rows: int) -> tuple[Tensor, Tensor]:
        """Random records; in most, places are copies of each other with nearly opposite gradients."""
        x, b = self._inputs(rows), torch.randn(rows, *self.output, generator=self.rng)
        if not self.discrete:
            flat = x.view(rows, x.shape[1], -1) if x.dim() > 2 else x.view(rows, 1, -1)
            if self._coin(0.8) and flat.shape[1] > 1:
                flat[:, 1:] = flat[:, :1]
        if self._coin(0.8) and b.dim() > 2 and b.shape[1] > 1:
            b[:, 1:] = b[:, :1] * -(1.0 / (b.shape[1] - 1))
            b += 10.0 ** -(7 * torch.rand((), generator=self.rng)) * torch.randn(b.shape, generator=self.rng)
        if self.rows_per_unit > 1 and self._coin(0.8):
            pairs = b.view(-1, self.rows_per_unit, *self.output)
            pairs[:, 1:] = -pairs[:, :1] / (self.rows_per_unit - 1)
            x.view(-1, self.rows_per_unit, *x.shape[1:])[:, 1:] = x.view(-1, self.rows_per_unit, *x.shape[1:])[:, :1]
        if not self.discrete:
            x = self._scaled(x, rows)
        return x, self._scaled(b, rows)

    def _scaled(self, x: Tensor, rows: int) -> Tensor:
        wide = x.double() * self._magnitude(rows).view(-1, *[1] * (x.dim() - 1))
        return wide.clamp(-3.4e38, 3.4e38).float()

    def worst(self, x: Tensor, b: Tensor) -> tuple[float, int]:
        """The largest contribution of a unit over its bound, and the unit; the others get weight zero or their own."""
        tape = self.engine.record((self.model(x) * b).flatten(1).sum(1), self.rows_per_unit)
        norms = tape.scalars().norms
        worst, place = 0.0, 0
        for policy in (Fixed(1.0), Fixed(1e-4), Automatic(), Online(0.1)):
            state = policy.init(1)
            queries = [q for q in policy.ask(tape.scalars(), state) if isinstance(q, VectorQuery)]
            bounds = policy.bounds(state, Adjacency.ADD_REMOVE)
            for query, bound in zip(queries, bounds, strict=False):
                for unit in range(len(norms)):
                    alone = torch.zeros_like(norms)
                    alone[unit] = query.own[unit]
                    size = float(tape.contract([VectorQuery(alone)])[0].double().norm()) / bound
                    size = size if math.isfinite(size) else math.inf
                    if size > worst:
                        worst, place = size, unit
        return worst, place

    def climb(self, x: Tensor, b: Tensor, steps: int) -> float:
        """From one record, keep every change that makes it worse."""
        best, _ = self.worst(x, b)
        for _ in range(steps):
            grow = 1 + 10.0 ** -float(8 * torch.rand((), generator=self.rng))
            noise = 10.0 ** -float(7 * torch.rand((), generator=self.rng))
            new_b = b * (1 + noise * torch.randn(b.shape, generator=self.rng))
            new_x = x if self.discrete else x * grow * (1 + noise * torch.randn(x.shape, generator=self.rng))
            found, _ = self.worst(new_x, new_b)
            if found >= best:
                best, x, b = found, new_x, new_b
        return best

    def run(self, rounds: int, batch: int = 4, climbs: int = 5) -> float:
        """The worst of all records tried."""
        worst = 0.0
        for _ in range(rounds):
            x, b = self.records(batch * self.rows_per_unit)
            found, unit = self.worst(x, b)
            if climbs:
                own = slice(unit * self.rows_per_unit, (unit + 1) * self.rows_per_unit)
                found = max(found, self.climb(x[own], b[own], climbs))
            worst = max(worst, found)
        return worst
