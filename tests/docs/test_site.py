"""The site builds without a warning, and its pages fetch nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"""<(?:script|img|source|iframe)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="needs MkDocs: pip install 'sordina[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_there_and_offline(site):
    written = {page.relative_to(site).with_suffix("") for page in site.rglob("*.html")}
    assert written >= {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    for page in site.rglob("*.html"):
        assert not FETCHED.search(page.read_text(encoding="utf-8")), page


@pytest.mark.slow
def test_the_reference_has_words_from_docstrings(site):
    trainer = (site / "reference" / "training.html").read_text(encoding="utf-8")
    assert "Everything about a private training run but the data" in trainer
    assert "sordina ledger verify" in (site / "reference" / "commands.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_examples_are_shown_as_examples(site):
    for page in (site / "reference").glob("*.html"):
        assert "<blockquote>" not in page.read_text(encoding="utf-8"), page
