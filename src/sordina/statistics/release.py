"""Releases as a command makes them: questions written as text, and the folder that is left behind.

A question written as text: ``mean(age) by ward where sex == 'F'``.

=====================================  ================================================================
question                               asks
=====================================  ================================================================
``count``, ``count(persons)``          `Table.count`
``sum(x)``, ``mean(x)``                `Table.sum`, `Table.mean`; ``mean(x, sampling)`` with sampling error
``variance(x)``, ``median(x)``         `Table.variance`, `Table.median`
``quantiles(x, 0.25, 0.5)``            `Table.quantiles`
``histogram(x)``, ``histogram(x, 20)`` `Table.histogram`
``crosstab(a, b)``                     `Table.crosstab`
``most_common(x, 10)``                 `Table.most_common`
=====================================  ================================================================

``by COLUMN, ...`` and ``where CONDITION`` may follow, in this order; a column whose name is not made of letters,
digits, ``_``, ``.`` and ``-`` stands between backticks.
"""

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
from sordina.statistics.filters import LONGEST, Token, tokens
from sordina.statistics.statistic import Answer
from sordina.statistics.table import Table, TableQuery

# A question written as text: ``mean(age) by ward where sex == 'F'``.

KINDS = ("count", "sum", "mean", "variance", "median", "quantiles", "histogram", "crosstab", "most_common")
_UNDIVIDED = ("histogram", "crosstab", "most_common")


def ask(table: Table, text: str) -> TableQuery:
    """The question that ``text`` states.

    Args:
        table: Whose rows.
        text: Such as ``"mean(age) by ward where sex == 'F'"``.
    """
    head, where = _divided(text)
    pieces = tokens(head)
    kind = pieces[0].text.lower() if pieces[0].kind == "name" else ""
    if kind not in KINDS:
        raise InvalidInput(f"cannot read the question {text[:200]!r}: it starts with one of {', '.join(KINDS)}.")
    arguments, rest = _arguments(pieces[1:], text)
    by = _columns(rest, text)
    if by and kind in _UNDIVIDED:
        raise InvalidInput(f"{kind} cannot be divided by columns: use count by ..., or crosstab.")
    options: dict[str, Any] = {"where": where}
    if kind not in _UNDIVIDED:
        options["by"] = by or None
    return _asked(table, kind, arguments, options, text)


def _asked(table: Table, kind: str, arguments: list[Token], options: dict[str, Any], text: str) -> TableQuery:
    if kind == "count":
        if [one.text for one in arguments] not in ([], ["persons"]):
            raise InvalidInput(f"cannot read {text[:200]!r}: count takes nothing, or persons.")
        return table.count(persons=bool(arguments), **options)
    if not arguments or arguments[0].kind == "number":
        raise InvalidInput(f"cannot read {text[:200]!r}: {kind} needs a column, as {kind}(COLUMN).")
    column, more = arguments[0].text, arguments[1:]
    if kind == "crosstab":
        return table.crosstab(column, *(one.text for one in more), **options)
    if kind == "quantiles":
        return table.quantiles(column, _numbers(more, text) or (0.25, 0.5, 0.75), **options)
    if kind in ("histogram", "most_common") and len(more) <= 1:
        numbers = _numbers(more, text)
        if any(not one.is_integer() for one in numbers):
            raise InvalidInput(f"cannot read {text[:200]!r}: {kind}(COLUMN, N) needs a whole number.")
        question: TableQuery = getattr(table, kind)(column, *(int(one) for one in numbers), **options)
        return question
    if kind == "mean" and [one.text for one in more] == ["sampling"]:
        return table.mean(column, sampling=True, **options)
    if more:
        raise InvalidInput(f"cannot read {text[:200]!r}: {kind} does not take {more[0].text[:40]!r}.")
    question = getattr(table, kind)(column, **options)
    return question


def _divided(text: Any) -> tuple[str, str | None]:
    """What stands before ``where``, and the condition after it."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput('a question is a text such as "mean(age) by ward".')
    if len(text) > LONGEST:
        raise InvalidInput(f"a question has at most {LONGEST} characters, got {len(text)}.")
    for token in tokens(text):
        if token.is_word("where"):
            return text[: token.place], text[token.place + len("where") :].strip()
    return text, None


def _arguments(pieces: list[Token], text: str) -> tuple[list[Token], list[Token]]:
    """What stands in parentheses, and what follows."""
    if pieces[0].text != "(" or pieces[0].kind != "sign":
        return [], pieces
    found: list[Token] = []
    for place, token in enumerate(pieces[1:], 1):
        comma_due = place % 2 == 0
        if token.kind == "sign" and token.text == ")" and (comma_due or place == 1):
            return found, pieces[place + 1 :]
        if comma_due != (token.kind == "sign" and token.text == ",") or token.kind == "end":
            break
        if not comma_due:
            if token.kind == "sign":
                break
            found.append(token)
    raise InvalidInput(f"cannot read {text[:200]!r}: between the parentheses stand names and numbers, with commas.")


def _columns(pieces: list[Token], text: str) -> list[str]:
    """The columns after ``by``."""
    if pieces[0].kind == "end":
        return []
    names = pieces[1:-1:2]
    commas = pieces[2:-1:2]
    right = (
        pieces[0].is_word("by")
        and len(names) == len(commas) + 1
        and all(one.kind in ("name", "column", "text") for one in names)
        and all(one.text == "," for one in commas)
    )
    if not right:
        raise InvalidInput(
            f"cannot read {text[:200]!r}: after the parentheses, by COLUMN, ... and where CONDITION follow."
        )
    return [one.text for one in names]


def _numbers(pieces: list[Token], text: str) -> list[float]:
    if any(one.kind != "number" for one in pieces):
        raise InvalidInput(f"cannot read {text[:200]!r}: numbers follow the column.")
    return [float(one.text) for one in pieces]


# What a release leaves behind: a folder that a report can show, with the answers and what they cost.


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
