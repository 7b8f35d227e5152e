"""What MkDocs asks for while it builds: the page of commands, written from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click
import typer

PLACE = "<!-- every command -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands where the page wants them."""
    return markdown.replace(PLACE, "\n".join(commands())) if PLACE in markdown else markdown


def commands() -> Iterator[str]:
    """Markdown about every command: what it does, its example, its arguments and options."""
    from sordina.cli.main import app

    for path, command in walk("sordina", typer.main.get_command(app)):
        yield f"\n## {path}\n\n{inspect.cleandoc(command.help or '')}\n"
        yield "| | | default |\n|---|---|---|"
        group = None
        for parameter in command.params:
            if (panel := getattr(parameter, "rich_help_panel", None)) not in (None, group):
                group = panel
                yield f"| **{group}** | | |"
            yield f"| {_name(parameter)} | {getattr(parameter, 'help', None) or ''} | {_default(parameter)} |"


def walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command below ``command`` with its full name."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, child in command.commands.items():
        yield from walk(f"{path} {name}", child)


def _name(parameter: click.Parameter) -> str:
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name or '').upper().replace('...', '')}`"
    return ", ".join(f"`{name}`" for name in parameter.opts)


def _default(parameter: click.Parameter) -> str:
    value = parameter.default
    if parameter.required or value in (None, False, ()) or callable(value):
        return "required" if parameter.required else ""
    return f"`{getattr(value, 'value', value)}`"
