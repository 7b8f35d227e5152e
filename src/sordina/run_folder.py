"""The one owner of a run's folder: file names, schema, lock, settings, journal, reservation, and the end of a run.

Every kind of run (train, tune, federate) keeps its folder through `RunFolder`:

    with RunFolder.begin(path, "train", settings, resume=resume) as folder:   # locked; settings stored or compared
        reservation = ...                                                      # only now touch a ledger
        folder.keep_reservation(HeldReservation(ledger_id, dataset, number, where))
        folder.journal.claim(step, last)                                       # on the disk before the step is drawn
        folder.write(CHECKPOINT, lambda file: torch.save(state, file))         # whole or not at all, mode 0600
        folder.finish(write_model, facts, settle)                              # model, privacy.json, settle, done

- One process holds a folder. A second one, or a second handle in the same process, is refused (`FolderInUse`, exit code
  2) before it reads anything; the lock is the operating system's and ends with the process.
- ``settings`` (plain data: ALL that matters for what the run does) are on the disk before anything can be reserved or
  drawn. Resuming with others is refused, and the message names the ones that differ.
- ``folder.run_id`` is a random name of the run. Write it into what you reserve: a run killed between the ledger's
  commit and `keep_reservation` then finds its reservation again (`sordina.training.reservations` does all this).
- `finish` may be killed anywhere and called again: a model never stands beside a claim about another one, since
  ``privacy.json`` names the SHA-256 of the model it speaks of (`MODEL_HASH`) and goes before the model changes.
- `close_failed` ends a run that cannot go on and says why.

To look at a folder without holding it: `state_of` (fresh, open, finished, broken, with the reason in one line),
`read_claim` (``privacy.json``, checked against the model beside it). Folders of version 0.1 that are finished can be
read; interrupted ones cannot be resumed, because they did not keep their settings.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from sordina import private_files
from sordina._renamed import current_settings
from sordina.errors import InvalidInput
from sordina.journal import Journal
from sordina.privacy_claim import PrivacyClaim
from sordina.private_files import Content, FolderInUse

RUN, LOCK, JOURNAL, RESERVATION = "run.json", "run.lock", "journal.jsonl", "reservation.json"
CHECKPOINT, MODEL, PRIVACY, METRICS = "checkpoint.pt", "model.pt", "privacy.json", "metrics.jsonl"
RECIPE, RESULT, RESULTS, ABOUT = "recipe.json", "result.json", "results.json", "about.json"
AUDIT, INVERSION, RELEASE, ANSWERS = "audit.json", "inversion.json", "release.json", "answers.json"
SCORES, SPLIT, FAIRNESS = "scores.json", "split.json", "fairness.json"
MODELS, TABLE_MODEL, ADAPTER_MODEL = "models.npz", "model.safetensors", "adapter_model.safetensors"
"""The models of a federation, which may be several; of a table; of a fine-tuned network."""
INNER = "_sordina"
"""The run's own folder inside one that follows the conventions of another library, whose uploads leave out ``_*``."""
MODEL_HASH = "model_sha256"
"""The key of ``privacy.json`` that names the model it speaks of."""
MODEL_FILE = "model_file"
"""The key that names its file, where that is not `MODEL`."""
SCHEMA = 2
"""Of ``run.json``; version 0.1 had none."""
_MARKS = (JOURNAL, PRIVACY, MODEL, MODELS, TABLE_MODEL, CHECKPOINT, RESERVATION, "reservation", RESULT, RESULTS)
_LARGEST = 1 << 26
"""No JSON file of ours is larger."""
_STARTING, _OPEN, _FINISHED, _FAILED = "starting", "open", "finished", "failed"

__all__ = [
    "ABOUT", "ADAPTER_MODEL", "ANSWERS", "AUDIT", "CHECKPOINT", "FAIRNESS", "INNER", "INVERSION", "JOURNAL", "LOCK",
    "METRICS", "MODEL", "MODELS", "MODEL_FILE", "MODEL_HASH", "PRIVACY", "RECIPE", "RELEASE", "RESERVATION",
    "RESULT", "RESULTS", "RUN", "SCORES", "SPLIT", "TABLE_MODEL", "FolderCondition", "FolderInUse", "FolderState",
    "HeldReservation", "RunFolder", "fingerprint", "read_claim", "read_json", "state_of", "write_claim",
]  # fmt: skip


