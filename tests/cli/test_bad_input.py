"""Bad usage, bad files, a full disk: exit code 2 and one line, at once, whatever the command.

Everything goes through `sordina.cli.main.main`, as a user types it. What waits for ever is stopped by a timer that no
`except Exception` can swallow.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import pickle
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
import typer

from sordina.cli import main as cli

SECONDS = 60
SCHEMA = """
target = "outcome"
[columns.age]
kind = "number"
low = 0
high = 100
[columns.outcome]
kind = "category"
values = ["well", "ill"]
optional = false
"""
TRAIN = "train digits --rows 300 --batch-size 64 --epochs 1 --json --out"
TABLE = "train table.csv --schema table.toml --model logistic --json --out"
TUNE = "tune digits --rows 300 --batch-size 64 --epochs 1 --granularity 1 --workers 1 --json --out"
FEDERATE = "federate synthetic --strategy fedavg --privacy central --rounds 1 --json --out"


class Waited(BaseException):
    """It took too long."""


def sordina(words):
    """Exit code, standard output and standard error of ``sordina words``."""

    def late(*_):
        raise Waited

    out, err, typed = io.StringIO(), io.StringIO(), sys.argv
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    sys.argv = ["sordina", *(shlex.split(words) if isinstance(words, str) else words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = typed
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return ended.value.code or 0, out.getvalue(), err.getvalue()


def refused(words):
    code, _, err = sordina(words)
    assert (code, len(err.strip().splitlines())) == (2, 1), err
    assert err.startswith("sordina: ")
    assert "SORDINA_DEBUG" not in err
    assert "interrupted." not in err
    return err


@pytest.fixture(scope="module", autouse=True)
def _built_once():
    """Typer builds its commands anew for every call, which takes longer than most refusals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "app", typer.main.get_command(cli.app))
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory, _built_once):
    """One small run of every kind, finished."""
    place = tmp_path_factory.mktemp("runs")
    rows = "".join(f"{row % 100},{'ill' if row % 100 > 50 else 'well'}\n" for row in range(200))
    (place / "table.csv").write_text("age,outcome\n" + rows)
    (place / "table.toml").write_text(SCHEMA)
    with _inside(place):
        for words, name in ((TRAIN, "train"), (TABLE, "table"), (TUNE, "tune"), (FEDERATE, "federate")):
            code, _, err = sordina(f"{words} {name}")
            assert code == 0, err
    return place


@contextlib.contextmanager
def _inside(place):
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture
def here(runs, tmp_path, monkeypatch):
    """A folder of one's own, with copies of all runs."""
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SORDINA_LEDGER", raising=False)
    return tmp_path


