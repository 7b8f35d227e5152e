"""The page of a release: every answer with its interval, bias and cost, and nothing in it is markup."""

from __future__ import annotations

import json

import pandas
import pytest

from sordina import Budget
from sordina.errors import InvalidInput
from sordina.reports import reading, rendering
from sordina.reports.rendering import report
from sordina.statistics import Table
from sordina.statistics.release import write_release

EVIL = "<script>alert('A')</script>"
SCHEMA = {
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100},
        "ward": {"kind": "category", "values": [EVIL, "B"]},
        "note": {"kind": "text"},
    }
}


def released(folder, *, seed=None):
    rows = 400
    frame = pandas.DataFrame(
        {"age": [30, 40, 50, 60] * 100, "ward": [EVIL, "B"] * 200, "note": [f"n{row}" for row in range(rows)]}
    )
    table = Table(frame, schema=SCHEMA, budget=Budget(2, 1e-6), seed=seed)
    told = []
    questions = (table.mean("age", by="ward"), table.count(), table.count(by="note"), table.median("age"))
    answers = table.release(*questions, progress=lambda *step: told.append(step))
    write_release(folder, table, answers)
    return answers, told


def test_every_answer_is_on_the_page_and_in_the_json(tmp_path):
    answers, told = released(tmp_path / "out")
    page = report(tmp_path / "out")
    text, facts = page.read_text(), json.loads((tmp_path / "out" / "report.json").read_text())["runs"][0]
    assert facts["kind"] == "release"
    assert [one["question"] for one in facts["answers"]] == [one.query for one in answers]
    assert '<h2 id="statistics">' in text
    for answer, fact in zip(answers, facts["answers"], strict=True):
        cells = answer.to_dict()["answers"]
        assert [one["value"] for one in fact["cells"]] == [one["value"] for one in cells]
        assert [[one["low"], one["high"]] for one in fact["cells"]] == [one["interval"] for one in cells]
        assert fact["epsilon"] == answer.cost.epsilon
        assert tuple(fact["notes"]) == answer.notes
        for cell in cells:
            low, high = cell["interval"]
            assert f"<td>{cell['value']:.6g}</td><td>{low:.6g} to {high:.6g}</td>" in text
    assert facts["answers"][0]["cells"][0]["group"] == [EVIL]
    assert "95 % interval" in text
    assert "no group was found" in text
    assert "sees the answers" in text
    assert "the training data" not in text
    assert told == [(done, 6) for done in range(7)]


def test_no_label_is_markup(tmp_path):
    folder = tmp_path / "<i>out<i>"
    released(folder)
    kept = json.loads((folder / "answers.json").read_text())
    kept["answers"][1] |= {"query": "<u>count</u>", "notes": ["<u>note</u>"]}
    (folder / "answers.json").write_text(json.dumps(kept))
    text = rendering.render(reading.report([folder]))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#x27;A&#x27;)" in text
    assert "&lt;u&gt;note&lt;/u&gt;" in text
    assert "<u>" not in text
    assert "<i>" not in text


def test_seeded_answers_are_not_to_be_released(tmp_path):
    released(tmp_path / "seeded", seed=1)
    text = rendering.render(reading.report([tmp_path / "seeded"]))
    section = text.partition('<h2 id="statistics">')[2].partition("</section>")[0]
    assert "SEEDED: DO NOT RELEASE" in section
    released(tmp_path / "secure")
    assert "SEEDED" not in rendering.render(reading.report([tmp_path / "secure"]))


def test_a_long_table_is_cut_on_the_page_and_says_so(tmp_path, monkeypatch):
    released(tmp_path / "out")
    monkeypatch.setattr(rendering, "_MOST_LINES", 2)
    text = rendering.render(reading.report([tmp_path / "out"]))
    assert "3 more lines are in the JSON file" in text
    assert "median(age)</th>" not in text


@pytest.mark.parametrize(
    "change",
    [
        {"answers": 3}, {"answers": [{}]}, {"value": "nan"}, {"value": float("nan")}, {"value": True},
        {"interval": [1]}, {"interval": "ab"}, {"confidence": None}, {"epsilon": float("inf")},
    ],
)  # fmt: skip
def test_damaged_answers_are_refused(change, tmp_path):
    folder = tmp_path / "out"
    released(folder, seed=1)
    kept = json.loads((folder / "answers.json").read_text())
    first = kept["answers"][0]
    for part in (kept, first, first["answers"][0]):
        part |= {name: value for name, value in change.items() if name in part and name != "answers"}
    if "answers" in change:
        kept |= change
    (folder / "answers.json").write_text(json.dumps(kept))
    with pytest.raises(InvalidInput):
        reading.run(folder)
