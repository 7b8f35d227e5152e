"""Runs without a server on the page: their figures, who is protected from whom, and files that are no figures."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
from html import escape

import pytest
import torch
from typer.testing import CliRunner

import sordina as sd
from sordina.cli.main import app
from sordina.privacy import Budget
from sordina.reports import reading
from sordina.reports.folder_facts import _picture, command
from sordina.reports.rendering import render, report

FIGURES = ("privacy_by_distance.png", "pair_privacy.png", "error_by_rounds.png")


def trained(folder, topology="gossip", graph="ring", **given):
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(10, 6, 3, generator=draw)
    clients = [(x, (x[:, 0] > 0).long()) for x in rows]
    sd.federated.GossipTrainer(
        torch.nn.Linear(3, 2), "cross-entropy", Budget(8, 1e-3), topology, graph, rounds=2, folder=folder, **given
    ).fit(clients)
    return folder


@pytest.fixture(scope="module")
def gossip(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("network") / "run", gossip_rounds=3, protect="mean")


def shown(page: str) -> list[bytes]:
    return [
        base64.b64decode(one) for one in re.findall(r'<img class="drawn" src="data:image/png;base64,([^"]+)"', page)
    ]


def test_the_page_shows_the_figures_and_the_json_who_is_protected_from_whom(gossip, tmp_path):
    page = report(gossip, folder=tmp_path / "page.html")
    text, facts = page.read_text(), json.loads(page.with_suffix(".json").read_text())["runs"][0]["network"]
    assert shown(text) == [(gossip / name).read_bytes() for name in FIGURES]
    claim = json.loads((gossip / "privacy.json").read_text())
    assert (facts["topology"], facts["graph"], facts["parties"], facts["rounds"]) == ("gossip", "ring", 10, 2)
    assert facts["gossip_rounds"] == 3
    assert facts["worst_epsilon"] == claim["epsilon"] > facts["mean_epsilon"] == pytest.approx(8, rel=0.05)
    assert [one[0] for one in facts["by_distance"]] == [1, 2, 3, 4, 5]
    assert max(one[2] for one in facts["by_distance"]) <= facts["worst_epsilon"] * (1 + 1e-3)
    assert [one["name"] for one in facts["figures"]] == list(FIGURES)
    assert all(escape(one["sentence"]) in text and "png" not in one for one in facts["figures"])
    assert "neighbours" in facts["protected_from"]
    assert not facts["left_out"]
    assert "Budget over time" not in text, "its lines do not say what was spent: no curve that ends at 0"


def test_files_that_are_no_figures_are_left_out(gossip, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(gossip, run)
    real = (gossip / FIGURES[0]).read_bytes()
    (run / FIGURES[0]).write_bytes(real[:-12] + b"\0" * (5 << 20) + real[-12:])
    (run / FIGURES[1]).write_text("<script>alert(1)</script>")
    (run / FIGURES[2]).unlink()
    (run / FIGURES[2]).symlink_to(gossip / FIGURES[2])
    facts = reading.report([run])
    assert facts.runs[0].network is not None
    assert facts.runs[0].network.left_out == FIGURES
    page = render(facts)
    assert not shown(page)
    assert "alert(1)" not in page
    assert all(name in page for name in FIGURES)
    (run / FIGURES[2]).unlink()
    os.mkfifo(run / FIGURES[2])
    (run / FIGURES[1]).write_bytes(real[:16] + b"\0\xff\0\0" + real[20:])
    assert _picture(run / FIGURES[1]) is None, "sixteen million pixels wide"
    assert _picture(run / FIGURES[2]) is None, "a pipe"
    assert _picture(gossip / FIGURES[0]) == real


def test_a_claim_of_another_model_shows_no_figures(gossip, tmp_path):
    shutil.copytree(gossip, tmp_path / "run")
    (tmp_path / "run" / "models.npz").write_bytes(b"another")
    assert not shown(render(reading.report([tmp_path / "run"])))


def test_decor_and_walks_have_no_mean_pair(tmp_path):
    decor = reading.run(trained(tmp_path / "decor", "decor", "complete")).network
    assert decor is not None
    assert decor.mean_epsilon is None
    assert 7 < (decor.worst_epsilon or 0) <= 8
    assert not decor.figures
    assert "all messages" in decor.protected_from
    walk = reading.run(trained(tmp_path / "walk", "walk", "ring")).network
    assert walk is not None
    assert [one.name for one in walk.figures] == list(FIGURES[:2])
    assert 7 < (walk.worst_epsilon or 0) <= 8


def test_the_command_on_the_page_asks_for_the_same_run(tmp_path):
    words = (
        "federate synthetic --topology gossip --graph ring --gossip-rounds 2 --rounds 1 --seed 0 --learning-rate 0.25"
    )
    run = CliRunner().invoke(app, [*words.split(), "--accelerated", "--out", str(tmp_path / "run")])
    assert run.exit_code == 0, run.output
    again = reading.run(tmp_path / "run").command
    assert again is not None
    repeated = CliRunner().invoke(app, [*shlex.split(again)[1:], "--out", str(tmp_path / "again")])
    assert repeated.exit_code == 0, repeated.output
    recipes = [json.loads((tmp_path / name / "recipe.json").read_text()) for name in ("run", "again")]
    assert recipes[0] == recipes[1]
    assert recipes[0]["accelerated"]
    assert recipes[0]["learning_rate"] == 0.25
    assert command({**recipes[0], "data": "own data"}) is command({**recipes[0], "data": "table"}) is None
    assert command({**recipes[0], "pairwise": 2.0}) is None
