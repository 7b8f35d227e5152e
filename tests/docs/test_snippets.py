"""Every snippet of the README and of the documentation runs, page by page, in the order of the page.

A ``python`` block shares the names of the blocks before it. Every line of a ``bash`` block that calls ``sordina`` runs.
A comment before the block says what is special: ``<!-- exit 3 -->``, or ``<!-- not run: why -->``.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sordina.cli.main import main
from sordina.estimators import forget_unbooked

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^>]*) -->\n)?^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Snippet:
    kind: str
    text: str
    exit: int = 0


def snippets(page):
    found = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        mark = block["mark"] or ""
        if mark.startswith("not run: "):
            continue
        found.append(Snippet(block["kind"], block["text"], int(mark.removeprefix("exit ") or 0)))
    return found


def commands(text):
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True)) and words[0] == "sordina"]


def run(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


TO_RUN = [page for page in PAGES if any(one.kind in ("python", "bash") for one in snippets(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", TO_RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SORDINA_DATA", raising=False)
    monkeypatch.delenv("SORDINA_LEDGER", raising=False)
    forget_unbooked()  # fits of other tests in this process are no fits of the page's reader
    names = {"__name__": "__main__"}
    for number, one in enumerate(snippets(page)):
        if one.kind == "python":
            exec(compile(one.text, f"{page.name}, snippet {number}", "exec"), names)
        elif one.kind == "bash":
            for words in commands(one.text):
                assert run(words, monkeypatch) == one.exit, shlex.join(words)


def test_the_front_page_has_something_to_run():
    assert sum(one.kind == "python" for one in snippets(PAGES[0])) >= 2


def test_blocks_say_what_they_are():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("\n```") % 2 == 0, page
        kinds = {block["kind"] for block in BLOCK.finditer(text)}
        assert kinds <= {"python", "bash", "text"}, page
