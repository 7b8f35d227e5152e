"""What passes between server and clients, as plain arrays.

    server --Arrays--> work of the client -> ClientResult -> clipping, noise --ClientUpdate--> server's half of the
    placement -> Release -> strategy

A `ClientResult` holds raw updates and never leaves the client. A `ClientUpdate` is what leaves it: sums that are
clipped and about to be noised by a trusted server, or vectors that were sanitised already. A `Release`
is all a strategy sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Arrays: TypeAlias = Mapping[str, Tensor]
"""Named arrays, the only thing a server sends."""


@dataclass(frozen=True)
class ClientResult:
    """What the clients of a cohort computed; one row per client. Stays on the clients' side."""

    vectors: Tensor
    """``(U, D)``: updates, gradients, or whole models."""
    sizes: Tensor
    """``(U,)``: how many rows each client trained on; a secret, like everything here."""
    anchors: Tensor | None = None
    """``(U, D)``: the public point each vector started from; None means zero."""
    record_bound: float | None = None
    """How far one *record* can move a client's vector, in L2 norm, where the work bounded it."""

    def moved_by(self) -> Tensor:
        """``xi``, how far each client's vector went from its anchor."""
        return self.vectors if self.anchors is None else self.vectors - self.anchors

    def steady(self) -> ClientResult:
        """The same, with a client that did not move in place of one whose vector is not finite, or has no length.

        Nobody can tell it from a client that learnt nothing: it is sanitised, sent and charged like every other.
        """
        sound = self.vectors.norm(dim=1, keepdim=True).isfinite()
        if bool(sound.all()):
            return self
        start = torch.zeros_like(self.vectors) if self.anchors is None else self.anchors.nan_to_num(0.0, 0.0, 0.0)
        anchors = None if self.anchors is None else torch.where(sound, self.anchors, start)
        return ClientResult(torch.where(sound, self.vectors, start), self.sizes, anchors, self.record_bound)

    def keep(self, rows: Tensor) -> ClientResult:
        """Only these clients."""
        anchors = None if self.anchors is None else self.anchors[rows]
        return ClientResult(self.vectors[rows], self.sizes[rows], anchors, self.record_bound)


@dataclass(frozen=True)
class Refusal:
    """Who was turned away, and why; for the operator of the server."""

    sender: int
    reason: str


@dataclass(frozen=True)
class ClientUpdate:
    """What leaves the clients: sums over clients, sanitised vectors, or both. Updates add up in any grouping."""

    sums: tuple[Tensor, ...] = ()
    vectors: Tensor | None = None
    """``(clients, D)``, one sanitised (or, without privacy, raw) vector per client that answered."""
    answered: int = 0
    """How many clients are in the sums or vectors."""
    rejected: int = 0
    """How many updates were not finite and were dropped."""
    withheld: int = 0
    """How many clients kept their update because their account allows no more."""
    senders: tuple[int, ...] = ()
    """Whose vectors these are, row by row."""
    dropped: int = 0
    """How many clients were asked and never heard of."""
    refused: tuple[Refusal, ...] = ()
    """What arrived and was turned away."""

    def each(self) -> tuple[Tensor, ...]:
        """As many numbers as one client sent."""
        return self.sums if self.vectors is None else (*self.sums, self.vectors[:1])

    def __add__(self, other: ClientUpdate) -> ClientUpdate:
        sums = tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)) if self.sums and other.sums else ()
        stacks = [part for part in (self.vectors, other.vectors) if part is not None]
        return ClientUpdate(
            sums or self.sums or other.sums,
            torch.cat(stacks) if stacks else None,
            self.answered + other.answered,
            self.rejected + other.rejected,
            self.withheld + other.withheld,
            self.senders + other.senders,
            self.dropped + other.dropped,
            self.refused + other.refused,
        )


@dataclass(frozen=True)
class Release:
    """What the server may use: a mean and, unless only the mean is private, the vectors it was made of."""

    mean: Tensor
    vectors: Tensor | None = None
    senders: tuple[int, ...] | None = None
    """Whose vectors these are: whoever receives them knows."""
