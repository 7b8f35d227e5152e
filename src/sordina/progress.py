"""How far a long piece of work is: the one meaning of an argument called ``progress``.

A `Progress` is told how much is done, of how much. Work in stages takes `StagedProgress`, which starts a stage by its
name and gives the stage's `Progress`. Where an object can draw a bar of its own (`sordina.Trainer`), ``progress`` may
also be True.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Progress", "StagedProgress", "silent", "silent_stages"]

Progress: TypeAlias = Callable[[int, "int | None"], object]
"""``progress(done, total)``; the total is None where nobody knows it."""
StagedProgress: TypeAlias = Callable[[str], Progress]
"""``progress(stage)`` begins a stage and gives its `Progress`."""


def silent(done: int, total: int | None) -> None:
    """Tell nobody.

    Args:
        done: How much is done.
        total: Of how much.
    """


def silent_stages(stage: str) -> Progress:
    """Tell nobody, in any stage.

    Args:
        stage: What begins.
    """
    return silent
