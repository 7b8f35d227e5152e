"""A grid in this process: every node is a ClientApp called at once, so that a whole run needs no network."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'sordina[federated]'")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.supercore.task_identity import TaskIdentity

from sordina.federated.flower.client import ClientContext, ClientFolder, alone
from sordina.federated.flower.client_app import client_app
from sordina.federated.flower.engine import Flower
from sordina.federated.messages import decode, encode


def crossed(content):
    """The content as it would arrive: every array through bytes."""
    records = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            arrived = ArrayRecord()
            for key, array in record.items():
                arrived[key] = copied(array)
            record = arrived
        records[name] = record
    return RecordDict(records)


def copied(array):
    """An array with the same fields, whatever they are."""
    again = Array("uint8", (0,), "", b"")
    again.dtype, again.shape, again.stype, again.data = array.dtype, array.shape, array.stype, bytes(array.data)
    return again


class DoubleGrid:
    """Nodes 100, 101, ...; ``tamper(node, reply)`` may replace a reply, or return None to lose it."""

    def __init__(self, apps, run=7, tamper=None):
        self.apps, self.run_id, self.tamper = dict(apps), run, tamper or (lambda node, reply: reply)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, 1, 1
        self.instructions, self.replies, self.waiting = [], [], {}
        self.states = {}

    def get_node_ids(self):
        return list(self.apps)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            identity = f"message-{len(self.instructions)}"
            message.metadata.__dict__["_message_id"] = identity
            message.content = crossed(message.content)
            self.instructions.append(message)
            self.deliver(message)
            ids.append(identity)
        return ids

    def deliver(self, message):
        node = message.metadata.dst_node_id
        if node not in self.apps:
            return None
        context = Context(self.run_id, node, UserConfig(), self.states.setdefault(node, RecordDict()), UserConfig())
        reply = self.apps[node](message, context)
        self.replies.append((node, reply))
        reply = self.tamper(node, reply)
        if reply is not None:
            reply.content = crossed(reply.content)
            self.waiting[message.metadata.message_id] = reply
        return reply

    def pull_messages(self, message_ids):
        return [self.waiting.pop(one) for one in list(message_ids) if one in self.waiting]


def fleet(side, population, folder, *, limit=None, policy=None, seed=None, run=7, tamper=None, deadline=None):
    """An engine whose clients hold one shard each, in a folder each, as they would on machines of their own."""
    apps = {}
    for number in range(len(population)):
        rows = slice(int(population.starts[number]), int(population.starts[number] + population.sizes[number]))
        x, y = population.x[rows], population.y[rows]

        def client_context(instruction, context, x=x, y=y, number=number):
            rows = lambda: alone(x, y, instruction.client)  # noqa: E731
            return ClientContext(side, rows, ClientFolder(folder / str(number)), limit, policy, seed)

        apps[100 + number] = client_app(client_context)
    grid = DoubleGrid(apps, run, tamper)
    engine = Flower(grid, len(population), limit, deadline)
    engine.gather()
    return engine


# Protocols of several steps in one round: clients with five rows each, all of them in every round.


def parts_of(placement, clients, width):
    """A linear model trained by all clients under ``placement``: method, population, first models."""
    import torch
    from torch import nn

    from sordina.federated import losses
    from sordina.federated.algorithms.algorithm import LocalSteps
    from sordina.federated.algorithms.fedavg import AddMean, LocalTraining
    from sordina.federated.objective import of_module
    from sordina.federated.population import ClientsInTurn, Population
    from sordina.federated.round import FederatedMethod

    rng = np.random.default_rng(0)
    shards = [
        (torch.from_numpy(rng.normal(size=(5, width))), torch.from_numpy(rng.normal(size=5))) for _ in range(clients)
    ]
    objective = of_module(nn.Linear(width, 1).double(), losses.named("mse"))
    work = LocalTraining(objective, LocalSteps(0.05, 3))
    method = FederatedMethod(AddMean(1.0), work, placement, ClientsInTurn(clients))
    return method, Population.of(shards), torch.zeros(1, objective.size, dtype=torch.float64)


def engine_of(method, population, folder, **options):
    """An engine for what `parts_of` gave."""
    from sordina.federated.engines import ClientSide

    return fleet(ClientSide(method.work, method.placement), population, folder, **options)


def go(method, engine, models, clients, rounds):
    """Run it."""
    from sordina.federated.round import federate

    return federate(method, engine, models, clients=clients, rounds=rounds, rng=np.random.default_rng(1))


def silent_in(step, steps, nodes=(101, 104)):
    """A ``tamper`` that loses what some nodes answer in one of a round's steps."""
    calls = {}

    def lose(node, reply):
        calls[node] = calls.get(node, -1) + 1
        return None if node in nodes and steps[calls[node] % len(steps)] == step else reply

    return lose


def array(value):
    """An array as a client of ours writes it."""
    return Array(*encode(np.asarray(value)))


def arrays(record):
    """The arrays of a record, read back."""
    return {key: decode(one.dtype, one.shape, one.stype, one.data) for key, one in record.items()}


__all__ = [
    "DoubleGrid",
    "Flower",
    "Message",
    "array",
    "arrays",
    "crossed",
    "engine_of",
    "fleet",
    "go",
    "parts_of",
    "silent_in",
]


def instruction_for(method, engine, client=0, number=0):
    """The server's message to one client, for a first round from zero."""
    import torch

    from sordina.federated.engines import RoundRequest
    from sordina.federated.flower.records import instruct
    from sordina.federated.population import RowOrder

    sent = method.strategy.configure(method.strategy.init(torch.zeros(2, 2, dtype=torch.float64)))
    content = crossed(instruct(RoundRequest(sent, method.placement.start(2), RowOrder(1, number)), client))
    return Message(content, 100 + client, "train")
