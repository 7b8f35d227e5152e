"""Names: loaded when first used, and former ones of arguments and modules, which work for two minor releases."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar, cast

from sordina.errors import InvalidInput


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


# Former names of arguments and modules: they work for two minor releases, with a warning that says the new name.

_T = TypeVar("_T", bound=Callable[..., Any])
_FIELDS: dict[str, Mapping[str, str]] = {}
"""By the name of a class: its fields' former names, and the new ones."""


def renamed(**names: str) -> Callable[[_T], _T]:
    """Let a function, or a class's constructor, take its former argument names too.

    Of a class, the former attributes are also read, and objects that were pickled with them are restored.

    >>> @renamed(lr="learning_rate")
    ... def step(learning_rate: float = 0.1) -> float:
    ...     return learning_rate
    >>> step(learning_rate=0.5)
    0.5

    Args:
        names: Each former name, and the new one.
    """

    def decorate(target: _T) -> _T:
        where = target.__qualname__
        if not inspect.isclass(target):
            return cast(_T, _translating(target, where, names))
        type.__setattr__(target, "__init__", _translating(target.__init__, where, names))
        for old, new in names.items():
            type.__setattr__(target, old, _former_attribute(where, old, new))
        type.__setattr__(target, "__setstate__", _restore(names))
        _FIELDS[target.__name__] = names
        return target

    return decorate


def current_names(
    given: Mapping[str, Any], where: str, names: Mapping[str, str], stacklevel: int = 3
) -> dict[str, Any]:
    """``given`` under its new names; every former one causes a warning.

    Args:
        given: Arguments by name.
        where: What they are arguments of, for the warning.
        names: Each former name, and the new one.
        stacklevel: Who is warned, as in `warnings.warn`.
    """
    result = dict(given)
    for old, new in names.items():
        if old in result:
            if result[old] is None and new in result:
                del result[old]
                continue
            if new in result:
                raise InvalidInput(f"{where}: {old} is the former name of {new}; give {new} only.")
            warnings.warn(f"{where}: {old} is now {new}.", DeprecationWarning, stacklevel=stacklevel)
            result[new] = result.pop(old)
    return result


