"""What a release leaves behind: a folder that a report can show, with the answers and what they cost."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import sordina
from sordina import private_files
from sordina.accounting import Composed
from sordina.accounting.events import to_dict as event_to_dict
from sordina.errors import InvalidInput
from sordina.privacy import Guarantee, delta_limit, delta_warning
from sordina.privacy_claim import PrivacyClaim
from sordina.run_folder import ANSWERS, write_claim
from sordina.statistics.answers import Answer
from sordina.statistics.table import Table


def release_record(table: Table, answers: Sequence[Answer]) -> dict[str, Any]:
    """All public facts of one release, as plain data.

    Args:
        table: That was asked.
        answers: What came out, together.
    """
    events = tuple(answer.event for answer in answers)
    claim = table.guarantee(events)
    warning = delta_words(table, claim)
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "answers": [answer.to_dict() for answer in answers],
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "unit": str(claim.unit),
        "adjacency": str(claim.adjacency),
        "model": str(claim.trust),
        "rows_per_person": table.terms.rows_per_person if table.terms.persons else None,
        "statement": f"{claim}. {warning}" if warning else str(claim),
        "event": event_to_dict(Composed(events)),
        "releasable": all(answer.releasable for answer in answers),
    }


def delta_words(table: Table, claim: Guarantee) -> str | None:
    """What to say of the delta of a claim: a warning, or for how many it is meant where their number is not public.

    Args:
        table: Whose rows.
        claim: The claim.
    """
    if table.terms.rows is not None:
        return delta_warning(claim.delta, table.terms.rows, "row")
    return delta_limit(claim.delta, str(claim.unit))


def write_release(folder: str | Path, table: Table, answers: Sequence[Answer]) -> dict[str, Any]:
    """Write the record of a release into ``folder``, which must not hold one yet.

    Args:
        folder: Made if it is missing.
        table: That was asked.
        answers: What came out.
    """
    record = release_record(table, answers)
    folder = check_folder(folder)
    private_files.make_folder(folder)
    guarantee = table.guarantee(tuple(answer.event for answer in answers))
    notes = sorted({note for answer in answers for note in answer.notes})
    claim = PrivacyClaim.of(
        guarantee,
        statement=record["statement"],
        accountant="pld",
        event=record["event"],
        releasable=record["releasable"],
        caveats=(*notes, *filter(None, [delta_words(table, guarantee)])),
        versions={"sordina": sordina.__version__, "python": platform.python_version()},
    )
    private_files.write(folder / ANSWERS, json.dumps(record, indent=1, allow_nan=False).encode())
    write_claim(folder, claim)
    return record


def check_folder(folder: str | Path) -> Path:
    """``folder``, if a release may be written there; asked before anything is spent.

    Args:
        folder: A folder that is empty or missing.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file: give a folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty: give a new folder, so that no release is overwritten.")
    return folder
