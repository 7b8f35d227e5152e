"""A run without a server, from its folder to facts: the graph, who is protected from whom, and the run's own figures.

Figures are files that a page takes in, so they are read with care: links are not followed, and what is no PNG, or a
large one, is left out and named in `NetworkFacts.left_out`.
"""

from __future__ import annotations

import math
import os
import shlex
import struct
from pathlib import Path
from typing import Any

from sordina import private_files
from sordina.errors import InvalidInput
from sordina.privacy_claim import PrivacyClaim
from sordina.reports.facts import NetworkFacts, NetworkFigure

_LARGEST = 4 * 2**20
_WIDEST = 4096
_HEAD = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
_TAIL = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_WHOM = {
    "gossip": "any other party, which sees its neighbours' messages and the steps that are taken",
    "walk": "any other party, which sees the token when it comes by, its path, and the model at the end",
    "decor": "whoever sees all messages and knows the noises of the parties that are not honest",
}
_FIGURES = (
    (
        "privacy_by_distance.png", "Privacy loss by distance",
        "The epsilon of a pair of parties against how far they are apart in the graph: the mean and the largest over "
        "the pairs that were computed.",
    ),
    (
        "pair_privacy.png", "Privacy loss of every pair",
        "Each cell is a pair: its row is who looks, its column whose data it is, and brighter means that more is "
        "learned.",
    ),
    (
        "error_by_rounds.png", "Error by rounds of averaging",
        "The mean squared error that noise leaves in a party's estimate, after each round of averaging.",
    ),
)  # fmt: skip
_UNNAMED = (None, "own data", "table")
"""Data that a recipe does not name as a command would."""
_PAIRWISE = 30.0
"""The only ratio that the command asks for."""


def network(folder: Path, privacy: PrivacyClaim, recipe: dict[str, Any], result: dict[str, Any]) -> NetworkFacts | None:
    """The facts of a finished run without a server; None of any other.

    Args:
        folder: The folder of a run.
        privacy: What its ``privacy.json`` says.
        recipe: What its ``recipe.json`` says.
        result: What its ``result.json`` says.
    """
    topology = recipe.get("topology")
    if privacy.placement != "network" or topology not in _WHOM:
        return None
    details = privacy.details
    left_out: list[str] = []
    return NetworkFacts(
        topology=topology,
        graph=str(details.get("graph") or recipe.get("graph")),
        parties=_whole(result.get("clients")),
        rounds=_whole(recipe.get("rounds")),
        gossip_rounds=_whole(details.get("gossip_rounds")),
        protected_from=_WHOM[topology],
        worst_epsilon=_finite(privacy.epsilon),
        mean_epsilon=_finite(details.get("epsilon_of_the_mean_pair")),
        delta=_finite(privacy.delta),
        observers=_whole(details.get("observers_accounted")),
        by_distance=tuple(
            (float(one["distance"]), float(one["mean"]), float(one["largest"]))
            for one in result.get("epsilon_by_distance", ())
        ),
        figures=_figures(folder, left_out),
        left_out=tuple(left_out),
    )


def command(recipe: dict[str, Any]) -> str | None:
    """The command that asks for a run without a server again; None if no command can.

    Args:
        recipe: What its ``recipe.json`` says.
    """
    if recipe.get("data") in _UNNAMED or recipe.get("pairwise", _PAIRWISE) != _PAIRWISE:
        return None
    words = ["sordina", "federate", str(recipe["data"])]
    for name, value in recipe.items():
        if name in ("data", "pairwise", "strategy") or value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        words += [] if value is True else [f"{value}"]
    return shlex.join(words)


def _figures(folder: Path, left_out: list[str]) -> tuple[NetworkFigure, ...]:
    found = []
    for name, title, sentence in _FIGURES:
        if not os.path.lexists(folder / name):
            continue
        content = _picture(folder / name)
        if content is None:
            left_out.append(name)
            continue
        found.append(NetworkFigure(name, title, sentence, content))
    return tuple(found)


def _picture(path: Path) -> bytes | None:
    """The PNG at ``path``; None if it is a link, no such picture, or too large."""
    try:
        content = private_files.read(path, at_most=_LARGEST, follow=False)
    except InvalidInput:
        return None
    if len(content) < len(_HEAD) + 8 or not content.startswith(_HEAD) or not content.endswith(_TAIL):
        return None
    width, height = struct.unpack_from(">II", content, len(_HEAD))
    return content if 0 < width <= _WIDEST and 0 < height <= _WIDEST else None


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(float(value)) else float(value)
