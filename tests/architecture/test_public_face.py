"""Every public room is reached from `import sordina as sd`, which loads nothing heavy."""

from __future__ import annotations

import inspect
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


def test_rooms_export_their_names_and_load_nothing_heavy_before_they_are_used():
    script = (
        "import sys, sordina as sd; names = [dir(room) for room in (sd.federated, sd.auditing, sd.reports)]; "
        "print([name for name in ('torch', 'scipy', 'flwr', 'matplotlib') if name in sys.modules], len(names))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.startswith("[] "), done.stdout + done.stderr
    for room in (sd.federated, sd.auditing, sd.reports):
        assert sorted(room.__all__) == dir(room)
        for name in room.__all__:
            assert getattr(room, name) is not None


def test_public_names_document_their_arguments():
    """Functions, and everything a person builds a federation of; fields of results are told one by one beside them."""
    rooms = (sd.federated, sd.auditing, sd.reports)
    public = {f"{room.__name__}.{name}": getattr(room, name) for room in rooms for name in room.__all__}
    chosen = {name: one for name, one in public.items() if inspect.isfunction(one) or "federated" in name}
    chosen |= {name: getattr(sd, name) for name in ("audit", "report")}
    for name, one in chosen.items():
        if getattr(one, "_is_protocol", False):
            continue
        told = " ".join(kind.__doc__ or "" for kind in getattr(one, "__mro__", [one]))
        taken = [argument for argument in inspect.signature(one).parameters if not argument.startswith("_")]
        missing = [argument for argument in taken if f"{argument}:" not in told and f"``{argument}``" not in told]
        assert not missing, f"{name} does not say what {missing} are"
