"""Before and after the rounds: a client says what it is called, and is given the final models to make its own of.

Neither depends on a row: a client answers both with its name and nothing else, whatever happened to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from flwr.app import ConfigRecord, Context, Message, RecordDict

from sordina.federated.algorithms.algorithm import dtype_of
from sordina.federated.algorithms.personal import used
from sordina.federated.flower.client import ClientContext, state_of_client
from sordina.federated.flower.records import Instruction, read

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
