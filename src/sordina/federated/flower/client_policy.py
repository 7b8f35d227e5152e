"""What a client agrees to, in a file of its own: a run's configuration and messages can only ask for less.

The file is JSON in the client's folder (``policy.json``); ``sordina flower init`` writes one to start from:

    {"accepts": ["metric"], "leakage": 2.0, "radius": 0.5}
    {"accepts": ["local", "central"], "epsilon": 8.0, "delta": 1e-6}

A client without a policy takes part in nothing. The limits hold over *everything* this client ever sends, whatever the
run, its noise multiplier or its radius (`privacy.leakage`). Where a policy has both kinds of limit, each bounds its own
kind of release, and what is known about the client in all is at most the two together. A seed is never taken from a
run: whoever knows it can subtract the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sordina.errors import BudgetRefused, InvalidInput
from sordina.federated.compression import Compressed
from sordina.federated.decentralized.gopa import GopaNoise
from sordina.federated.privacy.accounts import Leakage, exact
from sordina.federated.privacy.distributed import Distributed
from sordina.federated.privacy.metric import Metric, PublicRadius
from sordina.federated.privacy.placement import Placement
from sordina.federated.recipe import PRIVACY, FederatedRecipe
from sordina.privacy import check_delta, check_positive, format_up
from sordina.run_folder import read_json

FILE = "policy.json"
_LARGEST = 10**300
_SCALES = (1e-6, 1e6)
"""Thresholds and radii outside would push the noise to where floating point has no room for it."""


@dataclass(frozen=True)
class ClientPolicy:
    """The least privacy a client accepts, its limits over everything, and how much work it does.

    Args:
        accepts: Kinds of privacy this client takes part under: any of none, central, distributed, gopa, local, record,
            metric. Under "none" the server sees updates in the clear; under "central" it is trusted to add the noise.
        epsilon: The most that distributed, gopa, local and record privacy may cost, over everything; needed to accept
            them.
        delta: The delta of ``epsilon``.
        leakage: The most that models within ``radius`` of each other may be told apart under metric privacy, over
            everything; needed to accept it.
        radius: The distance that ``leakage`` speaks of; no run may ask for a smaller one.
        heuristic_radius: Whether the paper's radius, which bounds nothing, is accepted too.
        honest_share: Under distributed privacy and gopa, the largest share of the clients of a round that this client
            believes to be honest; a run that counts on the noise of more is refused.
        rounds: The most rounds of a run.
        epochs: The most passes over the client's rows in a round.
        hypotheses: The most models at once.
        numbers: The most numbers that a message may bring.
    """

    accepts: tuple[str, ...]
    epsilon: float | None = None
    delta: float | None = None
    leakage: float | None = None
    radius: float | None = None
    heuristic_radius: bool = False
    honest_share: float = 0.7
    rounds: int = 10_000
    epochs: int = 10
    hypotheses: int = 16
    numbers: int = 200_000_000

    def __post_init__(self) -> None:
        if not self.accepts or (unknown := set(self.accepts) - set(PRIVACY)):
            told = ", ".join(sorted(unknown)) if self.accepts else "nothing"
            raise InvalidInput(f"a policy accepts some of {', '.join(PRIVACY)}; this one names {told}.")
        for name in ("epsilon", "leakage", "radius"):
            if getattr(self, name) is not None:
                check_positive(f"a policy's {name}", getattr(self, name))
        if self.delta is not None:
            check_delta(self.delta)
        if not 0 < self.honest_share <= 1:
            raise InvalidInput("a policy's honest share lies in (0, 1].")
        limited = {"distributed", "gopa", "local", "record"} & set(self.accepts)
        if limited and (self.epsilon is None or self.delta is None):
            raise InvalidInput(f"a policy that accepts {min(limited)} privacy says how much: epsilon and delta.")
        if "metric" in self.accepts and (self.leakage is None or self.radius is None):
            raise InvalidInput("a policy that accepts metric privacy says how much: leakage and radius.")
        if min(self.rounds, self.epochs, self.hypotheses, self.numbers) < 1:
            raise InvalidInput("a policy's rounds, epochs, hypotheses and numbers are at least 1.")

    @classmethod
    def load(cls, folder: Path) -> ClientPolicy:
        """The policy in a client's folder; a missing or unclear one is refused, and the client sends nothing.

        Args:
            folder: The client's own folder.
        """
        path = folder / FILE
        if not path.exists():
            raise InvalidInput(
                f"this client has no policy, so it takes part in nothing: write {path}, such as "
                '{"accepts": ["metric"], "leakage": 2.0, "radius": 0.5}.'
            )
        return cls.from_dict(read_json(path), str(path))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "a policy") -> ClientPolicy:
        """A policy from plain data.

        Args:
            data: Names and values of the fields.
            where: What to call it in messages.
        """
        kinds = {one.name: str(one.type) for one in fields(cls)}
        if unknown := sorted(set(data) - set(kinds)):
            raise InvalidInput(f"{where} has {unknown[0]!r}, which no policy has: {', '.join(kinds)}.")
        values: dict[str, Any] = {}
        for name, value in data.items():
            values[name] = _read(name, kinds[name], value, where)
        if "accepts" not in values:
            raise InvalidInput(f"{where} does not say what it accepts: some of {', '.join(PRIVACY)}.")
        return cls(**values)

    def check(self, recipe: FederatedRecipe) -> None:
        """Refuse a run that this client does not take part in; only its configuration is looked at.

        Args:
            recipe: What the run's configuration asks for.
        """
        if recipe.placed not in self.accepts:
            self._refuse(f"privacy {recipe.placed!r}; this client accepts {', '.join(self.accepts)}")
        asked = {"rounds": recipe.rounds, "epochs": recipe.epochs, "hypotheses": recipe.hypotheses}
        for name, value in asked.items():
            if value is not None and value > getattr(self, name):
                self._refuse(f"{value} {name}; this client's most is {getattr(self, name)}")
        for name in ("threshold", "noise_multiplier", "epsilon"):
            value = getattr(recipe, name)
            if not (math.isfinite(value) and _SCALES[0] <= value <= _SCALES[1]):
                self._refuse(f"a {name.replace('_', ' ')} of {value:g}, which no run needs")

    def check_placement(self, placement: Placement) -> None:
        """Refuse a radius, or a trust in others, that this client does not accept.

        Args:
            placement: The privacy of the run, as the client would apply it.
        """
        if isinstance(placement, Compressed):
            return self.check_placement(placement.placement)
        if isinstance(placement, Distributed) and placement.honest > self.honest_share * placement.least:
            self._refuse("the noise of more honest clients than this client believes in")
        if isinstance(placement, GopaNoise) and placement.honest > self.honest_share * placement.graph.parties:
            self._refuse("the noise of more honest clients than this client believes in")
        if not isinstance(placement, Metric):
            return None
        if not isinstance(placement.radius, PublicRadius):
            if not self.heuristic_radius:
                self._refuse("the heuristic radius, which bounds nothing")
        elif self.radius is not None and not self.radius <= placement.radius.value <= _SCALES[1]:
            self._refuse(f"a radius of {placement.radius.value:g}; this client's least is {self.radius:g}")
        return None

    def check_total(self, total: Leakage) -> None:
        """Refuse a participation after which the client would have revealed more than its limits.

        Args:
            total: What it would have revealed over everything.
        """
        if self.epsilon is not None and self.delta is not None:
            spent = total.epsilon(self.delta)
            if spent > self.epsilon:
                raise BudgetRefused(
                    f"epsilon would be {format_up(spent)} over everything, above the limit {self.epsilon:g}."
                )
        if self.leakage is not None and self.radius is not None:
            leaked = total.per_distance * exact(self.radius) + total.heuristic
            if leaked > exact(self.leakage):
                raise BudgetRefused(
                    f"the leakage would be {format_up(float(leaked))} over everything, above the limit "
                    f"{self.leakage:g}."
                )

    def _refuse(self, asked: str) -> None:
        raise BudgetRefused(f"the run asks for {asked}: see the policy of this client.")


def _read(name: str, kind: str, value: Any, where: str) -> Any:
    """A field's value, of the field's own type: JSON's true is no number, and text is no list."""
    if name == "accepts":
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise InvalidInput(f"{where}: accepts is a list of words.")
        return tuple(value)
    wanted = {"bool": bool, "int": int}.get(kind, float)
    fits = isinstance(value, bool) if wanted is bool else isinstance(value, int | float) and type(value) is not bool
    if not fits or (wanted is int and not isinstance(value, int)):
        raise InvalidInput(f"{where}: {name} must be of type {wanted.__name__}.")
    if abs(value) > _LARGEST:
        raise InvalidInput(f"{where}: {name} is too large.")
    return wanted(value)


def policy_for(recipe: FederatedRecipe) -> dict[str, Any]:
    """A policy under which one run of ``recipe`` can go through, for a person to look at and change.

    Args:
        recipe: The run to be.
    """
    if recipe.placed == "metric":
        radius = float(recipe.radius.partition(":")[2] or 1.0)
        facts: dict[str, Any] = {"accepts": ["metric"], "leakage": recipe.leakage_limit or 2.0, "radius": radius}
        return facts | ({"heuristic_radius": True} if recipe.radius == "update" else {})
    if recipe.placed in ("distributed", "gopa"):
        facts = {"accepts": [recipe.placed], "delta": recipe.delta, "honest_share": recipe.honest_share}
        return facts | {"epsilon": 4 * recipe.epsilon}  # over everything, and for a client that is replaced
    if recipe.placed in ("local", "record"):
        return {"accepts": [recipe.placed], "epsilon": recipe.epsilon, "delta": recipe.delta}
    return {"accepts": [recipe.placed]}
