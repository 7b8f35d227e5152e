"""A round of secure aggregation on Flower: four exchanges of messages, and what is in them.

The steps are those of `decentralized.secure_aggregation`, carried as `records` says; whoever is silent, late or
malformed has dropped out.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord as Config
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from sordina.federated.decentralized.graphs import AggregationGraph
from sordina.federated.decentralized.secure_aggregation import (
    Aborted,
    AggregationClient,
    AggregationServer,
    SecureSum,
    UnreadableLetters,
)
from sordina.federated.engines import RoundRequest
from sordina.federated.flower.client import ClientFolder
from sordina.federated.flower.records import (
    StepExchange,
    asked_for,
    exact_bytes,
    instruct,
    lists,
    mapping,
    read_arrays,
    update_in,
    write_arrays,
)
from sordina.federated.messages import ClientUpdate, pack
from sordina.federated.privacy.distributed import Distributed, DistributedState

LOG = logging.getLogger("sordina.federated")
_RECORD, _VECTOR, _STATE = "secure", "vector", "sordina-secure-aggregation"
_STEPS = {"share": 1, "mask": 2, "unmask": 3}


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


# -- the client ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kept:
    """What a client remembers besides its secrets: its update, the round, and where it writes that a step was taken."""

    vector: bytes
    round: int
    home: Path


def begin(
    integers: NDArray[np.int64], number: int, common: SecureSum, round_number: int, context: Context, home: Path
) -> RecordDict:
    """Keep the noised update, and answer with public keys.

    Args:
        integers: The client's contribution.
        number: The client's number.
        common: What everybody knows about the sum.
        round_number: The round.
        context: Flower's, for what must be remembered.
        home: The client's folder.
    """
    client = AggregationClient(number, common)
    keys = client.advertise()
    words = integers.astype(common.zeros().dtype)
    _remember(context, client, _Kept(words.tobytes(), round_number, home))
    return RecordDict({_RECORD: Config({"keys": keys})})


def continued(message: Message, context: Context) -> RecordDict:
    """The answer to a step after the first; raises where the step is not what comes next.

    Args:
        message: The server's.
        context: Flower's, with what was remembered.
    """
    asked = message.content.config_records[_RECORD]
    number, step, numbers = asked_for(asked, _STEPS, "secure aggregation")
    client, kept = _recall(context, number)
    ClientFolder(kept.home).advance(context.run_id, kept.round, _STEPS[step])
    if step == "share":
        digest, letters = client.share(mapping(asked))
        content = RecordDict({_RECORD: Config({"digest": digest, **lists(letters)})})
    elif step == "mask":
        try:
            masked = client.mask(mapping(asked), np.frombuffer(kept.vector, dtype=client.common.zeros().dtype))
        except UnreadableLetters as error:
            return RecordDict({_RECORD: Config({"unreadable": list(error.senders)})})
        kept = replace(kept, vector=b"")
        content = RecordDict({_VECTOR: write_arrays({"masked": masked.view(f"i{masked.dtype.itemsize}")})})
    else:
        shares = client.unmask(numbers, int(asked["count"]))
        content = RecordDict({_RECORD: Config(lists(shares))})
    _remember(context, client, kept)
    return content


def _remember(context: Context, client: AggregationClient, kept: _Kept) -> None:
    common = client.common
    facts = {"name": common.name, "least": common.least, "length": common.length, "bits": common.bits}
    graph = common.graph
    shape = {"clients": graph.clients, "degree": graph.degree, "threshold": graph.threshold, "failure": graph.failure}
    context.state.config_records[f"{_STATE}-{client.number}"] = Config(
        {
            "client": client.to_bytes(), "vector": kept.vector, "round": kept.round, "home": str(kept.home),
            **facts, **shape,
        }
    )  # fmt: skip


def _recall(context: Context, number: int) -> tuple[AggregationClient, _Kept]:
    kept: Any = context.state.config_records[f"{_STATE}-{number}"]  # a simulated node may stand for several clients
    graph = AggregationGraph(kept["clients"], kept["degree"], kept["threshold"], kept["failure"])
    common = SecureSum(kept["name"], graph, kept["least"], kept["length"], kept["bits"])
    client = AggregationClient.from_bytes(kept["client"], common)
    return client, _Kept(kept["vector"], kept["round"], Path(kept["home"]))


# -- the server ------------------------------------------------------------------------------------------------------


@dataclass
class SecureRound:
    """The server's side of one round.

    Args:
        steps: Reaches the clients.
        call: The instruction of the round.
        side: The number by which clients know their half.
        server: The server of the sum.
    """

    steps: StepExchange
    call: RoundRequest
    side: int
    server: AggregationServer

    def run(self) -> ClientUpdate:
        """The sum as an update; without numbers where too few remained."""
        server = self.server
        self.steps.step({one: instruct(self.call, one, self.side) for one in server.order}, "train", self._keys)
        self.steps.step(
            {one: self._query(one, "share", server.keys_for(one)) for one in server.keys}, "query", self._letters
        )
        self.steps.step(
            {one: self._query(one, "mask", server.letters_for(one)) for one in server.digests}, "query", self._masked
        )
        total = None
        try:
            server.check_remaining()
            told = {
                one: self._query(one, "unmask", dict.fromkeys(server.survivors_for(one), b""))
                for one in server.remaining
            }
            self.steps.step(told, "query", self._shares)
            total = server.reveal()
        except Aborted as error:
            LOG.warning("round %d: %s", self.call.order.round + 1, error)
        for one, reason in server.named().items():
            self.steps.refuse(one, reason)
        return self.steps.concluded(server.order, server.remaining, None if total is None else _signed(total))

    def _query(self, client: int, step: str, told: Mapping[int, bytes]) -> RecordDict:
        count = len(self.server.remaining)
        record: dict[str, Any] = {"client": client, "step": step, "count": count, **lists(told)}
        return RecordDict({_RECORD: Config(record)})

    def _keys(self, client: int, content: RecordDict) -> None:
        if _RECORD in content.config_records:
            self.server.advertised(client, exact_bytes(content.config_records[_RECORD]["keys"]))
            return
        self.steps.set_aside(client, update_in(content))

    def _letters(self, client: int, content: RecordDict) -> None:
        record = content.config_records[_RECORD]
        self.server.shared(client, exact_bytes(record["digest"]), mapping(record))

    def _masked(self, client: int, content: RecordDict) -> None:
        if _RECORD in content.config_records:
            self.server.complained(client, list(content.config_records[_RECORD]["unreadable"]))
            return
        words = read_arrays(content.array_records[_VECTOR])["masked"]
        self.server.masked(client, words.view(self.server.total.dtype))

    def _shares(self, client: int, content: RecordDict) -> None:
        self.server.unmasked(client, mapping(content.config_records[_RECORD]))


def _signed(total: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers modulo 2^32 or 2^64 as signed ones of their own memory."""
    return total.astype(np.int64) if total.dtype.itemsize == 4 else total.view(np.int64).copy()
