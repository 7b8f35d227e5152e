"""The client's half of a run as a Flower ClientApp, the same in a simulation and on machines of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sordina.errors import BudgetRefused, InvalidInput
from sordina.federated.decentralized.gopa import GopaNoise
from sordina.federated.engines.engine import RoundRequest
from sordina.federated.flower import gopa_round, secure_round
from sordina.federated.flower.client import ClientContext, answer
from sordina.federated.flower.records import Instruction, read, reply
from sordina.federated.flower.registration import answered
from sordina.federated.messages import ClientUpdate
from sordina.federated.privacy.distributed import Distributed
from sordina.federated.serialization import SUM, arrays_of_update

LOG = logging.getLogger("sordina.federated")


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
