"""Read the facts of a run from its folder: claim, history, attacks, and whether the claim can be checked."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sordina import private_files
from sordina.accounting import Event, accountant, from_dict
from sordina.accounting.ledger import Ledger
from sordina.errors import InvalidInput, SordinaError
from sordina.privacy import Adjacency
from sordina.reports.attack_facts import attacks, fairness, reconstructions, release
from sordina.reports.card import answers, privacy_card
from sordina.reports.facts import AccountFacts, Booking, Claim, Moment, Report, RunFacts, last
from sordina.reports.network_facts import command as network_command
from sordina.reports.network_facts import network
from sordina.reports.release_facts import released_answers
from sordina.run_folder import MODEL_HASH, RUN, FolderState, read_claim, read_facts, read_json, state_of

# Whether a run's claim can be checked against the run itself: only then may a page call it PRIVATE.
#
# A claim is verified if the folder says that a run of Sordina ended there, its ``privacy.json`` names the very model
# beside it, and the epsilon it states is no smaller than the one computed anew from the events it lists. Anything else,
# such as a model from elsewhere with a number written beside it, is a claim and no more. What this cannot find is a
# folder that somebody forged with care: nothing in it is signed.

_SLACK = 1e-6
"""Relative difference that two versions of an accountant may have."""


@dataclass(frozen=True)
class Verification:
    """Whether a claim was verified, and if not, why; ``other_model`` if it speaks of another model altogether."""

    verified: bool
    why: str = ""
    other_model: bool = False


def verify(folder: Path, privacy: dict[str, Any]) -> Verification:
    """Check the claim of ``folder``.

    Args:
        folder: The folder of a run.
        privacy: What its ``privacy.json`` says.
    """
    if not privacy:
        return Verification(False, "no privacy.json is there")
    if MODEL_HASH not in privacy and os.path.lexists(folder / "answers.json"):
        return Verification(False, "nothing ties the answers to the claim beside them")
    if not (folder / RUN).is_file() or MODEL_HASH not in privacy:
        return Verification(False, "the folder does not say which model the claim is about")
    condition = state_of(folder)
    if condition.state is not FolderState.FINISHED:
        return Verification(False, f"the run has not ended ({condition.state})")
    try:
        read_claim(folder)
    except SordinaError:
        return Verification(False, "privacy.json speaks of another model than the one beside it", other_model=True)
    return _verify_epsilon(privacy)


def _verify_epsilon(privacy: dict[str, Any]) -> Verification:
    if privacy.get("epsilon") is None:
        return Verification(True)
    if "event" not in privacy:
        return Verification(False, "privacy.json lists no events that its epsilon follows from")
    details = privacy.get("details") or {}
    told = {name: privacy.get(name) or details.get(name) for name in ("accountant", "adjacency", "delta")}
    try:
        event = from_dict(numbers(privacy["event"]))
        adjacency = Adjacency(told["adjacency"] or Adjacency.ADD_REMOVE)
        epsilon = _epsilon(event, str(told["accountant"] or "pld"), float(told["delta"] or 0.0), adjacency)
        claimed = float(privacy["epsilon"])
    except (SordinaError, TypeError, ValueError, KeyError, OverflowError):
        return Verification(False, "the events in privacy.json cannot be read")
    if not epsilon <= claimed * (1 + _SLACK):
        return Verification(False, "the events in privacy.json cost more than it claims")
    return Verification(True)


@functools.lru_cache(maxsize=1024)
def _epsilon(event: Event, name: str, delta: float, adjacency: Adjacency) -> float:
    return accountant(name).epsilon(event, delta, adjacency)


def numbers(value: Any) -> Any:
    """Plain data with the text "inf" turned into the number that JSON does not know.

    >>> numbers({"eta": "inf", "kinds": ["inf", 1]})
    {'eta': inf, 'kinds': [inf, 1]}
    """
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return float(value) if value in ("inf", "-inf") else value


# Read the facts of a run from its folder: whatever is there is used, and a folder that is no run is refused.
#
# =======================  =============================================================================
# file                     what it gives
# =======================  =============================================================================
# ``privacy.json``         the claim, its caveats, the versions (a finished run has it)
# ``metrics.jsonl``        the history: epsilon, threshold, validation scores, step by step
# ``recipe.json``          how the run was asked for, hence its command (``about.json`` where no command can)
# ``result.json``          a federation's clients and fairness
# ``audit.json``           membership attacks on the run's model
# ``inversion.json``       images reconstructed from updates
# ``release.json``         an attack on a release of statistics
# ``answers.json``         the answers of a release of statistics
# ``fairness.json``        how groups fare
# ``*.png``                the figures of a run without a server (`network_facts`)
# ``scores.json``          how a model of a table does on its test rows
# =======================  =============================================================================

_MARKS = ("privacy.json", "metrics.jsonl", "audit.json", "inversion.json", "release.json")
_FIRST = re.compile(r"\b(?:initial|threshold|C)=([0-9.eE+-]+)")
"""The first threshold in a policy's name."""
_METRIC = (
    "Metric privacy hides an update among those within its radius; how much two clients that differ more can be told "
    "apart grows with their distance.",
    "Held-out clients validate the models, and their losses are read without noise.",
)
_UNFINISHED = "The run did not finish: no guarantee is on file. What it had reserved counts as spent."


