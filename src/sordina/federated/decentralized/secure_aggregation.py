"""Secure aggregation: the server learns the sum of the clients' vectors modulo 2^bits, and nothing else.

Bonawitz et al. 2017, on the sparse graph of Bell et al. 2020 (SecAgg+). A round has four steps, each one message from
the server to every client and one back; who does not answer in time has dropped out.

==========  =====================================  =================================================================
step        a client is told                       a client sends
==========  =====================================  =================================================================
advertise   that a round begins                    two public keys: for letters, for masks
share       its neighbours' keys                   shares of its two secrets, sealed for each neighbour; a digest of
                                                   the seed b_i
mask        its neighbours' letters                ``y_i = x_i + W(b_i) + sum_{j > i} W(s_ij) - sum_{j < i} W(s_ij)``
unmask      who of its neighbours sent a vector    for each neighbour that did, its share of b_j, for each that did
                                                   not, its share of j's mask key; never both
==========  =====================================  =================================================================

W expands a key to numbers modulo 2^bits, s_ij is what i and j agreed on. What i and j add cancels; the shares take off
the seeds of those who remained and the masks left over from those who did not.

**What is hidden, and from whom.** The server follows the protocol but keeps and studies everything (honest but
curious), together with fewer than ``threshold`` neighbours of any honest client. Then y_i is uniform whatever x_i is,
as W(b_i) is uniform to whoever has fewer than ``threshold`` shares of b_i and of the mask key. Of those who remained
all seeds are told; what then still hides x_i is the masks shared with honest neighbours that remained: the sum over
connected honest clients is all that is told (`graphs` keeps them connected).

**What is not.** A server that lies about who dropped out could ask some neighbours for one secret and some for the
other. A client answers `unmask` once a round and never with both, so that no client's two secrets come together if
``threshold`` is large enough (`AggregationGraph.secrets_stay_apart` says whether it is). By naming drop-outs that are
none to different clients it could still learn a sum over fewer honest clients than is accounted for; and keys are not
certified here: against a server that does not follow the protocol, or invents clients, nothing is promised. A client
that masks garbage spoils the sum: its numbers are bounded by the modulus alone, as nobody sees them; nobody can name
it. A round that ends while it is unmasked may be known to whoever tries the shares again.

**Who is named** (`AggregationServer.named`). Wrong shares are corrected and whoever revealed them is named, up to half
of the shares beyond ``threshold`` (`shamir.correct`); the client whose secret it is may have given them out wrong,
which nobody can tell apart. With more of them the round ends, and the owner of the secret is named with that doubt.
A client that writes letters nobody can read ends the round too: its readers say so instead of sending anything, and it
is named by itself once ``threshold`` of them do, as one of these is honest; before, either of the two may lie, and both
are named.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from sordina.errors import InvalidInput
from sordina.federated.decentralized import key_agreement
from sordina.federated.decentralized.graphs import AggregationGraph
from sordina.federated.decentralized.key_agreement import KeyPair, Words, decrypt, encrypt, shared_key, words

_KEY, _SHARE = 32, key_agreement.SHARE_BYTES
_LETTER = 2 * _SHARE + 16
"""Two shares and the seal."""


class Aborted(InvalidInput):
    """Too few clients remained, or what they sent does not fit: the round ends, and nothing is unmasked."""


class UnreadableLetters(Aborted):
    """Letters that their reader cannot open, by sender; the reader sends nothing else."""

    def __init__(self, senders: tuple[int, ...]) -> None:
        self.senders = senders
        super().__init__(f"{len(senders)} letters cannot be read: nothing is sent.")


@dataclass(frozen=True)
class SecureSum:
    """What everybody knows about one sum.

    Args:
        name: Of the run and the round; keys of other sums are unrelated.
        graph: Neighbours and threshold.
        least: The fewest clients whose vectors may be unmasked together.
        length: Numbers in a vector.
        bits: 32 or 64; sums are modulo 2^bits.
    """

    name: str
    graph: AggregationGraph
    least: int
    length: int
    bits: int = 32

    def context(self, purpose: str, sender: int, reader: int) -> bytes:
        """A key's purpose."""
        return f"{self.name} {purpose} {sender} {reader}".encode()

    def stream(self, key: bytes) -> Words:
        """A mask."""
        return words(key, self.length, self.bits)

    def zeros(self) -> Words:
        """The sum of no vector."""
        return np.zeros(self.length, dtype=f"u{self.bits // 8}")


