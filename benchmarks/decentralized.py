"""Without a server: GOPA against a curator, one gossip round at scale, walks against local privacy, Adult.

Run one part with ``python -m benchmarks.decentralized gopa|gossip|walk|adult``, or all with ``python -m benchmarks
decentralized``. Times are processor seconds of one thread.
"""

from __future__ import annotations

import math
import resource
import sys
import time

import numpy as np

from sordina.accounting import Gaussian, Repeated, noise_multiplier
from sordina.federated.decentralized.gopa import GopaNoise, clipped, party_losses
from sordina.federated.decentralized.gossip import GossipPlan, average
from sordina.federated.decentralized.graphs import k_out, named
from sordina.federated.decentralized.lattice import whole_steps
from sordina.federated.decentralized.walk import walk_noise
from sordina.privacy import Budget
from sordina.random import add_gaussian, secure

SIZE = 6594
BUDGET = Budget(1.0, 1e-6)


def gopa() -> None:
    """Mean squared error of a mean over the curator's at equal (epsilon, delta), and seconds of the account."""
    print("   n  chosen  honest   account  mu/curator's  measured MSE over: honest curator, trusted curator")
    curator = noise_multiplier(Gaussian, BUDGET)
    for n in (1000, 10_000):
        for neighbours in (10, 15, 20):
            rng = np.random.default_rng(0)
            start = time.process_time()
            noise = GopaNoise.within(BUDGET, n, 1, neighbours=neighbours, coalitions=1, rng=rng)
            seconds = time.process_time() - start
            size = 4000
            values = clipped(rng.normal(size=(n, size)), 1.0)
            wanted = values.mean(axis=0)
            add_gaussian(values, noise.independent, secure())
            found = whole_steps(values, noise.step).sum(axis=0) * noise.step / n
            error = float(((found - wanted) ** 2).mean())
            trusted = (curator / n) ** 2
            print(
                f"{n:6} {neighbours:5} {noise.honest:8} {seconds:8.2f} s {math.sqrt(noise.curator_ratio):10.4f} "
                f"{error / trusted * noise.honest / n:18.3f} {error / trusted:18.3f}"
            )
    try:
        rng = np.random.default_rng(0)
        party_losses(k_out(1000, 2, rng), np.arange(1000) < 700, 1.0, 100.0)
    except ValueError as error:
        print(f"n = 1000, 2 chosen: refused: {error}")


def gossip() -> None:
    """Seconds and memory of one round, by the number of parties."""
    print("parties  noise first  one round  bytes of states  peak memory of the process")
    for n in (100, 1000, 3000, 10_000):
        plan = GossipPlan(named("exponential", n), 1)
        rng = secure()
        values = np.zeros((n, SIZE))
        start = time.process_time()
        from sordina.federated.decentralized.lattice import add_fine_gaussian, step_for

        add_fine_gaussian(values, plan.noise, step_for(plan.tau), rng)
        first = time.process_time() - start
        start = time.process_time()
        add_gaussian(values, plan.tau, rng)
        ended = plan.weights @ values
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{n:7} {first:9.2f} s {seconds:8.2f} s {ended.nbytes / 2**20:12.0f} MB {peak:14.2f} GB")
    small = GossipPlan(named("exponential", 1000), 12)
    start = time.process_time()
    average(np.zeros((1000, 100)), small, secure())
    print(f"1000 parties, 100 numbers, 12 rounds: {time.process_time() - start:.2f} s")


def walk() -> None:
    """Noise of a random walk against local privacy at the same budget and number of contributions."""
    print("contributions  parties  local  walk  local/walk  sqrt(n)/ln(n)  quotient")
    for contributions in (10_000, 1_000_000):
        local = noise_multiplier(lambda x, count=contributions: Repeated(Gaussian(x), count), BUDGET)
        for n in (100, 300, 1000, 3000, 10_000):
            found = walk_noise(BUDGET, n, contributions).noise_multiplier
            trend = math.sqrt(n) / math.log(n)
            print(
                f"{contributions:13,} {n:8} {local:9.1f} {found:8.2f} {local / found:8.2f} {trend:10.2f} "
                f"{local / found / trend:10.2f}"
            )


def adult(clients: int = 50, rounds: int = 5, seeds: int = 5) -> None:
    """Federated logistic regression: central, GOPA and local privacy at equal (epsilon, delta)."""
    from sordina.federated.recipe import FederatedRecipe
    from sordina.federated.recipe import run as federate

    for privacy in ("none", "central", "gopa", "local"):
        accuracies, epsilon = [], None
        for seed in range(seeds):
            recipe = FederatedRecipe(
                "adult", "fedavg", privacy=privacy, epsilon=3.0, delta=1e-5, rounds=rounds, clients_per_round=clients,
                patience=0, seed=seed, options={"clients": clients, "model": "logistic"},
            )  # fmt: skip
            result = federate(recipe).result
            accuracies.append(result.history[-1].score.accuracy)
            epsilon = result.statement.epsilon
        spread = np.std(accuracies, ddof=1) if seeds > 1 else 0.0
        print(f"{privacy:8} epsilon {epsilon}  accuracy {np.mean(accuracies):.4f} +- {spread:.4f}", flush=True)


PARTS = {"gopa": gopa, "gossip": gossip, "walk": walk, "adult": adult}


def run() -> None:
    """All parts."""
    for name, part in PARTS.items():
        print(f"\n-- {name}: {(part.__doc__ or '').splitlines()[0]}")
        part()


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PARTS:
        PARTS[chosen]()
