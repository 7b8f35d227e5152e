"""The privacy card of a run: the questions people ask of a private model, answered from facts, or "not stated".

The questions follow NIST SP 800-226 and the public registries of deployments: unit, adjacency, trust model, what is
covered and what is not, accountant, noise, composition, storage. As Markdown with the front matter that model hubs
read, and as JSON.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sordina.privacy import Unit, format_down, format_up
from sordina.privacy_claim import PrivacyClaim
from sordina.reports.folder_facts import attacks
from sordina.run_folder import AUDIT, FAIRNESS, MODEL_HASH, RECIPE, RUN, SCORES, read_claim, read_json

UNSTATED = "not stated"
_UNITS = {
    "record": "One row. A person with several rows is protected row by row only.",
    "user": "One person, with all of their rows that take part.",
    "group": "A group of units at once.",
}
_CLIENT = "One client of the federation, with all of its rows."
_NEIGHBOURS = {
    "add-remove": "The same data with one unit more or less.",
    "replace-one": "The same data with one unit exchanged for another.",
}
_FLOATS = (
    "Noise is drawn exactly, in whole steps of a grid of powers of two, and added so that the low bits of a float tell "
    "nothing."
)
_TRUST = {
    "central": "Whoever trains sees the data; whoever gets the model does not.",
    "distributed": "The server sees sums of updates only, and must follow the protocol.",
    "local": "Nobody but the person (or client) sees the data.",
    "metric": "Nobody but the client sees the data; what is hidden is where in a neighbourhood it lies.",
    "network": "Each party sees only what its neighbours send.",
}


QUESTIONS = (
    ("Who is protected", "unit"),
    ("How much of a person counts", "contribution"),
    ("Against which comparison", "neighbours"),
    ("Who must be trusted", "trust"),
    ("How it was accounted", "accountant"),
    ("Noise multiplier", "noise_multiplier"),
    ("Floating point", "floating_point"),
    ("The model this speaks of (SHA-256)", "model_sha256"),
    ("Attacks tried", "attacks"),
    ("Storage and access", "storage_and_access"),
)


def answers(card: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The card's questions and answers, for a page.

    Args:
        card: From `privacy_card`.
    """
    found = ((title, card[name]) for title, name in QUESTIONS)
    return tuple((title, "; ".join(one) if isinstance(one, list) else str(one)) for title, one in found)


def privacy_card(folder: str | Path) -> dict[str, Any]:
    """The card of the finished run in ``folder``, as plain data.

    Args:
        folder: The folder of a run.
    """
    claim = read_claim(folder)
    scores, fair = Path(folder) / SCORES, Path(folder) / FAIRNESS
    by_client = claim.placement is not None and claim.unit is Unit.USER
    return {
        "claim": (claim.statement or UNSTATED) if claim.private else "NOT PRIVATE",
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "unit": _CLIENT if by_client else _UNITS.get(str(claim.unit), UNSTATED),
        "contribution": _contribution(claim, folder),
        "neighbours": _NEIGHBOURS.get(str(claim.adjacency), UNSTATED),
        "trust": _TRUST.get(str(claim.trust), UNSTATED),
        "accountant": claim.accountant or UNSTATED,
        "noise_multiplier": UNSTATED if claim.noise_multiplier is None else claim.noise_multiplier,
        "event": claim.event or UNSTATED,
        "releasable": UNSTATED if claim.releasable is None else claim.releasable,
        "not_covered": list(claim.caveats),
        "floating_point": _FLOATS if "estimator" in claim.more else UNSTATED,
        "utility_by_group": read_json(fair) if os.path.lexists(fair) else UNSTATED,
        "utility": read_json(scores) if os.path.lexists(scores) else UNSTATED,
        "model_sha256": claim.more.get(MODEL_HASH, UNSTATED),
        "versions": claim.versions or UNSTATED,
        "attacks": _attacks(folder),
        "storage_and_access": UNSTATED,
    }


def _attacks(folder: str | Path) -> Any:
    """What audits beside the run found: one line an attack."""
    path = Path(folder) / AUDIT
    if not os.path.lexists(path):
        return UNSTATED
    return [
        f"{one.name} on {one.members} members and {one.non_members} others: epsilon at least "
        f"{format_down(one.measured, 3)} with confidence {one.confidence:.0%}"
        for one in attacks(read_json(path))
    ]


def _contribution(claim: PrivacyClaim, folder: str | Path) -> str:
    """How much of a person is covered, in words."""
    settings = read_json(Path(folder) / RUN).get("settings", {}) if os.path.lexists(Path(folder) / RUN) else {}
    schema = settings.get("schema") if isinstance(settings, dict) else None
    if schema is None and os.path.lexists(Path(folder) / RECIPE):  # texts
        schema = read_json(Path(folder) / RECIPE).get("columns")
    if claim.unit is Unit.RECORD:
        return "Each row counts as another person's."
    if isinstance(schema, dict) and schema.get("person"):
        most = schema.get("rows_per_person") or 1
        rows = "1 row of a person counts" if most == 1 else f"{most} rows of a person count"
        return f"At most {rows}; the others are left out by chance."
    return UNSTATED


def as_markdown(card: dict[str, Any]) -> str:
    """The card for people, with front matter for hubs.

    Args:
        card: From `privacy_card`.
    """
    front = {"tags": ["differential-privacy", "sordina"], "epsilon": card["epsilon"], "delta": card["delta"]}
    lines = ["---", *(f"{name}: {json.dumps(value)}" for name, value in front.items()), "---", "", "# Privacy card", ""]
    lines += [f"**{card['claim']}**", ""]
    if isinstance(card["epsilon"], (int, float)):
        lines += [f"Epsilon {format_up(card['epsilon'])} at delta {format_up(card['delta'])}.", ""]
    if card["releasable"] is False:
        lines += ["**Do not release this model: its noise came from a seed and can be taken away.**", ""]
    for title, name in QUESTIONS:
        answer = card[name]
        lines += [
            f"## {title}",
            "",
            *([f"- {one}" for one in answer] if isinstance(answer, list) else [str(answer)]),
            "",
        ]
    lines += ["## What is not covered", "", *(f"- {one}" for one in card["not_covered"] or [UNSTATED]), ""]
    lines += ["## How good it is", ""]
    utility = card["utility"]
    lines += [f"- {name}: {value}" for name, value in utility.items()] if isinstance(utility, dict) else [str(utility)]
    lines += _by_group(card["utility_by_group"])
    return "\n".join(lines) + "\n"


def _by_group(found: Any) -> list[str]:
    if not isinstance(found, dict):
        return ["", "## By group", "", str(found)]
    lines = [
        "",
        f"## By group ({found.get('attribute', UNSTATED)})",
        "",
        "| group | rows | accuracy | selected |",
        "|---|---|---|---|",
    ]
    return lines + [
        f"| {one['name']} | {one['count']} | {one['accuracy']:.3f} | {one['selection_rate']:.3f} |"
        for one in found.get("groups", [])
    ]
