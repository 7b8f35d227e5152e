"""GOPA: exact sums, exact accounts for the graph in use, repair, and parties that do not keep to the protocol."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sordina.accounting import gaussian_epsilon
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.decentralized.gopa import GopaNoise, clipped
from sordina.federated.decentralized.gopa_party import Cheated, GopaBoard, GopaParty, GopaTerms, check_opening
from sordina.federated.decentralized.graphs import CommunicationGraph, k_out, named
from sordina.federated.decentralized.lattice import add_fine_gaussian, drawn, effective, keyed_generator, step_for
from sordina.federated.decentralized.pairwise_noise import party_losses, second_eigenvalue
from sordina.federated.messages import ClientResult, ClientUpdate
from sordina.federated.population import ClientsInTurn, SampledClients
from sordina.federated.privacy.placement import Facts
from sordina.privacy import Budget
from sordina.random import seeded
from sordina.sampling import FixedSize

BUDGET = Budget(1.0, 1e-6)


@pytest.mark.parametrize("name", ["complete", "ring", "grid", "exponential", "erdos-renyi:0.3", "k-out:3"])
def test_graphs_and_their_weights(name):
    graph = named(name, 24, np.random.default_rng(0))
    weights = graph.gossip_weights().toarray()
    assert graph.connected
    assert (weights == weights.T).all()
    assert (weights.sum(axis=1) == 1).all()
    assert (weights >= 0).all()
    assert ((weights > 0) == (graph.adjacency.toarray() + np.eye(24) > 0)).all()


def test_graphs_from_files_and_odd_names(tmp_path):
    (tmp_path / "edges").write_text("0 1\n1 2\n\n2 3\n")
    assert named(str(tmp_path / "edges"), 4).distances(0).tolist() == [0, 1, 2, 3]
    for text in ("0 1\n", "0 1\n1 2 3\n", "a b\n", "", "0 9\n"):
        (tmp_path / "bad").write_text(text)
        with pytest.raises(InvalidInput):
            named(str(tmp_path / "bad"), 4)
    for name in ("star", "erdos-renyi", "erdos-renyi:2", "k-out:0", "k-out:1.5"):
        with pytest.raises(InvalidInput):
            named(name, 4)
    drawn_pairs = named("erdos-renyi:0.5", 60, np.random.default_rng(1)).edges
    assert len(drawn_pairs) == pytest.approx(885, abs=120)
    assert drawn_pairs.max() == 59


def test_fine_noise_is_on_the_grid_with_its_variance():
    step, values = 2.0**-12, np.zeros(200_000)
    add_fine_gaussian(values, 1.0, step, seeded(0))
    assert (values / step == np.rint(values / step)).all()
    assert len(np.unique(np.rint(values / step).astype(int) % 16)) == 16
    assert values.std() == pytest.approx(1.0, rel=0.01)
    assert effective(1.0) ** 2 > 0.9977
    assert effective(drawn(0.7)) >= 0.7
    with pytest.raises(InvalidInput):
        add_fine_gaussian(values, 1.0, 0.1, seeded(0))


def test_the_account_of_small_graphs_is_the_inverse():
    rng = np.random.default_rng(2)
    graph, honest = k_out(60, 5, rng), rng.random(60) < 0.7
    inner = graph.among(honest)
    laplacian = np.diag(inner.degrees) - inner.adjacency.toarray()
    exact = np.diagonal(np.linalg.inv(9.0 * laplacian + 0.25 * np.eye(inner.parties)))
    assert party_losses(graph, honest, 0.5, 3.0) == pytest.approx(exact, rel=1e-6)


def test_the_account_of_large_graphs_bounds_the_inverse_from_above():
    rng = np.random.default_rng(3)
    graph, honest = k_out(1900, 8, rng), np.ones(1900, dtype=bool)
    laplacian = np.diag(graph.degrees) - graph.adjacency.toarray()
    exact = np.diagonal(np.linalg.inv(1e4 * laplacian + np.eye(1900)))
    found = party_losses(graph, honest, 1.0, 100.0)
    assert (found >= exact * (1 - 1e-9)).all()
    assert found.max() == pytest.approx(exact.max(), rel=1e-5)
    assert (found <= 1.3 * exact).all()
    eigenvalues = np.linalg.eigvalsh(laplacian.astype(float))
    bound = second_eigenvalue(named_laplacian(graph), graph.degrees.astype(float))
    assert 0.8 * eigenvalues[1] < bound <= eigenvalues[1]


def named_laplacian(graph: CommunicationGraph):
    from scipy import sparse

    return sparse.csr_array(sparse.diags_array(graph.degrees.astype(float)) - graph.adjacency)


def test_a_party_that_is_left_alone_is_found():
    rng = np.random.default_rng(4)
    with pytest.raises(Unsupported, match="left alone"):
        party_losses(k_out(1000, 2, rng), np.arange(1000) < 700, 1.0, 100.0)
    with pytest.raises(InvalidInput):
        party_losses(k_out(10, 2, rng), np.arange(10) < 1, 1.0, 100.0)


def test_the_noise_is_as_good_as_a_curator_s():
    noise = GopaNoise.within(BUDGET, 1000, 1, neighbours=15, rng=np.random.default_rng(5))
    assert noise.curator_ratio < 1.01
    assert noise.statement(Facts(1, 10, 1)).epsilon == pytest.approx(1.0, rel=1e-3)
    assert noise.statement(Facts(1, 10, 1)).epsilon <= 1.0
    assert gaussian_epsilon(1 / noise.mu, 1e-6) == pytest.approx(1.0, rel=1e-3)


def test_the_release_is_the_clipped_mean_plus_the_noise_it_says():
    noise = GopaNoise.within(BUDGET, 50, 2, rng=np.random.default_rng(6))
    vectors = torch.randn(50, 4000, dtype=torch.float64)
    vectors[3] = float("nan")
    parcel = noise.seal(ClientResult(vectors, torch.ones(50)), None, seeded(0))
    release, _ = noise.open(ClientUpdate(parcel.sums, answered=50), None, seeded(0))
    assert release is not None
    wanted = clipped(vectors.numpy(), 1.0).mean(axis=0)
    error = release.mean.double().numpy() - wanted
    assert error.std() == pytest.approx(noise.independent / math.sqrt(50), rel=0.05)
    assert noise.open(ClientUpdate(parcel.sums, answered=49), None, seeded(0))[0] is None
    noise.check(ClientsInTurn(50), 3)
    for selection in (ClientsInTurn(20), SampledClients(FixedSize(50, 50))):
        with pytest.raises(InvalidInput):
            noise.check(selection, 3)


def a_round(n: int, size: int = 5, degree: int = 3, number: int = 0, salts: list[bytes] | None = None):
    rng = np.random.default_rng(7)
    terms = GopaTerms(number, size, 1.0, 0.5, 40.0)
    values = rng.normal(size=(n, size)) / 10
    parties = [GopaParty(k, values[k], None if salts is None else salts[k]) for k in range(n)]
    graph, board = k_out(n, degree, rng), GopaBoard(terms)
    for party in parties:
        publics = {int(other): parties[other].keys.public for other in graph.neighbours(party.number)}
        board.post_tags(party.number, party.agree(terms, publics))
    board.check_pairs()
    return terms, values, parties, graph, board


def test_pairwise_noises_cancel_to_the_last_bit():
    terms, values, parties, _, board = a_round(12)
    alone = np.zeros(5, dtype=np.int64)
    for party in parties:
        promise, message, blind = party.send(terms)
        board.post_promise(party.number, promise)
        board.post_message(party.number, message, blind)
        own = clipped(values[[party.number]], 1.0)[0]
        from sordina.random import add_gaussian

        add_gaussian(own, terms.independent, keyed_generator(party.open_to_auditor().noise_key))
        alone += np.rint(own / terms.step).astype(np.int64)
        assert np.abs(message).max() * terms.step > 5  # no message shows its value
    assert (board.total() == alone).all()
    for party in parties:
        check_opening(board, party.number, party.open_to_auditor())


def test_dropouts_are_repaired_exactly_and_cannot_come_back():
    terms, _, parties, graph, board = a_round(12)
    for party in parties:
        promise, message, blind = party.send(terms)
        board.post_promise(party.number, promise)
        if party.number not in (2, 5):
            board.post_message(party.number, message, blind)
    with pytest.raises(InvalidInput, match="did not reveal"):
        board.total()
    for dropped in (2, 5):
        others = [int(other) for other in graph.neighbours(dropped) if other not in (2, 5)]
        board.repair(dropped, {other: parties[other].reveal(dropped, 2) for other in others})
    total, bare = board.total(), np.zeros(5, dtype=np.int64)
    for party in parties:
        if party.number not in (2, 5):
            opening = party.open_to_auditor()
            lone = GopaBoard(terms, {party.number: {}})
            from dataclasses import replace

            from sordina.federated.decentralized import gopa_party

            bare += gopa_party._message(lone.terms, party.number, replace(opening, pair_keys={}))
    assert (total == bare).all()
    with pytest.raises(Cheated, match="came back"):
        board.post_message(2, *parties[2].send(terms)[1:])
    with pytest.raises(InvalidInput, match="nothing is revealed"):
        parties[int(graph.neighbours(2)[0])].reveal(2, 0)
    with pytest.raises(InvalidInput, match="did not drop out"):
        board.repair(0, {})


def test_a_message_that_was_committed_to_and_never_sent_cannot_be_guessed():
    """After the repair all but value + eta is known: a bare hash of one number is searched in milliseconds."""
    from sordina.federated.decentralized.gopa_party import commitment

    terms, _, parties, graph, board = a_round(12, size=1)
    for party in parties:
        promise, message, blind = party.send(terms)
        board.post_promise(party.number, promise)
        if party.number != 2:
            board.post_message(party.number, message, blind)
    board.repair(2, {int(one): parties[int(one)].reveal(2, 1) for one in graph.neighbours(2)})
    known = -sum(board.repaired[2].values())
    guesses = [(known + off).astype("<i8").tobytes() for off in range(-2000, 2001)]
    assert parties[2].send(terms)[1].astype("<i8").tobytes() in guesses
    for blind in ((), (b"",)):
        assert all(commitment(b"message", b"2", *blind, one) != board.promises[2].message for one in guesses)


def test_cheaters_are_named():
    terms, values, parties, graph, board = a_round(8)
    sent = {party.number: party.send(terms) for party in parties}
    for number, (promise, *_) in sent.items():
        board.post_promise(number, promise)
    with pytest.raises(Cheated, match="party 1: opened another message"):
        board.post_message(1, sent[1][1] + 1, sent[1][2])
    for odd in (sent[1][1].astype(np.float64), sent[1][1][:3], "nonsense", None):
        with pytest.raises(Cheated, match="party 1"):
            board.post_message(1, odd, sent[1][2])
    with pytest.raises(Cheated, match="party 99"):
        board.post_message(99, *sent[1][1:])
    neighbour = int(graph.neighbours(3)[0])
    with pytest.raises(Cheated, match=f"party {neighbour}"):
        board.repair(3, {neighbour: bytes(32)})
    board.post_message(1, *sent[1][1:])
    with pytest.raises(Cheated, match="second one"):
        board.post_message(1, *sent[1][1:])
    later = GopaBoard(GopaTerms(1, 5, 1.0, 0.5, 40.0), board.tags)
    later.post_promise(1, parties[1].send(terms)[0], before=sent[1][0])
    moved = GopaParty(1, values[1] + 1e-9, parties[1].open_to_auditor().salt)
    moved.agree(terms, {})
    with pytest.raises(Cheated, match="changed its value"):
        GopaBoard(terms).post_promise(1, moved.send(terms)[0], before=sent[1][0])


def test_pairs_that_do_not_agree_and_numbers_out_of_reach_are_named():
    terms, _, parties, graph, board = a_round(8)
    other = int(graph.neighbours(4)[0])
    board.tags[4][other] = bytes(32)
    with pytest.raises(Cheated, match="different keys") as caught:
        board.check_pairs()
    assert set(caught.value.parties) == {4, other}
    from sordina.federated.decentralized.gopa_party import Promise, message_commitment

    for size in (10**18, -(2**63)):
        huge = np.full(5, size, dtype=np.int64)
        fresh = GopaBoard(terms, board.tags)
        fresh.post_promise(0, Promise(b"", b"", message_commitment(0, huge, b"")))
        with pytest.raises(Cheated, match="no honest party reaches"):
            fresh.post_message(0, huge, b"")
    with pytest.raises(InvalidInput):
        parties[0].agree(terms, {1: b"no key"})


def test_an_auditor_finds_garbage_within_the_range():
    terms, _, parties, _, board = a_round(6)
    from sordina.federated.decentralized.gopa_party import Promise, message_commitment

    promise, message, blind = parties[0].send(terms)
    wrong = message + 7
    board.post_promise(0, Promise(promise.value, promise.noise, message_commitment(0, wrong, blind)))
    board.post_message(0, wrong, blind)
    with pytest.raises(Cheated, match="do not make"):
        check_opening(board, 0, parties[0].open_to_auditor())
    other = parties[1].open_to_auditor()
    with pytest.raises(Cheated, match="another value"):
        check_opening(board, 0, other)


def test_the_pairwise_noise_of_the_wire_has_the_variance_of_the_account():
    terms = GopaTerms(0, 20_000, 1.0, 0.5, 40.0)
    from sordina.federated.decentralized.gopa_party import pair_noise

    noise = pair_noise(terms, bytes(32)) * step_for(0.5)
    assert noise.std() == pytest.approx(40.0, rel=0.02)
    assert (noise == pair_noise(terms, bytes(32)) * step_for(0.5)).all()
    assert (noise != pair_noise(terms, bytes(31) + b"1") * step_for(0.5)).any()


def test_a_run_with_gopa_ends_within_its_budget_and_in_a_folder(tmp_path):
    import json

    from typer.testing import CliRunner

    from sordina.cli.main import app

    options = ["--strategy", "fedsgd", "--privacy", "gopa", "--rounds", "2", "--epsilon", "2", "--neighbours", "12"]
    words = ["federate", "synthetic", *options, "--clients-per-round", "80", "--honest-share", "0.7", "--json"]
    run = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run"), "--dropout", "0.05"])
    assert run.exit_code == 0, run.output
    facts = json.loads(run.stdout)
    assert 1.9 < facts["epsilon"] <= 2.0
    claim = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert claim["placement"] == "gopa"
    assert claim["details"]["curator_ratio"] < 1.6
    alone = CliRunner().invoke(app, [*words, "--neighbours", "1", "--clients-per-round", "100"])
    assert isinstance(alone.exception, Unsupported)
    assert "left alone" in str(alone.exception)
    assert isinstance(CliRunner().invoke(app, [*words, "--engine", "flower"]).exception, Unsupported)
