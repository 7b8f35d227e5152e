"""One private training, audited by its final model alone: canaries among real rows, known by nothing but their loss."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sordina import datasets
from sordina.auditing.audit import audit_scores
from sordina.auditing.findings import Audit
from sordina.auditing.trade_off import GaussianDPFamily
from sordina.clipping import Fixed
from sordina.privacy import Budget
from sordina.reproduction.experiment import ExperimentFindings, Job, Value
from sordina.training import Trainer


def canary_inputs(rows: Tensor, count: int, length: float, seed: int) -> Tensor:
    """``count`` inputs of norm ``length``, at right angles to each other and to all ``rows``.

    What real rows teach the model does not show in such a direction, so that its loss speaks of the canary alone.

    Args:
        rows: (N, d), with N + count at most d.
        count: How many.
        length: Their norm.
        seed: Of the directions.
    """
    generator = torch.Generator().manual_seed(seed)
    filler = torch.randn(rows.shape[1], rows.shape[1] - len(rows), generator=generator)
    directions, _ = torch.linalg.qr(torch.cat([rows.T, filler], dim=1))
    planted: Tensor = length * directions.T[len(rows) : len(rows) + count]
    return planted


def audited_training(
    epsilon: float, *, rows: int = 300, canaries: int = 480, steps: int = 5, delta: float = 1e-5, seed: int = 0
) -> Audit:
    """Train softmax regression on MNIST rows and canaries that are in by coins; audit the final model by its losses.

    All rows are in every step, so that training is the composition of Gaussian mechanisms, and Gaussian DP.

    Args:
        epsilon: The budget.
        rows: Real rows.
        canaries: Canaries, under labels drawn at random.
        steps: Private steps.
        delta: Of the budget.
        seed: Of everything.
    """
    rng = np.random.default_rng(seed)
    inputs, labels = datasets.load("mnist").train.tensors
    chosen = torch.from_numpy(rng.permutation(len(inputs))[:rows])
    x, y = inputs[chosen].flatten(1), labels[chosen]
    planted = canary_inputs(x, canaries, 30.0, seed)
    marks = torch.from_numpy(rng.integers(10, size=canaries))
    coins = rng.random(canaries) < 0.5
    inside = torch.from_numpy(coins)
    data = torch.cat([x, planted[inside]]), torch.cat([y, marks[inside]])
    model = nn.Linear(x.shape[1], 10)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    trainer = Trainer(
        model, functional.cross_entropy, Budget(epsilon, delta), clipping=Fixed(1.0), batch_size=len(data[0]),
        epochs=steps, learning_rate=0.5, seed=seed,
    )  # fmt: skip
    run = trainer.fit(data)
    with torch.no_grad():
        losses = functional.cross_entropy(run.model(planted).double(), marks, reduction="none").numpy()
    return audit_scores(
        {"loss": -losses}, coins, membership="coins", claim=run.guarantee, mechanism=GaussianDPFamily(), seed=seed
    )


def black_box(job: Job) -> ExperimentFindings:
    """What is proven of each epsilon, with the mechanism known to be Gaussian and with nothing known."""
    given, values = job.settings, []
    for epsilon in given["epsilons"]:
        found = [audited_training(epsilon, seed=seed, **given["options"]).results[0] for seed in range(given["seeds"])]
        for place, known in enumerate(("Gaussian DP", "nothing")):
            proven = np.array([result.bounds[place].epsilon for result in found])
            spread = float(proven.std(ddof=1)) if len(proven) > 1 else None
            what = {"true epsilon": f"{epsilon:g}", "known of the mechanism": known}
            note = f"{proven.mean() / epsilon:.0%} of the truth; refuted {sum(one.exceeds_claim for one in found)}"
            values.append(Value(what, float(proven.mean()), spread, note=note))
    return ExperimentFindings("MNIST", values, (), ["The attacker sees the final model only.", *job.caveats])