class FolderState(str, Enum):
    """What a folder is good for."""

    FRESH = "fresh"
    OPEN = "open"
    FINISHED = "finished"
    BROKEN = "broken"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class FolderCondition:
    """The state of a folder, and in one line why it cannot be started in or resumed, and what to do."""

    state: FolderState
    why: str = ""


@dataclass(frozen=True)
class HeldReservation:
    """A reservation by identity: its number means nothing in another ledger.

    Args:
        ledger: A name of the ledger that no other ledger has, wherever it is moved (`Ledger.id`).
        dataset: The data set it was reserved on.
        number: Its number in that ledger.
        where: Where the ledger was, for messages only, without any password.
    """

    ledger: str
    dataset: str
    number: int
    where: str = ""


class RunFolder:
    """A run's folder, held by this process until `close`. Made by `begin`."""

    def __init__(self, path: Path, lock: BinaryIO, record: dict[str, Any], journal: Journal) -> None:
        self.path = path
        self.journal = journal
        self._lock = lock
        self._record = record

    @classmethod
    def begin(
        cls, path: str | Path, kind: str, settings: Mapping[str, Any], *, resume: bool = False, resumable: bool = True
    ) -> RunFolder:
        """Hold ``path`` for a new run, or with ``resume`` for the run in it.

        Args:
            path: The folder; made if it is missing.
            kind: "train", "tune", "federate", ...: a folder is resumed by the command that began it.
            settings: All that decides what the run does and claims, as plain data (JSON).
            resume: Continue the run in the folder, whose settings must be the same. A finished one is opened too.
            resumable: Whether a run that is interrupted can be gone on with.
        """
        path, settings = Path(path), _plain(settings)
        if resume and not path.is_dir():
            raise InvalidInput(f"{path} holds no run to resume: there is no such folder.")
        private_files.make_folder(path)
        lock = private_files.exclusive(path / LOCK)
        try:
            return cls._locked(path, kind, settings, lock, resume, resumable)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def _locked(
        cls, path: Path, kind: str, settings: dict[str, Any], lock: BinaryIO, resume: bool, resumable: bool
    ) -> RunFolder:
        condition = state_of(path)
        if condition.state is FolderState.BROKEN:
            raise InvalidInput(condition.why)
        if condition.state is FolderState.FRESH:
            if resume and not (path / RUN).exists():
                raise InvalidInput(f"{path} holds no run to resume: there is no {RUN} in it.")
            return cls._new(path, kind, settings, lock, resumable)
        if not resume:
            raise InvalidInput(
                f"{path} holds a run already. Resume it (resume=True, --resume) or choose another folder."
            )
        record = read_json(path / RUN)
        if record.get("kind") != kind:
            raise InvalidInput(
                f"{path} holds a run of `{record.get('kind')}`, not of `{kind}`. Resume it with the command that began "
                "it."
            )
        _refuse_changes(path, record, settings)
        return cls(path, lock, record, Journal.open(path / JOURNAL))

    @classmethod
    def _new(cls, path: Path, kind: str, settings: dict[str, Any], lock: BinaryIO, resumable: bool) -> RunFolder:
        record = {
            "schema": SCHEMA,
            "kind": kind,
            "state": _STARTING,
            "run_id": secrets.token_hex(8),
            "fingerprint": fingerprint(settings),
            "settings": settings,
            **({} if resumable else {"resumable": False}),
        }
        folder = cls(path, lock, record, Journal(path / JOURNAL))
        folder._save()
        private_files.write(folder.journal.path, b"")
        folder._save(_OPEN)
        return folder

    @property
    def run_id(self) -> str:
        """A random name of this run, public: put it into what is reserved for the run."""
        return str(self._record["run_id"])

    @property
    def finished(self) -> bool:
        """Whether the run has ended: nothing more is drawn or settled."""
        return bool(self._record["state"] == _FINISHED)

    @property
    def reservation(self) -> HeldReservation | None:
        """What the run has reserved, by identity."""
        path = self.path / RESERVATION
        if not path.exists():
            return None
        try:
            return HeldReservation(**read_json(path))
        except TypeError as error:
            raise InvalidInput(f"{path} does not say which reservation the run holds; nothing is settled.") from error

    def keep_reservation(self, held: HeldReservation) -> None:
        """Note which reservation the run holds; a run never changes it.

        Args:
            held: The reservation; compared with the one kept already, if there is one.
        """
        kept = self.reservation
        if kept is None:
            self.write(RESERVATION, _text(asdict(held)))
        elif (kept.ledger, kept.dataset, kept.number) != (held.ledger, held.dataset, held.number):
            raise InvalidInput(
                f"the run in {self.path} holds reservation {kept.number} on {kept.dataset!r} of the ledger "
                f"{kept.where or kept.ledger[:12]}, not {held.number} on {held.dataset!r} of {held.where}. Resume it "
                "with its own ledger and data set."
            )

    def write(self, name: str, content: Content) -> None:
        """Write the file ``name``, whole or not at all.

        Args:
            name: One of the constants of this module, or another plain file name.
            content: Bytes, or a callable that is given an open binary file.
        """
        private_files.write(self.path / name, content)

    def write_json(self, name: str, value: Any) -> None:
        """Write ``value`` as JSON.

        Args:
            name: The file's name.
            value: Plain data.
        """
        self.write(name, _text(value))

    def read(self, name: str) -> bytes:
        """The bytes of the file ``name``; a missing one, or one that is no regular file, is refused."""
        return private_files.read(self.path / name)

    def has(self, name: str) -> bool:
        """Whether there is anything called ``name``."""
        return os.path.lexists(self.path / name)

    def finish(
        self,
        model: Content,
        claim: PrivacyClaim,
        settle: Callable[[], object] | None = None,
        *,
        name: str = MODEL,
    ) -> None:
        """End the run: the model, what is claimed of it, the settlement, and the word that all is done, in this order.

        May be killed at any moment and called again with the same: each part is then found done or done again. So
        ``settle`` must accept a reservation that was settled already with the same event.

        Args:
            model: The bytes of the model, or what writes them.
            claim: What `PRIVACY` says; `MODEL_HASH` is added.
            settle: Settles the reservation, if there is one.
            name: The model's file, `MODEL`, `MODELS` or `TABLE_MODEL`.
        """
        if self.finished:
            return
        private_files.remove(self.path / PRIVACY)
        self.write(name, model)
        named = {} if name == MODEL else {MODEL_FILE: name}
        named = {**named, MODEL_HASH: private_files.sha256(self.path / name)}
        write_claim(self.path, replace(claim, more={**claim.more, **named}))
        if settle is not None:
            settle()
        self.end()

    def end(self) -> None:
        """Say that the run has ended: for one whose outcome is in other files, written before (a comparison)."""
        if not self.finished:
            self._save(_FINISHED)

    def abandon(self) -> None:
        """Take back a run that reserved nothing and drew nothing, so that its folder can be begun in again."""
        if self.journal.claimed or self.reservation is not None or self.finished:
            return
        for name in (RECIPE, JOURNAL, RUN):
            private_files.remove(self.path / name)

    def close_failed(self, why: str) -> None:
        """Say that the run has ended without a model and cannot be resumed.

        Args:
            why: The reason and what to do, in one line.
        """
        self._save(_FAILED, why=why)

    def forget(self) -> None:
        """Take back a begin after which nothing was reserved or drawn, so that the folder is as if never used."""
        try:
            self._save(_STARTING)
            for name in (JOURNAL, RECIPE, RUN):
                private_files.remove(self.path / name)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _save(self, state: str | None = None, **more: Any) -> None:
        record = {**self._record, **more} | ({"state": state} if state else {})
        self.write_json(RUN, record)
        self._record = record