def report(folders: Sequence[str | Path], *, title: str | None = None, ledger: str | Path | None = None) -> Report:
    """The facts of all ``folders``, and of a ``ledger`` if one is named."""
    runs = distinct([run(folder) for folder in folders])
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    words = " ".join(shlex.quote(str(folder)) for folder in folders)
    book = Ledger(ledger) if ledger else None
    command = f"sordina report {words}" + (f" --ledger {shlex.quote(book.name)}" if book else "")
    return Report(
        title or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs"),
        now, runs, accounts(book) if book else (), commands=(command,),
    )  # fmt: skip


def distinct(runs: Sequence[RunFacts]) -> tuple[RunFacts, ...]:
    """The runs with names that differ: a second one of a name gets a number."""
    seen: dict[str, int] = {}
    named = []
    for one in runs:
        seen[one.name] = seen.get(one.name, 0) + 1
        named.append(one if seen[one.name] == 1 else replace(one, name=f"{one.name} ({seen[one.name]})"))
    return tuple(named)


def run(folder: str | Path) -> RunFacts:
    """The facts of one folder."""
    folder = Path(folder)
    if not any(os.path.lexists(folder / mark) for mark in _MARKS):
        raise InvalidInput(
            f"{folder} is not a run: none of {', '.join(_MARKS)} is there. Give a folder that `sordina train`, "
            "`federate`, `audit` or `release` wrote with --out."
        )
    try:
        return _run(folder)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        if isinstance(error, SordinaError):
            raise
        raise InvalidInput(
            f"{folder} does not read as a run ({type(error).__name__} in its files): they were changed, or written by "
            "another program."
        ) from error


def _run(folder: Path) -> RunFacts:
    privacy, result = _object(folder / "privacy.json", read_facts), _object(folder / "result.json")
    scores = _object(folder / "scores.json")
    recipe = _object(folder / "recipe.json") or _object(folder / "about.json")
    history = _history(folder / "metrics.jsonl", privacy)
    audited = _object(folder / "audit.json")
    released = released_answers(_object(folder / "answers.json"))
    kind = "release" if released and not recipe and not history else _kind(privacy, recipe, history)
    finished = bool(privacy) or kind == "audit"
    return RunFacts(
        name=folder.resolve().name,
        kind=kind,
        claim=_claimed(audited) if kind == "audit" else _claim(privacy, verify(folder, privacy)),
        dataset=recipe.get("dataset") or recipe.get("data"),
        model=recipe.get("strategy") or recipe.get("model") or scores.get("model"),
        population=result.get("clients") or recipe.get("population") or privacy.get("sampler", {}).get("population"),
        finished=finished,
        steps=privacy.get("steps") or privacy.get("rounds") or (history[-1].step if history else None),
        clipping=privacy.get("clipping"),
        history=history,
        loss=_number(result.get("validation_loss", last(history, "loss") or scores.get("log_loss"))),
        accuracy=_number(result.get("validation_accuracy", last(history, "accuracy") or scores.get("accuracy"))),
        attacks=attacks(audited),
        reconstructions=reconstructions(_object(folder / "inversion.json") or audited),
        release=release(_object(folder / "release.json")),
        answers=released,
        leakage=_leakage(privacy),
        leakage_limit=_number(privacy.get("leakage_limit")),
        fairness=fairness(_object(folder / "fairness.json") or next(iter(result.get("fairness", {}).values()), {})),
        network=network(folder, privacy, recipe, result),
        caveats=_caveats(privacy) if finished else (_UNFINISHED,),
        command=_command(kind, recipe),
        versions=tuple(privacy.get("versions", audited.get("versions", {})).items()),
        card=_card(folder) if privacy else (),
    )


def _card(folder: Path) -> tuple[tuple[str, str], ...]:
    try:
        return answers(privacy_card(folder))
    except SordinaError:  # the model beside the claim is another one: the page says so
        return ()


def accounts(book: Ledger) -> tuple[AccountFacts, ...]:
    """Every data set of a ledger, its spends priced one by one and together."""
    return tuple(
        AccountFacts(
            dataset=one.dataset.name,
            budget=one.dataset.budget.epsilon,
            delta=one.dataset.budget.delta,
            unit=str(one.dataset.unit),
            adjacency=str(one.dataset.adjacency),
            spent=one.spent,
            bookings=tuple(
                Booking(spend.what, spend.who, spend.time, str(spend.status), one.dataset.epsilon(spend.event))
                for spend in one.spends
            ),
        )
        for one in book.statements()
    )


