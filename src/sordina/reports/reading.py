"""Read the facts of a run from its folder: claim, history, attacks, and whether the claim can be checked."""

from __future__ import annotations

import functools
import json
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sordina import private_files
from sordina._renamed import current_recipe
from sordina.accounting import Event, accountant, from_dict
from sordina.accounting.ledger import Ledger
from sordina.errors import InvalidInput, SordinaError
from sordina.privacy import Adjacency
from sordina.privacy_claim import PrivacyClaim
from sordina.reports.card import answers, privacy_card
from sordina.reports.facts import (
    AccountFacts,
    Booking,
    Claim,
    Moment,
    ReleasedAnswer,
    ReleasedCell,
    Report,
    RunFacts,
    last,
)
from sordina.reports.folder_facts import attacks, fairness, network, reconstructions, release
from sordina.reports.folder_facts import command as network_command
from sordina.run_folder import (
    ABOUT,
    ANSWERS,
    AUDIT,
    FAIRNESS,
    INNER,
    INVERSION,
    METRICS,
    MODEL_HASH,
    PRIVACY,
    RECIPE,
    RELEASE,
    RESULT,
    RUN,
    SCORES,
    FolderState,
    read_claim,
    read_json,
    state_of,
)

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


def verify(folder: Path, privacy: PrivacyClaim | None) -> Verification:
    """Check the claim of ``folder``.

    Args:
        folder: The folder of a run.
        privacy: What its ``privacy.json`` says.
    """
    if privacy is None:
        return Verification(False, "no privacy.json is there")
    if MODEL_HASH not in privacy.more and os.path.lexists(folder / ANSWERS):
        return Verification(False, "nothing ties the answers to the claim beside them")
    if not (folder / RUN).is_file() or MODEL_HASH not in privacy.more:
        return Verification(False, "the folder does not say which model the claim is about")
    condition = state_of(folder)
    if condition.state is not FolderState.FINISHED:
        return Verification(False, f"the run has not ended ({condition.state})")
    try:
        read_claim(folder)
    except SordinaError:
        return Verification(False, "privacy.json speaks of another model than the one beside it", other_model=True)
    return _verify_epsilon(privacy)


def _verify_epsilon(privacy: PrivacyClaim) -> Verification:
    if privacy.epsilon is None:
        return Verification(True)
    if privacy.event is None:
        return Verification(False, "privacy.json lists no events that its epsilon follows from")
    if privacy.adjacency is None:
        return Verification(False, "privacy.json does not say under which neighbours its epsilon holds")
    try:
        event = from_dict(numbers(dict(privacy.event)))
        epsilon = _epsilon(event, privacy.accountant or "pld", float(privacy.delta or 0.0), privacy.adjacency)
        claimed = float(privacy.epsilon)
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
# ``*.png``                the figures of a run without a server (`folder_facts`)
# ``scores.json``          how a model of a table does on its test rows
# =======================  =============================================================================

