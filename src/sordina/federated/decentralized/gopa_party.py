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
                                                       promised to stay (`same_value`)
a lie about a pair's key in the repair                 named
a server that calls a party dropped out which is not   not excluded: with the party's message *and* the pairs' keys it
                                                       has ``value + eta``, local privacy. Secure aggregation excludes
                                                       it (self-masks and shares), GOPA needs a server that does not
                                                       lie about that
a majority that colludes                               accounted for, as long as it was not chosen after the graph
=====================================================  ==============================================================

An opening shows a party's value to whoever reads it: it is for an auditor outside of the coalition, in a dispute. The
zero-knowledge proofs of the paper, which need no such auditor, are not built.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput, SordinaError
from sordina.federated.decentralized.gopa import clipped
from sordina.federated.decentralized.key_agreement import KeyPair, shared_key
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
        """What a pair's key is for."""
        low, high = sorted((one, other))
        return b"|".join([self.run, b"pair", *(str(part).encode() for part in (self.number, low, high))])

    def largest(self, neighbours: int) -> int:
        """No number of an honest message is larger, in steps."""
        spread = math.sqrt(self.independent**2 + 1.01 * neighbours * self.pairwise**2)
        return math.ceil((self.threshold + _TAIL * spread) / self.step)


@dataclass(frozen=True)
class Promise:
    """What a party posts before it sends: hashes that bind it."""

    value: bytes
    noise: bytes
    message: bytes


@dataclass(frozen=True, repr=False)
class Opening:
    """Everything behind a party's message, for an auditor."""

    salt: bytes
    value: NDArray[np.float64]
    noise_key: bytes
    pair_keys: dict[int, bytes]


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


def _message(terms: GopaTerms, party: int, opening: Opening) -> Message:
    values = clipped(opening.value[None], terms.threshold)[0]
    add_gaussian(values, terms.independent, keyed_generator(opening.noise_key))
    total = whole_steps(values, terms.step)
    for other, key in opening.pair_keys.items():
        total += pair_noise(terms, key) * (1 if party < other else -1)
    return total


def message_commitment(party: int, message: Message, blind: bytes) -> bytes:
    """What binds a party to its message, and says nothing about it to whoever has not got the blind.

    Args:
        party: Its number.
        message: What it will send.
        blind: Secret bytes, posted together with the message.
    """
    return commitment(b"message", str(party).encode(), blind, message.astype("<i8").tobytes())


def _blind(opening: Opening) -> bytes:
    return commitment(b"blind", opening.noise_key)


def _promise(party: int, opening: Opening, message: Message) -> Promise:
    salt, name = opening.salt, str(party).encode()
    return Promise(
        commitment(b"value", name, salt, opening.value.tobytes()),
        commitment(b"noise", name, salt, opening.noise_key),
        message_commitment(party, message, _blind(opening)),
    )


