"""Options that several commands share, and the former names of options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import typer
from typer.core import TyperCommand

from sordina.errors import InvalidInput

if TYPE_CHECKING:
    from sordina.accounting.ledger import Ledger


# The two options that book a run, ``--ledger`` and ``--dataset-budget``, checked in one place before anything runs.


def booked_on(ledger: str | None, dataset_budget: str | None) -> Ledger | None:
    """The ledger a run is booked on, open and holding the data set; None if neither option is given.

    Args:
        ledger: What ``--ledger``, or ``SORDINA_LEDGER`` in its place, says.
        dataset_budget: What ``--dataset-budget`` says.

    Raises:
        InvalidInput: One option without the other, a ledger that is not there, or one without that data set. A run
            that its user believes to be booked must never run unbooked.
    """
    if ledger is None and dataset_budget is None:
        return None
    if dataset_budget is None:
        raise InvalidInput(
            "--ledger (or SORDINA_LEDGER) says where to book, but not what: add --dataset-budget NAME, or leave the "
            "ledger out (unset SORDINA_LEDGER) to train without booking."
        )
    if ledger is None:
        raise InvalidInput("--dataset-budget needs the ledger it is in: add --ledger FILE, or set SORDINA_LEDGER.")
    from sordina.accounting.ledger import Ledger

    book = Ledger(ledger)
    book.dataset(dataset_budget)
    return book


# Options that were renamed: the former ones work for two minor releases and say what they are called now.

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
