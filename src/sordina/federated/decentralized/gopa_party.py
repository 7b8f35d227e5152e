"""The messages of GOPA between parties with keys: agreement, commitments, repair, and who is named for what.

A round, on a public board that everybody reads (a server's, a bulletin board's):

1. Every party posts its public key. Neighbours derive a key for their pair and this round (`key_agreement`), and each
   posts the hash of it: two that do not agree are named, before anything depends on them.
2. Every party posts commitments: to its clipped value, to the key of its own noise, and to the message it will send.
   Each is blinded: after a repair a message of few numbers could be guessed from its bare hash.
3. Messages are opened. One that does not match its commitment, has another form, or lies outside of what honest
   messages reach, is refused and its sender named; so is one of another round.
4. If somebody posted its commitments but no message, its neighbours reveal the pairs' keys; each is checked against
   step 1. A repaired party cannot come back in this round: its message would be open to everybody.

=====================================================  ==============================================================
what is wrong                                          what happens
=====================================================  ==============================================================
no key, or one that is none                            left out before the round begins
the two ends of a pair do not agree                    both are named
the message does not match its commitment              named: nobody chooses a message after seeing others'
another length, no integers, another round's message   named
a number of 1e30                                       named: every number of an honest message is at most `largest`
a message within that range that is wrong              the sum is off by at most `largest` in each place; only an
                                                       opening to an auditor (`check_opening`) shows who it was
another value than the last time                       named if both commitments are opened, or if the value was
                                                       promised to stay (``before``)
a lie about a pair's key in the repair                 named
a second agreement, a second choice of partners        refused by every party: a `GopaParty` serves one round, its
                                                       steps come in order and once. Two messages under the same
                                                       pairwise noises, one with a partner more, would differ by that
                                                       pair's noise
more neighbours said to be gone than may drop out      refused by every party
a server that calls a party dropped out which is not   not excluded where neighbours repair: with the party's message
                                                       *and* the pairs' keys it has ``value + eta``, local privacy, and
                                                       so it has with a message that comes late. Secure aggregation
                                                       excludes it (self-masks and shares). With ``allowed = 0`` nothing
                                                       is ever revealed; on Flower (`flower.gopa_round`) nothing is
                                                       either: who is missing is known before messages are made
a majority that colludes                               accounted for, as long as it was not chosen after the graph
=====================================================  ==============================================================

An opening shows a party's value to whoever reads it: it is for an auditor outside of the coalition, in a dispute. The
zero-knowledge proofs of the paper, which need no such auditor, are not built.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput, SordinaError
from sordina.federated.decentralized.gopa import clipped
from sordina.federated.decentralized.key_agreement import KEY_BYTES, KeyPair, shared_key
from sordina.federated.decentralized.lattice import add_fine_gaussian, keyed_generator, step_for, whole_steps
from sordina.random import add_gaussian

Message = NDArray[np.int64]
_TAIL = 12.0
"""An honest number is further out with a chance below 1e-32."""


class Cheated(SordinaError):
    """Parties that did not keep to the protocol, by number."""

    def __init__(self, parties: tuple[int, ...], reason: str) -> None:
        self.parties = parties
        named = " and ".join(str(party) for party in parties)
        super().__init__(f"party {named}: {reason}")


@dataclass(frozen=True)
class GopaTerms:
    """What everybody knows of a round.

    Args:
        number: The round, so that no message or key serves twice.
        size: The length of a value.
        threshold: The bound of a value, in L2 norm.
        independent: s_eta, as drawn.
        pairwise: s_Delta, as drawn.
        run: A public name of the run.
    """

    number: int
    size: int
    threshold: float
    independent: float
    pairwise: float
    run: bytes = b"gopa"

    @property
    def step(self) -> float:
        """The grid."""
        return step_for(self.independent)

    def context(self, one: int, other: int) -> bytes:
        """What a pair's key is for: this round of this run, with these noises."""
        low, high = sorted((one, other))
        facts = (self.number, self.size, self.threshold.hex(), self.independent.hex(), self.pairwise.hex(), low, high)
        return b"|".join([self.run, b"pair", *(str(part).encode() for part in facts)])

    def largest(self, neighbours: int) -> int:
        """No number of an honest message is larger, in steps."""
        spread = math.sqrt(self.independent**2 + 1.01 * neighbours * self.pairwise**2)
        return math.ceil((self.threshold + _TAIL * spread) / self.step)


