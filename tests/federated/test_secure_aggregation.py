"""Secure aggregation: exact sums through drop-outs, uniform messages, and what a cheater can and cannot do."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import chisquare, hypergeom

from sordina.errors import InvalidInput
from sordina.federated.decentralized.graphs import SECURITY, AggregationGraph, plan_graph
from sordina.federated.decentralized.secure_aggregation import (
    Aborted,
    AggregationClient,
    AggregationServer,
    SecureSum,
    sum_securely,
)

STEPS = ("advertise", "share", "mask", "unmask")


def vectors_of(rng, clients, length, bits):
    return {one: rng.integers(0, 2**bits, length, dtype=f"u{bits // 8}") for one in range(clients)}


def expected(vectors, remaining):
    return np.sum([vectors[one] for one in remaining], axis=0, dtype=vectors[0].dtype)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("seed", range(6))
def test_the_sum_is_exact_through_drop_outs_at_every_step(seed, bits):
    rng = np.random.default_rng(seed)
    clients, length = int(rng.integers(12, 30)), int(rng.integers(1, 40))
    graph = plan_graph(clients, 0.7, 0.3) if seed % 2 else AggregationGraph(clients, 8, 4, 0.0)
    vectors = vectors_of(rng, clients, length, bits)
    order = tuple(int(one) for one in rng.permutation(clients))
    dropping = rng.choice(clients, int(0.3 * clients) if seed % 2 else 2, replace=False)
    gone = {int(one): STEPS[rng.integers(4)] for one in dropping}
    total, remaining = sum_securely(vectors, SecureSum("run 1", graph, 3, length, bits), order, gone)
    assert remaining == {one for one in range(clients) if gone.get(one) in (None, "unmask")}
    np.testing.assert_array_equal(total, expected(vectors, remaining))


def test_too_few_that_remain_unmask_nothing():
    vectors = vectors_of(np.random.default_rng(0), 8, 4, 32)
    common = SecureSum("r", AggregationGraph(8, 7, 4, 0.0), 7, 4)
    with pytest.raises(Aborted, match="6 clients remained, 7 are needed"):
        sum_securely(vectors, common, tuple(range(8)), {0: "mask", 3: "mask"})
    with pytest.raises(Aborted, match="too few"):
        sum_securely(vectors, dataclasses.replace(common, least=3), tuple(range(8)), dict.fromkeys(range(5), "share"))


def run_until_masked(clients=6, threshold=3, length=3, least=3):
    vectors = vectors_of(np.random.default_rng(1), clients, length, 32)
    common = SecureSum("r", AggregationGraph(clients, clients - 1, threshold, 0.0), least, length)
    people = {one: AggregationClient(one, common) for one in range(clients)}
    server = AggregationServer(common, tuple(range(clients)))
    for one, client in people.items():
        server.advertised(one, client.advertise())
    for one, client in people.items():
        server.shared(one, *client.share(server.keys_for(one)))
    masked = {one: client.mask(server.letters_for(one), vectors[one]) for one, client in people.items()}
    return vectors, common, people, server, masked


def test_what_crosses_is_uniform_whatever_the_vectors_are():
    """The masked vectors of clients whose numbers are all zero, bit by bit and byte by byte."""
    common = SecureSum("r", AggregationGraph(6, 5, 3, 0.0), 3, 60_000)
    people = {one: AggregationClient(one, common) for one in range(6)}
    server = AggregationServer(common, tuple(range(6)))
    for one, client in people.items():
        server.advertised(one, client.advertise())
    for one, client in people.items():
        server.shared(one, *client.share(server.keys_for(one)))
    for one, client in people.items():
        masked = client.mask(server.letters_for(one), common.zeros())
        for place in range(4):
            counts = np.bincount(masked.view(np.uint8)[place::4], minlength=256)
            assert chisquare(counts).pvalue > 1e-6
        server.masked(one, masked)
    for one, client in people.items():
        server.unmasked(one, client.unmask(server.survivors_for(one), 6))
    assert not server.reveal().any()


def test_a_client_never_tells_both_secrets_of_a_neighbour():
    _, _, people, server, masked = run_until_masked()
    for one in range(5):
        server.masked(one, masked[one])
    told = people[0].unmask(server.survivors_for(0), 5)
    assert told[5] == people[0].shares[5][33:]
    assert told[1] == people[0].shares[1][:33]
    with pytest.raises(Aborted, match="and once"):
        people[0].unmask([1, 2, 3, 4, 5], 6)


def test_a_wrong_share_is_found_and_its_sender_named():
    vectors, _, people, server, masked = run_until_masked()
    for one in range(5):
        server.masked(one, masked[one])
    for one in range(5):
        shares = people[one].unmask(server.survivors_for(one), 5)
        if one == 0:
            shares = {owner: bytes(1) + bytes(reversed(share[1:])) for owner, share in shares.items()}
        server.unmasked(one, shares)
    np.testing.assert_array_equal(server.reveal(), expected(vectors, range(5)))
    assert server.cheaters == {0}


def test_too_many_wrong_shares_unmask_nothing():
    _, _, people, server, masked = run_until_masked()
    for one in range(5):
        server.masked(one, masked[one])
    for one in range(5):
        shares = people[one].unmask(server.survivors_for(one), 5)
        server.unmasked(one, {owner: bytes(33) for owner in shares} if one < 2 else shares)
    with pytest.raises(Aborted):
        server.reveal()


def test_what_does_not_fit_is_refused():
    vectors, common, people, server, masked = run_until_masked()
    with pytest.raises(InvalidInput, match="malformed"):
        server.advertised(0, people[0].letter_pair.public * 2)
    with pytest.raises(InvalidInput, match="malformed"):
        server.masked(1, masked[1][:-1])
    server.masked(1, masked[1])
    with pytest.raises(InvalidInput, match="malformed"):
        server.masked(1, masked[1])
    with pytest.raises(InvalidInput, match="malformed"):
        server.unmasked(2, {})
    fresh = AggregationClient(9, common)
    fresh.advertise()
    with pytest.raises(Aborted, match="not different"):
        fresh.share(dict.fromkeys(range(5), bytes(64)))
    replayed = AggregationClient(0, dataclasses.replace(common, name="another round"), people[0].letter_pair)
    replayed.done, replayed.keys = 2, people[0].keys
    with pytest.raises(InvalidInput, match="cannot be read"):
        replayed.mask(server.letters_for(0), vectors[0])


def test_a_key_with_which_nobody_can_agree_and_a_long_letter_stop_their_sender_only():
    common = SecureSum("round", plan_graph(10, 0.7, 0.1), 9, 5)
    clients = {one: AggregationClient(one, common) for one in range(10)}
    server = AggregationServer(common, tuple(range(10)))
    for one in range(9):
        server.advertised(one, clients[one].advertise())
    with pytest.raises(InvalidInput, match="public key"):
        server.advertised(9, bytes(32) + clients[9].advertise()[32:])
    digest, letters = clients[0].share(server.keys_for(0))
    with pytest.raises(InvalidInput, match="length"):
        server.shared(0, digest, {one: letter + b"x" for one, letter in letters.items()})
    server.shared(0, digest, letters)


def test_a_client_is_written_down_between_steps():
    vectors, common, people, server, masked = run_until_masked()
    again = AggregationClient.from_bytes(people[2].to_bytes(), common)
    assert again == people[2]
    for one in range(6):
        server.masked(one, masked[one])
    for one in range(6):
        holder = AggregationClient.from_bytes(people[one].to_bytes(), common)
        server.unmasked(one, holder.unmask(server.survivors_for(one), 6))
    np.testing.assert_array_equal(server.reveal(), expected(vectors, range(6)))


@pytest.mark.parametrize(("clients", "honest", "dropout"), [(1000, 0.9, 0.05), (5000, 0.8, 0.1), (300, 0.95, 0.1)])
def test_a_planned_graph_is_as_safe_as_it_says(clients, honest, dropout):
    graph = plan_graph(clients, honest, dropout)
    colluding, gone = clients - int(honest * clients), int(dropout * clients)
    known = clients * hypergeom.sf(graph.threshold - 1, clients - 1, colluding, graph.degree)
    assert known <= graph.failure <= SECURITY
    assert clients * hypergeom.sf(graph.degree - graph.threshold, clients - 1, gone, graph.degree) <= 2**-20
    neighbours = graph.neighbours(list(range(clients)))
    assert all(len(set(one)) == graph.degree for one in neighbours.values())
    assert all(one in neighbours[other] for one, others in neighbours.items() for other in others)


@pytest.mark.parametrize(("clients", "honest", "dropout"), [(2, 0.7, 0.1), (10, 0.3, 0.4), (10, 0, 0.1), (10, 0.5, 1)])
def test_what_cannot_be_hidden_is_refused(clients, honest, dropout):
    with pytest.raises(InvalidInput):
        plan_graph(clients, honest, dropout)


def test_several_wrong_shares_are_corrected_and_all_their_senders_named():
    vectors, _, people, server, masked = run_until_masked(clients=10, threshold=3)
    for one in range(10):
        server.masked(one, masked[one])
    for one in range(10):
        shares = people[one].unmask(server.survivors_for(one), 10)
        if one in (0, 1, 2):
            shares = {owner: bytes(1) + bytes(reversed(share[1:])) for owner, share in shares.items()}
        server.unmasked(one, shares)
    np.testing.assert_array_equal(server.reveal(), expected(vectors, range(10)))
    assert set(server.named()) == {0, 1, 2}


def test_a_dealer_whose_shares_do_not_fit_is_named_with_the_doubt():
    _, _, people, server, masked = run_until_masked(clients=6, threshold=3)
    for one in range(6):
        server.masked(one, masked[one])
    for one in range(6):
        shares = people[one].unmask(server.survivors_for(one), 6)
        if 5 in shares:  # client 5 gave everybody another polynomial's share
            shares[5] = bytes(1) + bytes([one]) * 32
        server.unmasked(one, shares)
    with pytest.raises(Aborted, match="do not fit"):
        server.reveal()
    assert "many of its neighbours lie" in server.named()[5]


def test_complaints_name_one_or_both():
    _, _, _, server, _ = run_until_masked(clients=6, threshold=3)
    server.remaining.clear()
    server.complained(1, [4])
    assert set(server.named()) == {1, 4}
    for reader in (0, 2):
        server.complained(reader, [4])
    assert list(server.named()) == [4]
    with pytest.raises(InvalidInput, match="complaint"):
        server.complained(1, [1])


@pytest.mark.parametrize("clients", [5, 8, 20, 60])
def test_no_client_s_two_secrets_come_together_where_the_graph_says_so(clients):
    """It splits the honest neighbours as it likes; the colluding ones give it both shares."""
    found = 0
    for honest in (0.6, 0.75, 0.9):
        for dropout in (0.0, 0.1, 0.2):
            graph = plan_graph(clients, honest, dropout)
            colluding = clients - int(honest * clients)
            if graph.secrets_stay_apart and graph.degree == clients - 1:
                found += 1
                others = graph.degree - colluding
                best = max(min(colluding + told, colluding + others - told) for told in range(others + 1))
                assert best < graph.threshold
    assert found


def test_a_client_does_not_mask_for_a_server_that_hides_its_neighbours():
    """With the colluding ones and few honest partners its masks could be opened one by one."""
    common = SecureSum("t", AggregationGraph(10, 9, 4, 0.0), 8, 3)
    people = [AggregationClient(one, common) for one in range(10)]
    keys = {one.number: one.advertise() for one in people}
    near = {one: {other: keys[other] for other in range(10) if other != one} for one in range(10)}
    with pytest.raises(Aborted, match="more neighbours are missing"):
        people[9].share(dict(list(near[9].items())[:6]))
    letters = {one: people[one].share(near[one])[1] for one in range(9)}
    vector = np.zeros(3, dtype=np.uint32)
    with pytest.raises(Aborted, match="more neighbours are missing"):
        people[0].mask({one: letters[one][0] for one in range(1, 7)}, vector)
    assert len(people[1].mask({one: letters[one][1] for one in (0, 2, 3, 4, 5, 6, 7)}, vector)) == 3
