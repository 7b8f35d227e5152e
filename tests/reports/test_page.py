"""What the page says: the answer first, loudly where there is no privacy; sections only where there are facts."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from sordina.reports import reading, rendering, words
from sordina.reports.charts import Axis, Chart, Scale, Series, draw, nice_ticks
from sordina.reports.facts import AttackFacts, Claim, RunFacts
from sordina.reports.rendering import render, write

VOID = {"meta", "link", "img", "br"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed by another."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.headings = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page(*folders):
    return render(reading.report(folders))


def test_the_markup_is_whole_and_headings_do_not_skip(private, plain, federation):
    parser = Balanced()
    parser.feed(page(private, plain, federation))
    assert parser.open == []
    assert parser.headings[0] == 1
    assert all(later - earlier <= 1 for earlier, later in zip(parser.headings, parser.headings[1:], strict=False))


def test_every_section_with_facts_is_there(private, plain, federation):
    text = page(private, plain, federation)
    for name in ("answer", "course", "attacks", "images", "clients", "fairness", "limits", "origin"):
        assert f'<h2 id="{name}">' in text
    assert '<h2 id="ledger">' not in text


def test_sections_without_facts_are_left_out(federation):
    text = page(federation)
    assert '<h2 id="attacks">' not in text
    assert '<h2 id="images">' not in text


def test_nothing_outside_the_file_is_named(private, plain, federation):
    text = page(private, plain, federation)
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", text)
    assert "http" not in re.sub("http-equiv", "", text)


def test_no_privacy_is_said_loudly(plain):
    text = page(plain)
    assert "NOT PRIVATE" in text
    assert "no limit" in text
    assert "at most 95" not in text


def test_a_seeded_run_must_not_be_released(private):
    run = reading.run(private)
    seeded = replace(run, claim=replace(run.claim, releasable=False))
    assert words.badge(seeded) == ("SEEDED: DO NOT RELEASE", "bad")
    assert "Do not release" in words.answer(seeded)[0]


def test_a_heuristic_is_not_sold_as_a_proof(federation):
    run = reading.run(federation)
    heuristic = replace(run, claim=replace(run.claim, sound=False))
    assert words.badge(heuristic)[1] == "bad"
    assert "at most" not in " ".join(words.answer(heuristic))
    row = dict(rendering.rows((heuristic,)))
    assert "odds grow at most" not in row


def test_the_answer_gives_odds(private):
    said = " ".join(words.answer(reading.run(private)))
    assert "at most 95.3 % of the time" in said
    assert "20.1-fold" in said
    assert "1 in 100,000" in said


def test_replace_one_asks_another_question():
    run = RunFacts("r", "train", Claim(True, 1.0, 1e-5, adjacency="replace-one", verified=True))
    assert "which of two candidates" in words.answer(run)[0]


def test_a_refuted_claim_alarms(private):
    run = reading.run(private)
    attack = AttackFacts("canary", 10, 10, math.inf, 1e-5, 0.95, refuted=True, verdict="CLAIM REFUTED by canary")
    facts = replace(reading.report([private]), runs=(replace(run, attacks=(attack,)),))
    text = render(facts)
    assert "CLAIM REFUTED by canary" in text
    assert words.badge(facts.runs[0]) == ("REFUTED", "bad")
    assert "at most 95.3 %" not in text
    assert "ε ≥ ∞" in text


def test_text_from_outside_is_escaped(private):
    run = replace(reading.run(private), name='<script>alert("x")</script>', caveats=("<b>bold</b>",))
    text = render(replace(reading.report([private]), runs=(run,), title="a < b"))
    assert "<script>alert" not in text
    assert "<b>bold" not in text
    assert "a &lt; b" in text


def test_models_of_the_same_people_add_up(private):
    assert "spends up to ε = 6.00 together" in page(private, private)


def test_the_json_beside_it_holds_the_same_facts(tmp_path, private):
    facts = reading.report([private])
    written = write(facts, tmp_path / "out")
    assert written == tmp_path / "out" / "report.html"
    assert json.loads(written.with_suffix(".json").read_text()) == json.loads(json.dumps(facts.to_dict()))
    assert not list(written.parent.glob("*.new"))


def test_points_carry_their_values():
    axis = Axis("x"), Axis("share", percent=True, low=0.0, high=1.0)
    drawn = draw(Chart("t", "s", *axis, (Series("line", ((1.0, 0.25), (2.0, 0.5))),)))
    assert "line: x 1, share 25 %" in drawn
    assert drawn.count('class="pt ') == 2


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.3, 0.31), (-5, 1e6), (0, 3)])
def test_ticks_are_few_round_and_inside(low, high):
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 11
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)


def test_a_log_scale_keeps_to_its_edges():
    scale = Scale(0.01, 1.0, 0.0, 100.0, log=True)
    assert scale(0.1) == pytest.approx(50)
    assert scale(0.0) == 0.0
    assert scale(10.0) == 100.0


def test_runs_side_by_side(private, plain):
    rows = {name: cells for name, *cells in rendering.rows(reading.report([private, plain]).runs)}
    assert rows["verdict"] == ["PRIVATE", "NOT PRIVATE"]
    assert rows["attacker right at most"] == ["95.3 %", "—"]
    assert rows["odds grow at most"] == ["× 20.1", "no limit"]
    assert "model" not in rows
