"""Clients per second of FedAvg in simulation: ours, a plain loop, pfl and Flower (`python -m benchmarks federated`).

The work: 1000 clients, 100 a round, a 6 594-parameter network (100-64-2), local batches of 5, one pass; clients of 10
rows each, and clients of unequal sizes (uniform from 1 to 19; log-normal with a long tail). Ours and the loop alternate
on one thread and are timed by processor time, so that a busy machine slows both alike, and so is pfl, where installed;
Flower's workers are processes of their own, so it is timed by the clock and only says the order of magnitude.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from sordina.federated import losses
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.fedavg import LocalTraining
from sordina.federated.engines import ClientSide, InProcess, RoundRequest
from sordina.federated.objective import flat_parameters, of_module
from sordina.federated.population import Population, RowOrder
from sordina.federated.privacy.placement import ClearUpdates

CLIENTS, PER_ROUND, INPUTS, RATE, BATCH = 1000, 100, 100, 0.1, 5


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 64), nn.ReLU(), nn.Linear(64, 2))


def population(kind: str) -> Population:
    rng = np.random.default_rng(0)
    sizes = {
        "equal": lambda: np.full(CLIENTS, 10),
        "uniform": lambda: rng.integers(1, 20, CLIENTS),
        "log-normal": lambda: np.maximum(1, rng.lognormal(2.0, 0.7, CLIENTS).astype(int)),
    }[kind]()
    rows = int(sizes.sum())
    x = torch.from_numpy(rng.standard_normal((rows, INPUTS))).float()
    return Population(x, torch.from_numpy(rng.integers(2, size=rows)), sizes.astype(np.int64))


def cohorts(rounds: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.choice(CLIENTS, PER_ROUND, replace=False) for _ in range(rounds)]


def ours(people: Population, rounds: int) -> float:
    """Clients per second of processor time, batched."""
    net = network()
    side = ClientSide(LocalTraining(of_module(net, losses.cross_entropy), LocalSteps(RATE, BATCH)), ClearUpdates())
    engine, model, rng = InProcess(people), flat_parameters(net), np.random.default_rng(0)
    plan = cohorts(rounds + 1)
    engine.map_reduce(side, RoundRequest({"model": model}, None, RowOrder(0, 0)), plan[0], rng)
    start = time.process_time()
    for number in range(1, rounds + 1):
        parcel = engine.map_reduce(side, RoundRequest({"model": model}, None, RowOrder(0, number)), plan[number], rng)
        model = model + parcel.sums[0] / parcel.sums[1]
    return rounds * PER_ROUND / (time.process_time() - start)


def loop(people: Population, rounds: int) -> float:
    """Clients per second of processor time, one after the other with a module and an optimiser."""
    net = network()
    parameters = list(net.parameters())
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    generator = torch.Generator().manual_seed(0)
    model = [p.detach().clone() for p in parameters]
    start = time.process_time()
    for clients in cohorts(rounds):
        total, weight = [torch.zeros_like(p) for p in model], 0
        for client in clients:
            with torch.no_grad():
                for parameter, value in zip(parameters, model, strict=True):
                    parameter.copy_(value)
            size = int(people.sizes[client])
            order = torch.randperm(size, generator=generator) + int(people.starts[client])
            for first in range(0, size, BATCH):
                rows = order[first : first + BATCH]
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(people.x[rows]), people.y[rows]).backward()
                optimizer.step()
            with torch.no_grad():
                for added, parameter, value in zip(total, parameters, model, strict=True):
                    added.add_(parameter - value, alpha=float(size))
            weight += size
        model = [value + added / weight for value, added in zip(model, total, strict=True)]
    return rounds * PER_ROUND / (time.process_time() - start)


def pfl(people: Population, rounds: int) -> float:
    """Clients per second of processor time in Apple's pfl, in its own process."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
            return nn.functional.cross_entropy(self(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict[str, object]:
            return {}

    def shard(client: int) -> Dataset:
        first = int(people.starts[client])
        rows = slice(first, first + int(people.sizes[client]))
        return Dataset([people.x[rows], people.y[rows]])

    data = FederatedDataset(shard, get_user_sampler("random", list(range(CLIENTS))))
    module = Network()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    parameters = NNAlgorithmParams(rounds, 1000000, PER_ROUND, None)
    training = NNTrainHyperParams(
        local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE, local_max_grad_norm=None
    )
    start = time.process_time()
    FederatedAveraging().run(parameters, SimulatedBackend(data, data), model, training)
    return rounds * PER_ROUND / (time.process_time() - start)


def flower(people: Population, rounds: int, nodes: int = 100, per_round: int = 20) -> float:
    """Clients per second by the clock in Flower's simulation, from the second round on; fewer nodes start sooner."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app, ticks = ClientApp(), ServerApp(), []
    x, y, starts, sizes = people.x, people.y, people.starts, people.sizes

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        net = nn.Sequential(nn.Linear(INPUTS, 64), nn.ReLU(), nn.Linear(64, 2))
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        order = torch.randperm(int(sizes[client])) + int(starts[client])
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": int(sizes[client])})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=per_round / nodes, fraction_evaluate=0.0)

        def tick(number: int, arrays: ArrayRecord) -> None:
            ticks.append(time.perf_counter())

        strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=rounds + 1, evaluate_fn=tick)

    run_simulation(server_app, client_app, num_supernodes=nodes)
    return rounds * per_round / (ticks[-1] - ticks[1])


def _peer(name: str, measure: Callable[[Population, int], float], people: Population, rounds: int) -> None:
    try:
        print(f"{name:>24}: {measure(people, rounds):8.0f} clients/s")
    except ImportError as error:
        print(f"{name:>24}: not installed ({error.name})")


def run(repetitions: int = 5, *, peers: bool = True) -> None:
    """Measure and print."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        print(f"{'clients':>12} {'loop':>8} {'ours':>8} {'ratio':>6}   clients per second of processor time, medians")
        for kind in ("equal", "uniform", "log-normal"):
            people = population(kind)
            pairs = [(loop(people, 1), ours(people, 10)) for _ in range(repetitions)]
            slow, fast = np.median(pairs, axis=0)
            ratio = np.median([b / a for a, b in pairs])
            print(f"{kind:>12} {slow:8.0f} {fast:8.0f} {ratio:6.1f}")
        if peers:
            _peer("pfl", pfl, population("equal"), 3)
            _peer("Flower simulation, clock", flower, population("equal"), 1)
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    run()
