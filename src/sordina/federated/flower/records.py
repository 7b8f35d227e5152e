"""Flower's records from ours and back, and messages of protocols that take several steps in a round.

Protocols of several steps in one round on Flower: what their messages have in common, on both sides.

The first message of such a round is its ordinary instruction: the client works, is charged and noises its update as
always, but keeps it and answers with a public key. The further steps are messages of type ``query``. What a client must
remember between two steps stays in Flower's context, in memory, and is gone with it: a client that restarts in the
middle of a round has dropped out of it. That a step was taken is written to the client's own folder *before* it is
answered (`ClientFolder.advance`), so that no step is taken twice, whatever comes at the same time or after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput, SordinaError
from sordina.federated.engines import RoundRequest
from sordina.federated.messages import ClientUpdate, Refusal, decode, encode, pack, unpack, update_of_arrays
from sordina.federated.population import RowOrder

_LARGEST = 2**63
_ARRAYS = 8192
"""No message holds more arrays."""
_SENT, _PRIVACY, _ORDER, _UPDATE = "sent", "privacy", "order", "letter"  # what is on the wire keeps its names


@dataclass(frozen=True)
class Instruction:
    """What a client reads in the server's message before it knows the classes of the public state."""

    sent: Mapping[str, Tensor]
    privacy: Mapping[str, NDArray[Any]]
    order: RowOrder
    client: int
    """The number by which the server calls the client."""
    side: int
    """Which client half to use, where an app has several (a simulation)."""

    def call(self, like: Any) -> RoundRequest:
        """The call, with the public privacy state rebuilt like ``placement.start(size)``."""
        return RoundRequest(self.sent, unpack(self.privacy, like), self.order)


def instruct(call: RoundRequest, client: int, side: int = 0) -> RecordDict:
    """The server's message to one client: public values only."""
    order = {"seed": call.order.seed, "round": call.order.round, "client": client, "side": side}
    sent = {name: value.detach().cpu().numpy() for name, value in call.sent.items()}
    return RecordDict(
        {_SENT: write_arrays(sent), _PRIVACY: write_arrays(pack(call.privacy)), _ORDER: ConfigRecord(order)}
    )


def read(content: RecordDict) -> Instruction:
    """The instruction in a server's message; refuses one that is not of our making."""
    try:
        order = content.config_records[_ORDER]
        seed, number, client, side = (order[name] for name in ("seed", "round", "client", "side"))
        sent, privacy = (read_arrays(content.array_records[name]) for name in (_SENT, _PRIVACY))
    except Exception as error:
        raise InvalidInput(f"this instruction is not of Sordina's making ({type(error).__name__}).") from error
    if not all(type(one) is int and 0 <= one < _LARGEST for one in (seed, number, client, side)):
        raise InvalidInput("this instruction is not of Sordina's making: round, client and seed are numbers from 0 on.")
    tensors = {name: unpack({":t": value}, None) for name, value in sent.items()}
    return Instruction(tensors, privacy, RowOrder(seed, number), client, side)


def reply(arrays: Mapping[str, NDArray[Any]]) -> RecordDict:
    """A client's message: its update and nothing else."""
    return RecordDict({_UPDATE: write_arrays(arrays)})


def update_in(content: RecordDict) -> ClientUpdate:
    """The update in a client's message; anything else in it, or anything amiss, is refused."""
    if set(content) != {_UPDATE} or _UPDATE not in content.array_records:
        raise InvalidInput(f"malformed: a reply holds one update, this one holds {len(content)} records")
    return update_of_arrays(read_arrays(content.array_records[_UPDATE]))


def weight(content: RecordDict) -> int:
    """The bytes of a message's content, as Flower counts them; transport and encryption come on top."""
    records = [*content.array_records.values(), *content.config_records.values()]
    return sum(int(record.count_bytes()) for record in records)


