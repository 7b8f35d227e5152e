"""Flower's records from ours and back: named arrays and a few plain numbers, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.engines.engine import RoundRequest
from sordina.federated.messages import ClientUpdate
from sordina.federated.population import RowOrder
from sordina.federated.serialization import decode, encode, pack, unpack, update_of_arrays

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
