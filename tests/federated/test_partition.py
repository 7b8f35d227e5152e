"""Partitioners use every row once; what makes clients differ does so as stated."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordina.errors import InvalidInput
from sordina.federated.data import partition


def rng(seed=0):
    return np.random.default_rng(seed)


def covers(parts, count):
    return sorted(np.concatenate(parts).tolist()) == list(range(count))


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 200),
    clients=st.integers(1, 20),
    smallest=st.integers(0, 3),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    seed=st.integers(0, 2**32),
)
def test_every_row_is_used_exactly_once_and_nobody_is_poorer_than_allowed(count, clients, smallest, alpha, seed):
    labels = rng(seed).integers(4, size=count)
    makers = [
        lambda g: partition.by_quantity(count, clients, g, alpha=alpha, smallest=smallest),
        lambda g: partition.by_label(labels, clients, g, alpha=alpha, smallest=smallest),
    ]
    for make in makers:
        if clients * smallest > count:
            with pytest.raises(InvalidInput, match="cannot give"):
                make(rng(seed))
            continue
        parts = make(rng(seed))
        assert len(parts) == clients
        assert covers(parts, count)
        assert min(len(rows) for rows in parts) >= smallest
        assert all(np.array_equal(a, b) for a, b in zip(parts, make(rng(seed)), strict=True))


@given(count=st.integers(1, 300), clients=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_iid_deals_evenly(count, clients):
    if clients > count:
        with pytest.raises(InvalidInput, match="cannot give"):
            partition.iid(count, clients, rng())
        return
    parts = partition.iid(count, clients, rng())
    assert covers(parts, count)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_iid_shuffles():
    assert not np.array_equal(partition.iid(100, 2, rng(0))[0], partition.iid(100, 2, rng(1))[0])
    assert partition.iid(100, 2, rng())[0].tolist() != list(range(50))


def share_of_largest_label(labels, parts):
    return np.mean([np.bincount(labels[rows]).max() / len(rows) for rows in parts if len(rows)])


def test_the_smaller_alpha_the_more_labels_and_sizes_differ():
    labels = np.repeat(np.arange(10), 500)
    skew = [
        share_of_largest_label(labels, partition.by_label(labels, 20, rng(), alpha=alpha)) for alpha in (0.05, 1, 100)
    ]
    assert skew[0] > 0.6 > skew[1] > 0.2 > skew[2] > 0.1
    spread = [np.std([len(p) for p in partition.by_quantity(5000, 20, rng(), alpha=a)]) for a in (0.2, 2, 200)]
    assert spread[0] > 2 * spread[1] > 4 * spread[2]


def test_dirichlet_shares_have_the_variance_of_a_dirichlet():
    """Shares of one class: mean 1/K, variance (K-1)/(K^2 (K alpha + 1)); wide enough to catch another alpha."""
    clients, alpha, draws = 5, 0.7, 400
    labels = np.zeros(1000, dtype=int)
    shares = np.array(
        [
            [len(p) / 1000 for p in partition.by_label(labels, clients, rng(s), alpha=alpha, smallest=0)]
            for s in range(draws)
        ]
    )
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    # The relative standard error of a variance over 400 x 5 weakly dependent shares is below 5 %.
    assert shares.var() == pytest.approx(expected, rel=0.2)
    assert shares.var() != pytest.approx((clients - 1) / (clients**2 * (clients * 1.4 + 1)), rel=0.2)


def test_natural_keys_keep_people_whole():
    keys = np.array(["b", "a", "b", "c", "a", "b"])
    parts = partition.by_key(keys)
    assert [rows.tolist() for rows in parts] == [[1, 4], [0, 2, 5], [3]]
    assert covers(parts, 6)


@pytest.mark.parametrize("alpha", [0, -1, float("nan")])
def test_an_impossible_alpha_is_refused(alpha):
    with pytest.raises(InvalidInput, match="alpha must be positive"):
        partition.by_label([0, 1, 2], 2, rng(), alpha=alpha)


def shards(count, rows=3, classes=4):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.rand(rows, 1, 2, 2, generator=generator), torch.randint(classes, (rows,), generator=generator))
        for _ in range(count)
    ]


def test_a_quarter_turn_is_counter_clockwise_for_all_images_of_a_client():
    upright = [(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([0]))]
    turned, who = partition.rotate(upright, rng(), probability=1)
    assert who == [1]
    assert turned[0][0][0, 0].tolist() == [[2, 4], [1, 3]]
    back, _ = partition.rotate(turned, rng(), probability=1, quarter_turns=3)
    assert torch.equal(back[0][0], upright[0][0])
    same, who = partition.rotate(upright, rng(), probability=0)
    assert who == [0]
    assert torch.equal(same[0][0], upright[0][0])
    with pytest.raises(InvalidInput, match=r"lie in \[0, 1\], got 2"):
        partition.rotate(upright, rng(), probability=2)


def test_rotation_says_whom_it_turned():
    before = shards(200)
    after, who = partition.rotate(before, rng(), probability=0.5)
    # Binomial(200, 1/2): five standard deviations are 35.
    assert 65 <= sum(who) <= 135
    for (x, y), (turned, labels), is_turned in zip(before, after, who, strict=True):
        assert torch.equal(turned, torch.rot90(x, 1, (2, 3)) if is_turned else x)
        assert torch.equal(labels, y)


def test_concepts_shift_by_one_permutation_per_cluster():
    before = shards(31, rows=40)
    after, cluster = partition.shift_concept(before, rng(), classes=4, clusters=3)
    assert sorted(cluster.count(c) for c in range(3)) == [10, 10, 11]
    for c in range(3):
        old = torch.cat([y for (_, y), k in zip(before, cluster, strict=True) if k == c])
        new = torch.cat([y for (_, y), k in zip(after, cluster, strict=True) if k == c])
        meaning = {(a, b) for a, b in zip(old.tolist(), new.tolist(), strict=True)}
        assert len(meaning) == len({a for a, _ in meaning}) == len({b for _, b in meaning}) == 4
        if c == 0:
            assert all(a == b for a, b in meaning)
    with pytest.raises(InvalidInput, match="cannot give"):
        partition.shift_concept(before[:2], rng(), classes=4, clusters=3)
