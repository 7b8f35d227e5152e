"""Two processes on gloo train what one process trains: the same sum, the same single draw of noise, the same steps."""

from __future__ import annotations

import contextlib
import os
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

import sordina as sd
from sordina.clipping import Online
from sordina.plan import Plan
from sordina.privacy import Budget
from sordina.sampling import Poisson
from sordina.training.loop import Private


def train() -> tuple[torch.Tensor, int]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (x.sum(1) > 0).long()
    plan = Plan(Poisson(4, 100), 10, Budget(8, 1e-5), 1.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = Private(model, optimizer, (x, y), plan, Online(threshold=1.0), rng=np.random.default_rng(0))
    for a, b in loop:
        loop.step(F.cross_entropy(model(a), b, reduction="none"))
    return torch.cat([p.detach().flatten() for p in model.parameters()]), loop.steps_taken


def leave() -> None:
    """End a worker that has done its part, together with the other, without what gloo does to threads as Python ends.

    A worker once died by SIGABRT in CI ("terminate called without an active exception", as threads do that want Python
    when it is gone), while the other was still alive.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    weights, steps = train()
    torch.save((weights, steps), f"{folder}/rank{rank}.pt")
    leave()


class StopAfter:
    """A watcher that ends a run by an error, on every rank alike."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def report(self, entry):
        if entry["step"] >= 6:
            raise KeyboardInterrupt


def fit(folder: str, *, resume: bool) -> tuple[torch.Tensor, int]:
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(5, 2)
    x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    trainer = sd.Trainer(
        model, F.cross_entropy, Budget(8, 1e-5), batch_size=20, steps=10, noise_multiplier=3.0, learning_rate=0.1,
        folder=f"{folder}/run", tensorboard=False, callbacks=[] if resume else [StopAfter()], checkpoint_every=2,
    )  # fmt: skip
    run = trainer.fit((x, (x[:, 0] > 0).long()), resume=resume)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), run.steps


def kept_worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    with contextlib.suppress(KeyboardInterrupt):
        fit(folder, resume=False)
    dist.barrier()
    torch.save(fit(folder, resume=True), f"{folder}/kept{rank}.pt")
    leave()


@pytest.mark.slow
def test_rank_0_keeps_the_run_and_tells_the_others_where_it_stands(tmp_path):
    """A trainer in two processes, interrupted and resumed: one folder, one set of weights."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(kept_worker, args=(str(tmp_path),), nprocs=2)
    (first, steps), (second, others) = (torch.load(tmp_path / f"kept{rank}.pt") for rank in range(2))
    assert steps == others == 10
    assert torch.equal(first, second)
    weights = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert torch.equal(torch.cat([part.flatten() for part in weights.values()]), first)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    alone, steps = train()
    for rank in range(2):
        weights, taken = torch.load(tmp_path / f"rank{rank}.pt")
        assert taken == steps
        torch.testing.assert_close(weights, alone, rtol=1e-9, atol=1e-12)
