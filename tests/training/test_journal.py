from __future__ import annotations

import pytest

from sordina.errors import InvalidInput
from sordina.journal import BLOCK, Journal


def test_claims_come_before_steps_and_survive(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path)
    journal.claim(1, last=60)
    assert Journal.open(path).claimed == BLOCK
    journal.claim(BLOCK, last=60)
    assert path.read_text().count("\n") == 1
    journal.claim(BLOCK + 1, last=60)
    assert Journal.open(path).claimed == 2 * BLOCK


def test_a_torn_line_counts_as_spent(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal.open(path).claim(1, last=100)
    with path.open("a") as file:
        file.write('{"claim')
    assert Journal.open(path).claimed == 2 * BLOCK


def test_nothing_is_claimed_beyond_the_plan(tmp_path):
    journal = Journal.open(tmp_path / "journal.jsonl")
    journal.claim(1, last=10)
    assert journal.claimed == 10
    with pytest.raises(InvalidInput):
        journal.claim(11, last=10)
