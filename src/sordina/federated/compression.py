"""Fewer bytes from client to server: what was sanitised is rounded or thinned out, which is post-processing.

A compressed vector travels as one row of bytes and is unpacked at the server before anything else looks at it. Under
central privacy compression is refused: the noise comes after it, calibrated to vectors that rounding may lengthen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput, Unsupported
from sordina.federated.messages import ClientResult, ClientUpdate, Release
from sordina.federated.population import ClientSelection
from sordina.federated.privacy.accounts import Leakage
from sordina.federated.privacy.placement import ClearUpdates, Facts, Placement, PrivacyStatement

Bytes = NDArray[np.uint8]


class Codec(Protocol):
    """Rows of numbers as rows of bytes."""

    def encode(self, rows: Tensor, rng: np.random.Generator) -> Bytes:
        """``(clients, D) -> (clients, bytes)``; each row by itself."""
        ...

    def decode(self, rows: Bytes, size: int) -> Tensor:
        """``(clients, bytes) -> (clients, D)``; refuses bytes that no client of ours wrote."""
        ...


@dataclass(frozen=True)
class Quantised:
    """``bits`` per number: levels between -m and m, m the largest magnitude of the row, rounded up or down at random.

    ``P(up)`` is the distance to the level below, so the expectation is the number itself (QSGD, Alistarh et al. 2017).

    >>> rows = torch.tensor([[0.0, 0.5, -1.0]])
    >>> codec = Quantised(8)
    >>> (codec.decode(codec.encode(rows, np.random.default_rng(0)), 3) - rows).abs().max() < 2 / 255
    tensor(True)
    """

    bits: int = 8

    def __post_init__(self) -> None:
        if self.bits not in (1, 2, 4, 8):
            raise InvalidInput(f"numbers are rounded to 1, 2, 4 or 8 bits, got {self.bits}.")

    @property
    def _top(self) -> int:
        return int(2**self.bits - 1)

    def encode(self, rows: Tensor, rng: np.random.Generator) -> Bytes:
        """A scale in single precision, then the levels, several to a byte."""
        values = rows.double().numpy()
        scale = np.nextafter(np.abs(values).max(axis=1, keepdims=True).astype("<f4"), np.float32(np.inf))
        unit = np.divide(values, scale, out=np.zeros_like(values), where=scale > 0)
        exact = (unit + 1) / 2 * self._top
        levels = np.clip(np.floor(exact + rng.random(exact.shape)), 0, self._top).astype(np.uint8)
        per_byte = 8 // self.bits
        levels = np.pad(levels, ((0, 0), (0, -levels.shape[1] % per_byte)))
        packed = np.zeros((len(levels), levels.shape[1] // per_byte), dtype=np.uint8)
        for place in range(per_byte):
            packed |= levels[:, place::per_byte] << np.uint8(self.bits * place)
        return np.concatenate([np.ascontiguousarray(scale, dtype="<f4").view(np.uint8), packed], axis=1)

    def decode(self, rows: Bytes, size: int) -> Tensor:
        """``m (2 level / top - 1)``."""
        per_byte = 8 // self.bits
        if rows.shape[1] != 4 + -(-size // per_byte):
            raise InvalidInput(f"malformed: {rows.shape[1]} bytes are not {size} numbers of {self.bits} bits")
        scale = torch.from_numpy(np.ascontiguousarray(rows[:, :4]).view("<f4").astype(np.float64))
        shifts = np.uint8(self.bits) * np.arange(per_byte, dtype=np.uint8)
        levels = ((rows[:, 4:, None] >> shifts) & np.uint8(self._top)).reshape(len(rows), -1)[:, :size]
        return scale * (2 * torch.from_numpy(levels.astype(np.float64)) / self._top - 1)


@dataclass(frozen=True)
class TopK:
    """The ``share`` of numbers with the largest magnitude, in single precision with their places; the rest is 0.

    >>> codec = TopK(0.5)
    >>> codec.decode(codec.encode(torch.tensor([[1.0, -3.0, 0.5, 2.0]]), np.random.default_rng(0)), 4)
    tensor([[ 0., -3.,  0.,  2.]], dtype=torch.float64)
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidInput(f"the share of numbers that are sent must lie in (0, 1], got {self.share}.")

    def encode(self, rows: Tensor, rng: np.random.Generator) -> Bytes:
        """Places, then values, four bytes each."""
        count = self._count(rows.shape[1])
        places = rows.abs().topk(count, dim=1).indices.sort(dim=1).values
        values = rows.gather(1, places).numpy().astype("<f4")
        return np.concatenate([places.numpy().astype("<u4").view(np.uint8), values.view(np.uint8)], axis=1)

    def decode(self, rows: Bytes, size: int) -> Tensor:
        """Values where they belong."""
        count = self._count(size)
        if rows.shape[1] != 8 * count:
            raise InvalidInput(f"malformed: {rows.shape[1]} bytes are not {count} of {size} numbers")
        places = np.ascontiguousarray(rows[:, : 4 * count]).view("<u4").astype(np.int64)
        values = np.ascontiguousarray(rows[:, 4 * count :]).view("<f4").astype(np.float64)
        if (places >= size).any() or (np.diff(places, axis=1) <= 0).any():
            raise InvalidInput(f"malformed: places that are not {count} different ones of {size}")
        return torch.zeros(len(rows), size, dtype=torch.float64).scatter_(
            1, torch.from_numpy(places), torch.from_numpy(values)
        )

    def _count(self, size: int) -> int:
        return max(1, round(self.share * size))


