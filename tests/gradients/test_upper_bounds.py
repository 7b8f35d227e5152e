"""No record contributes more than (1 + 1e-5) C, whatever its magnitude and however its places cancel."""

from __future__ import annotations

import os

import pytest
from tests.gradients.records import MODELS, Search

ROUNDS = 400 if os.environ.get("SORDINA_LONG") else 6


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_no_record_exceeds_its_bound(name, rows):
    assert Search(name, rows).run(ROUNDS) <= 1 + 1e-5
