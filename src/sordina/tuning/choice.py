"""The choice among finished runs. Written to disk before anybody sees it, so that it is drawn once and seen once."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from sordina.errors import InvalidInput, TrainingFailed
from sordina.run_folder import RunFolder, read_json
from sordina.tuning import secret
from sordina.tuning.run import Brief, Order, Result, trained
from sordina.tuning.scheme import Scheme
from sordina.tuning.selection import Kind, score
from sordina.tuning.watchers import better
from sordina.tuning.workers import Source

CHOICE = "choice.json"


@dataclass(frozen=True)
class Choice:
    """Which run won, and by which exact score, if the selection is exact."""

    number: int
    metric: str | None = None
    score: float | None = None
    spread: float | None = None

    def save(self, folder: RunFolder, *, hidden: bool) -> None:
        """Write `CHOICE` into ``folder``; a ``hidden`` one into its internal part."""
        if hidden:
            secret.write_json(folder, CHOICE, asdict(self))
        else:
            folder.write_json(CHOICE, asdict(self))

    @classmethod
    def load(cls, folder: RunFolder) -> Choice | None:
        """The choice made in ``folder``, if one was."""
        for path in (folder.path / CHOICE, secret.part(folder.path) / CHOICE):
            if path.exists():
                try:
                    return cls(**read_json(path))
                except TypeError as error:
                    raise InvalidInput(f"{path} is damaged: begin a new search in another folder.") from error
        return None


def choose(
    brief: Brief, scheme: Scheme, orders: Sequence[Order], results: Sequence[Result], source: Source,
    rng: np.random.Generator,
) -> Choice:  # fmt: skip
    """The best run: privately, or by exact scores."""
    if brief.selection.kind is Kind.TEST_SET:
        return _best_on_average(results)
    if brief.selection.exact:
        return _best(results, orders[0] if brief.secret else None)
    if len(orders) == 1:
        return Choice(orders[0].number)
    _, validation = source()
    scores = []
    for order in orders:
        trainer = trained(brief, order)
        scores.append(score(trainer.model, trainer.loss, validation, brief.selection.bound))
    if scheme.stopping is not None:
        scorer = brief.selection.scorer(brief.budget, scheme.adjacency)
        return Choice(orders[int(np.argmax([scorer.release(one, rng) for one in scores]))].number)
    return Choice(orders[brief.selection.chooser(brief.budget, scheme.adjacency).release(scores, rng)].number)


def _best(results: Sequence[Result], otherwise: Order | None = None) -> Choice:
    """The best score; where no run has one, ``otherwise``: that all failed must not show if K is secret."""
    found: Result | None = None
    for result in results:
        if better(result.metric or "accuracy", result.score, found.score if found else None):
            found = result
    if found is None and otherwise is not None:
        return Choice(otherwise.number)
    if found is None:
        raise TrainingFailed(
            "no run of the search reached a validation score: all failed. Lower the rates of the grid."
        )
    return Choice(found.number, found.metric, found.score)


def _best_on_average(results: Sequence[Result]) -> Choice:
    """The thesis's rule: the configuration with the best mean over seeds; one failed run spoils a configuration."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(json.dumps(result.configuration, sort_keys=True), []).append(result)
    found: Choice | None = None
    for members in groups.values():
        values = [math.nan if one.score is None else one.score for one in members]
        mean = math.fsum(values) / len(values)
        if better(members[0].metric or "accuracy", mean, found.score if found else None):
            spread = statistics.stdev(values) if len(values) > 1 else None
            found = Choice(members[0].number, members[0].metric, mean, spread)
    if found is None:
        raise TrainingFailed("every configuration of the search failed. Lower the rates of the grid.")
    return found
