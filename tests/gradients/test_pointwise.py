"""What one record does to itself it does to nobody else: not with infinities, not with NaN, not through padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.gradients.records import MODELS
from torch import nn

from sordina.clipping import Fixed, Online
from sordina.gradients import Engine
from sordina.gradients.explicit import MatrixTape
from sordina.queries import VectorQuery
from sordina.sampling import PADDING
from sordina.training.batches import split

POISONS = (float("nan"), float("inf"), 3.4e38)


def clipped(model: nn.Module, x: torch.Tensor, b: torch.Tensor, rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    policy = Fixed(0.5)
    with Engine(model) as engine:
        tape = engine.record((model(x) * b).flatten(1).sum(1), rows)
        norms = tape.scalars().norms
        return norms, tape.contract(policy.ask(tape.scalars(), None))[0]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("name", MODELS)
def test_a_record_that_is_not_finite_adds_nothing_and_changes_nobody(name, poison, rows):
    torch.manual_seed(0)
    maker, shape = MODELS[name]
    model = maker()
    x = torch.randn(6, *shape) if shape else torch.randint(0, 9, (6, 4))
    b = torch.randn_like(model(x), requires_grad=False)
    norms, total = clipped(model, x, torch.where(torch.arange(6).view(-1, *[1] * (b.dim() - 1)) >= 4, 0.0, b), rows)
    bad_x, bad_b = x.clone(), b.clone()
    bad_b[4] = poison
    if shape:
        bad_x[4:] = poison
    if rows == 1:
        bad_b[5] = 0.0
    found, answer = clipped(model, bad_x, bad_b, rows)
    alive = 4 // rows
    torch.testing.assert_close(found[:alive], norms[:alive], rtol=1e-5, atol=0)
    assert answer.isfinite().all()
    if not np.isfinite(poison):
        torch.testing.assert_close(answer, total, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_row_of_padding_is_the_units_own():
    table = np.array([[3, PADDING, PADDING], [4, 5, 6], [7, 8, PADDING]])
    (piece,) = split(table, None)
    assert piece.rows.reshape(3, 3).tolist() == [[3, 3, 3], [4, 5, 6], [7, 8, 7]]
    assert piece.weights is not None
    assert piece.weights.view(3, 3)[0].tolist() == [1, 0, 0]


def test_a_long_vector_is_not_measured_too_short():
    """Single precision loses nearly one percent of the norm of ten million equal values."""
    tape = MatrixTape(torch.full((1, 10_000_000), 0.1))
    total = tape.contract(Fixed(1.0).ask(tape.scalars(), None))[0]
    assert float(total.double().norm()) <= 1 + 1e-5


@pytest.mark.parametrize("size", [1e3, 1e4, 1e6, 1e12])
def test_removing_a_record_whose_places_nearly_cancel(size):
    """The attack of the issue: tokens a and -a + u, beside honest records."""
    torch.manual_seed(0)
    model = nn.Linear(32, 32)
    x, b = torch.randn(5, 2, 32), torch.randn(5, 2, 32)
    x[0, 0] *= size
    x[0, 1] = -x[0, 0] + torch.randn(32)
    b[0, 1] = b[0, 0]

    def total(which: slice) -> torch.Tensor:
        with Engine(model) as engine:
            tape = engine.record((model(x[which]) * b[which]).flatten(1).sum(1))
            policy = Online(1.0)
            first, second, _ = tape.contract(policy.ask(tape.scalars(), policy.init(1)))
            return torch.stack([first, second]).double()

    change = (total(slice(0, 5)) - total(slice(1, 5))).norm(dim=1)
    assert float(change.max()) <= 1 + 1e-5


def test_a_query_of_weight_one_for_a_poisoned_unit_still_gets_nothing_from_it():
    model = nn.Linear(3, 2)
    x = torch.ones(3, 3)
    x[1] = float("nan")
    with Engine(model) as engine:
        tape = engine.record(model(x).sum(1))
    assert tape.contract([VectorQuery(torch.ones(3))])[0].isfinite().all()
