"""What arrives at the server: looked at before it counts, and what is taken for the clients' mean.

The server's door: what arrives is looked at before it counts, and whoever is turned away is named.

====================  =====================================================  ==================
what is wrong         how it is seen                                         who can look
====================  =====================================================  ==================
nobody asked          the sender is not among the clients of the round       `UpdateValidator.sift`
impostor              the pass is not the one issued to that client          `UpdateValidator.sift`
late, or replayed     the pass was issued for an earlier round               `UpdateValidator.sift`
duplicate             the sender was let in already                          `UpdateValidator.sift`
malformed             other shapes or kinds than an honest update has        `UpdateValidator.judge`
not finite            NaN or infinity                                        `UpdateValidator.judge`
replayed              the same numbers in answer to another model            `UpdateValidator.judge`
too large             above the clipping bound (central), else far above     `UpdateValidator.judge`
                      the median of the round
====================  =====================================================  ==================

Under central privacy every check reads one client's message alone, so a refused update is a zero update and the
sensitivity stays what it was; a comparison with the others (the median) happens only where clients sanitised their
messages themselves, or no privacy is promised.

What the server takes for the clients' mean, when some clients may be hostile.

All of these read the clients' vectors one by one. Where those were sanitised by the clients, or no privacy is promised,
that is post-processing. Under central privacy it is refused: the noise is calibrated to how far one client moves a
*sum*; a median or a choice among vectors can move by as much as the vectors differ, whatever they were clipped to.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.algorithms.algorithm import unmoved
from sordina.federated.compression import Compressed
from sordina.federated.decentralized.gopa import GopaNoise
from sordina.federated.messages import ClientUpdate, Refusal
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.distributed import Distributed
from sordina.privacy import Adjacency

if TYPE_CHECKING:
    from sordina.federated.engines import ClientSide, RoundRequest

# The server's door: what arrives is looked at before it counts, and whoever is turned away is named.

_ROUNDING = 1 + 1e-3
"""A clipped vector may pass its bound by rounding."""


@dataclass(frozen=True)
class ReceivedUpdate:
    """An update on its way, with the name and the pass its sender shows."""

    sender: int
    token: bytes
    update: ClientUpdate


@dataclass
class UpdateValidator:
    """Issues a pass per client and round, and lets in what carries it and looks as it should.

    ``times`` is how often an update may exceed the round's median length, where updates may be compared.
    """

    times: float = 1000.0
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    seen: dict[int, dict[bytes, bytes]] = field(default_factory=dict, repr=False)
    """For each client, digests of what was let in from it before and of what that was an answer to."""

    def token(self, number: int, client: int) -> bytes:
        """The pass of ``client`` for round ``number``."""
        return hmac.new(self.key, f"{number}/{client}".encode(), hashlib.sha256).digest()

    def sift(
        self, arrivals: Iterable[ReceivedUpdate], side: ClientSide, call: RoundRequest, asked: NDArray[np.int64]
    ) -> ClientUpdate:
        """What may be used of the messages of a round, in the order of the draw."""
        number, expected = call.order.round, {int(client) for client in asked}
        let_in: dict[int, ClientUpdate] = {}
        refused: list[Refusal] = []
        for received in arrivals:
            if reason := self._unwelcome(received, number, expected, let_in):
                refused.append(Refusal(received.sender, reason))
            else:
                let_in[received.sender] = received.update
        arrived = [(int(client), let_in[int(client)]) for client in asked if int(client) in let_in]
        return ClientUpdate(refused=tuple(refused)) + self.judge(arrived, side, call)

    def _unwelcome(
        self, received: ReceivedUpdate, number: int, asked: set[int], let_in: dict[int, ClientUpdate]
    ) -> str | None:
        if hmac.compare_digest(received.token, self.token(number, received.sender)):
            if received.sender not in asked:
                return "was not asked this round"
            return "duplicate" if received.sender in let_in else None
        for earlier in range(number):
            if hmac.compare_digest(received.token, self.token(earlier, received.sender)):
                return f"late: an answer to round {earlier + 1}"
        return "impostor: the pass is not one of this run"

    def judge(self, arrived: Sequence[tuple[int, ClientUpdate]], side: ClientSide, call: RoundRequest) -> ClientUpdate:
        """Add up the updates of known senders that are sound; name the others.

        Under distributed privacy a server sees none by itself, and adds up what is there.
        """
        if isinstance(side.placement, (Distributed, GopaNoise)):
            return sum((replace(update, answered=1) for _, update in arrived), ClientUpdate())
        honest, question = blank(side, call), _digest(call.sent.values())
        refused: list[Refusal] = []
        sound: list[tuple[int, ClientUpdate, list[Tensor]]] = []
        for sender, update in arrived:
            seen = self._looked_at(sender, update, honest, side, call, question)
            if isinstance(seen, Refusal):
                refused.append(seen)
            else:
                sound.append((sender, update, seen))
        if not isinstance(side.placement, Central):
            sound, far = self._comparable(sound)
            refused += far
        total = ClientUpdate(refused=tuple(refused))
        for sender, update, _ in sound:
            self.seen.setdefault(sender, {}).setdefault(_digest(update.each()), question)
            senders = (sender,) if update.vectors is not None else ()
            total += ClientUpdate(update.sums, update.vectors, answered=1, senders=senders)
        return total

    def _looked_at(
        self,
        sender: int,
        update: ClientUpdate,
        honest: ClientUpdate,
        side: ClientSide,
        call: RoundRequest,
        question: bytes,
    ) -> list[Tensor] | Refusal:
        """The numbers of an update that passes every test on its own."""
        mine, expected = update.each(), honest.each()
        if _forms(mine) != _forms(expected):
            return Refusal(sender, f"malformed: {_forms(mine)} came where {_forms(expected)} was expected")
        placement = side.placement
        try:
            numbers = list(placement.decoded(update).each() if isinstance(placement, Compressed) else mine)
        except InvalidInput as error:
            return Refusal(sender, str(error))
        if not all(bool(one.isfinite().all()) for one in numbers):
            return Refusal(sender, "not finite")
        if self._repeats(sender, update, question):
            return Refusal(sender, "a replay of an earlier update")
        if isinstance(placement, Central) and not _within(placement, numbers, honest, call):
            return Refusal(sender, "larger than the clipping bound")
        return numbers

    def _repeats(self, sender: int, update: ClientUpdate, question: bytes) -> bool:
        """Whether these numbers were let in as the answer to another question; zeros may be so honestly."""
        content = update.each()
        earlier = self.seen.get(sender, {}).get(_digest(content), question)
        return earlier != question and bool(content[0].any())

    def _comparable(
        self, sound: list[tuple[int, ClientUpdate, list[Tensor]]]
    ) -> tuple[list[tuple[int, ClientUpdate, list[Tensor]]], list[Refusal]]:
        """Leave out what is ``times`` longer than the median of the round."""
        if len(sound) < 3:
            return sound, []
        lengths = torch.stack([torch.stack([one.double().norm() for one in numbers]) for _, _, numbers in sound])
        limit = self.times * lengths.median(dim=0).values
        far = ((lengths > limit) & (limit > 0)).any(dim=1).tolist()
        refused = [Refusal(one[0], "far larger than the others") for one, bad in zip(sound, far, strict=True) if bad]
        return [one for one, bad in zip(sound, far, strict=True) if not bad], refused


def blank(side: ClientSide, call: RoundRequest) -> ClientUpdate:
    """What an honest update looks like: that of a client whose vector is zero. Its noise, if any, is thrown away."""
    return replace(
        side.placement.seal(unmoved(side.work, call.sent), call.privacy, np.random.default_rng(0)), answered=1
    )


def _within(placement: Central, numbers: Sequence[Tensor], honest: ClientUpdate, call: RoundRequest) -> bool:
    """Whether one client's sums lie where its clipping puts them: in the ball, or as near to a zero update's as any."""
    adjacency = placement.plan.adjacency
    bounds: list[float] = []
    columns = placement.columns(call.privacy.size)
    for (_, _, policy), state in zip(columns, call.privacy.policies, strict=True):
        bounds += policy.bounds(state, adjacency)
    centres = [0.0 * one if adjacency is Adjacency.ADD_REMOVE else one for one in honest.sums]
    triples = zip(numbers, centres, bounds, strict=True)
    return all(float((one - centre).double().norm()) <= _ROUNDING * bound for one, centre, bound in triples)


def _digest(numbers: Iterable[Tensor]) -> bytes:
    return hashlib.sha256(b"".join(one.contiguous().numpy().tobytes() for one in numbers)).digest()


def _forms(numbers: Sequence[Tensor]) -> str:
    return ", ".join(f"{one.dtype}{list(one.shape)}".removeprefix("torch.") for one in numbers) or "nothing"


# What the server takes for the clients' mean, when some clients may be hostile.


class Aggregator(Protocol):
    """One vector in place of many."""

    def combine(self, vectors: Tensor) -> Tensor:
        """``(clients, D) -> (D,)``; the order of the clients does not matter."""
        ...


@dataclass(frozen=True)
class Median:
    """The median of each coordinate (Yin et al. 2018): right as long as fewer than half of the clients are hostile.

    >>> Median().combine(torch.tensor([[1.0, 0.0], [2.0, 9e9], [3.0, 1.0], [9e9, 2.0]]))
    tensor([2.5000, 1.5000])
    """

    def combine(self, vectors: Tensor) -> Tensor:
        """The middle value, or the mean of the two middle ones."""
        ordered = vectors.sort(dim=0).values
        middle = len(vectors) // 2
        return ordered[middle] if len(vectors) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each coordinate without its ``share`` lowest and highest values (Yin et al. 2018).

    >>> TrimmedMean(0.25).combine(torch.tensor([[1.0], [2.0], [4.0], [9e9]]))
    tensor([3.])
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise InvalidInput(f"the share trimmed at each end must lie in [0, 0.5), got {self.share}.")

    def combine(self, vectors: Tensor) -> Tensor:
        """Sort, cut, average; a share that is no whole number of clients is rounded up, if enough remain."""
        cut = min(-int(-self.share * len(vectors) // 1), (len(vectors) - 1) // 2)
        return vectors.sort(dim=0).values[cut : len(vectors) - cut].mean(dim=0)


@dataclass(frozen=True)
class Krum:
    """The vector closest to its ``n - f - 2`` nearest others, f being the hostile ones feared (Blanchard et al. 2017).

    The paper's theorem needs ``n >= 2 f + 3``; f is ``share`` of the clients that answered, cut to what that allows.

    >>> Krum(0.2).combine(torch.tensor([[1.0], [1.1], [1.25], [9e9], [1.5]]))
    tensor([1.1000])
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise InvalidInput(f"the share of hostile clients must lie in [0, 0.5), got {self.share}.")

    def combine(self, vectors: Tensor) -> Tensor:
        """The vector with the lowest sum of squared distances; with fewer than three there is no closest pair."""
        count = len(vectors)
        if count < 3:
            return Median().combine(vectors)
        hostile = min(-int(-self.share * count // 1), (count - 3) // 2)
        rows = vectors.double()
        distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        squares = distances.square().fill_diagonal_(torch.inf)
        scores = squares.sort(dim=1).values[:, : count - hostile - 2].sum(dim=1)
        return vectors[int(scores.argmin())]


NAMES = ("mean", "median", "trimmed-mean", "krum")


def named(name: str, share: float = 0.2) -> Aggregator | None:
    """The aggregator called ``name``; the mean is what a placement makes by itself, so None."""
    known: dict[str, Aggregator | None] = {
        "mean": None,
        "median": Median(),
        "trimmed-mean": TrimmedMean(share),
        "krum": Krum(share),
    }
    if name not in known:
        raise InvalidInput(f"unknown aggregation {name!r}: choose one of {', '.join(NAMES)}.")
    return known[name]