def commitment(*parts: bytes) -> bytes:
    """A hash of the parts, each with its length."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.digest()


def pair_noise(terms: GopaTerms, key: bytes) -> Message:
    """The pairwise noise that a key stands for, in steps: the party of the smaller number adds it, the other subtracts.

    Args:
        terms: The round.
        key: The pair's key for this round.
    """
    values = np.zeros(terms.size)
    add_fine_gaussian(values, terms.pairwise, terms.step, keyed_generator(key))
    return whole_steps(values, terms.step)


def message_commitment(party: int, message: Message, blind: bytes) -> bytes:
    """What binds a party to its message, and says nothing about it to whoever has not got the blind.

    Args:
        party: Its number.
        message: What it will send.
        blind: Secret bytes, posted together with the message.
    """
    return commitment(b"message", str(party).encode(), blind, message.astype("<i8").tobytes())


@dataclass(frozen=True, repr=False)
class CommittedValue:
    """A party's value and the key of its own noise, both of which it can later show to an auditor.

    Args:
        value: The private vector.
        salt: Of the commitments; kept from round to round if the value stays the same.
        noise_key: Of the independent noise, for one round.
    """

    value: NDArray[np.float64]
    salt: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))
    noise_key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))

    def noised(self, terms: GopaTerms) -> Message:
        """Clipped, with the independent noise, in steps of the grid.

        Args:
            terms: The round.
        """
        values = clipped(self.value[None], terms.threshold)[0]
        add_gaussian(values, terms.independent, keyed_generator(self.noise_key))
        return whole_steps(values, terms.step)

    def promise(self, party: int, message: bytes) -> Promise:
        """All commitments of a round.

        Args:
            party: Whose they are.
            message: The commitment to the message.
        """
        name = str(party).encode()
        return Promise(
            commitment(b"value", name, self.salt, np.asarray(self.value, dtype=np.float64).tobytes()),
            commitment(b"noise", name, self.salt, self.noise_key),
            message,
        )


@dataclass(frozen=True)
class Promise:
    """What a party posts before it sends: hashes that bind it."""

    value: bytes
    noise: bytes
    message: bytes


@dataclass(repr=False)
class GopaParty:
    """One honest party's side of one round: its methods are the steps, in order, each once.

    Args:
        number: By which it is known: its place in the graph.
        terms: The round.
        noised: Its clipped value with its independent noise, in steps of the grid.
        neighbours: With whom it shares noise, by its own copy of the graph.
        allowed: How many of these may be missing or drop out in all.
    """

    number: int
    terms: GopaTerms
    noised: Message
    neighbours: tuple[int, ...]
    allowed: int = 0
    keys: KeyPair = field(default_factory=KeyPair.fresh)
    blind: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))
    pair_keys: dict[int, bytes] = field(default_factory=dict)
    partners: tuple[int, ...] = ()
    """The neighbours whose noise is in the message."""
    done: int = 0
    """How many steps were taken."""

    def advertise(self) -> bytes:
        """The public key."""
        self._step(0)
        return self.keys.public

    def agree(self, publics: Mapping[int, bytes]) -> dict[int, bytes]:
        """Derive the keys of this round's pairs; returns the hash of each, to post.

        Args:
            publics: The public keys of the neighbours that are there.
        """
        self._step(1)
        self._check(publics, self.neighbours)
        if len({*publics.values(), self.keys.public}) <= len(publics):
            raise InvalidInput(f"party {self.number} was shown one key twice: it agrees with nobody.")
        self.pair_keys = {
            other: shared_key(self.keys, public, self.terms.context(self.number, other))
            for other, public in publics.items()
        }
        return {other: commitment(b"pair", key) for other, key in self.pair_keys.items()}

    def settle(self, partners: Collection[int]) -> bytes:
        """Fix with whom noise is shared, hence the message; returns the commitment to it.

        Args:
            partners: The neighbours that are still there.
        """
        self._step(2)
        self._check(partners, self.pair_keys)
        self.partners = tuple(partners)
        return message_commitment(self.number, self._message(), self.blind)

    def send(self) -> tuple[Message, bytes]:
        """The message and its blind, once everybody has posted commitments."""
        self._step(3)
        return self._message(), self.blind

    def reveal(self, dropped: Collection[int]) -> dict[int, bytes]:
        """The keys of the pairs with parties that dropped out.

        Args:
            dropped: Their numbers.
        """
        self._step(4)
        gone = set(dropped)
        if not gone <= set(self.partners):
            raise InvalidInput(f"party {self.number} shares no noise with a party that is said to have dropped out.")
        if len(self.neighbours) - len(self.partners) + len(gone) > self.allowed:
            raise InvalidInput(
                f"more than {self.allowed} neighbours of party {self.number} dropped out: nothing is revealed."
            )
        return {other: self.pair_keys[other] for other in gone}

    def to_bytes(self) -> bytes:
        """What this party must remember until the next step: a secret."""
        pairs = {str(other): key.hex() for other, key in self.pair_keys.items()}
        own = [self.keys.private.hex(), self.blind.hex()]
        return json.dumps({"own": own, "pairs": pairs, "partners": self.partners, "done": self.done}).encode()

    @classmethod
    def from_bytes(
        cls, data: bytes, number: int, terms: GopaTerms, noised: Message, neighbours: tuple[int, ...], allowed: int
    ) -> GopaParty:
        """The party that `to_bytes` wrote down; the rest as in the constructor.

        Args:
            data: What was written.
            number: See above.
            terms: See above.
            noised: See above.
            neighbours: See above.
            allowed: See above.
        """
        facts = json.loads(data)
        private, blind = (bytes.fromhex(one) for one in facts["own"])
        pairs = {int(other): bytes.fromhex(key) for other, key in facts["pairs"].items()}
        return cls(
            number, terms, noised, neighbours, allowed, KeyPair.of(private), blind, pairs, tuple(facts["partners"]),
            facts["done"],
        )  # fmt: skip

    def _message(self) -> Message:
        return _with_pairs(self.terms, self.number, self.noised, {one: self.pair_keys[one] for one in self.partners})

    def _step(self, number: int) -> None:
        if self.done != number:
            raise InvalidInput(f"step {number + 1} of a round comes after step {number}, and once.")
        self.done += 1

    def _check(self, told: Collection[int], among: Collection[int]) -> None:
        """Refuse parties that are no neighbours, and a graph with more holes than the account allows for."""
        if not set(told) <= set(among) or len(set(told)) < len(told):
            raise InvalidInput(f"party {self.number} was named partners that are not its neighbours in this round.")
        if not told or len(self.neighbours) - len(told) > self.allowed:
            raise InvalidInput(
                f"more than {self.allowed} neighbours of party {self.number} are missing: nothing is sent."
            )


def _with_pairs(terms: GopaTerms, party: int, noised: Message, pair_keys: Mapping[int, bytes]) -> Message:
    total = noised.copy()
    for other, key in pair_keys.items():
        total += pair_noise(terms, key) * (1 if party < other else -1)
    return total


@dataclass
class GopaBoard:
    """What was posted in a round, and the sum. Holds nothing secret."""

    terms: GopaTerms
    tags: dict[int, dict[int, bytes]] = field(default_factory=dict)
    promises: dict[int, Promise] = field(default_factory=dict)
    messages: dict[int, Message] = field(default_factory=dict)
    repaired: dict[int, dict[int, Message]] = field(default_factory=dict)

    def post_tags(self, party: int, tags: Mapping[int, bytes]) -> None:
        """Step 1."""
        if party in self.tags:
            raise Cheated((party,), "posted its pairs a second time.")
        self.tags[party] = dict(tags)

    def disagreeing(self) -> list[tuple[int, int]]:
        """The pairs whose two ends do not agree, or of which one is missing."""
        found = {
            (min(party, other), max(party, other))
            for party, tags in self.tags.items()
            for other, tag in tags.items()
            if self.tags.get(other, {}).get(party) != tag
        }
        return sorted(found)

    def check_pairs(self) -> None:
        """Name the first pair whose two ends do not agree."""
        for pair in self.disagreeing():
            raise Cheated(pair, "the two posted different keys for their pair.")

    def post_promise(self, party: int, promise: Promise, *, before: Promise | None = None) -> None:
        """Step 2; ``before`` is the promise of an earlier round with the same value, if the value must stay."""
        if party in self.promises:
            raise Cheated((party,), "posted a second commitment.")
        if before is not None and before.value != promise.value:
            raise Cheated((party,), "changed its value between rounds.")
        self.promises[party] = promise

    def post_message(self, party: int, message: Message, blind: bytes) -> None:
        """Step 3."""
        promise = self.promises.get(party)
        if promise is None:
            raise Cheated((party,), "sent a message without a commitment.")
        self.check_form(party, message)
        if message_commitment(party, message, blind) != promise.message:
            raise Cheated((party,), "opened another message than it committed to.")
        self.take(party, message)

    def check_form(self, party: int, message: Message) -> None:
        """Name whoever sends something that is no message, or a second one."""
        if party in self.messages:
            raise Cheated((party,), "sent a second message.")
        if party in self.repaired:
            raise Cheated((party,), "came back after its noises were repaired.")
        if not isinstance(message, np.ndarray) or message.dtype != np.int64 or message.shape != (self.terms.size,):
            raise Cheated((party,), f"sent no {self.terms.size} integers of 64 bits.")

    def take(self, party: int, message: Message) -> None:
        """A message without a commitment, where nobody who sends has seen another one's."""
        self.check_form(party, message)
        if int(np.abs(message // 2).max(initial=0)) > self.terms.largest(len(self.tags[party])) // 2:
            raise Cheated((party,), "sent numbers that no honest party reaches.")
        self.messages[party] = message

    def repair(self, dropped: int, revealed: Mapping[int, bytes]) -> None:
        """Step 4: take the noises of pairs with ``dropped`` out of its neighbours' messages."""
        if dropped in self.messages:
            raise InvalidInput(f"party {dropped} did not drop out: its message arrived, and nothing may be revealed.")
        noises = {}
        for party, key in revealed.items():
            if commitment(b"pair", key) != self.tags[party].get(dropped):
                raise Cheated((party,), f"revealed another key than the one it shares with {dropped}.")
            noises[party] = pair_noise(self.terms, key) * (1 if party < dropped else -1)
        self.repaired[dropped] = noises

    def total(self) -> Message:
        """The sum over all who sent; refuses while a party that is missing was not repaired."""
        total = np.zeros(self.terms.size, dtype=np.int64)
        for party, message in self.messages.items():
            total += message
            for other in self.tags[party]:
                if other not in self.messages:
                    noise = self.repaired.get(other, {}).get(party)
                    if noise is None:
                        raise InvalidInput(f"party {other} sent nothing, and {party} did not reveal their pair's key.")
                    total -= noise
        return total


def check_opening(board: GopaBoard, party: int, shown: CommittedValue, pair_keys: Mapping[int, bytes]) -> None:
    """An auditor's check: the message is what value, noise and pairs make of it, and all were committed to.

    Args:
        board: The round.
        party: Whose message it is.
        shown: The value and the key of its noise, as the party showed them.
        pair_keys: The keys of the pairs whose noise is in the message.

    Raises:
        Cheated: It is not.
    """
    promise, message = board.promises[party], board.messages[party]
    again = shown.promise(party, promise.message)
    if again.value != promise.value or again.noise != promise.noise:
        raise Cheated((party,), "opened another value or noise than it committed to.")
    if {other: commitment(b"pair", key) for other, key in pair_keys.items()} != board.tags[party]:
        raise Cheated((party,), "opened other pairs than it posted.")
    if not np.array_equal(_with_pairs(board.terms, party, shown.noised(board.terms), pair_keys), message):
        raise Cheated((party,), "sent a message that its value and noises do not make.")
