"""Averaging: the same noisy question again and again, until the noise is gone; a ledger refuses."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from sordina import statistics
from sordina.accounting.ledger import Ledger
from sordina.auditing.releases.release_study import ReleaseStudy, StudyCurve, StudyLine
from sordina.errors import BudgetRefused
from sordina.mechanisms import DiscreteLaplace
from sordina.mechanisms.mechanism import whole
from sordina.privacy import Budget, check_epsilon, format_up
from sordina.random import generator, releasable


def averaging_study(
    *,
    count: int = 1234,
    asked: int = 10_000,
    epsilon: float = 0.1,
    budget: float = 1.0,
    delta: float = 1e-6,
    seed: int | None = None,
) -> ReleaseStudy:
    """How far the average of the answers is from the truth: without a ledger, and with one that has a budget.

    Args:
        count: The secret.
        asked: How often the question is asked.
        epsilon: Of each answer.
        budget: The epsilon of the data set in the ledger.
        delta: The delta of the data set in the ledger.
        seed: Makes the study repeatable.
    """
    whole("asked", asked), check_epsilon(epsilon)
    rng, mechanism = generator(seed), DiscreteLaplace(1, epsilon)
    naive = mechanism.release(np.full(asked, whole("count", count, least=0)), rng)
    answers, refusal = _with_ledger(epsilon, count, asked, Budget(budget, delta), rng)
    wrong = [np.abs(_running_mean(np.asarray(told)) - count) for told in (naive, answers)]
    turns = np.unique(np.geomspace(1, asked, 60).astype(int))
    mine = turns[turns <= len(answers)]
    ended = f"refused after {len(answers)}" if refusal else "never refused"
    return ReleaseStudy(
        attack="averaging",
        title="The same question again and again",
        data=f"a count, asked {asked} times at epsilon {format_up(epsilon)}",
        private=f"the ledger has ({format_up(budget)}, {format_up(delta)})-DP for the data set",
        verdict=(
            f"The average of {asked} answers is off by {wrong[0][-1]:.2f}. With a ledger the question is {ended}, and "
            f"the average stays off by {wrong[1][-1]:.2f}. {refusal}"
        ).strip(),
        lines=(
            StudyLine("answers given", float(asked), float(len(answers))),
            StudyLine("error of their average", float(wrong[0][-1]), float(wrong[1][-1])),
            StudyLine("questions refused", 0.0, float(asked - len(answers))),
        ),
        x="answers averaged",
        y="error of the average",
        curves=(
            StudyCurve("no ledger", tuple(turns.tolist()), tuple(wrong[0][turns - 1].tolist())),
            StudyCurve("with a ledger", tuple(mine.tolist()), tuple(wrong[1][mine - 1].tolist())),
        ),
        log_x=True,
        releasable=releasable(rng),
    )


def _with_ledger(
    epsilon: float, count: int, asked: int, budget: Budget, rng: np.random.Generator
) -> tuple[list[float], str]:
    """The answers that the ledger allowed, and how it refused the next. Whoever asks opens the table anew."""
    answers: list[float] = []
    schema = {"columns": {"ill": {"kind": "category", "values": ["yes"]}}}
    with tempfile.TemporaryDirectory() as folder:
        people = Path(folder) / "people.csv"
        people.write_text("ill\n" + "yes\n" * count)
        ledger = Ledger(Path(folder) / "ledger.db")
        ledger.create("people", budget)
        try:
            for _ in range(asked):
                table = statistics.Table(
                    people, schema=schema, budget=budget, ledger=ledger, dataset_budget="people", seed=rng
                )
                answers.append(float(table.count(epsilon=epsilon).release().value))
        except BudgetRefused as refusal:
            return answers, str(refusal)
    return answers, ""


def _running_mean(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.cumsum(values) / np.arange(1, len(values) + 1))
