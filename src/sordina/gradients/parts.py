"""The modules and parameters a model consists of, to see cheaply when somebody exchanges, freezes or thaws one."""

from __future__ import annotations

from torch import nn

from sordina.errors import InvalidInput


class Parts:
    """What a model consisted of when an engine began to listen to it."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [
            (module._modules, key, child) for module in model.modules() for key, child in module._modules.items()
        ]
        self._parameters = [
            (module._parameters, key, each, each is not None and each.requires_grad)
            for module in model.modules()
            for key, each in module._parameters.items()
        ]
        tables = [table for module in model.modules() for table in (module._modules, module._parameters)]
        self._sizes = [(table, len(table)) for table in tables]

    def same(self) -> bool:
        """Whether every module and parameter is still the object it was, and as trainable."""
        return (
            all(members.get(key) is child for members, key, child in self._modules)
            and all(
                members.get(key) is each and (each is None or each.requires_grad == free)
                for members, key, each, free in self._parameters
            )
            and all(len(members) == size for members, size in self._sizes)
        )


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def check_same_layout(model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse a model whose trainable parameters are not those of ``shapes``."""
    now = {name: tuple(each.shape) for name, each in trainable(model).items()}
    advice = "Make the optimiser and the engine (or the private object) anew, and count what was spent so far."
    for name in shapes:
        if name not in now:
            raise InvalidInput(f"parameter {name!r} was frozen or taken away while the engine listened. {advice}")
    for name, shape in now.items():
        if name not in shapes:
            raise InvalidInput(f"parameter {name!r} was added or unfrozen while the engine listened. {advice}")
        if shape != shapes[name]:
            raise InvalidInput(f"parameter {name!r} has another shape than when the engine was made. {advice}")
