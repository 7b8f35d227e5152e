"""Public state crosses as plain arrays and comes back as it was."""

import math

import numpy as np
import pytest
import torch

from sordina.clipping import (
    Automatic,
    FallingNorm,
    Fixed,
    Follow,
    Online,
    PerLayer,
    Quantile,
    Sector,
    Trailing,
    TypicalNorm,
)
from sordina.errors import InvalidInput
from sordina.federated.messages import ClientResult, ClientUpdate, pack, unpack
from sordina.federated.privacy.central import Central
from sordina.plan import make_plan
from sordina.privacy import Budget, Unit
from sordina.sampling import FixedSize

POLICIES = [
    Fixed(), TypicalNorm(), FallingNorm(), Quantile(), Online(), Automatic(), Trailing(), Sector(),
    Sector(1.0, 0.5, 1.0, follow=Follow()), PerLayer(Quantile()),
]  # fmt: skip


def same(one, other):
    return pack(one).keys() == pack(other).keys() and all(
        np.array_equal(value, pack(other)[key]) and value.dtype == pack(other)[key].dtype
        for key, value in pack(one).items()
    )


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
def test_a_client_elsewhere_clips_exactly_as_one_in_process(policy):
    plan = make_plan(Budget(3, 1e-5), FixedSize(8, 100), 10, unit=Unit.USER)
    placement = Central(plan, policy, layers=(("a.w", 4), ("a.b", 1), ("b", 1)))
    rng = np.random.default_rng(0)
    outcome = ClientResult(torch.from_numpy(rng.standard_normal((8, 6))), torch.ones(8))
    state = placement.start(6)
    for _ in range(3):
        arrived = unpack(pack(state), placement.start(6))
        assert same(arrived, state)
        assert type(arrived) is type(state)
        here, there = (placement.seal(outcome, one, rng).sums for one in (state, arrived))
        assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
        _, state = placement.open(ClientUpdate(here, answered=8), state, rng)


def test_parcels_cross_too():
    update = ClientUpdate((torch.ones(3), torch.tensor(2.0)), torch.zeros(2, 3), 2, 1, 0)
    again = unpack(pack(update), ClientUpdate())
    assert same(again, update)
    assert (again.answered, again.rejected) == (2, 1)
    assert same(unpack(pack(ClientUpdate()), ClientUpdate()), ClientUpdate())


def test_nothing_but_numbers_is_sent_and_nothing_unknown_is_taken():
    with pytest.raises(InvalidInput, match="cannot send"):
        pack(("text",))
    with pytest.raises(InvalidInput, match="do not match"):
        unpack({"/strange:f": np.asarray(1.0)}, ClientUpdate())
    with pytest.raises(InvalidInput, match="do not match"):
        unpack({"/answered:x": np.asarray(1.0)}, ClientUpdate())
    with pytest.raises(InvalidInput, match="a number was expected"):
        unpack({"/answered:i": np.ones(3)}, ClientUpdate())
    with pytest.raises(InvalidInput, match="numbers were expected"):
        unpack({"/vectors:t": np.array(["text"])}, ClientUpdate())
    with pytest.raises(InvalidInput, match="tuple of"):
        unpack({"/sums:#": np.asarray(10**9)}, ClientUpdate())
    assert math.isinf(unpack(pack(math.inf), 0.0))
