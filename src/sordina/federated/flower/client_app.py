"""The client's half of a run as a Flower ClientApp, the same in a simulation and on machines of its own.

Before and after the rounds: a client says what it is called, and is given the final models to make its own of.

Neither depends on a row: a client answers both with its name and nothing else, whatever happened to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sordina.errors import BudgetRefused, InvalidInput
from sordina.federated.algorithms.algorithm import dtype_of
from sordina.federated.algorithms.personal import used
from sordina.federated.decentralized.gopa import GopaNoise
from sordina.federated.engines import RoundRequest
from sordina.federated.flower import gopa_round, secure_round
from sordina.federated.flower.client import ClientContext, answer, state_of_client
from sordina.federated.flower.records import Instruction, read, reply
from sordina.federated.messages import SUM, ClientUpdate, arrays_of_update
from sordina.federated.privacy.distributed import Distributed

# Before and after the rounds: a client says what it is called, and is given the final models to make its own of.

LOG = logging.getLogger("sordina.federated")
_REQUEST, _ANSWER, _KIND, _NAME, _DELIVERY = "request", "answer", "kind", "name", "delivery"
_LONGEST = 60


def ask_name() -> RecordDict:
    """The server's question to a node: what are you called?"""
    return RecordDict({_REQUEST: ConfigRecord({_KIND: _NAME})})


def deliver(instruction: RecordDict) -> RecordDict:
    """The server's last message to a node: the final models.

    Args:
        instruction: What a next round would have begun with.
    """
    return RecordDict({**dict(instruction), _REQUEST: ConfigRecord({_KIND: _DELIVERY})})


def answered(desk_of: Callable[[Instruction, Context], ClientContext], message: Message, context: Context) -> Message:
    """A client's answer to either; the final models go into its own folder.

    Args:
        desk_of: What the client works with.
        message: The server's.
        context: Of the node; ``name`` in its configuration is what it is called.
    """
    try:
        if message.content.config_records[_REQUEST][_KIND] == _DELIVERY:
            instruction = read(RecordDict({key: value for key, value in message.content.items() if key != _REQUEST}))
            _keep(desk_of(instruction, context), instruction, context.run_id)
    except Exception:
        LOG.exception("this client could not keep the final models; it is not told to anybody else.")
    name = str(context.node_config.get("name", ""))
    return Message(RecordDict({_ANSWER: ConfigRecord({_NAME: name})}), reply_to=message)


def _keep(client_context: ClientContext, instruction: Instruction, run: int) -> None:
    """The model this client would use, made with its own rows, in its own folder."""
    work, sent = client_context.side.work, instruction.sent
    with client_context.home.busy():
        state = state_of_client(work.state_sizes, client_context.home.recall(run), dtype_of(sent))
        mine = used(work, work.objective, sent, client_context.rows(), state, instruction.order)
        client_context.home.keep_model(run, mine.weights[0].numpy(), mine.models[0].numpy())


def name_in(message: Message | None) -> str:
    """The name in a client's answer; empty where there is none, or none that can be printed.

    Args:
        message: What came from a node: nobody vouches for it.
    """
    try:
        told = "" if message is None or message.has_error() else message.content.config_records[_ANSWER][_NAME]
    except Exception:
        return ""
    return told.strip()[:_LONGEST] if isinstance(told, str) and told.isprintable() else ""


def distinct_names(told: Iterable[tuple[int, str]], seats: list[int | None]) -> dict[int, str]:
    """Every node's name; one without, or with another's, is called by its seat.

    Args:
        told: Nodes, and what they say.
        seats: The node in each seat.
    """
    found: dict[int, str] = {}
    answers = dict(told)
    for seat, node in enumerate(seats):
        if node is not None:
            name = answers.get(node, "")
            found[node] = name if name and name not in found.values() else f"client {seat}"
    return found


# The client's half of a run as a Flower ClientApp, the same in a simulation and on machines of its own.


def client_app(desk_of: Callable[[Instruction, Context], ClientContext]) -> ClientApp:
    """The client's half as a ClientApp; ``desk_of`` says what the client works with.

    Data, local work, clipping or sanitising, and the account stay in this process. What went wrong is told in the
    client's own log only: an error message may quote data. ``desk_of`` must not touch the client's rows: whether it
    fails is seen by the server.
    """
    app = ClientApp()

    def train(message: Message, context: Context) -> Message:
        try:
            instruction = read(message.content)
            client_context = desk_of(instruction, context)
            size = client_context.side.work.width(instruction.sent)
            call = instruction.call(client_context.side.placement.start(size))
            if isinstance(client_context.side.placement, Distributed | GopaNoise):
                content = _several_steps(client_context, call, message, context, instruction.client)
                return Message(content, reply_to=message)
            arrays = answer(client_context, call, context.run_id, instruction.client)
        except BudgetRefused as error:
            LOG.warning("nothing is sent: %s", error)
            arrays = arrays_of_update(ClientUpdate(withheld=1))
        except Exception:
            LOG.exception("this client could not answer; nothing left it.")
            arrays = arrays_of_update(ClientUpdate(rejected=1))
        return Message(reply(arrays), reply_to=message)

    def query(message: Message, context: Context) -> Message:
        try:
            gopa = gopa_round.RECORD in message.content.config_records
            return Message((gopa_round if gopa else secure_round).continued(message, context), reply_to=message)
        except Exception:
            LOG.exception("this client leaves the sum; nothing left it.")
            return Message(reply(arrays_of_update(ClientUpdate(rejected=1))), reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        return answered(desk_of, message, context)

    app.train()(train)
    app.query()(query)
    app.evaluate()(evaluate)
    return app


def _several_steps(
    client_context: ClientContext, call: RoundRequest, message: Message, context: Context, client: int
) -> RecordDict:
    """Work and pay as always, but keep the update: what leaves now is a public key."""
    placement, home = client_context.side.placement, client_context.home
    if isinstance(placement, Distributed) and call.privacy.size != client_context.side.work.width(call.sent):
        raise InvalidInput("the state that the server sent is of a vector of another length.")
    arrays = answer(client_context, call, context.run_id, client)
    if SUM + "0" not in arrays:
        return reply(arrays)
    # one update in two sums: a client missing from the second would be their difference
    home.advance(context.run_id, call.order.round, 0)
    noised = arrays[SUM + "0"]
    if isinstance(placement, GopaNoise):
        return gopa_round.begin(noised, placement, call, message, context, home.folder)
    assert isinstance(placement, Distributed)
    common = secure_round.common_of(placement, call)
    return secure_round.begin(noised, client, common, call.order.round, context, home.folder)
