"""``python -m benchmarks [NAME...]``: run the named benchmarks, or all: every module here that has a ``run``."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks


def main() -> None:
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__"]
    chosen = sys.argv[1:] or names
    for name in chosen:
        if name not in names:
            sys.exit(f"no benchmark {name!r}: choose from {', '.join(names)}")
        module = importlib.import_module(f"benchmarks.{name}")
        if hasattr(module, "run"):
            print(f"\n== {name}: {(module.__doc__ or '').splitlines()[0]}")
            module.run()


if __name__ == "__main__":
    main()
