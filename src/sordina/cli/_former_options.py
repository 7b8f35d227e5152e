"""Options that were renamed: the former ones work for two minor releases and say what they are called now."""

from __future__ import annotations

from typing import Any

import click
import typer
from typer.core import TyperCommand

FORMER_OPTIONS = {
    "train": {"--lr": "--learning-rate"},
    "federate": {
        "--local-rate": "--learning-rate", "--batch": "--batch-size", "--noise": "--noise-multiplier",
        "--server-rate": "--server-learning-rate", "--inner-rate": "--inner-learning-rate",
    },
    "init": {"--local-rate": "--learning-rate", "--batch": "--batch-size", "--noise": "--noise-multiplier"},
    "inversion": {"--batch": "--batch-size", "--nu": "--noise-multiplier"},
}  # fmt: skip
"""By command: each former option, and the new one."""


class CommandWithFormerOptions(TyperCommand):
    """A command that also understands its `FORMER_OPTIONS`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the new options in the place of former ones, then go on as usual."""
        former: dict[str, str] = FORMER_OPTIONS.get(self.name or "", {})
        current: list[Any] = []
        for word in args:
            option, equals, value = word.partition("=")
            if option in former:
                typer.echo(f"sordina: {option} is now {former[option]}.", err=True)
                word = former[option] + equals + value
            current.append(word)
        return super().parse_args(ctx, current)
