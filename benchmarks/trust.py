"""Accuracy of one federation at one budget, by whom the clients trust: a server, most of each other, nobody.

``python -m benchmarks.trust --epsilon 8 --rounds 30 --seeds 1``: MNIST by writer (539 clients), an MLP, FedAvg, every
client in every round, so that nobody gains by sampling. Local privacy at the same epsilon stands beside.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import nn

import sordina as sd
from sordina import datasets
from sordina.clipping import Fixed


def writers() -> tuple[list[tuple[torch.Tensor, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]:
    """The rows of every writer of the training part, and the test part."""
    data = datasets.load("mnist-writers")
    x, y = data.train.tensors
    assert data.users is not None
    groups = data.users.train
    shards = [(x[groups == one], y[groups == one]) for one in groups.unique()]
    return shards, data.test.tensors


def run() -> None:
    """One row a kind of trust."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threshold", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=1)
    given, _ = parser.parse_known_args()
    shards, (test_x, test_y) = writers()
    budget, clipping = sd.Budget(given.epsilon, given.delta), Fixed(given.threshold)
    federated = sd.federated
    kinds = {
        "no privacy": federated.NoPrivacy(),
        "central": federated.CentralDP(budget, clipping),
        "distributed, 70 % honest": federated.DistributedDP(budget, clipping, honest_share=0.7, dropout=0.05),
        "local": federated.LocalDP(budget, given.threshold),
    }
    for name, privacy in kinds.items():
        found, started = [], time.process_time()
        for seed in range(given.seeds):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10))
            trainer = federated.FederatedTrainer(
                model, loss=nn.functional.cross_entropy, privacy=privacy, rounds=given.rounds, seed=seed,
                algorithm=federated.FedAvg(learning_rate=0.1, batch_size=20),
            )  # fmt: skip
            trained = trainer.fit(shards).model
            found.append(100 * float((trained(test_x).argmax(1) == test_y).float().mean()))
        seconds = (time.process_time() - started) / given.seeds
        print(
            f"{name:26} {np.mean(found):6.2f} %  (sd {np.std(found):.2f}, {given.seeds} seeds), {seconds:.0f} s a run"
        )


if __name__ == "__main__":
    run()
