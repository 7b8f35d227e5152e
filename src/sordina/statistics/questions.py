"""A question written as text: ``mean(age) by ward where sex == 'F'``.

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

from typing import Any

from sordina.errors import InvalidInput
from sordina.statistics.filters import LONGEST, Token, tokens
from sordina.statistics.table import Table, TableQuery

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
