"""The engine on Flower: the clients of a round are Flower's nodes, reached through its Grid.

The server's half of a run stays in the ServerApp: strategy, public state, and under central privacy the noise. What
comes back is looked at before it counts: Flower delivers one reply per node that was asked, and `UpdateValidator`
judges what is in it. Whoever is turned away is named in the log, and the round goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from numpy.typing import NDArray

from sordina.errors import DataNotFound, InvalidInput
from sordina.federated.aggregation import UpdateValidator
from sordina.federated.decentralized.gopa import GopaNoise
from sordina.federated.decentralized.secure_aggregation import AggregationServer
from sordina.federated.engines import ClientSide, RoundRequest
from sordina.federated.flower.client_app import ask_name, deliver, distinct_names, name_in
from sordina.federated.flower.gopa_round import GopaRound
from sordina.federated.flower.records import StepExchange, content_bytes, instruct, update_in, weight
from sordina.federated.flower.secure_round import SecureRound, common_of
from sordina.federated.messages import ClientUpdate, Refusal
from sordina.federated.privacy.accounts import ClientAccount
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.distributed import Distributed

LOG = logging.getLogger("sordina.federated")
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0
_GONE = {
    ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
}  # fmt: skip
"""What Flower says in place of a node that left or whose process died."""

_COURTESY = 120.0
"""Seconds to wait for names, and for word that the final models arrived: no result depends on either."""
_TALLY = ("asked", "withheld", "failed", "silent")
_TRANSPORT = ("httpx", "httpcore", "grpc")
"""Where an error comes from that is about the connection to the SuperLink, not about one reply."""


@dataclass(frozen=True)
class Traffic:
    """What a round cost: bytes of content to and from the clients, and seconds.

    These are for the operator of the server: under central privacy they tell how many clients took part.
    """

    sent: int
    received: int
    seconds: float


@dataclass
class Flower:
    """``clients`` seats, each taken by a node; a node that falls silent loses its seat to one that waits.

    ``deadline`` is how many seconds a round may take: the round is closed with those who have answered by then.
    """

    grid: Grid
    clients: int
    limit: Fraction | None = None
    """The leakage limit every client is asked to keep (a client may keep a stricter one)."""
    deadline: float | None = None
    side_number: Callable[[ClientSide], int] = lambda side: 0
    """Which number clients know a client half by: always 0, unless an app has several."""
    validator: UpdateValidator = field(default_factory=UpdateValidator)
    look_up: Callable[[ClientSide, int], ClientAccount] | None = None
    """A simulation may read a client's own account; a server never can."""
    shared: bool = False
    """Whether a node may stand for several clients: in Flower's simulation, whose nodes stand for nobody."""
    names: dict[int, str] = field(init=False, default_factory=dict)
    """What the nodes are called."""
    tally: dict[str, dict[str, int]] = field(init=False, default_factory=dict)
    """How often each client was asked, withheld its update, could not compute one, and did not answer. For the
    operator: under central privacy it tells who took part."""
    accounts: list[ClientAccount] = field(init=False)
    """The most each client can have leaked in this run: every instruction that may have been followed counts."""
    seats: list[int | None] = field(init=False)
    traffic: list[Traffic] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise InvalidInput(f"a federation has at least one client, got {self.clients}.")
        if self.deadline is not None and not self.deadline > 0:
            raise InvalidInput(f"the deadline of a round is a positive number of seconds, got {self.deadline}.")
        self.accounts = [ClientAccount(self.limit) for _ in range(self.clients)]
        self.seats = [None] * self.clients

    def gather(self, patience: float | None = None) -> None:
        """Wait until there is a node for every seat, at most ``patience`` seconds."""
        started, wait = time.monotonic(), _FIRST_WAIT
        while (present := len(set(self.grid.get_node_ids()))) < (1 if self.shared else self.clients):
            if patience is not None and time.monotonic() - started > patience:
                raise DataNotFound(
                    f"{present} of {self.clients} clients came within {patience:g} seconds: start more SuperNodes, or "
                    "lower `clients` in the run configuration."
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        self._seat(set())

    def introduce(self) -> None:
        """Ask every node what it is called; one that does not say is called by its seat."""
        asked, _ = self._ask({seat: ask_name() for seat in range(self.clients)}, 0, "evaluate")
        told = [(self.seats[seat] or 0, name_in(message)) for seat, message in self._replies(asked, _COURTESY)]
        self.names = distinct_names(told, self.seats)

    def deliver(self, call: RoundRequest, side: ClientSide) -> None:
        """Give every client the final models, from which it makes its own; nothing comes back but that it is there."""
        number = self.side_number(side)
        self._seat(set())
        contents = {seat: deliver(instruct(call, seat, number)) for seat in range(self.clients)}
        asked, _ = self._ask(contents, call.order.round, "evaluate")
        for _ in self._replies(asked, _COURTESY):
            pass

    def name(self, seat: int) -> str:
        """What the client in a seat is called."""
        return self.names.get(self.seats[seat] or 0, f"client {seat}")

    def map_reduce(
        self, side: ClientSide, call: RoundRequest, clients: NDArray[np.int64], rng: np.random.Generator
    ) -> ClientUpdate:
        """Ask the nodes in the drawn clients' seats and add up what may be used, in the order of the draw."""
        if isinstance(side.placement, Distributed | GopaNoise):
            return self._in_steps(side, side.placement, call, clients, rng)
        updates, aside = self.apart(side, call, clients, rng)
        there = [(int(client), updates[int(client)]) for client in clients if int(client) in updates]
        total = aside + self.validator.judge(there, side, call)
        for refusal in total.refused:
            LOG.log(
                _level(side), "round %d: client %d is left out: %s", call.order.round + 1, refusal.sender,
                refusal.reason,
            )  # fmt: skip
        return total

    def apart(
        self, side: ClientSide, call: RoundRequest, clients: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[dict[int, ClientUpdate], ClientUpdate]:
        """Every client's numbers, not judged yet, and the counts of those that sent none."""
        started, number = time.monotonic(), self.side_number(side)
        self._seat(set())
        contents = {int(client): instruct(call, int(client), number) for client in clients}
        asked, absent = self._ask(contents, call.order.round)
        arrived: dict[int, ClientUpdate] = {}
        received = 0
        for client, message in self._replies(asked):
            if message is None:
                arrived[client] = ClientUpdate(refused=(Refusal(client, "malformed: Flower cannot read this reply"),))
            elif not (message.has_error() and message.error.code in _GONE):
                arrived[client], size = _opened(client, message)
                received += size
        silent = set(asked.values()) - set(arrived)
        self._note(side, set(asked.values()), arrived, side.work.width(call.sent))
        for client in silent:
            self.tally[self.name(client)]["silent"] += 1
        self._seat(silent)
        if lost := sorted(silent | absent):
            words = "round %d: clients %s are gone or did not answer in time."
            LOG.log(_level(side), words, call.order.round + 1, lost)
        sent = sum(weight(contents[client]) for client in asked.values())
        self.traffic.append(Traffic(sent, received, time.monotonic() - started))
        aside = [update for update in arrived.values() if not _numbers(update)]
        updates = {client: update for client, update in arrived.items() if _numbers(update)}
        return updates, sum(aside, ClientUpdate(dropped=len(contents) - len(arrived)))

    def _in_steps(
        self,
        side: ClientSide,
        placement: Distributed | GopaNoise,
        call: RoundRequest,
        clients: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> ClientUpdate:
        """The sum of the drawn clients' vectors, of which none is seen."""
        started, asked, bytes_of = time.monotonic(), set[int](), [0, 0]
        self._seat(set())

        def exchange(contents: dict[int, RecordDict], kind: str) -> dict[int, Message]:
            ids, _ = self._ask(contents, call.order.round, kind)
            asked.update(ids.values())
            replies = {client: message for client, message in self._replies(ids) if message is not None}
            bytes_of[0] += sum(content_bytes(contents[client]) for client in ids.values())
            bytes_of[1] += sum(content_bytes(one.content) for one in replies.values() if one.has_content())
            return replies

        order, size = tuple(int(one) for one in rng.permutation(clients)), side.work.width(call.sent)
        steps, number = StepExchange(exchange), self.side_number(side)
        work: SecureRound | GopaRound
        if isinstance(placement, GopaNoise):
            work = GopaRound(steps, call, number, placement, order, size)
        else:
            work = SecureRound(steps, call, number, AggregationServer(common_of(placement, call), order))
        total = work.run()
        self._note(side, asked, steps.aside, size)
        self._seat({one for one in order if one not in asked})
        for refusal in total.refused:
            words = "round %d: client %d is left out: %s"
            LOG.warning(words, call.order.round + 1, refusal.sender, refusal.reason)
        self.traffic.append(Traffic(bytes_of[0], bytes_of[1], time.monotonic() - started))
        return total

    def _seat(self, silent: set[int]) -> None:
        """Give the seats of nodes that left, and of ``silent`` ones, to nodes that wait.

        A newcomer may be anyone who left, so it is taken to have leaked as much as the one who leaked most.
        """
        present = list(dict.fromkeys(self.grid.get_node_ids()))
        if self.shared and present:
            self.seats = [present[seat % len(present)] for seat in range(self.clients)]
            return
        waiting = [node for node in present if node not in self.seats]
        for seat, node in enumerate(self.seats):
            if waiting and (node not in present or seat in silent):
                self.seats[seat] = waiting.pop(0)
                worst = max(self.accounts, key=lambda account: (account.spent, account.participations))
                self.accounts[seat] = replace(worst)
            elif node not in present:
                self.seats[seat] = None

    def _ask(
        self, contents: dict[int, RecordDict], number: int, kind: str = "train"
    ) -> tuple[dict[str, int], set[int]]:
        """Push one message per client; returns whom each message is for, and the clients no node stands for."""
        asked: dict[str, int] = {}
        absent = set()
        for client, content in contents.items():
            node = self.seats[client]
            ids: list[str | None] = [None]
            if node is not None:
                message = Message(content, node, kind, ttl=self.deadline, group_id=str(number))
                ids = list(self.grid.push_messages([message])) or [None]
            if ids[0] is None:
                absent.add(client)
            else:
                asked[ids[0]] = client
        return asked, absent

    def _replies(self, asked: dict[str, int], most: float | None = None) -> Iterable[tuple[int, Message | None]]:
        """Replies as they come, one per client, until all are there or the deadline has passed; None: unreadable."""
        seconds = min((one for one in (self.deadline, most) if one is not None), default=None)
        end = None if seconds is None else time.monotonic() + seconds
        open_ids, wait = set(asked), _FIRST_WAIT
        while open_ids:
            for identity, message in self._pulled(open_ids):
                if identity not in open_ids:
                    LOG.debug("a reply nobody asked for is left out.")
                    continue
                open_ids.discard(identity)
                yield asked[identity], message
            if not open_ids or (end is not None and time.monotonic() > end):
                return
            time.sleep(wait)
            wait = min(1.5 * wait, _LONGEST_WAIT)

    def _pulled(self, open_ids: set[str]) -> Iterable[tuple[str, Message | None]]:
        """What Flower has for us, asked for one by one: a reply that breaks its reader takes no other with it."""
        for identity in sorted(open_ids):
            yield from self._pulled_one(identity)

    def _pulled_one(self, identity: str) -> list[tuple[str, Message | None]]:
        try:
            return [(one.metadata.reply_to_message_id, one) for one in self.grid.pull_messages({identity})]
        except Exception as error:
            if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _TRANSPORT:
                raise
            return [(identity, None)]

    def _note(self, side: ClientSide, asked: set[int], updates: dict[int, ClientUpdate], size: int) -> None:
        """Keep the accounts: whoever did not say that it withheld may have charged itself."""
        cost = side.placement.cost(size)
        for client in asked:
            told = self.tally.setdefault(self.name(client), dict.fromkeys(_TALLY, 0))
            update = updates.get(client)
            told["asked"] += 1
            told["withheld"] += bool(update and update.withheld)
            told["failed"] += bool(update and (update.rejected or update.refused))
            if self.look_up is not None:
                self.accounts[client] = self.look_up(side, client)
            elif not (client in updates and updates[client].withheld) and self.accounts[client].allows(cost):
                self.accounts[client].charge(cost)


def _level(side: ClientSide) -> int:
    """Who answered may be logged, except where it is a secret: Flower shows a run's log to whoever started it."""
    return logging.DEBUG if isinstance(side.placement, Central) else logging.WARNING


def _opened(client: int, message: Message) -> tuple[ClientUpdate, int]:
    """The numbers in a reply, to be judged, and its bytes; or that the client withholds, failed, or makes no sense."""
    try:
        if message.has_error():
            raise InvalidInput(f"Flower reports error {message.error.code} at this client")
        update, size = update_in(message.content), weight(message.content)
    except InvalidInput as error:
        return ClientUpdate(refused=(Refusal(client, str(error)),)), 0
    except Exception as error:
        return ClientUpdate(refused=(Refusal(client, f"malformed: it cannot be read ({type(error).__name__})"),)), 0
    if update.withheld:
        return ClientUpdate(withheld=1), size
    if update.rejected:
        refusal = Refusal(client, "it could not compute a finite update; see its own log")
        return ClientUpdate(rejected=1, refused=(refusal,)), size
    return ClientUpdate(update.sums, update.vectors), size


def _numbers(update: ClientUpdate) -> bool:
    """Whether there is something to judge."""
    return not (update.withheld or update.rejected or update.refused)
