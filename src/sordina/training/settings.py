"""What decides what a run does and claims, as plain data: two runs with the same settings are the same run.

Names and shapes of the data are among them, their values never are: a hash of them would be a release.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
from torch import Tensor

from sordina.training.private import Private

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def settings_of(private: Private) -> dict[str, Any]:
    """The settings of ``private``.

    Args:
        private: The run, not begun yet.
    """
    plan, users = private.plan, private.users
    groups = private.optimizer.param_groups
    return {
        "epsilon": plan.budget.epsilon,
        "delta": plan.budget.delta,
        "steps": plan.steps,
        "noise_multiplier": plan.noise_multiplier,
        "sampler": described(plan.sampler),
        "unit": str(plan.unit),
        "accountant": plan.accountant,
        "clipping": [[list(part.names), described(part.policy)] for part in private.private_step.parts],
        "learning_rate": described(private.rule),
        "optimizer": [type(private.optimizer).__name__, *(_options(group) for group in groups)],
        "model": [
            type(private.model).__name__,
            *([name, list(value.shape), str(value.dtype)] for name, value in private.model.named_parameters()),
        ],
        "trained": [name for name, value in private.model.named_parameters() if value.requires_grad],
        "data": [private.rows.size, *_columns(private.rows.source)],
        "users": None if users is None else [len(users), users.rows_per_user],
        "microbatch": private.microbatch,
        "noise": "secret" if private.releasable else hashlib.sha256(repr(_state(private)).encode()).hexdigest(),
        "raw": private.raw is not None,
    }


def described(value: Any) -> Any:
    """``value`` as plain data that is the same in every process.

    >>> described({"f": described, "n": 1.5})
    {'f': 'sordina.training.settings.described', 'n': 1.5}

    Args:
        value: A number, a text, a function, a data class, or a collection of such.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, (Tensor, np.ndarray)):
        content = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
        return [list(content.shape), str(content.dtype), hashlib.sha256(content.tobytes()).hexdigest()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: described(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): described(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [described(one) for one in value]
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return _ADDRESS.sub("", repr(value))


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: described(value) for key, value in group.items() if key != "params"}


def _columns(source: Any) -> list[Any]:
    tensors = source if isinstance(source, tuple) else ()
    return [[list(tensor.shape[1:]), str(tensor.dtype)] for tensor in tensors]


def _state(private: Private) -> Any:
    """Of a seeded generator: whoever has it can repeat the run, which is not for release anyway."""
    return described(private.rng.bit_generator.state)
