"""`sordina ledger`, as a user types it: reserve and settle by epsilon, fits, ages and lives, release by age, CSV."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import socket
import sys
from datetime import timedelta

import pytest
import typer

from sordina.accounting import Gaussian, PureDP
from sordina.accounting.ledger import Ledger
from sordina.accounting.ledger import ledger as ledgers
from sordina.accounting.ledger.state import Spend
from sordina.cli import main as cli


@pytest.fixture(scope="module", autouse=True)
def _built_once():
    """Typer builds its commands anew for every call, which takes longer than most answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "app", typer.main.get_command(cli.app))
        yield


@pytest.fixture
def type_(tmp_path, monkeypatch, capsys):
    """What ``sordina ledger ...`` gives: exit code, standard output, standard error. The data set is "people"."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SORDINA_LEDGER", raising=False)

    def run(words):
        monkeypatch.setattr(sys, "argv", ["sordina", "ledger", *shlex.split(words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        return ended.value.code or 0, told.out, told.err

    assert run("create people --epsilon 3 --delta 1e-5")[0] == 0
    return run


def facts(type_, words):
    code, out, err = type_(f"{words} --json")
    assert code == 0, err
    return json.loads(out)


def book():
    return Ledger("sordina-ledger.db")


def test_reserve_and_settle_by_epsilon(type_):
    code, out, err = type_('reserve people --what "run 7" --epsilon 1 --delta 1e-6')
    assert code == 0, err
    made = facts(type_, "reserve people --epsilon 1")
    assert made == {"id": made["id"], "dataset": "people", "what": "reserved by hand"}
    assert f"settle {made['id'] - 1}" in out
    assert 2 <= book().spent("people") <= 2.01
    entry = facts(type_, f"settle {made['id']} --epsilon 0.5")
    assert (entry["reservation"], entry["event"]["kind"]) == (made["id"], "PureDP")
    assert 1.5 <= book().spent("people") <= 1.51
    code, out, _ = type_(f"settle {made['id'] - 1}")
    assert code == 0
    assert "run 7" in out
    (terms,) = facts(type_, "show")["datasets"]
    assert (terms["settled"], terms["released"], terms["open"]) == (2, 0, [])


def test_settling_above_the_reservation_is_told(type_):
    number = facts(type_, "reserve people --what r --epsilon 0.5")["id"]
    code, out, _ = type_(f"settle {number} --epsilon 1")
    assert code == 0
    assert "Beware" in out
    assert book().spent("people") >= 1


def test_what_does_not_fit_is_refused_with_exit_code_3(type_):
    code, _, err = type_("reserve people --what big --epsilon 3.5")
    assert (code, len(err.splitlines())) == (3, 1)
    assert book().spent("people") == 0


def test_fits_says_why(type_):
    """One training of epsilon 1.5 spent: "1.5 remain", and another one of 1.8 fits all the same."""
    spent = Ledger("sordina-ledger.db").dataset("people")
    noise = next(nu / 100 for nu in range(100, 2000) if spent.epsilon(Gaussian(nu / 100)) <= 1.5)
    type_(f"reserve people --what first --noise-multiplier {noise}")
    code, out, err = type_("fits people --epsilon 1.8")
    assert code == 0, err
    training, anything = out.splitlines()
    assert "fits" in training
    assert "does not fit" in anything
    found = facts(type_, "fits people --epsilon 1.8")
    assert found["fits"]
    assert found["together"] <= 3 < found["spent"] + found["alone"]
    assert not found["anything"]["fits"]
    assert "compos" in found["why"]
    assert len(book().history("people")) == 2, "asking reserves nothing"


@pytest.mark.parametrize("words", ["--epsilon 3.2", "--noise-multiplier 1 --steps 5", "--event '%s'"])
def test_fits_gives_exit_code_3_for_what_does_not(type_, words):
    if "%s" in words:
        words = words % json.dumps({"kind": "PureDP", "epsilon": 4.0})
    code, out, err = type_(f"fits people {words} --json")
    assert code == 3, err
    assert json.loads(out)["fits"] is False


def test_show_tells_age_and_life_of_open_reservations(type_, monkeypatch):
    type_("reserve people --what typed --epsilon 0.5")
    book().reserve("people", PureDP(0.5), what="living")
    monkeypatch.setattr(ledgers, "this_process", lambda: f"{socket.gethostname()}/999999999/1")
    book().reserve("people", PureDP(0.5), what="dead")
    (terms,) = facts(type_, "show people")["datasets"]
    assert [(one["what"], one["run"], one["epsilon"]) for one in terms["open"]] == [
        ("typed", "unknown", 0.5), ("living", "running", 0.5), ("dead", "ended", 0.5),
    ]  # fmt: skip
    assert all(0 <= one["age_seconds"] < 60 for one in terms["open"])
    assert {"who", "time", "id"} <= terms["open"][0].keys()
    code, out, _ = type_("show")
    assert code == 0
    for word in ("typed", "living", "dead", "running", "ended", "unknown", "age", "open reservations"):
        assert word in out
    make_older(monkeypatch)
    assert "8 d" in type_("show")[1]


def make_older(monkeypatch):
    told = Spend.age.fget
    monkeypatch.setattr(Spend, "age", property(lambda spend: told(spend) + timedelta(days=8)))


def test_release_by_age_keeps_the_young_and_the_living(type_, monkeypatch):
    number = facts(type_, "reserve people --what typed --epsilon 0.5")["id"]
    book().reserve("people", PureDP(0.5), what="living")
    code, out, _ = type_('release --older-than 7d --reason "never started"')
    assert (code, out.count("released")) == (0, 0)
    make_older(monkeypatch)
    found = facts(type_, 'release --older-than 7d --reason "never started"')
    assert [entry["reservation"] for entry in found["released"]] == [number]
    assert found["released"][0]["note"] == "never started"
    assert found["still_running"] == [number + 1]
    assert 0.5 <= book().spent("people") < 0.501
    code, out, _ = type_("release --older-than 7d --reason again")
    assert "its run is alive" in out


def test_release_by_age_of_one_data_set(type_, monkeypatch):
    type_("create others --epsilon 3 --delta 1e-5")
    for name in ("people", "others"):
        type_(f"reserve {name} --what x --epsilon 0.5")
    make_older(monkeypatch)
    found = facts(type_, "release --older-than 36h --dataset others --reason gone")
    assert [entry["dataset"] for entry in found["released"]] == ["others"]
    assert book().spent("people") >= 0.5


def test_release_by_number(type_):
    number = facts(type_, "reserve people --what x --epsilon 0.5")["id"]
    entry = facts(type_, f"release {number} --why 'it never ran'")
    assert (entry["reservation"], entry["note"]) == (number, "it never ran")
    assert book().spent("people") == 0


def test_export_is_csv_that_no_spreadsheet_runs(type_, tmp_path):
    type_("reserve people --what '=cmd(1)' --epsilon 1 --who 'a,\"b\"'")
    code, out, err = type_("export people")
    assert code == 0, err
    create, reserve = csv.DictReader(io.StringIO(out))
    assert (create["kind"], create["epsilon"], create["delta"]) == ("create", "3.0", "1e-05")
    assert (reserve["what"], reserve["who"]) == ("'=cmd(1)", 'a,"b"')
    assert json.loads(reserve["event"])["epsilon"] == 1
    code, out, _ = type_("export --out history.csv")
    assert (code, "2 entries" in out) == (0, True)
    code, out, _ = type_("export --json")
    assert (code, [entry["kind"] for entry in json.loads(out)["entries"]]) == (0, ["create", "reserve"])
    code, out, _ = type_("export --out again.csv --json")
    assert (code, json.loads(out)["count"]) == (0, 2)
    assert (tmp_path / "history.csv").read_bytes().count(b"\r\n") == 3
    assert (tmp_path / "history.csv").stat().st_mode & 0o077 == 0


BAD = (
    "reserve people --what x", "reserve nobody --what x --epsilon 1",
    "reserve people --what x --epsilon nan", "reserve people --what x --epsilon=-1",
    "reserve people --what x --epsilon 1 --delta nan", "reserve people --what x --epsilon 1 --delta=-1",
    "reserve people --what x --epsilon 1 --delta 2", "reserve people --what x --delta 1e-6",
    "reserve people --what x --epsilon 1 --noise-multiplier 1", "reserve people --what x --steps 5",
    "reserve people --what x --noise-multiplier nan", "reserve people --what x --noise-multiplier 1 --steps=-1",
    "reserve people --what x --noise-multiplier 1 --sample-rate 2", "reserve people --what x --event '{'",
    "reserve people --what x --event '[]'", "reserve people --what x --event '{\"kind\": \"magic\"}'",
    "reserve people --what x --epsilon 1 --unit user", "reserve people --what '' --epsilon 1",
    "settle 99", "settle 1", "settle x", "settle 2 --epsilon nan", "settle 2 --epsilon=-1", "settle 2 --delta 1e-6",
    "settle 99999999999999999999999", "fits people", "fits nobody --epsilon 1", "fits people --epsilon nan",
    "fits people --epsilon=-1", "fits people --epsilon 1 --delta nan", "fits people --event x", "show nobody",
    "release", "release 2", "release 99 --why x", "release 2 --why ''", "release 2 --older-than 7d --why x",
    "release --older-than 7d", "release --older-than 7 --why x", "release --older-than=-7d --why x",
    "release --older-than 9999999999d --why x",
    "release 2 --dataset people --why x", "release --older-than 7d --dataset nobody --why x", "export nobody",
    "export --out folder", "export --out nowhere/history.csv", "export --out pipe", "history nobody",
)  # fmt: skip


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line_and_writes_nothing(type_, words, tmp_path):
    type_("reserve people --what x --epsilon 0.5")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = book().verify().hash
    code, _, err = type_(words)
    assert (code, len(err.strip().splitlines())) == (2, 1), err
    assert "SORDINA_DEBUG" not in err
    assert book().verify().hash == before
