"""Clip groups of parameters separately, each with its own policy, state and noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sordina.clipping.policy import Policy
from sordina.errors import InvalidInput


@dataclass(frozen=True)
class Part:
    """A group of parameters and the policy that bounds it.

    Args:
        names: The parameters of the group.
    """

    names: tuple[str, ...]
    policy: Policy[Any]


def by_module(name: str) -> str:
    """Group a parameter with the others of its module: ``features.0.weight`` belongs to ``features.0``.

    Args:
        name: A parameter's full name.
    """
    return name.rpartition(".")[0]


@dataclass(frozen=True)
class PerLayer:
    """``policy`` on every group of parameters separately.

    With G groups the vectors of one sample, each divided by its bound, have joint norm ``sqrt(G)``; so every group
    gets ``sqrt(G)`` times the noise multiplier (Prop. 1 of 000), and the whole costs what one query does.
    """

    policy: Policy[Any]
    group: Callable[[str], str] = by_module

    def parts(self, names: Sequence[str]) -> tuple[Part, ...]:
        """The groups, in the order in which the model names them."""
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(self.group(name), []).append(name)
        return tuple(Part(tuple(members), self.policy) for members in groups.values())


def arrange(clipping: Policy[Any] | PerLayer, names: Sequence[str]) -> tuple[Part, ...]:
    """The parts of a clipping: one with all ``names``, or the groups of a `PerLayer`."""
    if not names:
        raise InvalidInput("the model has no trainable parameter.")
    if isinstance(clipping, PerLayer):
        return clipping.parts(names)
    return (Part(tuple(names), clipping),)
