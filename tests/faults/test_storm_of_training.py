"""The short form of the storm on training: see `tests.faults.storm`."""

from __future__ import annotations

import random

import pytest
from tests.faults.dying import Disk
from tests.faults.storm import Tally, accident, full_disks, kill_points, kills, race, torn_files


def test_killed_anywhere_a_run_resumes_or_says_why_not():
    tally = Tally()
    kills(20, tally, random.Random(0))
    assert tally.accidents == 20
    assert tally.finished >= 15


def test_the_end_of_a_run_may_be_killed_at_any_write():
    """Every point from the last checkpoint on: each folder ends with its model, without a refusal."""
    points, tally = kill_points(), Tally()
    for at in range(points - 30, points + 1):
        assert accident(Disk(at), tally)
    assert (tally.finished, tally.refused) == (31, 0)


def test_a_full_disk_is_survived():
    tally = Tally()
    full_disks(12, tally)
    assert tally.accidents == 12


def test_torn_files_are_survived_or_told():
    tally = Tally()
    torn_files(12, tally, random.Random(0))
    assert tally.accidents == 12


@pytest.mark.slow
def test_of_concurrent_starts_and_resumes_one_goes_on(tmp_path):
    race(tmp_path / "run", racers=2)
