"""A round of GOPA on Flower: clients agree on the noise of their pairs, and the server relays what it cannot read.

======  ==================================================  =========================================================
step    a client is told                                    a client sends
======  ==================================================  =========================================================
train   the instruction of the round, its place in the      a public key, made for this round
        graph
agree   its neighbours' public keys                         the hash of each pair's key
send    which neighbours agreed on the same key             its noised update plus the noise of all these pairs
======  ==================================================  =========================================================

The graph is part of the run: a client looks its neighbours up in its own copy, and refuses others, and more holes than
the account allows for. Two whose hashes differ are named and left out (one alone, if more disagree with it than may
collude), as is who sends what is no message, or numbers that no honest client reaches. Who is missing is known before
a message is made, so nothing is ever repaired and no pair's key is ever shown: a client that falls silent in the last
step ends the round, and a message that comes late is as unreadable as any. What is promised holds against a server that
follows the protocol and keeps everything; one that names different neighbours to different clients, or places them
where it likes, is not excluded, but each client still shares noise with all its neighbours but the planned few.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord as Config
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.federated.decentralized.gopa import GopaNoise
from sordina.federated.decentralized.gopa_party import GopaBoard, GopaParty, GopaTerms
from sordina.federated.decentralized.key_agreement import KEY_BYTES, KeyPair, shared_key
from sordina.federated.decentralized.secure_aggregation import Aborted
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
from sordina.federated.messages import ClientUpdate

LOG = logging.getLogger("sordina.federated")
RECORD = "gopa"
_MESSAGE, _STATE = "message", "sordina-gopa"
_STEPS = {"agree": 1, "send": 2}


def terms_of(placement: GopaNoise, call: RoundRequest, size: int) -> GopaTerms:
    """What both sides know about a round, each from its own copy of the run.

    Args:
        placement: The privacy of the run.
        call: The instruction of the round.
        size: The length of a client's vector.
    """
    run = f"flower run of seed {call.order.seed}".encode()
    return GopaTerms(call.order.round, size, placement.threshold, placement.independent, placement.pairwise, run)


# -- the client ------------------------------------------------------------------------------------------------------


def begin(
    noised: NDArray[np.int64], placement: GopaNoise, call: RoundRequest, message: Message, context: Context, home: Path
) -> RecordDict:
    """Keep the noised update, and answer with a public key.

    Args:
        noised: The client's update with its own noise, in steps of the grid.
        placement: The privacy of the run, with the graph.
        call: The instruction of the round.
        message: It came in this one, with the client's place.
        context: Flower's, for what must be remembered.
        home: The client's folder.
    """
    place = message.content.config_records[RECORD]["place"]
    if type(place) is not int or not 0 <= place < placement.graph.parties:
        raise InvalidInput("a place that the graph does not have.")
    neighbours = tuple(map(int, placement.graph.neighbours(place)))
    terms = terms_of(placement, call, len(noised))
    party = GopaParty(place, terms, noised, neighbours, placement.graph.parties - placement.least)
    key = party.advertise()
    client = int(message.content.config_records["order"]["client"])
    _remember(context, client, party, home)
    return RecordDict({RECORD: Config({"key": key})})


def continued(message: Message, context: Context) -> RecordDict:
    """The answer to a step after the first; raises where the step is not what comes next.

    Args:
        message: The server's.
        context: Flower's, with what was remembered.
    """
    asked = message.content.config_records[RECORD]
    client, step, numbers = asked_for(asked, _STEPS, "GOPA")
    party, home = _recall(context, client)
    home.advance(context.run_id, party.terms.number, _STEPS[step])
    if step == "agree":
        tags = party.agree(mapping(asked))
        _remember(context, client, party, home.folder)
        return RecordDict({RECORD: Config(lists(tags))})
    party.settle(numbers)
    words, _ = party.send()
    del context.state.config_records[f"{_STATE}-{client}"]
    return RecordDict({_MESSAGE: write_arrays({"message": words.astype(_form(party.terms, len(party.neighbours)))})})


def _form(terms: GopaTerms, neighbours: int) -> str:
    """Of a number on the wire."""
    return "i4" if terms.largest(neighbours) < 2**31 else "i8"


def _remember(context: Context, client: int, party: GopaParty, home: Path) -> None:
    terms = party.terms
    facts: dict[str, Any] = {
        "party": party.to_bytes(), "place": party.number, "noised": party.noised.tobytes(), "home": str(home),
        "neighbours": list(party.neighbours), "allowed": party.allowed, "round": terms.number,
        "scales": [terms.threshold, terms.independent, terms.pairwise], "run": terms.run,
    }  # fmt: skip
    context.state.config_records[f"{_STATE}-{client}"] = Config(facts)


def _recall(context: Context, client: int) -> tuple[GopaParty, ClientFolder]:
    kept: Any = context.state.config_records[f"{_STATE}-{client}"]  # a simulated node may stand for several clients
    noised = np.frombuffer(kept["noised"], dtype=np.int64)
    threshold, independent, pairwise = kept["scales"]
    terms = GopaTerms(kept["round"], len(noised), threshold, independent, pairwise, kept["run"])
    neighbours = tuple(kept["neighbours"])
    party = GopaParty.from_bytes(kept["party"], kept["place"], terms, noised, neighbours, kept["allowed"])
    return party, ClientFolder(Path(kept["home"]))


# -- the server ------------------------------------------------------------------------------------------------------


@dataclass
class GopaRound:
    """The server's side of one round.

    Args:
        steps: Reaches the clients.
        call: The instruction of the round.
        side: The number by which clients know their half.
        placement: The privacy of the run.
        order: The clients of the round, by their places in the graph.
        size: The length of a client's vector.
    """

    steps: StepExchange
    call: RoundRequest
    side: int
    placement: GopaNoise
    order: Sequence[int]
    size: int
    keys: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.placement.graph
        self.board = GopaBoard(terms_of(self.placement, self.call, self.size))
        self.neighbours = {place: tuple(map(int, graph.neighbours(place))) for place in range(graph.parties)}
        self.places = {client: place for place, client in enumerate(self.order)}
        self.probe = KeyPair.fresh()

    def run(self) -> ClientUpdate:
        """The sum as an update; without numbers where too few remained."""
        total = None
        try:
            total = self._sum()
        except Aborted as error:
            LOG.warning("round %d: %s", self.call.order.round + 1, error)
        return self.steps.concluded(self.order, {self.order[place] for place in self.board.messages}, total)

    def _sum(self) -> NDArray[np.int64]:
        order = self.order
        first = {}
        for place, client in enumerate(order):
            first[client] = instruct(self.call, client, self.side)
            first[client][RECORD] = Config({"place": place})
        self.steps.step(first, "train", self._key)
        self._enough(len(self.keys))
        told = {order[one]: self._query(one, "agree", self._keys_for(one)) for one in self.keys}
        self.steps.step(told, "query", self._tags)
        present = self._agreed()
        self._enough(len(present))
        told = {
            order[one]: self._query(one, "send", dict.fromkeys(self._partners(one, present), b"")) for one in present
        }
        self.steps.step(told, "query", self._message)
        if missing := present - set(self.board.messages):
            raise Aborted(
                f"{len(missing)} clients left after they had shared noise: nothing can be read, the round is given up."
            )
        return self.board.total()

    def _enough(self, there: int) -> None:
        if there < self.placement.least:
            raise Aborted(f"{there} clients remained, {self.placement.least} are needed: nothing is sent.")

    def _agreed(self) -> set[int]:
        """Who shares noise in this round: all but those that do not agree with a neighbour about their pair's key.

        Whoever disagrees with more clients than may collude disagrees with an honest one, and is named alone.
        """
        pairs = [pair for pair in self.board.disagreeing() if set(pair) <= set(self.board.tags)]
        quarrels = Counter(one for pair in pairs for one in pair)
        colluding = self.placement.graph.parties - self.placement.honest
        named = {one for one, times in quarrels.items() if times > colluding}
        for one in named:
            self.steps.refuse(self.order[one], "it agrees with its neighbours about no key")
        for one, other in [pair for pair in pairs if not named & set(pair)]:
            self.steps.refuse(self.order[one], f"it and client {self.order[other]} have different keys")
            self.steps.refuse(self.order[other], f"it and client {self.order[one]} have different keys")
            named |= {one, other}
        present = set(self.board.tags) - named
        self.board.tags = {
            one: {other: tag for other, tag in tags.items() if other in present}
            for one, tags in self.board.tags.items()
            if one in present
        }
        return present

    def _partners(self, place: int, present: set[int]) -> list[int]:
        return [other for other in self.neighbours[place] if other in present]

    def _keys_for(self, place: int) -> dict[int, bytes]:
        return {other: self.keys[other] for other in self.neighbours[place] if other in self.keys}

    def _query(self, place: int, step: str, told: dict[int, bytes]) -> RecordDict:
        record: dict[str, Any] = {"client": self.order[place], "step": step, **lists(told)}
        return RecordDict({RECORD: Config(record)})

    def _key(self, client: int, content: RecordDict) -> None:
        if RECORD not in content.config_records:
            self.steps.set_aside(client, update_in(content))
            return
        key = exact_bytes(content.config_records[RECORD]["key"])
        if len(key) != KEY_BYTES or key in self.keys.values():
            raise InvalidInput("malformed: no key of this client's own")
        shared_key(self.probe, key, b"probe")  # raises for a point with which nobody can agree on anything
        self.keys[self.places[client]] = key

    def _tags(self, client: int, content: RecordDict) -> None:
        place, tags = self.places[client], mapping(content.config_records[RECORD])
        if set(tags) != set(self._keys_for(place)) or any(len(tag) != KEY_BYTES for tag in tags.values()):
            raise InvalidInput("malformed: no hashes of this client's pairs")
        self.board.post_tags(place, tags)

    def _message(self, client: int, content: RecordDict) -> None:
        place, words = self.places[client], read_arrays(content.array_records[_MESSAGE])["message"]
        if words.dtype != np.dtype(_form(self.board.terms, len(self.neighbours[place]))):
            raise InvalidInput("malformed: no message")
        self.board.take(place, words.astype(np.int64))
