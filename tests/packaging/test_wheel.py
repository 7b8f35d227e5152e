"""The built wheel, installed by pip elsewhere, is the whole package: data files, command, and the demo's first step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
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
def wheel(tmp_path_factory):
    """The wheel; the build needs setuptools, and no network."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*command, "-w", str(folder), str(source)], capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("sordina-*.whl")
    return found


@pytest.fixture(scope="module")
def unpacked(wheel):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.parent / "site")
    return wheel.parent / "site"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A virtual environment of its own with the wheel in it; what Sordina needs comes from the tests' environment."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    (site,) = home.glob("lib/python*/site-packages")
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "tests.pth").write_text("\n".join(sorted(others)) + "\n")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=_bare())
    assert done.returncode == 0, done.stderr
    return home, site


def _bare() -> dict[str, str]:
    """No path of the sources."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return kept | {"OMP_NUM_THREADS": "1"}


def test_every_file_of_the_package_is_in_the_wheel(unpacked):
    def files(folder: Path) -> set[str]:
        found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path.relative_to(folder).as_posix() for path in found}

    missing = files(ROOT / "src" / "sordina") - files(unpacked / "sordina")
    assert not missing


def test_the_command_is_an_entry_point(unpacked):
    (points,) = unpacked.glob("sordina-*.dist-info/entry_points.txt")
    assert "sordina = sordina.cli.main:main" in points.read_text()


def test_the_installed_command_runs(installed):
    home, _ = installed
    done = subprocess.run(
        [home / "bin" / "sordina", "--version"], capture_output=True, text=True, timeout=120, env=_bare(), cwd=home
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sordina ")


def test_the_first_step_of_the_demo_runs_where_the_wheel_was_installed(installed, tmp_path):
    home, site = installed
    script = tmp_path / "first.py"
    script.write_text(FIRST_STEP)
    done = subprocess.run(
        [home / "bin" / "python", str(script), str(site), str(tmp_path / "run")],
        env=_bare(), capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "privacy.json").exists()
