"""`sordina demo` from end to end, small, and cut off in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from sordina.accounting.ledger import Ledger

MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from sordina.cli.main import main; main()"
)


def start(*words, cwd):
    environment = {name: value for name, value in os.environ.items() if name != "SORDINA_DATA"}
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "demo", "--quick", *words],
        cwd=cwd, env=environment | {"OMP_NUM_THREADS": "1"}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
def test_the_demo_shows_everything(tmp_path):
    demo = start("--out", "demo", "--json", cwd=tmp_path)
    out, err = demo.communicate(timeout=300)
    assert demo.returncode == 0, err
    outcome = json.loads(out)
    assert outcome["runs"] == ["plain", "online", "fixed", "federation", "updates"]
    assert 3 < outcome["spent_epsilon"] <= outcome["budget_epsilon"]
    assert "would bring 'digits' to epsilon" in outcome["refused"]
    assert not (tmp_path / "demo" / "refused").exists()

    page = (tmp_path / outcome["report"]).read_text(encoding="utf-8")
    for name in ("answer", "course", "attacks", "images", "clients", "fairness", "ledger", "limits", "origin"):
        assert f'<h2 id="{name}">' in page
    assert "NOT PRIVATE" in page
    runs = {run["name"]: run for run in json.loads((tmp_path / outcome["facts"]).read_text())["runs"]}
    assert runs["plain"]["claim"]["private"] is False
    assert runs["online"]["claim"]["epsilon"] <= 3
    assert runs["online"]["claim"]["releasable"] is True
    assert runs["plain"]["accuracy"] > 0.8
    assert runs["federation"]["claim"]["sound"] is True
    assert runs["updates"]["reconstructions"][0]["ssim"] > runs["updates"]["reconstructions"][2]["ssim"]

    again = start("--out", "demo", cwd=tmp_path)
    _, err = again.communicate(timeout=120)
    assert again.returncode == 2
    assert "is in use" in err


@pytest.mark.slow
def test_an_interrupt_keeps_the_books_and_says_what_is_there(tmp_path):
    demo = start("--out", "demo", cwd=tmp_path)
    journal = tmp_path / "demo" / "online" / "journal.jsonl"
    deadline = time.monotonic() + 240
    # The journal is there, empty, before anything is reserved, and goes again if nothing was: wait for a claimed step.
    while not (journal.exists() and journal.stat().st_size) and demo.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == 130, err
    assert out == ""
    said = " ".join(err.split())
    assert "Interrupted. Kept in demo: plain." in said
    assert "Cut off: online." in said
    assert "sordina report demo/plain" in said
    assert "Traceback" not in err
    ledger = Ledger(tmp_path / "demo" / "ledger.db")
    ledger.verify()
    assert 2.9 < ledger.spent("digits") <= 3
    assert not (tmp_path / "demo" / "report.html").exists()