@dataclass(repr=False)
class AggregationClient:
    """One client's side of one sum; its methods are the steps, in order, each once.

    Args:
        number: The client's number, from 0 on.
        common: What everybody knows.
    """

    number: int
    common: SecureSum
    letter_pair: KeyPair = field(default_factory=KeyPair.fresh)
    mask_pair: KeyPair = field(default_factory=KeyPair.fresh)
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(_KEY))
    keys: dict[int, bytes] = field(default_factory=dict)
    """The neighbours' two public keys, joined."""
    shares: dict[int, bytes] = field(default_factory=dict)
    """What the neighbours gave: a share of the seed and one of the mask key, joined."""
    done: int = 0
    """How many steps were taken."""

    def advertise(self) -> bytes:
        """The two public keys."""
        self._step(0)
        return self.letter_pair.public + self.mask_pair.public

    def share(self, keys: Mapping[int, bytes]) -> tuple[bytes, dict[int, bytes]]:
        """The digest of the seed, and a letter for each neighbour.

        Args:
            keys: What the neighbours advertised.
        """
        self._step(1)
        self._check_missing(len(keys))
        if len(keys) < self.common.graph.threshold or self.number in keys or len(set(keys.values())) < len(keys):
            raise Aborted("too few neighbours, or neighbours that are not different clients: nothing is shared.")
        if any(len(both) != 2 * _KEY for both in keys.values()):
            raise Aborted("a neighbour's keys are invalid: nothing is shared.")
        self.keys = dict(keys)
        points = [number + 1 for number in keys]
        seeds = key_agreement.split(self.seed, self.common.graph.threshold, points)
        masks = key_agreement.split(self.mask_pair.private, self.common.graph.threshold, points)
        letters = {
            other: encrypt(self._letter_key(self.number, other), seeds[other + 1] + masks[other + 1]) for other in keys
        }
        return hashlib.sha256(self.seed).digest(), letters

    def mask(self, letters: Mapping[int, bytes], vector: Words) -> Words:
        """The vector under its masks.

        Args:
            letters: What the neighbours that shared wrote to this client.
            vector: Numbers modulo 2^bits.
        """
        self._step(2)
        if vector.shape != (self.common.length,) or vector.dtype.itemsize * 8 != self.common.bits:
            raise InvalidInput(f"a vector of {self.common.length} numbers of {self.common.bits} bits was expected.")
        if not set(letters) <= set(self.keys):
            raise Aborted("sealed shares came from clients that are not neighbours.")
        self._check_missing(len(letters))
        unreadable = []
        for other, letter in letters.items():
            try:
                both = decrypt(self._letter_key(other, self.number), letter)
            except InvalidInput:
                both = b""
            if len(both) == 2 * _SHARE:
                self.shares[other] = both
            else:
                unreadable.append(other)
        if unreadable:
            raise UnreadableLetters(tuple(unreadable))
        if len(self.shares) < self.common.graph.threshold:
            raise Aborted("too few neighbours shared their secrets: nothing is sent.")
        masked = vector + self.common.stream(self.seed)
        for other in self.shares:
            stream = self.common.stream(self._mask_key(other))
            masked = masked + stream if self.number < other else masked - stream
        return masked

    def unmask(self, remaining: Collection[int], count: int) -> dict[int, bytes]:
        """For each neighbour one share: of its seed if it remained, else of its mask key.

        Args:
            remaining: The neighbours that sent a vector.
            count: How many clients sent one in all.
        """
        self._step(3)
        there = set(remaining)
        graph = self.common.graph
        gone = min(graph.degree, graph.clients - 1) - len(there)
        if not there <= set(self.shares) or len(there) < graph.threshold or count < self.common.least:
            raise Aborted("too few clients remained: nothing is unmasked.")
        if gone > graph.clients - count:
            raise Aborted("more neighbours are said to be gone than clients in all: nothing is unmasked.")
        return {other: both[:_SHARE] if other in there else both[_SHARE:] for other, both in self.shares.items()}

    def to_bytes(self) -> bytes:
        """What this client must remember until the next step: a secret."""
        hexed = {"keys": self.keys, "shares": self.shares}
        document = {name: {str(key): value.hex() for key, value in part.items()} for name, part in hexed.items()}
        own = [self.letter_pair.private.hex(), self.mask_pair.private.hex(), self.seed.hex()]
        return json.dumps({"number": self.number, "done": self.done, "own": own, **document}).encode()

    @classmethod
    def from_bytes(cls, data: bytes, common: SecureSum) -> AggregationClient:
        """The client that `to_bytes` wrote down.

        Args:
            data: What was written.
            common: What everybody knows.
        """
        facts = json.loads(data)
        letter, mask, seed = (bytes.fromhex(one) for one in facts["own"])
        keys, shares = (
            {int(key): bytes.fromhex(value) for key, value in facts[name].items()} for name in ("keys", "shares")
        )
        return cls(facts["number"], common, KeyPair.of(letter), KeyPair.of(mask), seed, keys, shares, facts["done"])

    def _check_missing(self, there: int) -> None:
        """Refuse a server that hides neighbours: no more can be gone than may drop out in all."""
        graph = self.common.graph
        if min(graph.degree, graph.clients - 1) - there > graph.clients - self.common.least:
            raise Aborted("more neighbours are missing than clients may drop out: nothing is sent.")

    def _step(self, number: int) -> None:
        if self.done != number:
            raise Aborted(f"step {number + 1} of a round comes after step {number}, and once.")
        self.done += 1

    def _letter_key(self, sender: int, reader: int) -> bytes:
        other = reader if sender == self.number else sender
        return shared_key(self.letter_pair, self.keys[other][:_KEY], self.common.context("letter", sender, reader))

    def _mask_key(self, other: int) -> bytes:
        low, high = sorted((self.number, other))
        return shared_key(self.mask_pair, self.keys[other][_KEY:], self.common.context("mask", low, high))


