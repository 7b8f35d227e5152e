"""Local batches: every row once per pass, the same alone and together, uniformly shuffled."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordina.errors import InvalidInput
from sordina.federated.population import RowOrder, arrange, shuffles

SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=6).map(lambda s: np.array(sorted(s, reverse=True)))


@settings(deadline=None, max_examples=60)
@given(SIZES, st.integers(1, 7), st.integers(1, 3), st.integers(0, 2**63), st.integers(0, 50))
def test_every_row_is_visited_once_per_pass(sizes, batch, epochs, seed, number):
    clients = np.arange(len(sizes))
    seen = [[] for _ in sizes]
    for positions in arrange(sizes, clients, RowOrder(seed, number), batch_size=batch, epochs=epochs):
        assert positions.shape[1] <= batch
        for client, row in enumerate(positions):
            assert (row >= 0).any()
            seen[client] += row[row >= 0].tolist()
    for client, size in enumerate(sizes):
        for epoch in range(epochs):
            assert sorted(seen[client][epoch * size : (epoch + 1) * size]) == list(range(size))


@settings(deadline=None, max_examples=40)
@given(SIZES, st.integers(1, 7), st.integers(1, 9))
def test_a_number_of_steps_is_made_by_everyone_who_has_rows(sizes, batch, steps):
    plan = list(arrange(sizes, np.arange(len(sizes)), RowOrder(), batch_size=batch, steps=steps))
    assert len(plan) == (steps if sizes.max() else 0)
    assert all(len(positions) == (sizes > 0).sum() for positions in plan)


@settings(deadline=None, max_examples=40)
@given(SIZES, st.integers(1, 7), st.integers(1, 3))
def test_a_client_goes_the_same_way_alone_and_together(sizes, batch, epochs):
    clients = np.arange(10, 10 + len(sizes))
    together = list(arrange(sizes, clients, RowOrder(3, 4), batch_size=batch, epochs=epochs))
    for place, size in enumerate(sizes):
        alone = arrange(
            sizes[place : place + 1], clients[place : place + 1], RowOrder(3, 4), batch_size=batch, epochs=epochs
        )
        for step, positions in enumerate(alone):
            row = together[step][place]
            assert row[row >= 0].tolist() == positions[0][positions[0] >= 0].tolist(), size


def test_shuffles_are_uniform_and_differ_between_rounds_clients_and_passes():
    clients = np.arange(24000)
    orders = shuffles(np.full(24000, 4), clients, RowOrder(0, 0), 1)[:, 0]
    codes = orders @ np.array([64, 16, 4, 1])
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3
    same = [
        np.mean((orders == other).all(axis=1))
        for other in (
            shuffles(np.full(24000, 4), clients, RowOrder(0, 1), 1)[:, 0],
            shuffles(np.full(24000, 4), clients, RowOrder(1, 0), 1)[:, 0],
            shuffles(np.full(24000, 4), clients, RowOrder(0, 0), 2)[:, 1],
            np.roll(orders, 1, axis=0),
        )
    ]
    assert np.allclose(same, 1 / 24, atol=5 * np.sqrt(1 / 24 / 24000))


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": 1, "epochs": 0}, {"batch_size": 1, "steps": 0}])
def test_nothing_sensible_is_refused(options):
    with pytest.raises(InvalidInput):
        list(arrange(np.array([3]), np.array([0]), RowOrder(), **options))


def test_unsorted_clients_are_refused():
    with pytest.raises(InvalidInput, match="largest first"):
        list(arrange(np.array([1, 2]), np.array([0, 1]), RowOrder(), batch_size=1))
