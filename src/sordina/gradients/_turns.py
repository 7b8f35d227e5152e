"""Which answers about all samples, or any, are turned around, and in which runs (`sordina.gradients._reads`).

Every answer is turned by itself, and all of them together; then those that are met only behind a turned one. A line may
answer several times (in a loop, in a helper), each time about something else. An answer that ends in an error where it
is turned is a check: it stays as it is, and what lies behind it is reached without.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

Site = tuple[str, int, int]
"""A file, a line and a place in it."""
Turned = frozenset[tuple[Site, int]]
"""Answers: where, and the how manieth there."""
Path = tuple[tuple[Site, int], int, bool]
"""One answer of a run: which one it is, the way to it through the code, and whether it may be turned."""
MOST_TURNS = 24
"""So many runs with turned answers are tried, and no more."""


class Turns:
    """Runs to do, one after the other: `following` says which, `ran` tells of it."""

    def __init__(self, pairs: bool = False) -> None:
        """Turn answers one by one and all together; with ``pairs`` also two at a time."""
        self._pairs = pairs
        self._todo: list[Turned] = [frozenset()]
        self._known: set[Turned] = {frozenset()}
        self._before: dict[Turned, Sequence[Path]] = {}
        self._ran: dict[Turned, set[tuple[Site, int]]] = {}
        """Which answers were met in what has run."""
        self.runs = 0

    def following(self) -> Turned | None:
        """What to turn in the next run; None if nothing is left."""
        while self._todo:
            turned = self._todo.pop(0)
            if not any(ran < turned and not (turned - ran) & met for ran, met in self._ran.items()):
                self.runs += 1
                return turned
        return None  # where the others of the turned ones are never met, it was the same run

    @property
    def too_many(self) -> bool:
        """Whether there are more ways than are tried."""
        return self.runs + len(self._todo) > MOST_TURNS

    def ran(self, turned: Turned, met: Sequence[Path], failed: bool = False) -> None:
        """A run is over.

        Args:
            turned: The answers that were turned in it.
            met: All answers, in their order.
            failed: Whether it ended in an error.
        """
        self._ran[turned] = {which for which, _, _ in met}
        flipped = [which for which, _, _ in met if which in turned]
        if failed:
            if len(turned) > 1 and flipped:
                self._add(turned - {flipped[-1]}, self._before.get(turned, ()))
            return
        fresh = [which for which, _, may in met if may]
        if turned:
            fresh = _fresh(turned, met, self._before.get(turned, ()))
        for which in fresh:
            self._add(turned | {which}, met)
        if len(fresh) > 1:
            self._add(turned | set(fresh), met)
        if not turned and self._pairs:
            self._add_pairs(fresh, met)

    def _add(self, turned: Turned, before: Sequence[Path]) -> None:
        if turned and turned not in self._known:
            self._known.add(turned)
            self._before[turned] = before
            self._todo.append(turned)

    def _add_pairs(self, fresh: Sequence[tuple[Site, int]], met: Sequence[Path]) -> None:
        """Two answers, or where these are too many pairs, all answers at two lines."""
        pairs = [frozenset(pair) for pair in itertools.combinations(fresh, 2)]
        if len(pairs) + len(fresh) + 2 > MOST_TURNS:
            sites = itertools.combinations(dict.fromkeys(site for site, _ in fresh), 2)
            pairs = [frozenset(which for which in fresh if which[0] in pair) for pair in sites]
        for pair in pairs:
            self._add(pair, met)


def _fresh(turned: Turned, met: Sequence[Path], before: Sequence[Path]) -> list[tuple[Site, int]]:
    """Answers behind the first turned one, on ways through the code that led to fewer answers ``before`` it turned."""
    behind, known = _behind(turned, met), Counter(path for _, path, _ in _behind(turned, before))
    often = Counter(path for _, path, _ in behind)
    return [which for which, path, may in behind if may and which not in turned and often[path] > known[path]]


def _behind(turned: Turned, met: Sequence[Path]) -> Sequence[Path]:
    """What follows the first turned answer."""
    first = next((number for number, (which, _, _) in enumerate(met) if which in turned), len(met))
    return met[first + 1 :]