@dataclass
class AggregationServer:
    """The server's side of one sum: it forwards what it cannot read, and adds up what it cannot tell apart.

    Args:
        common: What everybody knows.
        order: The clients that are asked, in an order drawn at random.
    """

    common: SecureSum
    order: tuple[int, ...]
    keys: dict[int, bytes] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)
    letters: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """By reader, then by sender."""
    remaining: set[int] = field(default_factory=set)
    total: Words = field(init=False)
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """By owner, then by holder."""
    cheaters: set[int] = field(default_factory=set)
    """Clients whose shares were found to be wrong."""
    doubtful: set[int] = field(default_factory=set)
    """Clients whose own secrets could not be put together from the shares that came."""
    complaints: dict[int, set[int]] = field(default_factory=dict)
    """By sender, who could not read its letter."""

    def __post_init__(self) -> None:
        self.total = self.common.zeros()
        self.graph = self.common.graph.neighbours(self.order)
        self.probe = KeyPair.fresh()

    def advertised(self, sender: int, keys: bytes) -> None:
        """Take a client's public keys."""
        if len(keys) != 2 * _KEY or sender in self.keys or sender not in self.graph or keys in self.keys.values():
            raise InvalidInput("malformed: no keys of a client that was asked")
        for half in (keys[:_KEY], keys[_KEY:]):
            shared_key(self.probe, half, b"probe")  # raises for a point with which nobody can agree on anything
        self.keys[sender] = keys

    def keys_for(self, reader: int) -> dict[int, bytes]:
        """What a client's neighbours advertised."""
        return {other: self.keys[other] for other in self.graph[reader] if other in self.keys}

    def shared(self, sender: int, digest: bytes, letters: Mapping[int, bytes]) -> None:
        """Take a client's letters."""
        if len(digest) != _KEY or sender in self.digests or set(letters) != set(self.keys_for(sender)):
            raise InvalidInput("malformed: no sealed shares for this client's neighbours")
        if any(len(letter) != _LETTER for letter in letters.values()):
            raise InvalidInput("malformed: a sealed share of another length")
        self.digests[sender] = digest
        for reader, letter in letters.items():
            self.letters.setdefault(reader, {})[sender] = letter

    def letters_for(self, reader: int) -> dict[int, bytes]:
        """What a client's neighbours wrote to it."""
        return self.letters.get(reader, {})

    def masked(self, sender: int, vector: Words) -> None:
        """Add a client's masked vector to the sum."""
        fits = vector.shape == self.total.shape and vector.dtype == self.total.dtype
        if not fits or sender in self.remaining or sender not in self.digests:
            raise InvalidInput("malformed: no masked vector of a client that shared its secrets")
        self.remaining.add(sender)
        self.total += vector

    def complained(self, reader: int, senders: Collection[int]) -> None:
        """Take a client's word that it cannot read some letters; it is not in the sum."""
        if reader in self.remaining or not set(senders) <= set(self.letters_for(reader)):
            raise InvalidInput("malformed: a complaint about shares that were not sent")
        for sender in senders:
            self.complaints.setdefault(sender, set()).add(reader)

    def named(self) -> dict[int, str]:
        """Who did not keep to the protocol, as far as it can be told, and how."""
        found = dict.fromkeys(sorted(self.cheaters), "a wrong share in secure aggregation")
        for owner in sorted(self.doubtful):
            found[owner] = "its shares do not fit together: it gave out wrong ones, or many of its neighbours lie"
        certain = {one for one, readers in self.complaints.items() if len(readers) >= self.common.graph.threshold}
        for sender in sorted(certain):
            found[sender] = f"letters that {len(self.complaints[sender])} neighbours cannot read"
        for sender in sorted(set(self.complaints) - certain):
            for reader in sorted(self.complaints[sender] - certain):
                found[sender] = f"a letter that client {reader} says it cannot read: one of the two is wrong"
                found.setdefault(reader, f"says that it cannot read client {sender}'s letter: one of the two is wrong")
        return found

    def survivors_for(self, reader: int) -> list[int]:
        """Which neighbours of a client remained."""
        return [other for other in self.letters_for(reader) if other in self.remaining]

    def check_remaining(self) -> None:
        """Before anybody is asked to unmask: refuse if too few remained."""
        if len(self.remaining) < self.common.least:
            raise Aborted(
                f"{len(self.remaining)} clients remained, {self.common.least} are needed: nothing is unmasked."
            )

    def unmasked(self, holder: int, shares: Mapping[int, bytes]) -> None:
        """Take the shares that a client reveals."""
        if holder not in self.remaining or set(shares) != set(self.letters_for(holder)):
            raise InvalidInput("malformed: no shares of this client's neighbours")
        for owner, share in shares.items():
            if len(share) != _SHARE:
                raise InvalidInput("malformed: a share of another length")
            self.shares.setdefault(owner, {})[holder + 1] = share

    def reveal(self) -> Words:
        """The sum of the vectors of those who remained, modulo 2^bits."""
        self.check_remaining()
        total = self.total.copy()
        for owner in self.digests:
            if owner in self.remaining:
                total -= self.common.stream(self._secret(owner, self._is_seed))
            else:
                self._take_off_masks(owner, total)
        return total

    def _take_off_masks(self, owner: int, total: Words) -> None:
        """What the neighbours of a client that dropped out had added for it."""
        touched = [other for other in self.graph[owner] if other in self.remaining and owner in self.letters_for(other)]
        if not touched:
            return
        pair = KeyPair.of(self._secret(owner, self._is_mask_key))
        for other in touched:
            low, high = sorted((owner, other))
            stream = self.common.stream(
                shared_key(pair, self.keys[other][_KEY:], self.common.context("mask", low, high))
            )
            if other < owner:
                total -= stream
            else:
                total += stream

    def _is_seed(self, owner: int, secret: bytes) -> bool:
        return hashlib.sha256(secret).digest() == self.digests[owner]

    def _is_mask_key(self, owner: int, secret: bytes) -> bool:
        return KeyPair.of(secret).public == self.keys[owner][_KEY:]

    def _secret(self, owner: int, right: Callable[[int, bytes], bool]) -> bytes:
        """A secret from its shares; those that are wrong are corrected, and whoever revealed them is named."""
        shares, threshold = self.shares.get(owner, {}), self.common.graph.threshold
        if len(shares) < threshold:
            raise Aborted("the shares of a secret are too few: nothing is unmasked.")
        for attempt in self._attempts(shares, threshold):
            try:
                secret, wrong = attempt()
            except InvalidInput:
                continue
            if right(owner, secret):
                self.cheaters |= {point - 1 for point in wrong}
                return secret
        self.doubtful.add(owner)
        raise Aborted("the shares of a secret do not fit together: nothing is unmasked.")

    def _attempts(self, shares: dict[int, bytes], threshold: int) -> Iterator[Callable[[], tuple[bytes, list[int]]]]:
        """Ways to a secret that is checked afterwards: as if all were right, corrected, or without one of them."""
        yield lambda: (key_agreement.combine(shares, threshold), [])
        yield lambda: key_agreement.correct(shares, threshold)
        if len(shares) == threshold + 1:  # one wrong share more than can be told without the check
            for point in shares:
                kept = {other: share for other, share in shares.items() if other != point}
                yield lambda kept=kept, point=point: (key_agreement.combine(kept, threshold), [point])  # type: ignore[misc]


def sum_securely(
    vectors: Mapping[int, Words], common: SecureSum, order: tuple[int, ...], gone: Mapping[int, str] | None = None
) -> tuple[Words, set[int]]:
    """All four steps in one process: the sum, and whose vectors are in it.

    Args:
        vectors: The clients' vectors.
        common: What everybody knows.
        order: The clients, in an order drawn at random.
        gone: The step before which a client drops out, for those that do.
    """
    absent = dict(gone or {})
    steps = ("advertise", "share", "mask", "unmask")

    def there(step: str) -> list[int]:
        late = set(steps[: steps.index(step) + 1])
        return [one for one in order if absent.get(one) not in late]

    clients = {one: AggregationClient(one, common) for one in order}
    server = AggregationServer(common, order)
    for one in there("advertise"):
        server.advertised(one, clients[one].advertise())
    for one in there("share"):
        server.shared(one, *clients[one].share(server.keys_for(one)))
    for one in there("mask"):
        server.masked(one, clients[one].mask(server.letters_for(one), vectors[one]))
    server.check_remaining()
    for one in there("unmask"):
        server.unmasked(one, clients[one].unmask(server.survivors_for(one), len(server.remaining)))
    return server.reveal(), server.remaining
