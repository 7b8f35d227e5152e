"""Every public room is reached from `import sordina as sd`, which loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import sordina as sd


def test_everything_public_is_reached():
    for name in dir(sd):
        assert getattr(sd, name) is not None


def test_the_version_is_the_package_s():
    from importlib.metadata import version

    assert sd.__version__ == version("sordina")


def test_import_is_light():
    heavy = ("torch", "scipy", "sqlalchemy", "flwr")
    script = f"import sys, sordina; dir(sordina); print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"
