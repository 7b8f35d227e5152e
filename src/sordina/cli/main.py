"""The `sordina` command: gathers the commands and turns errors into one line and an exit code."""

from __future__ import annotations

import io
import os
import sys

import click
import typer

from sordina import __version__
from sordina._memory import bound_cache, keep_freed
from sordina.cli import (
    account,
    audit,
    audit_releases,
    collect,
    demo,
    federate,
    ledger,
    report,
    tables,
    train,
    tune,
)
from sordina.cli._options import CommandWithFormerOptions
from sordina.cli.output import plain, say
from sordina.errors import SordinaError

app = typer.Typer(
    name="sordina",
    help="Train models on personal data under a privacy budget, and prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(account.app, name="account")
app.add_typer(ledger.app, name="ledger")
audit.app.add_typer(audit_releases.app, name="releases")
app.add_typer(audit.app, name="audit")
app.add_typer(collect.app, name="collect")
app.add_typer(federate.app, name="flower")
app.command()(tables.schema)
app.command(cls=CommandWithFormerOptions)(train.train)
app.command()(tables.predict)
app.command()(report.card)
app.command()(tables.release)
app.command()(report.report)
app.command()(report.compare)
app.command()(demo.demo)
app.command()(tune.tune)
app.command()(demo.reproduce)
app.command(cls=CommandWithFormerOptions)(federate.federate)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        say(f"sordina {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; never shows a traceback unless SORDINA_DEBUG is set."""
    keep_freed()
    bound_cache()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a letter shows its code
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except SordinaError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "sordina"
        _fail(f"{error.format_message()} See `{where} --help`.", error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted.", 130)
    except BrokenPipeError:
        os._exit(0)
    except OSError as error:
        if os.environ.get("SORDINA_DEBUG"):
            raise
        _fail(f"{_about(error)} Give another file or folder, or make room.", 2)
    except Exception as error:
        if os.environ.get("SORDINA_DEBUG"):
            raise
        _fail(f"unexpected {type(error).__name__}: {error} (set SORDINA_DEBUG=1 for the traceback).", 1)


def _fail(message: str, code: int) -> None:
    typer.secho(plain(f"sordina: {' '.join(message.split())}"), err=True, fg=typer.colors.RED)
    sys.exit(code)


def _about(error: OSError) -> str:
    """What the system refused, and for which file."""
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"cannot use {' or '.join(names) or 'a file'}: {error.strerror or type(error).__name__}."