_MARKS = (PRIVACY, METRICS, AUDIT, INVERSION, RELEASE)
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
    """The facts of one folder; of the run inside it, where it follows the conventions of another library."""
    folder = Path(folder)
    if (folder / INNER / RUN).is_file():
        return replace(run(folder / INNER), name=folder.resolve().name)
    if not any(os.path.lexists(folder / mark) for mark in _MARKS):
        inside = _runs_inside(folder)
        raise InvalidInput(
            f"{folder} is no run itself but holds some: give one of {inside}, or several of them."
            if inside
            else f"{folder} is not a run: none of {', '.join(_MARKS)} is there. Give a folder that `sordina train`, "
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


_SEVERAL = 6


def _runs_inside(folder: Path) -> str:
    """Folders in ``folder`` that are runs, as the searches of `sordina tune` are; a few of them by name."""
    try:
        found = sorted(one for one in folder.iterdir() if any((one / mark).is_file() for mark in _MARKS))
    except OSError:
        return ""
    return ", ".join(map(str, found[:_SEVERAL])) + (", .." if len(found) > _SEVERAL else "")


def _run(folder: Path) -> RunFacts:
    privacy = read_claim(folder, check_model=False) if os.path.lexists(folder / PRIVACY) else None
    claim = privacy or PrivacyClaim()
    result, scores = _object(folder / RESULT), _object(folder / SCORES)
    recipe = current_recipe(_object(folder / RECIPE) or _object(folder / ABOUT))
    history = _history(folder / METRICS, claim)
    audited = _object(folder / AUDIT)
    released = released_answers(_object(folder / ANSWERS))
    kind = "release" if released and not recipe and not history else _kind(privacy, recipe, history)
    finished = privacy is not None or kind == "audit"
    return RunFacts(
        name=folder.resolve().name,
        kind=kind,
        claim=_claimed(audited) if kind == "audit" else _claim(privacy, verify(folder, privacy)),
        dataset=recipe.get("dataset") or recipe.get("data"),
        model=recipe.get("strategy") or recipe.get("model") or scores.get("model"),
        population=result.get("clients")
        or recipe.get("population")
        or (claim.more.get("sampler") or {}).get("population"),
        finished=finished,
        steps=claim.more.get("steps") or claim.more.get("rounds") or (history[-1].step if history else None),
        clipping=str(claim.clipping["kind"]) if claim.clipping else None,
        history=history,
        loss=_number(result.get("validation_loss", last(history, "loss") or scores.get("log_loss"))),
        accuracy=_number(result.get("validation_accuracy", last(history, "accuracy") or scores.get("accuracy"))),
        scores=next((one.scores for one in reversed(history) if one.scores), ()) or _scores(scores),
        attacks=attacks(audited),
        reconstructions=reconstructions(_object(folder / INVERSION) or audited),
        release=release(_object(folder / RELEASE)),
        answers=released,
        leakage=_leakage(claim),
        leakage_limit=_number(claim.more.get("leakage_limit")),
        fairness=fairness(_object(folder / FAIRNESS) or next(iter(result.get("fairness", {}).values()), {})),
        network=network(folder, claim, recipe, result),
        caveats=_caveats(claim) if finished else (_UNFINISHED,),
        command=_command(kind, recipe),
        versions=tuple((claim.versions or audited.get("versions", {})).items()),
        card=_card(folder) if privacy is not None else (),
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


def _kind(privacy: PrivacyClaim | None, recipe: dict[str, Any], history: tuple[Moment, ...]) -> str:
    if (privacy is not None and privacy.placement is not None) or "strategy" in recipe:
        return "federate"
    return "train" if privacy is not None or recipe or history else "audit"


def _claim(privacy: PrivacyClaim | None, found: Verification) -> Claim:
    if privacy is None:
        return Claim()
    return Claim(
        private=privacy.private,
        epsilon=_number(privacy.epsilon),
        delta=_number(privacy.delta),
        unit=str(privacy.unit or "record"),
        adjacency=None if privacy.adjacency is None else str(privacy.adjacency),
        trust=str(privacy.trust or privacy.placement or "central"),
        sound=privacy.sound,
        accountant=privacy.accountant,
        noise_multiplier=_number(privacy.noise_multiplier),
        releasable=privacy.releasable,
        statement=privacy.statement,
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


def _history(path: Path, privacy: PrivacyClaim) -> tuple[Moment, ...]:
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
    first = _number((privacy.clipping or {}).get("threshold"))
    spends = any(moment.epsilon is not None for moment in moments.values())
    if privacy.private and 0 not in moments and (first is not None or spends):
        moments[0] = Moment(0, epsilon=0.0 if spends else None, threshold=first)
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
        scores=_scores(scores),
    )


def _scores(found: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    """Every number in ``found`` by its name."""
    numbers = {name: _number(value) for name, value in found.items() if isinstance(value, (int, float))}
    return tuple((name, value) for name, value in numbers.items() if value is not None)


def _leakage(privacy: PrivacyClaim) -> tuple[float, ...]:
    return tuple(float(value) for value in privacy.more.get("leakage_per_client") or ())


def _caveats(privacy: PrivacyClaim) -> tuple[str, ...]:
    """The run's own, and for metric privacy what its figure leaves open."""
    return privacy.caveats + _METRIC if privacy.placement == "metric" else privacy.caveats


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
        if name not in (subject, "options", "data_seed") and value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [f"{value}"])]
    if recipe.get("features") == "scattering" and not recipe.get("whitened"):
        words.append("--no-whitened")  # as runs before there was a choice
    return shlex.join(words)


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; empty if there is no such file, refused if anything else is there."""
    return read_json(path) if os.path.lexists(path) else {}


# The answers that a release of statistics wrote.


def released_answers(found: dict[str, Any]) -> tuple[ReleasedAnswer, ...]:
    """The answers of an ``answers.json``: `sordina.statistics.release.release_record`; none if there is none.

    Args:
        found: What the file says.
    """
    try:
        return tuple(_answer(one) for one in found["answers"]) if found else ()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"answers.json does not read as a release ({type(error).__name__}).") from error


def _answer(one: dict[str, Any]) -> ReleasedAnswer:
    return ReleasedAnswer(
        question=str(one["query"]),
        cells=tuple(_cell(cell) for cell in one["answers"]),
        confidence=_finite(one["confidence"]),
        epsilon=_finite(one["epsilon"]),
        delta=_finite(one["delta"]),
        notes=tuple(str(note) for note in one["notes"]),
        releasable=one["releasable"] is True,
    )


def _cell(cell: dict[str, Any]) -> ReleasedCell:
    group, pair = cell["group"], cell["interval"]
    labels = () if group is None else tuple(map(str, group)) if isinstance(group, list) else (str(group),)
    low, high = (None, None) if pair is None else map(_finite, pair)
    return ReleasedCell(labels, _finite(cell["value"]), low, high)


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("not a number")
    return float(value)
