"""The built wheel, unpacked elsewhere, is the whole package: data files, entry point, and the demo's first step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST_STEP = """
import sys, dataclasses
from pathlib import Path
import sordina
from sordina.cli import _demo
assert Path(sordina.__file__).is_relative_to(sys.argv[1]), sordina.__file__
size = dataclasses.replace(_demo.QUICK, plain_epochs=1)
_demo.train_plain(_demo.plant(size), Path(sys.argv[2]), size, progress=False)
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The wheel's contents; the build needs setuptools, and no network."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*command, "-w", str(folder), str(source)], capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("sordina-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_every_file_of_the_package_is_in_the_wheel(unpacked):
    def files(folder: Path) -> set[str]:
        found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path.relative_to(folder).as_posix() for path in found}

    missing = files(ROOT / "src" / "sordina") - files(unpacked / "sordina")
    assert not missing


def test_the_command_is_an_entry_point(unpacked):
    (points,) = unpacked.glob("sordina-*.dist-info/entry_points.txt")
    assert "sordina = sordina.cli.main:main" in points.read_text()


def test_the_first_step_of_the_demo_runs_from_the_wheel(unpacked, tmp_path):
    script = tmp_path / "first.py"
    script.write_text(FIRST_STEP)
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(unpacked), str(tmp_path / "run")],
        env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "privacy.json").exists()