def state_of(path: str | Path) -> FolderCondition:
    """What the folder ``path`` is good for. Only looks.

    Args:
        path: The folder of a run, or one to be.
    """
    path = Path(path)
    if not path.exists() and not path.is_symlink():
        return FolderCondition(FolderState.FRESH)
    if not path.is_dir():
        return FolderCondition(FolderState.BROKEN, f"{path} is not a folder: choose another one.")
    if not (path / RUN).is_symlink() and not (path / RUN).exists():
        return _without_record(path)
    try:
        record = read_json(path / RUN)
        schema, state = int(record["schema"]), str(record["state"])
        if record["fingerprint"] != fingerprint(record["settings"]) or not isinstance(record["run_id"], str):
            raise ValueError("its settings were changed")
    except (InvalidInput, KeyError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, InvalidInput) else f"{path / RUN} is damaged ({error})."
        return FolderCondition(FolderState.BROKEN, _lost(path, reason))
    if schema > SCHEMA:
        return FolderCondition(FolderState.BROKEN, f"{path} was written by a newer version of Sordina: use that one.")
    if state == _STARTING:
        return FolderCondition(FolderState.FRESH)
    if state == _FAILED:
        return FolderCondition(FolderState.BROKEN, str(record.get("why", _lost(path, "its run has failed."))))
    if state == _FINISHED:
        return FolderCondition(FolderState.FINISHED, f"the run in {path} has ended: begin a new one in another folder.")
    if not (path / JOURNAL).is_file():
        return FolderCondition(FolderState.BROKEN, _lost(path, f"its {JOURNAL} is gone."))
    if record.get("resumable") is False:
        return FolderCondition(FolderState.BROKEN, _lost(path, "it was interrupted, and its kind goes in one piece."))
    return FolderCondition(FolderState.OPEN, f"the run in {path} has not ended: resume it (resume=True, --resume).")