def current_fields(kind: type, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``kind`` that a file holds, under their new names and without a warning: a file is not code.

    Args:
        kind: A class with `renamed` fields.
        facts: Its fields, as an earlier version may have stored them.
    """
    names = _FIELDS.get(kind.__name__, {})
    return {names.get(name, name): value for name, value in facts.items()}


_RECIPES = {
    "lr": "learning_rate", "local_rate": "learning_rate", "batch": "batch_size", "noise": "noise_multiplier",
    "server_rate": "server_learning_rate", "inner_rate": "inner_learning_rate",
}  # fmt: skip


def current_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A run's ``recipe.json`` under the present names, for whoever shows it: no recipe had two of them.

    Args:
        recipe: Plain data.
    """
    return {_RECIPES.get(name, name): value for name, value in recipe.items()}


def current_settings(settings: Any) -> Any:
    """Settings that an earlier version stored, with the fields of every described object under their new names.

    A field that is None counts as one that is missing: later versions have more of them.

    Args:
        settings: Plain data; an object is a dictionary that names its ``class`` or ``kind``.
    """
    if isinstance(settings, list):
        return [current_settings(one) for one in settings]
    if not isinstance(settings, dict):
        return settings
    names = _FIELDS.get(str(settings.get("class", settings.get("kind"))), {})
    current = {names.get(name, name): current_settings(value) for name, value in settings.items()}
    if "lr" in current and "learning_rate" in current:
        rate = current.pop("lr")
        current["learning_rate"] = current["learning_rate"] if rate is None else rate
    return {name: value for name, value in current.items() if value is not None or "class" not in current}


def _translating(call: Callable[..., Any], where: str, names: Mapping[str, str]) -> Callable[..., Any]:
    @functools.wraps(call)
    def translating(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **(current_names(kwargs, where, names) if names.keys() & kwargs.keys() else kwargs))

    return translating


def _former_attribute(where: str, old: str, new: str) -> property:
    def read(self: Any) -> Any:
        warnings.warn(f"{where}: {old} is now {new}.", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(read)


def _restore(names: Mapping[str, str]) -> Callable[[Any, dict[str, Any]], None]:
    def restore(self: Any, state: dict[str, Any]) -> None:
        self.__dict__.update({names.get(name, name): value for name, value in state.items()})

    return restore


FORMER_MODULES = {
    "sordina.accounting.account": "sordina.accounting.accountants",
    "sordina.accounting.calibrate": "sordina.accounting.calibration",
    "sordina.accounting.groups": "sordina.accounting.accountants",
    "sordina.accounting.search": "sordina.accounting.calibration",
    "sordina.auditing.inversion": "sordina.auditing.reconstruction",
    "sordina.auditing.inversion.attacks": "sordina.auditing.reconstruction",
    "sordina.auditing.inversion.defences": "sordina.auditing.reconstruction",
    "sordina.auditing.inversion.quality": "sordina.auditing.reconstruction",
    "sordina.auditing.library": "sordina.auditing.canaries",
    "sordina.auditing.membership.calibrated": "sordina.auditing.membership.attacks",
    "sordina.auditing.membership.noisy": "sordina.auditing.membership.attacks",
    "sordina.auditing.planted": "sordina.auditing.self_audit",
    "sordina.auditing.result": "sordina.auditing.findings",
    "sordina.clipping.names": "sordina.clipping",
    "sordina.clipping.schedule": "sordina.clipping.policy",
    "sordina.federated.client_policy": "sordina.federated.flower.client_policy",
    "sordina.federated.data.named": "sordina.federated.data.partition",
    "sordina.federated.data.federation": "sordina.federated.data.partition",
    "sordina.federated.engines.deployment": "sordina.federated.flower.deployment",
    "sordina.federated.engines.engine": "sordina.federated.engines",
    "sordina.federated.engines.fault_injection": "sordina.federated.engines",
    "sordina.federated.engines.in_process": "sordina.federated.engines",
    "sordina.federated.engines.inprocess": "sordina.federated.engines",
    "sordina.federated.keeping": "sordina.federated.run_keeper",
    "sordina.federated.methods": "sordina.federated.algorithms.registry",
    "sordina.federated.partition": "sordina.federated.data.partition",
    "sordina.federated.privacy.account": "sordina.federated.privacy.accounts",
    "sordina.federated.privacy.leakage": "sordina.federated.privacy.accounts",
    "sordina.federated.stopping": "sordina.federated.round",
    "sordina.integrations.model_card": "sordina.integrations.output_folder",
    "sordina.integrations.own_checkpoints": "sordina.integrations.output_folder",
    "sordina.mechanisms.metric_laplace": "sordina.mechanisms.laplace",
    "sordina.models.images": "sordina.models.networks",
    "sordina.models.tables": "sordina.models.networks",
    "sordina.random.rounded_gaussian": "sordina.random.noise",
    "sordina.randomness": "sordina.random",
    "sordina.reports.compare": "sordina.reports.rendering",
    "sordina.reports.odds": "sordina.privacy",
    "sordina.reports.writing": "sordina.reports.rendering",
    "sordina.seam": "sordina.queries",
    "sordina.tables.draft": "sordina.tables.discover",
    "sordina.tables.files": "sordina.tables.readers",
    "sordina.training.own_loop": "sordina.training.trainer",
    "sordina.training.plan": "sordina.plan",
    "sordina.training.private": "sordina.training.loop",
    "sordina.training.rate": "sordina.training.learning_rates",
    "sordina.training.step": "sordina.private_step",
    "sordina.training.wosm": "sordina.training.optimizers",
    "sordina.tuning.scheme": "sordina.tuning.plan",
    "sordina.tuning.strategies": "sordina.tuning.space",
    "sordina.types": "sordina.privacy",
}
"""Modules that documents or apps of earlier versions name, and where their names are now; they go with 0.4."""


class FormerModules:
    """Finds a module by its former name: a module that takes every name from the present one, with a warning."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        return ModuleSpec(name, self, is_package=True) if name in FORMER_MODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        former, now = module.__name__, FORMER_MODULES[module.__name__]

        def read(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {former!r} has no attribute {name!r}")
            value = getattr(importlib.import_module(now), name)
            warnings.warn(f"{former} is now {now}.", DeprecationWarning, stacklevel=2)
            return value

        module.__getattr__ = read  # type: ignore[method-assign]


def find_former_modules() -> None:
    """Let Python find modules by their former names, after everything else was looked for."""
    if not any(type(finder).__qualname__ == FormerModules.__qualname__ for finder in sys.meta_path):
        sys.meta_path.append(FormerModules())
