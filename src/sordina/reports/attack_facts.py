"""What was found about a model after it was trained, from plain JSON to facts: attacks, reconstructions, fairness."""

from __future__ import annotations

import math
from typing import Any

from sordina.errors import InvalidInput
from sordina.reports.facts import (
    AttackFacts,
    FairnessFacts,
    GroupFacts,
    Image,
    Interval,
    Measure,
    Reconstruction,
    ReleaseAttack,
)

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
