"""Groups of options: a command takes dataclasses, and a user types single options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from sordina.cli._options import grouped, stated


@dataclass(frozen=True)
class NoiseOptions:
    """The noise."""

    noise_multiplier: Annotated[float, typer.Option(help="How much.")]
    seeds: Annotated[list[int], typer.Option(help="Of what.")] = field(default_factory=lambda: [1])


@dataclass(frozen=True)
class OtherOptions:
    """The rest."""

    plain: Annotated[bool, typer.Option("--plain", help="Without it.")] = False


def run(*words):
    app = typer.Typer()
    seen = []

    @app.command()
    @grouped
    def command(name: Annotated[str, typer.Argument()], noise: NoiseOptions, other: OtherOptions) -> None:
        """A command."""
        seen.append((name, noise, other))

    return CliRunner().invoke(app, words), seen


def test_options_arrive_in_their_groups():
    done, seen = run("x", "--noise-multiplier", "2", "--plain")
    assert done.exit_code == 0, done.output
    assert seen == [("x", NoiseOptions(2.0), OtherOptions(plain=True))]
    assert stated(seen[0][1]) == ["--noise-multiplier"]
    assert stated(seen[0][1], "seeds") == []
    assert stated(seen[0][2]) == ["--plain"]


def test_what_has_no_default_is_required():
    done, seen = run("x")
    assert done.exit_code == 2
    assert not seen


def test_help_shows_the_groups():
    done, _ = run("--help")
    assert "The noise" in done.output
    assert "The rest" in done.output


def test_an_option_stands_in_one_group():
    with pytest.raises(ValueError, match="duplicate"):

        @grouped
        def command(one: OtherOptions, two: OtherOptions) -> None:
            """Refused."""
