"""The client's half of a run as a Flower ClientApp, the same in a simulation and on machines of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sordina.errors import BudgetRefused, InvalidInput
from sordina.federated.flower.client import ClientContext, answer
from sordina.federated.flower.records import Instruction, read, reply
from sordina.federated.flower.registration import answered
from sordina.federated.flower.secure_round import begin, common_of, continued
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
            desk = desk_of(instruction, context)
            size = desk.side.work.width(instruction.sent)
            call = instruction.call(desk.side.placement.start(size))
            placement = desk.side.placement
            if isinstance(placement, Distributed) and call.privacy.size != size:
                raise InvalidInput("the state that the server sent is of a vector of another length.")
            if isinstance(placement, Distributed) and desk.home.recall(context.run_id).round == call.order.round:
                raise InvalidInput(
                    "this round's contribution is in a sum already: the difference of two would show it."
                )
            letter = answer(desk, call, context.run_id, instruction.client)
            if isinstance(placement, Distributed) and SUM + "0" in letter:
                common = common_of(placement, call)
                return Message(begin(letter[SUM + "0"], instruction.client, common, context), reply_to=message)
        except BudgetRefused as error:
            LOG.warning("nothing is sent: %s", error)
            letter = arrays_of_update(ClientUpdate(withheld=1))
        except Exception:
            LOG.exception("this client could not answer; nothing left it.")
            letter = arrays_of_update(ClientUpdate(rejected=1))
        return Message(reply(letter), reply_to=message)

    def query(message: Message, context: Context) -> Message:
        try:
            return Message(continued(message, context), reply_to=message)
        except Exception:
            LOG.exception("this client leaves the sum; nothing left it.")
            return Message(reply(arrays_of_update(ClientUpdate(rejected=1))), reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        return answered(desk_of, message, context)

    app.train()(train)
    app.query()(query)
    app.evaluate()(evaluate)
    return app