OPTIONS = {
    "train digits --out fresh": (
        "--seed=-1", "--seed=18446744073709551616", "--epochs 0", "--epochs nan", "--epochs=-1", "--epochs 1e300",
        "--batch-size 0", "--batch-size 9223372036854775808", "--microbatch=-1", "--microbatch 0", "--epsilon nan",
        "--epsilon=-1", "--delta nan", "--delta=-1", "--delta 2", "--learning-rate nan", "--learning-rate=-1",
        "--threshold nan",
        "--threshold=-1", "--rows 0", "--rows=-1", "--rows 99999999", "--random-labels nan", "--sampling x",
        "--clipping x", "--model x", "--resume",
    ),
    "train table.csv --schema table.toml --out fresh": (
        "--seed=-1", "--epsilon nan", "--epsilon=-1", "--delta nan", "--delta=-1", "--test-share nan", "--resume",
    ),
    "tune digits --rows 300 --batch-size 64 --epochs 1 --granularity 1 --workers 1 --out fresh": (
        "--rows=-1", "--rows 0", "--granularity 9223372036854775808", "--granularity 0", "--runs 0",
        "--runs 9223372036854775808", "--seeds 0", "--seeds 9223372036854775808", "--hold-out nan", "--epochs 0",
        "--epochs nan", "--epochs 1e300", "--batch-size 0", "--epsilon nan", "--epsilon=-1", "--delta nan",
        "--delta=-1", "--validate-every 0", "--validate-every=-1", "--selection public --patience 0", "--seed=-1",
        "--workers 0", "--workers=-1", "--selection x", "--method x", "--strategy x", "--model x", "--resume",
    ),
    "federate synthetic --strategy fedavg --privacy central --rounds 2 --out fresh": (
        "--rounds 0", "--rounds=-1", "--rounds 9223372036854775808", "--clients-per-round 0",
        "--clients-per-round 999999999", "--dropout nan", "--dropout 2", "--late nan", "--epsilon nan", "--epsilon=-1",
        "--delta nan", "--delta=-1", "--threshold nan", "--threshold 0", "--learning-rate nan",
        "--server-learning-rate=-1",
        "--batch-size 0", "--epochs 0", "--mu nan", "--mu=-1", "--patience=-1", "--window 0", "--seed=-1",
        "--seed 18446744073709551616", "--inner-learning-rate nan", "--prune nan", "--prune 2", "--aggregate x",
        "--compress x", "--compress top:nan", "--hostile x", "--hostile nan:-1", "--hostile nan:999999", "--engine x",
        "--hypotheses 0", "--hypotheses 9223372036854775808", "--noise-multiplier nan", "--radius x",
        "--radius public:nan",
        "--leakage-limit=-1", "--resume",
    ),
    "federate synthetic --rounds 2 --out fresh": (
        "--noise-multiplier 0", "--noise-multiplier inf", "--radius public:-1", "--leakage-limit nan",
        "--leakage-limit=-1",
    ),
    "federate synthetic --rounds 2 --privacy local --strategy fedavg": ("--epsilon nan", "--epsilon=-1", "--delta nan"),
    "federate synthetic --rounds 2 --privacy record --strategy fedsgd": ("--epsilon nan", "--delta nan"),
    "federate nothing": ("", "--rounds 2"),
    "schema table.csv --target outcome": ("--epsilon nan", "--epsilon=-1", "--epsilon 1 --delta nan"),
    "audit membership train": (
        "--attacks ''", "--attacks ,", "--attacks x", "--rows 0", "--attacks shadow --shadows=-1", "--confidence nan",
        "--confidence 1", "--seed=-1", "--seed 99999999999999999999999999",
    ),
    "audit canaries": (
        "--runs 0", "--runs=-1", "--steps 0", "--rate nan", "--rate 2", "--one-run 0", "--one-run=-1", "--epsilon nan",
        "--epsilon=-1", "--delta nan", "--delta=-1", "--clipping x", "--plant x", "--confidence nan", "--confidence 1",
        "--seed=-1",
    ),
    "audit soundness": ("--audits 0", "--audits=-1", "--canaries 0", "--confidence nan", "--seed=-1"),
    "audit self": ("--repeats 0", "--audits=-1", "--canaries 0", "--seed=-1"),
    "audit inversion digits": (
        "--images 0", "--images=-1", "--images 99999999", "--batch-size 0", "--noise-multiplier nan",
        "--noise-multiplier=-1", "--sigma nan",
        "--clip=-1", "--seed=-1", "--attack x",
    ),
    "audit lm nowhere --members a.txt --non-members b.txt": (
        "--length 0", "--shadows 0", "--neighbours 0", "--confidence nan", "--seed=-1", "--claim 1", "--claim x,y",
        "--epochs 0",
    ),
    "account epsilon --noise-multiplier 1 --delta 1e-5": ("--noise-multiplier nan", "--delta nan", "--steps=-1"),
    "account noise --epsilon 1 --delta 1e-5": ("--epsilon nan", "--epsilon=-1", "--delta nan", "--delta=-1"),
    "account search --epsilon 1 --delta 1e-5 --runs 3": ("--epsilon nan", "--delta nan", "--delta=-1", "--runs 0"),
    "ledger create d --epsilon 1 --delta 1e-5": ("--epsilon nan", "--epsilon=-1", "--epsilon inf", "--delta nan"),
    "flower init app": (
        "--epsilon nan", "--epsilon=-1", "--delta nan", "--clients 0", "--rounds 0", "--noise-multiplier nan",
        "--batch-size 0",
        "--deadline nan", "--radius x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", OPTIONS)
def test_an_option_that_cannot_work(command, runs, monkeypatch):
    monkeypatch.chdir(runs)
    monkeypatch.delenv("SORDINA_LEDGER", raising=False)
    for option in OPTIONS[command]:
        refused(f"{command} {option}")
        assert not (runs / "fresh" / "run.json").exists(), f"{option}: the folder counts as used by a run never begun"
        assert not (runs / "app").exists(), option


WRITERS = {
    "train": TRAIN,
    "train a table": TABLE,
    "tune": TUNE,
    "federate": FEDERATE,
    "demo": "demo --quick --json --out",
    "report": "report train --out",
    "audit": "audit membership train --attacks loss --rows 20 --json --out",
    "flower": "flower init",
    "card": "card train --out",
    "predict": "predict table table.csv --out",
    "schema": "schema table.csv --out",
}
FILES = ("card", "predict", "schema")
"""Commands whose --out is a file, which may be written over."""


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("trap", ["a file", "below a file", "a pipe", "a link to nowhere", "a read-only parent"])
def test_a_place_that_cannot_be_written(command, trap, here, monkeypatch):
    place = Path("trap")
    if trap in ("a file", "below a file"):
        place.write_text("mine")
    elif trap == "a pipe":
        os.mkfifo(place)
    elif trap == "a link to nowhere":
        place.symlink_to("nowhere/at/all")
    if trap == "a file" and command in FILES:
        place = place / "file"
    elif trap == "below a file":
        place = place / "run"
    elif trap == "a read-only parent":  # chmod does not stop root
        place = Path("trap/run")
        make, put = os.mkdir, os.open
        Path("trap").mkdir()

        def refuse(path):
            if "trap" in str(path):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

        monkeypatch.setattr(os, "mkdir", lambda path, *rest, **more: (refuse(path), make(path, *rest, **more)))
        monkeypatch.setattr(
            os,
            "open",
            lambda path, flags, *rest, **more: (
                refuse(path) if flags & os.O_CREAT else None,
                put(path, flags, *rest, **more),
            )[1],
        )
    refused(f"{WRITERS[command]} {place}")
    if trap in ("a file", "below a file"):
        assert Path("trap").read_text() == "mine"


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("code-was-run",)


def _in_place(path, make):
    path.unlink()
    make(path)


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "corrupt": lambda path: path.write_bytes(b"\x00\xff\x01garbage" * 20),
    "malicious": lambda path: path.write_bytes(pickle.dumps(Malicious())),
    "deep": lambda path: path.write_text("[" * 100_000),
    "of wrong kinds": lambda path: path.write_text('{"epsilon": "x", "delta": [], "details": 9, "caveats": 8}'),
    "a pipe": lambda path: _in_place(path, os.mkfifo),
    "a folder": lambda path: _in_place(path, os.mkdir),
    "a link to nowhere": lambda path: _in_place(path, lambda place: place.symlink_to("nowhere")),
}
READERS = {
    "report train --out page.html": ("train/privacy.json", "train/metrics.jsonl"),
    "compare train table": ("train/privacy.json",),
    "report federate --out page.html": ("federate/privacy.json", "federate/result.json"),
    "card train": ("train/privacy.json", "train/model.pt"),
    "card federate": ("federate/privacy.json", "federate/models.npz"),
    "predict table table.csv": ("table/privacy.json", "table/model.safetensors"),
    "audit membership train --attacks loss --rows 20 --json": (
        "train/privacy.json", "train/model.pt", "train/recipe.json",
    ),
    "audit membership federate --attacks loss --rows 20 --json": ("federate/privacy.json", "federate/models.npz"),
    f"{TRAIN} train --resume": ("train/run.json", "train/checkpoint.pt"),
    f"{TUNE} tune --resume": ("tune/run.json", "tune/online-3/run.json", "tune/online-3/plan.json"),
    f"{FEDERATE} federate --resume": ("federate/run.json", "federate/result.json"),
}  # fmt: skip
ACCEPTED = {
    ("train/metrics.jsonl", "empty"),
    ("federate/result.json", "of wrong kinds"),
}
"""A run may have ended before its first line; a result has no fact that must be there."""


