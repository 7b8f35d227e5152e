"""GOPA: exact sums, exact accounts for the graph in use, repair, and parties that do not keep to the protocol."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sordina.accounting import gaussian_epsilon
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.decentralized.gopa import GopaNoise, clipped, party_losses, second_eigenvalue
from sordina.federated.decentralized.gopa_party import (
    Cheated,
    CommittedValue,
    GopaBoard,
    GopaParty,
    GopaTerms,
    check_opening,
)
from sordina.federated.decentralized.graphs import CommunicationGraph, k_out, named
from sordina.federated.decentralized.key_agreement import KeyPair, shared_key
from sordina.federated.decentralized.lattice import add_fine_gaussian, drawn, effective, step_for
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
    update = noise.seal(ClientResult(vectors, torch.ones(50)), None, seeded(0))
    release, _ = noise.open(ClientUpdate(update.sums, answered=50), None, seeded(0))
    assert release is not None
    wanted = clipped(vectors.numpy(), 1.0).mean(axis=0)
    error = release.mean.double().numpy() - wanted
    assert error.std() == pytest.approx(noise.independent / math.sqrt(50), rel=0.05)
    assert noise.open(ClientUpdate(update.sums, answered=49), None, seeded(0))[0] is None
    noise.check(ClientsInTurn(50), 3)
    for selection in (ClientsInTurn(20), SampledClients(FixedSize(50, 50))):
        with pytest.raises(InvalidInput):
            noise.check(selection, 3)


class Round:
    """Parties that have agreed on their pairs, and the board they post on."""

    def __init__(self, n: int, size: int = 5, degree: int = 3, number: int = 0, allowed: int = 2):
        rng = np.random.default_rng(7)
        self.terms = GopaTerms(number, size, 1.0, 0.5, 40.0)
        self.values = [CommittedValue(row) for row in rng.normal(size=(n, size)) / 10]
        self.graph, self.board = k_out(n, degree, rng), GopaBoard(self.terms)
        self.parties = [
            GopaParty(k, self.terms, self.values[k].noised(self.terms), self.neighbours(k), allowed) for k in range(n)
        ]
        keys = {party.number: party.advertise() for party in self.parties}
        for party in self.parties:
            tags = party.agree({other: keys[other] for other in party.neighbours})
            self.board.post_tags(party.number, tags)
        self.board.check_pairs()
        self.promises = {
            party.number: self.values[party.number].promise(party.number, party.settle(party.neighbours))
            for party in self.parties
        }
        for number, promise in self.promises.items():
            self.board.post_promise(number, promise)
        self.sent = {party.number: party.send() for party in self.parties}

    def neighbours(self, number: int) -> tuple[int, ...]:
        return tuple(map(int, self.graph.neighbours(number)))

    def post(self, *left_out: int) -> None:
        for number, (message, blind) in self.sent.items():
            if number not in left_out:
                self.board.post_message(number, message, blind)

    def repair(self, *dropped: int) -> None:
        shown = {
            party.number: party.reveal(set(dropped) & set(party.neighbours))
            for party in self.parties
            if party.number not in dropped
        }
        for one in dropped:
            self.board.repair(one, {number: keys[one] for number, keys in shown.items() if one in keys})


def test_pairwise_noises_cancel_to_the_last_bit():
    ran = Round(12)
    ran.post()
    for message, _ in ran.sent.values():
        assert np.abs(message).max() * ran.terms.step > 5  # no message shows its value
    assert (ran.board.total() == sum(party.noised for party in ran.parties)).all()
    for party in ran.parties:
        check_opening(ran.board, party.number, ran.values[party.number], party.pair_keys)


def test_dropouts_are_repaired_exactly_and_cannot_come_back():
    ran = Round(12)
    ran.post(2, 5)
    with pytest.raises(InvalidInput, match="did not reveal"):
        ran.board.total()
    ran.repair(2, 5)
    assert (ran.board.total() == sum(party.noised for party in ran.parties if party.number not in (2, 5))).all()
    with pytest.raises(Cheated, match="came back"):
        ran.board.post_message(2, *ran.sent[2])
    with pytest.raises(InvalidInput, match="did not drop out"):
        ran.board.repair(0, {})


def test_a_message_that_was_committed_to_and_never_sent_cannot_be_guessed():
    """After the repair all but value + eta is known: a bare hash of one number is searched in milliseconds."""
    from sordina.federated.decentralized.gopa_party import commitment

    ran = Round(12, size=1)
    ran.post(2)
    ran.repair(2)
    known = -sum(ran.board.repaired[2].values())
    guesses = [(known + off).astype("<i8").tobytes() for off in range(-2000, 2001)]
    assert ran.sent[2][0].astype("<i8").tobytes() in guesses
    for blind in ((), (b"",)):
        assert all(commitment(b"message", b"2", *blind, one) != ran.board.promises[2].message for one in guesses)


def test_a_party_takes_every_step_once_and_for_its_own_neighbours():
    """Agreed twice on the same terms, two messages would differ by the noise of the pair that only one of them has."""
    ran = Round(8)
    party = ran.parties[0]
    for again in (party.advertise, lambda: party.agree({}), lambda: party.settle(party.neighbours), party.send):
        with pytest.raises(InvalidInput, match="and once"):
            again()
    strangers = [other for other in range(1, 8) if other not in party.neighbours]
    keys = {other: one.keys.public for other, one in enumerate(ran.parties)}
    near = {other: keys[other] for other in party.neighbours}

    def fresh(allowed=0):
        one = GopaParty(0, ran.terms, party.noised, party.neighbours, allowed)
        one.advertise()
        return one

    with pytest.raises(InvalidInput, match="not its neighbours"):
        fresh().agree(near | {strangers[0]: keys[strangers[0]]})
    with pytest.raises(InvalidInput, match="one key twice"):
        fresh().agree(dict.fromkeys(party.neighbours, keys[1]))
    with pytest.raises(InvalidInput, match="are missing"):
        fresh().agree(dict(list(near.items())[:-1]))
    alone = fresh(1)
    alone.agree(near)
    with pytest.raises(InvalidInput, match="are missing"):
        alone.settle(party.neighbours[:-2])
    kept = fresh(1)
    kept.agree(near)
    again = GopaParty.from_bytes(kept.to_bytes(), 0, ran.terms, party.noised, party.neighbours, 1)
    assert again.settle(party.neighbours[1:]) == kept.settle(party.neighbours[1:])
    assert (again.send()[0] == kept.send()[0]).all()
    with pytest.raises(InvalidInput, match="nothing is revealed"):
        again.reveal(party.neighbours[1:2])  # one was missing already
    with pytest.raises(InvalidInput, match="shares no noise"):
        kept.reveal(strangers[:1])


def test_keys_belong_to_one_round_of_one_run_and_its_noise():
    one, other = KeyPair.fresh(), KeyPair.fresh()
    terms = GopaTerms(3, 5, 1.0, 0.5, 40.0, b"run")
    variants = [
        replace(terms, number=4), replace(terms, run=b"other"), replace(terms, pairwise=41.0),
        replace(terms, independent=0.4), replace(terms, size=6),
    ]  # fmt: skip
    keys = {shared_key(one, other.public, those.context(0, 1)) for those in (terms, *variants)}
    assert len(keys) == 1 + len(variants)


def test_cheaters_are_named():
    ran = Round(8)
    board, sent = ran.board, ran.sent
    with pytest.raises(Cheated, match="party 1: opened another message"):
        board.post_message(1, sent[1][0] + 1, sent[1][1])
    for odd in (sent[1][0].astype(np.float64), sent[1][0][:3], "nonsense", None):
        with pytest.raises(Cheated, match="party 1"):
            board.post_message(1, odd, sent[1][1])
    with pytest.raises(Cheated, match="party 99"):
        board.post_message(99, *sent[1])
    neighbour = ran.neighbours(3)[0]
    with pytest.raises(Cheated, match=f"party {neighbour}"):
        board.repair(3, {neighbour: bytes(32)})
    board.post_message(1, *sent[1])
    with pytest.raises(Cheated, match="second message"):
        board.post_message(1, *sent[1])
    with pytest.raises(Cheated, match="second time"):
        board.post_tags(1, {})
    stays, moved = ran.values[1], replace(ran.values[1], value=ran.values[1].value + 1e-9)
    GopaBoard(ran.terms).post_promise(1, stays.promise(1, b"later"), before=ran.promises[1])
    with pytest.raises(Cheated, match="changed its value"):
        GopaBoard(ran.terms).post_promise(1, moved.promise(1, b"later"), before=ran.promises[1])


def test_pairs_that_do_not_agree_and_numbers_out_of_reach_are_named():
    ran = Round(8)
    board, other = ran.board, ran.neighbours(4)[0]
    board.tags[4][other] = bytes(32)
    with pytest.raises(Cheated, match="different keys") as caught:
        board.check_pairs()
    assert set(caught.value.parties) == {4, other}
    from sordina.federated.decentralized.gopa_party import Promise, message_commitment

    for size in (10**18, -(2**63)):
        huge = np.full(5, size, dtype=np.int64)
        fresh = GopaBoard(ran.terms, board.tags)
        fresh.post_promise(0, Promise(b"", b"", message_commitment(0, huge, b"")))
        with pytest.raises(Cheated, match="no honest party reaches"):
            fresh.post_message(0, huge, b"")
    party = GopaParty(0, ran.terms, ran.parties[0].noised, (1,))
    party.advertise()
    with pytest.raises(InvalidInput):
        party.agree({1: b"no key"})


def test_an_auditor_finds_garbage_within_the_range():
    ran = Round(6)
    from sordina.federated.decentralized.gopa_party import message_commitment

    message, blind = ran.sent[0]
    wrong, board = message + 7, GopaBoard(ran.terms, ran.board.tags)
    board.post_promise(0, replace(ran.promises[0], message=message_commitment(0, wrong, blind)))
    board.post_message(0, wrong, blind)
    pairs = ran.parties[0].pair_keys
    with pytest.raises(Cheated, match="do not make"):
        check_opening(board, 0, ran.values[0], pairs)
    with pytest.raises(Cheated, match="another value"):
        check_opening(board, 0, ran.values[1], pairs)
    with pytest.raises(Cheated, match="other pairs"):
        check_opening(board, 0, ran.values[0], ran.parties[1].pair_keys)


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
    late = CliRunner().invoke(app, [*words, "--engine", "flower", "--dropout", "0.1"]).exception
    assert isinstance(late, Unsupported)
