"""No record contributes more than (1 + 1e-5) C, whatever its magnitude and however its places cancel."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from tests.gradients.records import MODELS, Search

from sordina.gradients.combined_terms import Total
from sordina.gradients.norms import measure
from sordina.gradients.terms import Lookup, Outer
from sordina.queries import SLACK

ROUNDS = 400 if os.environ.get("SORDINA_LONG") else 6


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_no_record_exceeds_its_bound(name, rows):
    assert Search(name, rows).run(ROUNDS) <= 1 + 1e-5


def test_a_tied_head_of_ordinary_text_is_not_written_down():
    """The bound on its norm may not be so loose that vectors of the size of the vocabulary are written every step."""
    torch.manual_seed(0)
    places, words, width = 128, 20_000, 64
    head = Outer(torch.randn(2, places, words) * 1e-3, torch.randn(2, places, width))
    table = Lookup(torch.randint(0, words, (2, places)), torch.randn(2, places, width) * 0.15, words)
    both = Total([head, table], words * width)
    measured = measure(both)
    exact = Total([Outer(head.left.double(), head.right.double()), replace(table, values=table.values.double())], 1)
    norms, truth = measured.squares.sqrt(), exact.estimate().squares.sqrt()
    assert measured.written is None
    assert bool(((norms >= truth) & (norms <= (1 + SLACK) * truth)).all())
