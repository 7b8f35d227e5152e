"""A bad argument gets an answer or one line that names it: never another exception, never a hang."""

from __future__ import annotations

import pytest
from tests.faults.fuzz_arguments import GOOD, tries, verdict


@pytest.mark.parametrize("name", GOOD)
def test_good_arguments_are_answered(name):
    call, good = GOOD[name]
    assert verdict(call, good) == "answered"


@pytest.mark.parametrize("name", GOOD)
def test_a_bad_argument_is_refused_in_one_line(name):
    found = {}
    for tried, call, given in tries():
        if tried == name:
            found.setdefault(verdict(call, given), given)
    assert set(found) <= {"answered", "refused"}
