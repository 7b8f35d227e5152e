"""docs/reference/supported-models.md is true: all of it with SORDINA_LONG=1, a part of it otherwise."""

from __future__ import annotations

import os

import pytest
from tests.gradients.attack_cases import ATTACKS
from tests.gradients.supported_models import SECTIONS, status, verdict, written, wrong

EVERY = [(section, name) for section, (_, cases) in SECTIONS.items() for name in cases]
QUICK = {
    "BERT", "Llama", "ViT", "LoRA", "DoRA", "prefix tuning", "hidden[mask]", "layers on x.reshape(B * T, D)",
    "einsum('oi,bi->ob')", "BatchNorm in eval mode, frozen statistics", "GRUCell", "inputs as a dataclass",
    "tokens that cancel, inputs of 1e6", "batch statistics by hand behind a zero gate", "detached batch mean",
    "loss over its detached mean, given to a Trainer",
    "as many tokens as samples, all of one sample", "a record whose gradient is 0 / 0",
    "a buffer that keeps a running mean", "graph whose end nodes are isolated", "parameter cast in a forward",
    "mixing before the first layer, bytes",
}  # fmt: skip
QUICK |= {*SECTIONS["Changes while an engine listens"][1], *ATTACKS}
CHOSEN = EVERY if os.environ.get("SORDINA_LONG") else [pair for pair in EVERY if pair[1] in QUICK]


def test_the_page_has_every_row():
    assert [name for _, name in EVERY] == [name for name in written() if name != "what"]


def test_no_row_says_that_something_is_wrong():
    assert not [name for name, answer in written().items() if answer.startswith("**")]


@pytest.mark.parametrize(("section", "name"), CHOSEN)
def test_a_row_is_true(section, name):
    if section.startswith("Architectures"):
        pytest.importorskip("transformers")
    for _ in range(3):  # whether a test finds that it cannot tell is chance for a few; nothing may ever be wrong
        found = verdict(section, name)
        assert not wrong(section, name, found), found
        if written()[name] == status(found):
            break
    assert written()[name] == status(found), found
