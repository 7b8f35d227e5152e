"""What ``privacy.json`` says: one schema, which every kind of run fills in and everything that reads a claim asks.

`sordina.run_folder` alone writes and reads the file. What earlier versions wrote is brought into the present form here
(`PrivacyClaim.from_dict`), so nobody else guesses what a missing fact may have meant:

========================  ==============================================================================================
version 0.1 and 0.2       read as
========================  ==============================================================================================
no ``schema``             schema 1
``guarantee`` (words)     ``statement``
a federation's adjacency  that of its ``details``; else what its placement always had: replace-one under local privacy,
                          add-remove under record privacy and without privacy; unstated otherwise
``clipping`` (a text)     the policy's kind and its first threshold
no ``private``            private if there is an epsilon, or privacy is metric
========================  ==============================================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, Guarantee, Trust, Unit

CLAIM_SCHEMA = 2
_NUMBER, _TEXT = (int, float), (str,)
_KINDS: dict[str, tuple[type, ...]] = {
    "schema": (int,), "epsilon": _NUMBER, "delta": _NUMBER, "noise_multiplier": _NUMBER, "leakage_limit": _NUMBER,
    "steps": (int,), "rounds": (int,), "private": (bool,), "sound": (bool,), "releasable": (bool,),
    "unit": _TEXT, "adjacency": _TEXT, "model": _TEXT, "placement": _TEXT, "accountant": _TEXT,
    "clipping": (str, dict), "statement": _TEXT, "guarantee": _TEXT, "details": (dict,), "versions": (dict,),
    "event": (dict,), "sampler": (dict,), "caveats": (list,), "leakage_per_client": (list,), "model_sha256": _TEXT,
    "model_file": _TEXT,
}  # fmt: skip
"""What the known facts are made of; one may also be missing, or null."""
_PLACED = {"local": Adjacency.REPLACE_ONE, "record": Adjacency.ADD_REMOVE, "none": Adjacency.ADD_REMOVE}
_FIRST = re.compile(r"\b(?:initial|threshold|C)=([0-9.eE+-]+)")


@dataclass(frozen=True, kw_only=True)
class PrivacyClaim:
    """A run's claim, and what it rests on.

    Args:
        statement: The claim in words.
        private: Whether anything is guaranteed at all.
        sound: Whether it is proven, not a heuristic.
        epsilon: What was spent; None without privacy, and under metric privacy.
        delta: Of the claim.
        unit: Whose data it speaks of; None if the file does not say.
        adjacency: The neighbours under which it holds; None where it has none, or the file does not say.
        trust: Who sees the raw data; None if the file does not say.
        placement: Where a federation's privacy happens; None of any other run.
        accountant: Who judged the cost.
        noise_multiplier: Of a step, relative to its sensitivity.
        clipping: The policy, as `sordina.clipping.policy_facts` has it.
        event: Everything that ran, as `sordina.accounting.to_dict` has it: epsilon follows from it.
        releasable: Whether the noise was secret.
        caveats: What the claim does not cover.
        details: What a placement adds.
        versions: Of what the run depended on.
        more: Whatever else this kind of run states: its steps or rounds, its sampler, what each client has leaked.
    """

    statement: str = ""
    private: bool = False
    sound: bool = True
    epsilon: float | None = None
    delta: float | None = None
    unit: Unit | None = None
    adjacency: Adjacency | None = None
    trust: Trust | None = None
    placement: str | None = None
    accountant: str | None = None
    noise_multiplier: float | None = None
    clipping: Mapping[str, Any] | None = None
    event: Mapping[str, Any] | None = None
    releasable: bool | None = None
    caveats: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, guarantee: Guarantee, **facts: Any) -> PrivacyClaim:
        """A claim of an (epsilon, delta) guarantee; one of infinite epsilon is none.

        Args:
            guarantee: Epsilon, delta, neighbours, unit and trust.
            facts: The other fields.
        """
        finite = math.isfinite(guarantee.epsilon)
        facts = {"private": finite, "epsilon": guarantee.epsilon if finite else None} | facts
        return cls(
            delta=guarantee.delta, unit=guarantee.unit, adjacency=guarantee.adjacency, trust=guarantee.trust, **facts
        )

    @property
    def guarantee(self) -> Guarantee:
        """The (epsilon, delta) guarantee, infinite without privacy; refused where the claim is no such guarantee."""
        if self.adjacency is None or self.unit is None or (self.private and self.epsilon is None):
            raise InvalidInput("the run's privacy.json states no (epsilon, delta) guarantee with its neighbours.")
        epsilon = math.inf if self.epsilon is None else self.epsilon
        return Guarantee(epsilon, self.delta or 0.0, self.adjacency, self.unit, self.trust or Trust.CENTRAL)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as the file holds it; `from_dict` reads it back unchanged."""
        placed = {} if self.placement is None else {"placement": self.placement}
        return {
            "schema": CLAIM_SCHEMA,
            "statement": self.statement,
            "private": self.private,
            "sound": self.sound,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": None if self.unit is None else str(self.unit),
            "adjacency": None if self.adjacency is None else str(self.adjacency),
            "model": None if self.trust is None else str(self.trust),
            **placed,
            "accountant": self.accountant,
            "noise_multiplier": self.noise_multiplier,
            "clipping": None if self.clipping is None else dict(self.clipping),
            "event": None if self.event is None else dict(self.event),
            "releasable": self.releasable,
            "caveats": list(self.caveats),
            "details": dict(self.details),
            "versions": dict(self.versions),
            **self.more,
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any], where: str = "privacy.json") -> PrivacyClaim:
        """The claim in a file of this version or an earlier one; every known fact must be of the kind it should be.

        Args:
            facts: Plain data.
            where: What to call the file in a refusal.
        """
        for name, kinds in _KINDS.items():
            value = facts.get(name)
            if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
                raise InvalidInput(f"{where} is damaged: its {name!r} is a {type(value).__name__}.")
        if (facts.get("schema") or 1) > CLAIM_SCHEMA:
            raise InvalidInput(f"{where} was written by a newer version of Sordina: use that one.")
        told = _upgraded(facts)
        try:
            return cls(
                statement=told.pop("statement", None) or "", private=told.pop("private"),
                sound=told.pop("sound", None) is not False, epsilon=told.pop("epsilon", None),
                delta=told.pop("delta", None), unit=_member(Unit, told.pop("unit", None)),
                adjacency=_member(Adjacency, told.pop("adjacency", None)),
                trust=_member(Trust, told.pop("model", None)),
                placement=told.pop("placement", None), accountant=told.pop("accountant", None),
                noise_multiplier=told.pop("noise_multiplier", None), clipping=told.pop("clipping", None),
                event=told.pop("event", None), releasable=told.pop("releasable", None),
                caveats=tuple(str(one) for one in told.pop("caveats", None) or ()),
                details=told.pop("details", None) or {}, versions=told.pop("versions", None) or {}, more=told,
            )  # fmt: skip
        except ValueError as error:
            raise InvalidInput(f"{where} is damaged: {error}.") from error


def _member(kind: Any, value: str | None) -> Any:
    return None if value is None else kind(value)


def _upgraded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """``facts`` in the present form (see the table above)."""
    told = {name: value for name, value in facts.items() if name not in ("schema", "guarantee")}
    placement, details = told.get("placement"), told.get("details") or {}
    told["statement"] = told.get("statement") or facts.get("guarantee")
    if told.get("private") is None:
        told["private"] = placement == "metric" or told.get("epsilon") is not None
    if facts.get("schema"):
        return told
    told["adjacency"] = told.get("adjacency") or details.get("adjacency") or _PLACED.get(str(placement))
    told["accountant"] = told.get("accountant") or details.get("accountant")
    if told.get("noise_multiplier") is None and isinstance(details.get("noise_multiplier"), _NUMBER):
        told["noise_multiplier"] = details["noise_multiplier"]
    if isinstance(told.get("clipping"), str):
        first = _FIRST.search(told["clipping"])
        threshold = {} if first is None else {"threshold": float(first[1])}
        told["clipping"] = {"kind": told["clipping"].partition("(")[0], **threshold}
    return told
