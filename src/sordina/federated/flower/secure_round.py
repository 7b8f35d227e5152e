"""A round of secure aggregation on Flower: four exchanges of messages, and what is in them.

The first message is the ordinary instruction of a round. The client works, is charged and noises its update as always,
but keeps it and answers with its public keys; the other steps (`decentralized.secure_aggregation`) are messages of type
``query``. What a client must remember between two steps stays in Flower's context, in memory, and is gone with it: a
client that restarts in the middle of a round has dropped out of it. Whoever is silent, late or malformed has, too.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord as Config
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.federated.decentralized.secure_aggregation import (
    Aborted,
    AggregationClient,
    AggregationServer,
    SecureSum,
)
from sordina.federated.engines.engine import RoundRequest
from sordina.federated.flower.records import instruct, read_arrays, update_in, write_arrays
from sordina.federated.messages import ClientUpdate, Refusal
from sordina.federated.privacy.distributed import Distributed, DistributedState
from sordina.federated.serialization import pack

LOG = logging.getLogger("sordina.federated")
_RECORD, _VECTOR, _STATE = "secure", "vector", "sordina-secure-aggregation"
_MOST = 10_000
"""No step speaks of more clients."""


def common_of(placement: Distributed, call: RoundRequest) -> SecureSum:
    """What both sides know about the sum of a round, each from its own copy of the run.

    The digest of the public state is part of it: masks of clients that were told different things do not cancel.

    Args:
        placement: The privacy of the run.
        call: The instruction of the round.
    """
    state: DistributedState = call.privacy
    told = hashlib.sha256()
    for key, value in sorted(pack(state).items()):
        told.update(key.encode() + value.tobytes())
    return SecureSum(
        f"seed {call.order.seed} round {call.order.round} state {told.hexdigest()}",
        placement.graph,
        placement.least,
        placement.length(state),
        placement.bits(state),
    )


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


# -- the client ------------------------------------------------------------------------------------------------------


def begin(integers: NDArray[np.int64], number: int, common: SecureSum, context: Context) -> RecordDict:
    """Keep the noised update, and answer with public keys.

    Args:
        integers: The client's contribution.
        number: The client's number.
        common: What everybody knows about the sum.
        context: Flower's, for what must be remembered.
    """
    client = AggregationClient(number, common)
    keys = client.advertise()
    words = integers.astype(common.zeros().dtype)
    _remember(context, client, words.tobytes())
    return RecordDict({_RECORD: Config({"keys": keys})})


def continued(message: Message, context: Context) -> RecordDict:
    """The answer to a step after the first; raises where the step is not what comes next.

    Args:
        message: The server's.
        context: Flower's, with what was remembered.
    """
    asked = message.content.config_records[_RECORD]
    client, vector = _recall(context, int(asked["client"]))
    step, numbers, data = str(asked["step"]), list(asked["numbers"]), list(asked["data"])
    if len(numbers) > _MOST or (data and len(data) != len(numbers)):
        raise InvalidInput("a step of secure aggregation that is none.")
    told = dict(zip(numbers, data, strict=False))
    if step == "share":
        digest, letters = client.share(told)
        content = RecordDict({_RECORD: Config({"digest": digest, **_lists(letters)})})
    elif step == "mask":
        masked = client.mask(told, np.frombuffer(vector, dtype=client.common.zeros().dtype))
        vector = b""
        content = RecordDict({_VECTOR: write_arrays({"masked": masked.view(f"i{masked.dtype.itemsize}")})})
    elif step == "unmask":
        shares = client.unmask(numbers, int(asked["count"]))
        content = RecordDict({_RECORD: Config(_lists(shares))})
    else:
        raise InvalidInput("an unknown step of secure aggregation.")
    _remember(context, client, vector)
    return content


def _remember(context: Context, client: AggregationClient, vector: bytes) -> None:
    common = client.common
    facts = {"name": common.name, "least": common.least, "length": common.length, "bits": common.bits}
    graph = common.graph
    shape = {"clients": graph.clients, "degree": graph.degree, "threshold": graph.threshold, "failure": graph.failure}
    context.state.config_records[f"{_STATE}-{client.number}"] = Config(
        {"client": client.to_bytes(), "vector": vector, **facts, **shape}
    )


def _recall(context: Context, number: int) -> tuple[AggregationClient, bytes]:
    from sordina.federated.decentralized.aggregation_graph import AggregationGraph

    kept: Any = context.state.config_records[f"{_STATE}-{number}"]  # a simulated node may stand for several clients
    graph = AggregationGraph(kept["clients"], kept["degree"], kept["threshold"], kept["failure"])
    common = SecureSum(kept["name"], graph, kept["least"], kept["length"], kept["bits"])
    return AggregationClient.from_bytes(kept["client"], common), kept["vector"]


def _lists(values: Mapping[int, bytes]) -> dict[str, Any]:
    return {"numbers": list(values), "data": list(values.values())}


# -- the server ------------------------------------------------------------------------------------------------------

Exchange = Callable[[dict[int, RecordDict], str], dict[int, Message]]
"""Sends one message of a type to each client; gives the replies that came in time."""


@dataclass
class SecureRound:
    """The server's side of one round.

    Args:
        exchange: Reaches the clients.
        call: The instruction of the round.
        side: The number by which clients know their half.
        server: The server of the sum.
    """

    exchange: Exchange
    call: RoundRequest
    side: int
    server: AggregationServer
    aside: dict[int, ClientUpdate] = field(default_factory=dict)
    """What is known of clients that are not in the sum."""

    def run(self) -> ClientUpdate:
        """The sum as a parcel; without numbers where too few remained."""
        server = self.server
        self._step({one: instruct(self.call, one, self.side) for one in server.order}, "train", self._keys)
        self._step(
            {one: self._query(one, "share", server.keys_for(one)) for one in server.keys}, "query", self._letters
        )
        self._step(
            {one: self._query(one, "mask", server.letters_for(one)) for one in server.digests}, "query", self._masked
        )
        total = None
        try:
            server.check_remaining()
            told = {
                one: self._query(one, "unmask", dict.fromkeys(server.survivors_for(one), b""))
                for one in server.remaining
            }
            self._step(told, "query", self._shares)
            total = server.reveal()
        except Aborted as error:
            LOG.warning("round %d: %s", self.call.order.round + 1, error)
        refused = tuple(Refusal(one, "a wrong share in secure aggregation") for one in sorted(server.cheaters))
        known = sum(self.aside.values(), ClientUpdate(refused=refused))
        silent = len(set(server.order) - server.remaining - set(self.aside))
        if total is None:
            return known + ClientUpdate(dropped=silent)
        signed = total.astype(np.int64) if total.dtype.itemsize == 4 else total.view(np.int64)
        return known + ClientUpdate((torch.from_numpy(signed.copy()),), answered=len(server.remaining), dropped=silent)

    def _step(self, contents: dict[int, RecordDict], kind: str, take: Callable[[int, RecordDict], None]) -> None:
        """Send, and take what came; what does not parse counts as silence, and is named."""
        for client, message in self.exchange(contents, kind).items():
            try:
                if message.has_error():
                    continue
                take(client, message.content)
            except Exception as error:
                words = str(error) if isinstance(error, InvalidInput) else f"it cannot be read ({type(error).__name__})"
                self.aside[client] = ClientUpdate(refused=(Refusal(client, words),))

    def _query(self, client: int, step: str, told: Mapping[int, bytes]) -> RecordDict:
        count = len(self.server.remaining)
        record: dict[str, Any] = {"client": client, "step": step, "count": count, **_lists(told)}
        return RecordDict({_RECORD: Config(record)})

    def _keys(self, client: int, content: RecordDict) -> None:
        if _RECORD in content.config_records:
            self.server.advertised(client, _bytes(content.config_records[_RECORD]["keys"]))
            return
        word = update_in(content)
        if not (word.withheld or word.rejected):
            raise InvalidInput("malformed: no keys")
        self.aside[client] = ClientUpdate(withheld=word.withheld, rejected=word.rejected)

    def _letters(self, client: int, content: RecordDict) -> None:
        record = content.config_records[_RECORD]
        self.server.shared(client, _bytes(record["digest"]), _mapping(record))

    def _masked(self, client: int, content: RecordDict) -> None:
        words = read_arrays(content.array_records[_VECTOR])["masked"]
        self.server.masked(client, words.view(self.server.total.dtype))

    def _shares(self, client: int, content: RecordDict) -> None:
        self.server.unmasked(client, _mapping(content.config_records[_RECORD]))


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise InvalidInput("malformed: bytes were expected")
    return value


def _mapping(record: Any) -> dict[int, bytes]:
    numbers, data = list(record["numbers"]), [_bytes(one) for one in record["data"]]
    if len(numbers) != len(data) or not all(type(one) is int for one in numbers):
        raise InvalidInput("malformed: numbers and letters do not match")
    return dict(zip(numbers, data, strict=True))