@dataclass(frozen=True)
class Compressed:
    """``placement`` with its vectors compressed on their way by ``codec``; the guarantee is the placement's own."""

    placement: Placement
    codec: Codec
    size: int
    """The length of a client's vector."""
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if not self.placement.vectors_released:
            raise Unsupported(
                f"{type(self.placement).__name__} privacy adds its noise after the clients' updates have arrived; "
                "compressing them before changes what the noise is calibrated to. Use local or metric privacy."
            )

    @property
    def vectors_released(self) -> bool:
        """As the placement does."""
        return True

    @property
    def hides_failures(self) -> bool:
        """As the placement does."""
        return self.placement.hides_failures

    def check(self, selection: ClientSelection, rounds: int) -> None:
        """As the placement does."""
        self.placement.check(selection, rounds)

    def start(self, size: int) -> Any:
        """As the placement does."""
        if size != self.size:
            raise InvalidInput(f"vectors of {size} numbers came where {self.size} were announced.")
        return self.placement.start(size)

    def cost(self, size: int) -> Fraction:
        """As the placement does: what is done after sanitisation costs nothing."""
        return self.placement.cost(size)

    def leakage(self, size: int) -> Leakage:
        """As the placement does."""
        return self.placement.leakage(size)

    def seal(self, outcome: ClientResult, state: Any, rng: np.random.Generator) -> ClientUpdate:
        """Sanitise first, then compress; sums are left out, as the server makes them from what it unpacks."""
        vectors = self.placement.seal(outcome, state, rng).vectors
        assert vectors is not None
        return ClientUpdate(vectors=torch.from_numpy(self.codec.encode(vectors, rng)))

    def decoded(self, update: ClientUpdate) -> ClientUpdate:
        """The update as the placement would have sent it."""
        if update.vectors is None or not len(update.vectors):
            return update
        vectors = self.codec.decode(update.vectors.numpy(), self.size).to(self.dtype)
        sums = (vectors.sum(dim=0), vectors.new_tensor(float(len(vectors)))) if self._bare else ()
        return replace(update, sums=sums, vectors=vectors)

    @property
    def _bare(self) -> bool:
        """Without privacy the placement works from sums; clients then count alike."""
        return isinstance(self.placement, ClearUpdates)

    def open(self, update: ClientUpdate, state: Any, rng: np.random.Generator) -> tuple[Release | None, Any]:
        """Unpack, then as the placement does."""
        return self.placement.open(self.decoded(update), state, rng)

    def statement(self, facts: Facts) -> PrivacyStatement:
        """The placement's own."""
        return self.placement.statement(facts)


def named(name: str) -> Codec | None:
    """Read ``none``, ``8bit``, ``4bit``, ``2bit``, ``1bit`` or ``top:0.1``.

    >>> named("top:0.05"), named("4bit"), named("none")
    (TopK(share=0.05), Quantised(bits=4), None)
    """
    if name == "none":
        return None
    kind, _, value = name.partition(":")
    try:
        if kind == "top":
            return TopK(float(value))
        if kind.endswith("bit"):
            return Quantised(int(kind.removesuffix("bit")))
    except ValueError:
        pass
    raise InvalidInput(f"compression is none, 8bit, 4bit, 2bit, 1bit or top:SHARE, got {name!r}.")
