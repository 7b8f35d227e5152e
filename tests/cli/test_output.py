"""Nothing that a command prints can move a reader's terminal, and there is one place that prints."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import sordina.cli
from sordina.cli.main import main
from sordina.cli.output import plain, say, say_json, say_table

HOSTILE = {
    "markup": "[/bold] [red]x[/red] [/]",
    "escape": "a\x1b[2Jb\x1b]0;owned\x07",
    "new line": "a\nsordina: all is well\r\x08",
    "bidi": "a\u202etxt.exe\u2066",
    "separators": "a\u2028b\u2029c\x85d",
    "surrogate": "a\udcffb",
    "null": "a\x00b",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_printed_is_one_visible_line(text, capsys):
    say(text)
    say(text, alarm=True)
    say_table(["name", text], [[text, "x"]], title=text)
    say_json({"name": text})
    out, err = capsys.readouterr()
    for seen in (out, err):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]", seen)
    assert out.splitlines()[0] == plain(text)
    assert json.loads(out.splitlines()[-1]) == {"name": text}


def test_letters_of_the_world_stay_as_they_are():
    assert plain("Žofie Größe 数据 ε=3") == "Žofie Größe 数据 ε=3"


def test_only_one_file_of_the_command_line_prints():
    folder = Path(sordina.cli.__file__).parent
    printing = re.compile(r"typer\.s?echo\(|(?<!\w)print\(|Console\(\)")
    found = {path.name for path in folder.glob("[!_]*.py") if printing.search(path.read_text())}
    assert found <= {"output.py", "main.py"}


@pytest.fixture
def sordina_(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sordina", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    return run


def test_a_hostile_folder_name_does_not_reach_the_terminal(tmp_path, sordina_):
    for number, name in enumerate(("[bold]\x1b[31mred", "plain")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "validation": {"loss": 0.5 + number}}) + "\n")
    folders = sorted(path for path in tmp_path.iterdir())
    code, out, err = sordina_("compare", *folders)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "[bold]" in out


def test_an_error_about_a_hostile_name_is_one_line(tmp_path, sordina_):
    code, out, err = sordina_("report", tmp_path / "a\x1b[31m\nb")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "\x1b[31m" not in err.replace("\x1b[31msordina", "")
