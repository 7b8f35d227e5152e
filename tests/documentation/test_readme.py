"""Every Python snippet of the README runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(SNIPPETS[number], f"README snippet {number}", "exec"), {})


def test_there_are_snippets():
    assert len(SNIPPETS) >= 2
