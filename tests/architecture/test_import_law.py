"""The import law of ARCHITECTURE.md: a room imports only rooms below it, and never its neighbours."""

from __future__ import annotations

import ast
from pathlib import Path

import sordina

SOURCE = Path(sordina.__file__).parent
WORDS = {"privacy", "errors", "random", "_memory", "queries", "__init__"}
WORDS |= {
    "privacy_claim",
    "progress",
    "_renamed",
    "_stacked_models",
    "_arguments",
    "private_files",
    "journal",
    "run_folder",
}
FLOORS = [
    {"mechanisms", "accounting", "sampling", "gradients", "clipping"},
    {"plan", "private_step"},
    {"datasets", "models"},
    {"training"},
    {"tables", "estimators", "tuning", "federated", "auditing", "fairness", "statistics", "integrations"},
    {"reports"},
    {"reproduction"},
    {"cli"},
]
SAME_FLOOR_ALLOWED = {
    ("sampling", "accounting"),
    ("private_step", "plan"),
    ("mechanisms", "accounting"),
    ("federated", "fairness"),
    ("auditing", "federated"),
    ("estimators", "tables"),
    ("estimators", "fairness"),
    ("auditing", "estimators"),
    ("federated", "tables"),
    ("integrations", "tables"),
    ("statistics", "tables"),
    ("auditing", "statistics"),
    ("auditing", "tables"),
    ("federated", "statistics"),
    ("federated", "tables"),
    ("integrations", "tables"),
}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def floor(room: str) -> int:
    return next(level for level, rooms in enumerate(FLOORS) if room in rooms)


def imports(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import; name the room in full"
            names = [node.module]
            if node.module == "sordina":
                names = [f"sordina.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("sordina.")}
    return rooms


def verdict(room: str, other: str) -> bool:
    """Whether ``room`` may import ``other``."""
    if other in WORDS or other == room or other.startswith("__") or other[0].isupper():
        return True
    return floor(other) < floor(room) or (room, other) in SAME_FLOOR_ALLOWED


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if room_of(path) not in WORDS | {"__main__"}]


def test_a_room_imports_only_what_stands_below_it():
    broken = []
    for path in FILES:
        forbidden = {other for other in imports(path) if not verdict(room_of(path), other)}
        if forbidden:
            broken.append(f"{path.relative_to(SOURCE)} must not import {sorted(forbidden)}")
    assert not broken, "\n".join(broken)


def test_the_words_import_no_room():
    for word in WORDS - {"__init__"}:
        files = [SOURCE / f"{word}.py"] if (SOURCE / f"{word}.py").exists() else (SOURCE / word).glob("*.py")
        assert set().union(*map(imports, files)) <= WORDS


def test_every_room_stands_on_a_floor():
    rooms = {room_of(path) for path in SOURCE.rglob("*.py")} - {"__main__"}
    assert rooms - WORDS == set().union(*FLOORS)


def drawing() -> str:
    """The law as ARCHITECTURE.md draws it: floors from the bottom up, without what is not public."""
    floors = [sorted(room for room in rooms if not room.startswith("_")) for rooms in FLOORS]
    drawn = [f"{{{', '.join(rooms)}}}" if len(rooms) > 1 else rooms[0] for rooms in floors]
    return " <- ".join(["words", *drawn])


def test_the_drawing_in_the_architecture_is_this_list():
    page = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()
    assert drawing() in " ".join(page.split()), f"ARCHITECTURE.md should draw: {drawing()}"


def test_the_law_has_teeth():
    assert not verdict("clipping", "gradients")
    assert not verdict("accounting", "cli")
    assert verdict("cli", "accounting")
