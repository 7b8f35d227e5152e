"""Parts of a run's folder as facts: attacks, reconstructions, fairness, and networks without a server.

A run without a server, from its folder to facts: the graph, who is protected from whom, and the run's own figures.

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
from sordina.reports.facts import (
    AttackFacts,
    FairnessFacts,
    GroupFacts,
    Image,
    Interval,
    Measure,
    NetworkFacts,
    NetworkFigure,
    Reconstruction,
    ReleaseAttack,
)

# What was found about a model after it was trained, from plain JSON to facts: attacks, reconstructions, fairness.

_BRIGHTEST = 1.0


def attacks(found: dict[str, Any]) -> tuple[AttackFacts, ...]:
    """The membership attacks of an ``audit.json``: `sordina.auditing.findings.Audit.to_dict`, the strongest first."""
    try:
        read = [_attack(result) for result in found.get("results", ()) if "bounds" in result]
        return tuple(sorted(read, key=lambda one: -one.measured))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidInput(f"audit.json does not read as an audit ({type(error).__name__}: {error}).") from error


def _attack(result: dict[str, Any]) -> AttackFacts:
    bound = result["bounds"][0]
    curve = result.get("roc", {})
    return AttackFacts(
        name=str(result["attack"]),
        members=int(result["members"]),
        non_members=int(result["non_members"]),
        measured=float(bound["epsilon"]),
        delta=float(bound["delta"]),
        confidence=float(bound["confidence"]),
        method=str(bound.get("method", "")),
        assumes=str(bound.get("assumes", "")),
        verdict=str(result.get("verdict", "")),
        refuted=bool(result.get("exceeds_claim", False)),
        auc=_interval(result.get("auc")),
        tpr_at=tuple(
            (float(rate), interval)
            for rate, estimate in result.get("tpr_at_fpr", {}).items()
            if (interval := _interval(estimate)) is not None
        ),
        fpr=tuple(map(float, curve.get("fpr", ()))),
        tpr=tuple(map(float, curve.get("tpr", ()))),
        knows=str(result.get("knows", "")),
        seconds=_finite(result.get("seconds")),
    )


def reconstructions(found: dict[str, Any]) -> tuple[Reconstruction, ...]:
    """The cases of an ``inversion.json``: ``{"cases": [{attack, defence, original, reconstruction, psnr, ...}]}``."""
    try:
        return tuple(
            Reconstruction(
                attack=str(case.get("attack", "gradient inversion")),
                defence=str(case.get("defence", "none")),
                original=_image(case["original"]),
                result=_image(case["reconstruction"]),
                psnr=_finite(case.get("psnr")),
                ssim=_finite(case.get("ssim")),
                mse=_finite(case.get("mse")),
            )
            for case in found.get("cases", ())
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"inversion.json does not read as reconstructions ({error}).") from error


def release(found: dict[str, Any]) -> ReleaseAttack | None:
    """A ``release.json``: `sordina.auditing.releases.ReleaseStudy.to_dict`; None if there is none."""
    if not found:
        return None
    try:
        return ReleaseAttack(
            attack=str(found["attack"]),
            title=str(found["title"]),
            data=str(found["data"]),
            private=str(found["private"]),
            verdict=str(found["verdict"]),
            measures=tuple(
                Measure(str(line["measure"]), _finite(line["naive"]), _finite(line["ours"]), _finite(line["chance"]))
                for line in found["lines"]
            ),
            x=str(found["x"]),
            y=str(found["y"]),
            log_x=bool(found["log_x"]),
            curves=tuple(
                (str(curve["label"]), tuple(map(float, curve["x"])), tuple(map(float, curve["y"])))
                for curve in found["curves"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"release.json does not read as an attack on a release ({type(error).__name__}).") from error


def fairness(found: dict[str, Any]) -> FairnessFacts | None:
    """`sordina.fairness.Fairness` as plain data; None if there are no groups."""
    if not found.get("groups"):
        return None
    groups = tuple(
        GroupFacts(
            str(group["name"]), int(group["count"]), _finite(group.get("accuracy")),
            _finite(group.get("selection_rate")), _finite(group.get("true_positive_rate")),
            _finite(group.get("false_positive_rate")),
        )
        for group in found["groups"]
    )  # fmt: skip
    return FairnessFacts(
        groups,
        demographic_parity_difference=_finite(found.get("demographic_parity_difference")),
        equalized_odds_difference=_finite(found.get("equalized_odds_difference")),
        equal_opportunity_difference=_finite(found.get("equal_opportunity_difference")),
        left_out=tuple(found.get("left_out", ())),
    )


def _interval(estimate: dict[str, float] | None) -> Interval | None:
    if not estimate:
        return None
    return Interval(float(estimate["value"]), float(estimate["low"]), float(estimate["high"]))


def _image(rows: list[Any]) -> Image:
    """Grey rows, also of an image with a leading channel axis."""
    while rows and isinstance(rows[0][0], list):
        rows = rows[0]
    return tuple(tuple(min(_BRIGHTEST, max(0.0, float(value))) for value in row) for row in rows)


def _finite(value: Any) -> float | None:
    if value is None or not math.isfinite(float(value)):
        return None
    return float(value)


# A run without a server, from its folder to facts: the graph, who is protected from whom, and the run's own figures.

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