def _without_record(path: Path) -> FolderCondition:
    if (path / PRIVACY).exists():
        why = (
            f"{path} holds a finished run of an earlier version, which can be read: begin a new one in another folder."
        )
        return FolderCondition(FolderState.FINISHED, why)
    if any((path / mark).exists() or (path / mark).is_symlink() for mark in _MARKS):
        return FolderCondition(
            FolderState.BROKEN,
            _lost(
                path, f"it holds a run already, one without {RUN}: begun by an earlier version, which kept no settings."
            ),
        )
    return FolderCondition(FolderState.FRESH)


def _lost(path: Path, reason: str) -> str:
    return (
        f"the run in {path} cannot be resumed: {reason.rstrip('.')}. What it reserved counts as spent (`sordina ledger "
        "show`); begin a new run in another folder."
    )


def write_claim(path: str | Path, claim: PrivacyClaim) -> None:
    """Write `PRIVACY` into the folder ``path``: the only place where it is written.

    Args:
        path: The folder.
        claim: What it says.
    """
    private_files.write(Path(path) / PRIVACY, _text(claim.to_dict()))


def read_claim(path: str | Path, *, check_model: bool = True) -> PrivacyClaim:
    """What `PRIVACY` in the folder ``path`` says, if the model beside it is the one it speaks of; else refused.

    Args:
        path: The folder of a finished run. One of version 0.1 names no model and is believed.
        check_model: False reads the claim alone.
    """
    path = Path(path)
    if not (path / PRIVACY).exists() and (path / INNER).is_dir():
        raise InvalidInput(f"the run in {path} has not finished: go on with it (--resume, or resume_from_checkpoint).")
    claim = PrivacyClaim.from_dict(read_json(path / PRIVACY), str(path / PRIVACY))
    told, named = claim.more.get(MODEL_HASH), claim.more.get(MODEL_FILE)
    name = named if named in (MODELS, TABLE_MODEL, ADAPTER_MODEL) else MODEL
    if check_model and told is not None and told != private_files.sha256(path / name):
        raise InvalidInput(
            f"{path / PRIVACY} speaks of another model than {path / name}: its claim does not hold for this one. "
            "Resume the run if it was interrupted; otherwise get the run's own model."
        )
    return claim


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file ``path``; anything else is refused in one line.

    Args:
        path: The file.
    """
    try:
        value = json.loads(private_files.read(path, at_most=_LARGEST))
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is damaged: it is not JSON.") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} is damaged: it holds no JSON object.")
    return value


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A short name of ``settings`` that no other settings have.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1, "b": 3})
    True

    Args:
        settings: Plain data.
    """
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _refuse_changes(path: Path, record: dict[str, Any], settings: dict[str, Any]) -> None:
    if record["fingerprint"] == fingerprint(settings):
        return
    before, settings = current_settings(record["settings"]), current_settings(settings)
    if before == settings:
        return
    changed = [name for name in [*before, *(settings.keys() - before.keys())] if before.get(name) != settings.get(name)]
    told = "; ".join(f"{name} was {before.get(name)!r:.60}, now {settings.get(name)!r:.60}" for name in changed[:4])
    raise InvalidInput(
        f"{path} belongs to another run ({told}). Resume with the options the run was started with, or choose another "
        "folder."
    )


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` as they come back from the disk."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(settings)))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the settings of a run are plain data: {error}.") from error
    return plain


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
