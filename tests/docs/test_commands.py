"""Every command says what it does, shows an example that its own parser takes, and can answer in JSON."""

from __future__ import annotations

import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from sordina.cli.main import app


def walk(command, path=("sordina",)):
    if not hasattr(command, "commands"):
        return [(path, command)]
    return [found for name, child in command.commands.items() for found in walk(child, (*path, name))]


COMMANDS = walk(typer.main.get_command(app))
every = pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])


def examples(command):
    return [shlex.split(text) for text in re.findall(r"`(sordina [^`]*)`", command.help or "")]


@every
def test_it_explains_itself(path, command):
    assert command.help
    assert "Example: `sordina " in command.help
    for parameter in command.params:
        if parameter.name != "help":
            assert getattr(parameter, "help", None), f"{' '.join(path)}: no help for {parameter.name}"


@every
def test_its_example_is_one_it_takes(path, command):
    own = [words for words in examples(command) if tuple(words[: len(path)]) == path]
    assert own
    for words in own:
        command.make_context(" ".join(path), words[len(path) :])


@every
def test_it_answers_in_json(path, command):
    assert any("--json" in parameter.opts for parameter in command.params)


def test_they_are_all_walked():
    assert len(COMMANDS) >= 20


def test_the_examples_of_the_ledger_follow_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SORDINA_LEDGER", raising=False)
    known = {path[2]: command for path, command in COMMANDS if path[1] == "ledger"}
    for name in ("create", "show", "reserve", "settle", "history", "verify"):
        said = CliRunner().invoke(app, examples(known[name])[0][1:])
        assert said.exit_code == 0, (name, said.output)
