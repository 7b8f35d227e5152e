"""The sector's diameter, against brute force: never exceeded, and tight."""

from __future__ import annotations

import math

import pytest
import torch

from sordina.clipping import Sector, diameter
from sordina.clipping.sector import SectorState
from sordina.errors import InvalidInput
from sordina.queries import Scalars

SECTORS = [
    (1.0, 0.0, math.pi / 6),
    (1.0, 0.5, math.pi / 6),
    (1.0, 0.9, math.pi / 3),
    (2.0, 0.1, math.pi / 2),
    (1.0, 1.0, 0.2),
    (1.0, 0.3, 2.0),
    (1.0, 0.0, math.pi),
]


def clipped(high: float, low: float, angle: float, count: int = 4000, size: int = 3) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    data = torch.randn(count, size, generator=draw, dtype=torch.float64)
    data = (
        data
        / data.norm(dim=1, keepdim=True)
        * 10 ** (6 * torch.rand(count, 1, generator=draw, dtype=torch.float64) - 3)
    )
    direction = torch.zeros(size, dtype=torch.float64)
    direction[0] = 1.0
    policy = Sector(threshold=high, low=low, angle=angle)
    state = SectorState(high, low, angle, direction, direction)
    (query,) = policy.ask(Scalars(data.norm(dim=1), data @ direction), state)
    return query.own[:, None] * data + query.ref[:, None] * direction


@pytest.mark.parametrize("sector", SECTORS)
def test_the_diameter_is_never_exceeded_and_tight_to_one_per_cent(sector):
    points = clipped(*sector)
    largest = float(torch.cdist(points, points).max())
    assert largest <= diameter(*sector) * (1 + 1e-9)
    assert largest >= 0.99 * diameter(*sector)


@pytest.mark.parametrize("sector", SECTORS)
def test_no_vector_is_longer_than_the_upper_threshold(sector):
    assert clipped(*sector).norm(dim=1).max() <= sector[0] * (1 + 1e-9)


@pytest.mark.parametrize("sector", [sector for sector in SECTORS if sector[2] <= math.pi / 2])
def test_every_vector_ends_inside_the_angle(sector):
    """Above a right angle the diameter is the ball's, so only the length matters there."""
    _, _, angle = sector
    points = clipped(*sector)
    norms = points.norm(dim=1)
    cosines = points[:, 0] / norms.clamp(min=1e-12)
    assert cosines[norms > 1e-9].min() >= math.cos(angle) - 1e-9


def test_the_whole_ball_is_replace_one_clipping():
    assert diameter(1.5, 0.0, math.pi) == 3.0


def test_a_zero_vector_becomes_the_lower_bound_along_the_direction():
    policy, direction = Sector(threshold=1.0, low=0.25, angle=0.5), torch.tensor([1.0, 0.0])
    state = SectorState(1.0, 0.25, 0.5, direction, direction)
    (query,) = policy.ask(Scalars(torch.zeros(1), torch.zeros(1)), state)
    assert query.own.item() == 0
    assert query.ref.item() == 0.25


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 0},
        {"low": 2.0},
        {"low": -1.0},
        {"angle": 0},
        {"angle": 4.0},
        {"memory": 1.0},
        {"threshold": math.nan},
    ],
)
def test_bad_sectors_are_refused(wrong):
    with pytest.raises(InvalidInput):
        Sector(**wrong)