def _kind(privacy: dict[str, Any], recipe: dict[str, Any], history: tuple[Moment, ...]) -> str:
    if "placement" in privacy or "strategy" in recipe:
        return "federate"
    return "train" if privacy or recipe or history else "audit"


def _claim(privacy: dict[str, Any], found: Verification) -> Claim:
    if not privacy:
        return Claim()
    privacy = {**privacy.get("details", {}), **privacy}
    epsilon = _number(privacy.get("epsilon"))
    trust = str(privacy.get("model") or privacy.get("placement") or "central")
    return Claim(
        private=bool(privacy.get("private", trust != "none" and (epsilon is not None or trust == "metric"))),
        epsilon=epsilon,
        delta=_number(privacy.get("delta")),
        unit=str(privacy.get("unit", "record")),
        adjacency=str(privacy.get("adjacency") or ("replace-one" if trust == "local" else "add-remove")),
        trust=trust,
        sound=bool(privacy.get("sound", True)),
        accountant=privacy.get("accountant"),
        noise_multiplier=_number(privacy.get("noise_multiplier")),
        releasable=privacy.get("releasable"),
        statement=str(privacy.get("statement") or privacy.get("guarantee") or ""),
        verified=found.verified,
        unverified=found.why,
        other_model=found.other_model,
    )


def _claimed(audited: dict[str, Any]) -> Claim:
    """What an audit held against its attacks, where the run itself is elsewhere."""
    told = audited.get("claimed_epsilon")
    if told is None or not audited.get("results"):
        return Claim()
    epsilon = _number(told)
    return Claim(
        private=epsilon is not None, epsilon=epsilon, delta=attacks(audited)[0].delta,
        unverified="only an audit of it is here, not the run that made it",
    )  # fmt: skip


def _history(path: Path, privacy: dict[str, Any]) -> tuple[Moment, ...]:
    """The lines in order of steps; a private run whose lines tell what was spent starts at step 0, with nothing."""
    if not os.path.lexists(path):
        return ()
    moments: dict[int, Moment] = {}
    for number, line in enumerate(private_files.read(path).splitlines(), 1):
        try:
            moment = _moment(json.loads(line))
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
            reason = type(error).__name__
            raise InvalidInput(f"{path}, line {number}: not a line of metrics ({reason}).") from error
        moments[moment.step] = moment
    first = _FIRST.search(str(privacy.get("clipping", "")))
    spends = any(moment.epsilon is not None for moment in moments.values())
    if privacy.get("private") and 0 not in moments and (first or spends):
        moments[0] = Moment(0, epsilon=0.0 if spends else None, threshold=float(first[1]) if first else None)
    return tuple(moments[step] for step in sorted(moments))


def _moment(entry: dict[str, Any]) -> Moment:
    scores = entry.get("validation", {})
    return Moment(
        step=int(entry["step"] if "step" in entry else entry["round"]),
        epsilon=_number(entry.get("epsilon")),
        threshold=_number(entry.get("threshold")),
        learning_rate=_number(entry.get("learning_rate")),
        loss=_number(scores.get("loss", entry.get("validation_loss"))),
        accuracy=_number(scores.get("accuracy", entry.get("validation_accuracy"))),
    )


def _leakage(privacy: dict[str, Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in privacy.get("leakage_per_client", ()))


def _caveats(privacy: dict[str, Any]) -> tuple[str, ...]:
    """The run's own, and for metric privacy what its figure leaves open."""
    own = tuple(str(caveat) for caveat in privacy.get("caveats", ()))
    return own + _METRIC if privacy.get("placement") == "metric" else own


def _command(kind: str, recipe: dict[str, Any]) -> str | None:
    """The command that asks for ``recipe`` again: its options are the recipe's fields. None if no command can."""
    if isinstance(recipe.get("command"), str):
        return str(recipe["command"])
    if "topology" in recipe:
        return network_command(recipe)
    subject = "data" if kind == "federate" else "dataset"
    if subject not in recipe or "population" in recipe or recipe.get("options"):
        return None
    words = ["sordina", kind, str(recipe[subject])]
    for name, value in recipe.items():
        if name not in (subject, "options", "data_seed") and value is not None:
            words += [f"--{name.replace('_', '-')}", f"{value}"]
    return shlex.join(words)


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _object(path: Path, read: Callable[[Path], dict[str, Any]] = read_json) -> dict[str, Any]:
    """The JSON object in ``path``; empty if there is no such file, refused if anything else is there."""
    return read(path) if os.path.lexists(path) else {}