def write_arrays(values: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Arrays as one of Flower's records.

    Args:
        values: Arrays by name.
    """
    return ArrayRecord({name: Array(*encode(value)) for name, value in values.items()})


def read_arrays(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """The arrays of a foreign record; Flower's own reader is never called: it interprets what it is sent."""
    if len(record) > _ARRAYS:
        raise InvalidInput(f"malformed: {len(record)} arrays in one record")
    return {name: decode(one.dtype, one.shape, one.stype, one.data) for name, one in record.items()}


# Protocols of several steps in one round on Flower: what their messages have in common, on both sides.

Exchange = Callable[[dict[int, RecordDict], str], dict[int, Message]]
"""Sends one message of a type to each client; gives the replies that came in time."""
MOST_NUMBERS = 10_000
"""No step speaks of more clients."""


@dataclass
class StepExchange:
    """The server's side of the steps of one round.

    Args:
        exchange: Reaches the clients.
        aside: What is known of clients that are not in the sum.
    """

    exchange: Exchange
    aside: dict[int, ClientUpdate] = field(default_factory=dict)

    def step(self, contents: dict[int, RecordDict], kind: str, take: Callable[[int, RecordDict], None]) -> None:
        """Send, and take what came; what does not parse counts as silence, and is named.

        Args:
            contents: For each client its message.
            kind: train or query.
            take: Takes one reply; raises where it is wrong.
        """
        for client, message in self.exchange(contents, kind).items():
            try:
                if message.has_error():
                    continue
                take(client, message.content)
            except Exception as error:
                words = str(error) if isinstance(error, SordinaError) else f"it cannot be read ({type(error).__name__})"
                self.refuse(client, words)

    def refuse(self, client: int, reason: str) -> None:
        """Name a client.

        Args:
            client: Its number.
            reason: What it did.
        """
        before = self.aside.get(client, ClientUpdate())
        if all(one.reason != reason for one in before.refused):
            self.aside[client] = before + ClientUpdate(refused=(Refusal(client, reason),))

    def set_aside(self, client: int, word: ClientUpdate) -> None:
        """A client that answered the instruction without taking part: it withholds, or could not compute.

        Args:
            client: Its number.
            word: What it answered.
        """
        if not (word.withheld or word.rejected):
            raise InvalidInput("malformed: no keys")
        self.aside[client] = ClientUpdate(withheld=word.withheld, rejected=word.rejected)

    def concluded(self, clients: Iterable[int], sent: Set[int], total: NDArray[np.int64] | None) -> ClientUpdate:
        """What came of the round: the sum, or no numbers, beside who is not in it.

        Args:
            clients: Who was asked.
            sent: Whose numbers arrived.
            total: Their sum; None where too few remained.
        """
        known = sum(self.aside.values(), ClientUpdate())
        silent = len(set(clients) - sent - set(self.aside))
        if total is None:
            return known + ClientUpdate(dropped=silent)
        return known + ClientUpdate((torch.from_numpy(total),), answered=len(sent), dropped=silent)


def asked_for(record: Any, steps: Mapping[str, int], protocol: str) -> tuple[int, str, list[int]]:
    """What a step after the first asks for: which client, which step, and the numbers it speaks of.

    Args:
        record: The server's.
        steps: The steps that a protocol has.
        protocol: Its name, for the refusal of others.
    """
    step, numbers = str(record["step"]), list(record["numbers"])
    if step not in steps or len(numbers) > MOST_NUMBERS:
        raise InvalidInput(f"not a step of {protocol}.")
    return int(record["client"]), step, numbers


def content_bytes(content: RecordDict) -> int:
    """The bytes of a message's content.

    Args:
        content: Arrays, numbers and byte strings.
    """
    arrays = sum(len(one.data) for record in content.array_records.values() for one in record.values())
    return arrays + sum(_size(value) for record in content.config_records.values() for value in record.values())


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, bytes | str) else 8


def lists(values: Mapping[int, bytes]) -> dict[str, Any]:
    """Bytes by number, as a record holds them.

    Args:
        values: What to write.
    """
    return {"numbers": list(values), "data": list(values.values())}


def mapping(record: Any) -> dict[int, bytes]:
    """What `lists` wrote, from anybody; no number twice.

    Args:
        record: A record that came.
    """
    numbers, data = list(record["numbers"]), [exact_bytes(one) for one in record["data"]]
    if len(numbers) != len(data) or not all(type(one) is int for one in numbers) or len(numbers) > MOST_NUMBERS:
        raise InvalidInput("malformed: numbers and data do not match")
    if len(set(numbers)) < len(numbers):
        raise InvalidInput("malformed: a number twice")
    return dict(zip(numbers, data, strict=True))


def exact_bytes(value: Any) -> bytes:
    """Bytes, and nothing else.

    Args:
        value: What came.
    """
    if type(value) is not bytes:
        raise InvalidInput("malformed: bytes were expected")
    return value
