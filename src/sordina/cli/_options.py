"""Options that several commands share, and the former names of options."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import click
import typer
from typer.core import TyperCommand

from sordina.errors import InvalidInput

if TYPE_CHECKING:
    from sordina.accounting.ledger import Ledger

# Groups of options: a command takes them as dataclasses, and its help shows each group under its docstring.


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command some of whose parameters are dataclasses of options; Typer sees the options themselves.

    Args:
        command: A function with parameters as Typer takes them, and dataclasses whose fields are such parameters.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _options_of(groups[parameter.name])
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=kind))

    @functools.wraps(command)
    def call(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        command(**given, **made)

    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(call)["__signature__"] = inspect.Signature(parameters)
    return call


def _options_of(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        plain, option = get_args(hints[field.name])
        option = copy.copy(option)
        option.rich_help_panel = (group.__doc__ or "").split("\n")[0].rstrip(".")
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=Annotated[plain, option]
        )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def stated(options: Any, *names: str) -> list[str]:
    """Which options of a group were given another value than their default, as a user writes them.

    Args:
        options: A group of options.
        names: The fields to look at; all of them if none is named.
    """
    looked_at = [field for field in dataclasses.fields(options) if not names or field.name in names]
    return [f"--{one.name.replace('_', '-')}" for one in looked_at if getattr(options, one.name) != _default(one)]


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
