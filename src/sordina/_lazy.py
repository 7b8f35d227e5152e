"""Public names of a package, each loaded when it is first used: `import sordina` must stay light."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``.

    Args:
        package: The package's name.
        names: Its public names, and the modules they live in; a module of that name is meant itself.
    """

    def find(name: str) -> Any:
        if name in names:
            module = importlib.import_module(names[name])
            return module if names[name] == f"{package}.{name}" else getattr(module, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