def opened(*folders):
    """As if the runs had been killed before their last word."""
    for folder in folders:
        record = Path(folder, "run.json")
        record.write_text(json.dumps(json.loads(record.read_text()) | {"state": "open"}))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("command", "file"), [(one, file) for one in READERS for file in READERS[one]])
def test_a_file_that_cannot_be_used(command, file, damage, here):
    if (file, damage) in ACCEPTED:
        pytest.skip("it can be used")
    opened("train", "tune", "tune/online-3")
    DAMAGES[damage](Path(file))
    refused(command)
    assert not Path("code-was-run").exists()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["train/journal.jsonl", "tune/online-3/journal.jsonl"])
def test_a_damaged_journal_is_refused_or_counts_as_spent(file, damage, here):
    """What cannot be read counts as spent: such a run ends with its model, or says in one line why not."""
    opened("train", "tune", "tune/online-3")
    claims = json.loads(Path("train/privacy.json").read_text())["epsilon"]
    DAMAGES[damage](Path(file))
    code, _, err = sordina(f"{TRAIN} train --resume" if file.startswith("train") else f"{TUNE} tune --resume")
    assert code == 0 or (code in (1, 2) and len(err.strip().splitlines()) == 1), err
    assert "SORDINA_DEBUG" not in err
    if code == 0 and file.startswith("train"):
        assert json.loads(Path("train/privacy.json").read_text())["epsilon"] >= claims


@pytest.mark.parametrize("command", [
    "train pipe --schema table.toml", "train pipe.csv --schema table.toml", "train table.csv --schema pipe.csv",
    "train table.csv --schema table.toml --test pipe.csv", "predict table pipe.csv", "predict pipe.csv table.csv",
    "schema pipe.csv", "report pipe.csv", "card pipe.csv", "audit membership pipe.csv",
    "report train --ledger pipe.csv",
    "ledger show --ledger pipe.csv", "ledger show --ledger table.csv", "ledger show --ledger train",
])  # fmt: skip
def test_a_pipe_is_not_waited_for(command, here):
    os.mkfifo("pipe.csv")
    refused(command)


@pytest.mark.parametrize("command", [
    f"{TRAIN} fresh", f"{TABLE} fresh", f"{TUNE} fresh", f"{FEDERATE} fresh",
    "report train --out fresh", "card train --out fresh.txt",
    "predict table table.csv --out fresh.txt", "schema table.csv --out fresh.txt",
    "audit membership train --attacks loss --rows 20 --json --out fresh",
])  # fmt: skip
def test_a_full_disk(command, here, monkeypatch):
    write = os.write

    def full(handle, content):
        if handle > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, content)

    monkeypatch.setattr(os, "write", full)
    assert "No space left" in refused(command)
