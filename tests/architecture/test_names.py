"""Names: one class name means one thing in the whole package, and no file is too long to be read."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import sordina

SOURCE = Path(sordina.__file__).parent
LONGEST = 600


def class_names(folder: Path) -> dict[str, list[str]]:
    """Where each class of the top level of a module is defined."""
    found = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(folder)))
    return found


def test_a_class_name_means_one_thing():
    twice = {name: places for name, places in class_names(SOURCE).items() if len(places) > 1}
    assert not twice, f"one name, several meanings: {twice}"


def test_two_classes_of_one_name_are_seen(tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("class Plan: ...\n")
    assert class_names(tmp_path)["Plan"] == ["a.py", "b.py"]


def test_no_file_is_too_long():
    sizes = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    long = {name: size for name, size in sizes.items() if size > LONGEST}
    assert not long, f"split what is not read together: {long}"
