"""What every test of the engine shares."""

from __future__ import annotations

from random import Random

import pytest

from sordina.gradients import _calls, removal


@pytest.fixture(autouse=True)
def same_chance(monkeypatch):
    """The engine draws what it looks at, and when, from the operating system; here it draws the same every time."""
    chance = Random(0)
    for module in (removal, _calls):
        monkeypatch.setattr(module, "CHANCE", chance)
