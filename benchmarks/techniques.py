"""What each technique adds at the same budget, on the development pool: `python -m benchmarks.techniques digits`.

Every line trains the data set's default model with one thing changed, over a few seeds that all lines share; the
difference to the first line is paired by seed (`--only` puts another line first). Test parts of the development pool
choose nothing but whether a technique is kept (digits, Adult, AG News, MNIST with a network); the report pool is not
here.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from dataclasses import replace
from typing import Any

from sordina import models
from sordina.mechanisms.correlated import BandedNoise, LambdaCGD, sum_error
from sordina.plan import make_plan
from sordina.privacy import Budget
from sordina.sampling import CyclicPoisson
from sordina.training.planning import planned_noise
from sordina.training.recipe import TrainingRecipe, summary

TECHNIQUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tail average": {"averaging": "tail"},
    "exponential average": {"averaging": "ema"},
    "4 views": {"views": 4},
    "4 views, tail average": {"views": 4, "averaging": "tail"},
    "weight standardisation": {"model": "-ws"},
    "network of 200 units": {"model": "mlp", "options": {"hidden": 200}},
    "on 30 private components": {"model": "pca-mlp", "options": {"hidden": 200, "components": 30}},
    "AdamBC": {"optimizer": "adam-bc", "learning_rate": 3e-3},
    "AdamWOSM": {"optimizer": "adam-wosm", "clipping": "fixed", "threshold": 0.1},
    "banded noise": {"noise": "banded"},
    "2 bands": {"noise": "banded", "bands": 2},
    "4 bands": {"noise": "banded", "bands": 4},
    "8 bands": {"noise": "banded", "bands": 8},
    "Toeplitz noise": {"noise": "toeplitz"},
    "lambda-CGD 0.5": {"noise": "lambda-cgd", "decay": 0.5},
    "lambda-CGD 0.9": {"noise": "lambda-cgd", "decay": 0.9},
}
STANDARDISED = {"digits": "digits-cnn-ws", "mnist": "small-cnn-ws"}
PLAIN = {"digits": None, "mnist": "small-cnn", "adult": None, "ag-news": None}
IMAGES = ("digits", "mnist")


def options(dataset: str, name: str) -> dict[str, Any] | None:
    """The recipe's fields for a technique, None where it does not apply.

    Args:
        dataset: By name.
        name: The technique.
    """
    wanted = {"model": PLAIN[dataset], **TECHNIQUES[name]}
    if wanted["model"] == "-ws":
        wanted["model"] = STANDARDISED.get(dataset)
        return wanted if wanted["model"] else None
    return wanted if dataset in IMAGES or "views" not in wanted else None


def noise_table(population: int, batch_size: int) -> None:
    """Print by which factor correlated noise makes prefix sums of gradients less noisy at the same budget.

    Args:
        population: The number of rows.
        batch_size: Expected size of a batch.
    """
    for epsilon, epochs in itertools.product((1.0, 3.0, 8.0), (1.0, 5.0, 20.0)):
        budget, steps = Budget(epsilon, 1e-5), max(1, round(epochs * population / batch_size))
        chosen = planned_noise("banded", budget, population, batch_size, epochs)
        found = []
        for noise in (BandedNoise(1), chosen, LambdaCGD(0.9)):
            assert noise is not None
            turn = noise.parts(batch_size, population, steps)
            sampler, whole = CyclicPoisson(batch_size, population, turn), max(1, round(steps / turn)) * turn
            plan = make_plan(budget, sampler, whole, accountant="rdp", noise=noise)
            found.append(plan.noise_multiplier * sum_error(plan.coefficients, whole))
        shown = f"{chosen.bands if isinstance(chosen, BandedNoise) else 1} bands {found[1] / found[0]:.3f}"
        print(f"epsilon {epsilon:g}, {epochs:g} epochs: {shown}, lambda-CGD 0.9 {found[2] / found[0]:.3f}", flush=True)


def main() -> None:
    """Print one line for each technique."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", choices=PLAIN)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--epochs", type=float, default=20.0)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, help="A learning rate, with a fixed threshold of one, for all lines.")
    parser.add_argument("--noise-table", type=int, help="Only what correlated noise promises, for this many rows.")
    parser.add_argument("--only", nargs="*", choices=TECHNIQUES, default=list(TECHNIQUES))
    asked = parser.parse_args()
    if asked.noise_table is not None:
        noise_table(asked.noise_table, asked.batch_size)
        return
    base = TrainingRecipe(
        asked.dataset, epsilon=asked.epsilon, epochs=asked.epochs, batch_size=asked.batch_size, seed=0,
        **({} if asked.rate is None else {"learning_rate": asked.rate, "clipping": "fixed", "threshold": 1.0}),
    )  # fmt: skip
    data, plain = base.load(), list[float]()
    for name in asked.only:
        wanted = options(asked.dataset, name)
        if wanted is None:
            continue
        own, found = wanted.pop("options", None), []
        for seed in range(asked.seeds):
            trainer = replace(base, seed=seed, **wanted).trainer(data, track_epsilon=False, validate_every=10**9)
            if own is not None:
                trainer.model = models.build_for(data, wanted["model"], seed=seed, **own)
            found.append(100 * summary(trainer.fit(data.train, validation=data.test))["test_accuracy"])
        plain = plain or found
        apart = [one - other for one, other in zip(found, plain, strict=True)]
        error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
        print(f"{name:>24}  {statistics.mean(found):6.2f}  {statistics.mean(apart):+6.2f} +- {error:.2f}", flush=True)


if __name__ == "__main__":
    main()
