"""Docstrings as Markdown can show them: examples and plain tables become blocks of code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Docstring, Extension, Object

EXAMPLE = re.compile(r"^(>>> .*(?:\n(?!\s*$).*)*)", re.MULTILINE)
CODE = re.compile(r"^(\w+ = sd\..*(?:\n(?!\s*$).*)*)", re.MULTILINE)
TABLE = re.compile(r"^(=+(?: +=+)+\n(?:.*\n)*?=+(?: +=+)+\n(?:(?:.*\n)*?=+(?: +=+)+)?)", re.MULTILINE)


class Blocks(Extension):
    """Called by mkdocstrings for every object it reads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring, if there is one."""
        if obj.docstring is not None:
            obj.docstring = Docstring(fenced(obj.docstring.value), parent=obj)


def fenced(text: str) -> str:
    r"""``text`` with its examples and tables in fences.

    >>> fenced("Adds.\n\n>>> 1 + 1\n2\n\nMore.")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore.'
    """
    text = CODE.sub(r"```python\n\1\n```", EXAMPLE.sub(r"```pycon\n\1\n```", text))
    return TABLE.sub(r"\n```text\n\1\n```\n", text)
