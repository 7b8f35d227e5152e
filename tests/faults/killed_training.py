"""A small run in a folder of its own, to be killed: ``python killed_training.py FOLDER [--resume] [--seed N]``."""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn

import sordina as sd
from sordina import plan as plans
from sordina.clipping import Quantile
from sordina.sampling import Poisson


class Slowly:
    """Makes steps slow enough to be hit by a kill."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def report(self, entry):
        time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(4, 2)
    # The accountant has its own tests; here a step must only be counted.
    plans._calibrate = lambda *_: 3.0
    trainer = sd.Trainer(
        model, nn.functional.cross_entropy, sd.Budget(8, 1e-5), clipping=Quantile(), batch_size=30, steps=400,
        learning_rate=0.5,
        seed=options.seed, folder=options.folder, checkpoint_every=40, callbacks=[Slowly()],
    )  # fmt: skip
    run = trainer.fit((x, (x.sum(1) > 0).long()), resume=options.resume)
    assert isinstance(run.plan.sampler, Poisson)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    print(json.dumps({"steps": run.steps, "epsilon": run.epsilon, "weights": weights}))


if __name__ == "__main__":
    main()