class GopaParty:
    """One honest party; its secrets never leave it but by `reveal` and `open_to_auditor`.

    Args:
        number: By which it is known.
        value: Its private vector.
        salt: Of its commitments; kept from round to round if its value stays the same.
    """

    def __init__(self, number: int, value: NDArray[np.float64], salt: bytes | None = None) -> None:
        self.number = number
        self.keys = KeyPair.fresh()
        self._value = np.asarray(value, dtype=np.float64).copy()
        self._salt = secrets.token_bytes(32) if salt is None else salt
        self._opening: Opening | None = None
        self._revealed: set[int] = set()

    def agree(self, terms: GopaTerms, publics: dict[int, bytes]) -> dict[int, bytes]:
        """Derive the keys of this round's pairs; returns the hash of each, to post.

        Args:
            terms: The round.
            publics: The neighbours' public keys.
        """
        pairs = {
            other: shared_key(self.keys, public, terms.context(self.number, other))
            for other, public in publics.items()
            if other != self.number
        }
        self._opening = Opening(self._salt, self._value, secrets.token_bytes(32), pairs)
        return {other: commitment(b"pair", key) for other, key in pairs.items()}

    def send(self, terms: GopaTerms) -> tuple[Promise, Message, bytes]:
        """The commitments to post; the message and its blind, to open once everybody has posted theirs.

        Args:
            terms: The round.
        """
        opening = self._opened()
        message = _message(terms, self.number, opening)
        return _promise(self.number, opening, message), message, _blind(opening)

    def reveal(self, dropped: int, allowed: int) -> bytes:
        """The key of the pair with a party that dropped out.

        Args:
            dropped: Its number.
            allowed: How many neighbours may drop out of this round at most.
        """
        opening = self._opened()
        if dropped not in opening.pair_keys:
            raise InvalidInput(f"party {self.number} shares no noise with {dropped}.")
        if len(self._revealed | {dropped}) > allowed:
            raise InvalidInput(
                f"more than {allowed} neighbours of party {self.number} dropped out: nothing is revealed."
            )
        self._revealed.add(dropped)
        return opening.pair_keys[dropped]

    def open_to_auditor(self) -> Opening:
        """Everything behind the last message; shows the value to whoever gets it."""
        return self._opened()

    def _opened(self) -> Opening:
        if self._opening is None:
            raise InvalidInput(f"party {self.number} has agreed on no keys in this round.")
        return self._opening


@dataclass
class GopaBoard:
    """What was posted in a round, and the sum. Holds nothing secret."""

    terms: GopaTerms
    tags: dict[int, dict[int, bytes]] = field(default_factory=dict)
    promises: dict[int, Promise] = field(default_factory=dict)
    messages: dict[int, Message] = field(default_factory=dict)
    repaired: dict[int, dict[int, Message]] = field(default_factory=dict)

    def post_tags(self, party: int, tags: dict[int, bytes]) -> None:
        """Step 1."""
        self.tags[party] = dict(tags)

    def check_pairs(self) -> None:
        """Name the first pair whose two ends do not agree."""
        for party, tags in self.tags.items():
            for other, tag in tags.items():
                if self.tags.get(other, {}).get(party) != tag:
                    raise Cheated(
                        (min(party, other), max(party, other)), "the two posted different keys for their pair."
                    )

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
        if promise is None or party in self.messages:
            raise Cheated((party,), "sent a message without a commitment, or a second one.")
        if party in self.repaired:
            raise Cheated((party,), "came back after its noises were repaired.")
        if not isinstance(message, np.ndarray) or message.dtype != np.int64 or message.shape != (self.terms.size,):
            raise Cheated((party,), f"sent no {self.terms.size} integers of 64 bits.")
        if message_commitment(party, message, blind) != promise.message:
            raise Cheated((party,), "opened another message than it committed to.")
        if int(np.abs(message // 2).max(initial=0)) > self.terms.largest(len(self.tags[party])) // 2:
            raise Cheated((party,), "sent numbers that no honest party reaches.")
        self.messages[party] = message

    def repair(self, dropped: int, revealed: dict[int, bytes]) -> None:
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


def check_opening(board: GopaBoard, party: int, opening: Opening) -> None:
    """An auditor's check: the message is what value, noise and pairs make of it, and all were committed to.

    Args:
        board: The round.
        party: Whose message it is.
        opening: What the party showed.

    Raises:
        Cheated: It is not.
    """
    promise, message = board.promises[party], board.messages[party]
    again = _promise(party, opening, message)
    if again.value != promise.value or again.noise != promise.noise:
        raise Cheated((party,), "opened another value or noise than it committed to.")
    if {other: commitment(b"pair", key) for other, key in opening.pair_keys.items()} != board.tags[party]:
        raise Cheated((party,), "opened other pairs than it posted.")
    if not np.array_equal(_message(board.terms, party, opening), message):
        raise Cheated((party,), "sent a message that its value and noises do not make.")
