"""Every public name says what its arguments are: under ``Args:``, in the sentences above, or under the field itself."""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import re
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import sordina as sd

PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def public() -> Iterator[tuple[str, Any]]:
    """Everything callable that `sordina` and its rooms list."""
    for name in dir(sd):
        thing = getattr(sd, name)
        if isinstance(thing, types.ModuleType):
            yield from ((f"{name}.{inner}", getattr(thing, inner)) for inner in getattr(thing, "__all__", ()))
        else:
            yield name, thing


def fields_described(kind: type) -> set[str]:
    """Fields with a sentence of their own: a string below them, or a comment beside them."""
    described = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("sordina"):
            continue
        lines = textwrap.dedent(inspect.getsource(base))
        body = ast.parse(lines).body[0].body  # type: ignore[attr-defined]
        for field, after in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                described.add(ast.unparse(field.target))
        described |= set(re.findall(r"^    (\w+):.*  # ", lines, re.M))
        described |= set(re.findall(r"\w+", base.__doc__ or ""))
    return described


def undocumented(thing: Any) -> list[str]:
    """The parameters of ``thing`` that nothing speaks of."""
    if inspect.isclass(thing) and (issubclass(thing, (enum.Enum, Exception)) or getattr(thing, "_is_protocol", False)):
        return []
    if not callable(thing) or not getattr(thing, "__module__", "").startswith("sordina"):
        return []
    names = [
        p.name for p in inspect.signature(thing).parameters.values() if p.kind in PLAIN and not p.name.startswith("_")
    ]
    said = set(re.findall(r"\w+", inspect.getdoc(thing) or ""))
    if inspect.isclass(thing):
        said |= fields_described(thing) | set(re.findall(r"\w+", inspect.getdoc(thing.__init__) or ""))
    return [name for name in names if name not in said and name not in ("self", "cls")]


def test_every_public_name_documents_its_arguments():
    silent = {name: missing for name, thing in public() if (missing := undocumented(thing))}
    assert not silent, "\n".join(f"{name}: {', '.join(missing)}" for name, missing in sorted(silent.items()))


def test_an_argument_nobody_mentions_is_seen():
    def stated(noise: float) -> float:
        """Nothing is said of it."""
        return noise

    stated.__module__ = "sordina.invented"
    assert undocumented(stated) == ["noise"]
