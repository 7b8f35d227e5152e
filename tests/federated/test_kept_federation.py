"""`federate --out`: one folder a run, resumed after a kill, booked in a ledger, never overwritten."""

import json
import os
import sys
from dataclasses import replace

import numpy as np
import pytest

from sordina import journal as journals
from sordina.accounting.ledger import Ledger
from sordina.cli import main
from sordina.errors import InvalidInput, SordinaError, Unsupported
from sordina.federated.engines import InProcess
from sordina.federated.recipe import FederatedRecipe
from sordina.federated.run_keeper import CHECKPOINT, federate_into
from sordina.privacy import Budget
from sordina.run_folder import MODEL_HASH, MODELS, FolderState, read_claim, state_of

OPTIONS = {"clients": 12, "validation": 4}
CENTRAL = FederatedRecipe(
    "synthetic", "fedavg", privacy="central", rounds=6, clients_per_round=6, patience=0, options=OPTIONS
)  # fmt: skip
LOCAL = replace(CENTRAL, privacy="local", clients_per_round=4)
METRIC = replace(CENTRAL, strategy="metric-pfl", privacy="metric", radius="public:0.5", leakage_limit=2.0)


class Killed(BaseException):
    """The process dies here."""


@pytest.fixture
def drawn(monkeypatch):
    """How many rounds were drawn, and how often each client was asked, over all processes of a test."""
    seen = {"rounds": 0, "clients": np.zeros(OPTIONS["clients"], dtype=int)}
    whole = InProcess.map_reduce

    def watched(self, side, call, clients, rng):
        seen["rounds"] += 1
        seen["clients"][clients] += 1
        return whole(self, side, call, clients, rng)

    monkeypatch.setattr(InProcess, "map_reduce", watched)
    return seen


def kill_in_round(monkeypatch, number):
    """Die after round ``number`` was drawn and before it is kept."""
    from sordina.federated.run_keeper import FederationKeeper

    keep = FederationKeeper.keep

    def dying(self, progress, accounts):
        if progress.number == number:
            raise Killed
        keep(self, progress, accounts)

    monkeypatch.setattr(FederationKeeper, "keep", dying)
    return lambda: monkeypatch.setattr(FederationKeeper, "keep", keep)


def ledger(path, epsilon=10.0, unit="user"):
    books = Ledger(path / "ledger.db")
    books.create("clients", Budget(epsilon, 1e-4), unit=unit)
    return books


def test_a_whole_run_is_booked_and_names_its_model(tmp_path):
    books = ledger(tmp_path)
    facts = federate_into(tmp_path / "run", CENTRAL, ledger=books, dataset="clients")
    claim = read_claim(tmp_path / "run")
    assert claim.epsilon == facts["epsilon"] <= 3.0
    assert MODEL_HASH in claim.more
    assert books.spent("clients") == pytest.approx(facts["epsilon"], rel=0.35)
    assert [str(one.status) for one in books.spends().values()] == ["settled"]
    assert state_of(tmp_path / "run").state is FolderState.FINISHED
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    (tmp_path / "run" / MODELS).write_bytes(b"another model")
    with pytest.raises(InvalidInput, match="another model"):
        read_claim(tmp_path / "run")


def test_nothing_is_overwritten_and_a_finished_run_is_only_told_again(tmp_path, drawn):
    facts = federate_into(tmp_path / "run", CENTRAL)
    with pytest.raises(InvalidInput, match="holds a run already"):
        federate_into(tmp_path / "run", CENTRAL)
    assert federate_into(tmp_path / "run", CENTRAL, resume=True) == facts
    assert drawn["rounds"] == 6


@pytest.mark.parametrize("recipe", [CENTRAL, LOCAL, METRIC], ids=["central", "local", "metric"])
def test_a_killed_run_goes_on_and_never_draws_more_than_it_pays(recipe, tmp_path, drawn, monkeypatch):
    for number in (3, 4):
        revive = kill_in_round(monkeypatch, number)
        with pytest.raises(Killed):
            federate_into(tmp_path / "run", recipe, resume=(tmp_path / "run").exists())
        revive()
    assert drawn["rounds"] == 4
    facts = federate_into(tmp_path / "run", recipe, resume=True)
    assert drawn["rounds"] == 6
    assert facts["rounds"] == 4, "two were lost"
    assert facts["rounds_lost"] == 2
    claim = read_claim(tmp_path / "run")
    if recipe is METRIC:
        cost = facts["leakage"]["per_participation"]
        assert np.allclose(claim.more["leakage_per_client"], np.minimum(drawn["clients"], 5) * cost), "up to the limit"
    elif recipe is LOCAL:
        assert drawn["clients"].max() <= claim.details["limit"]
        assert claim.epsilon == pytest.approx(3.0, rel=0.01)
    else:
        assert claim.epsilon == pytest.approx(3.0, rel=0.01)
        text = (tmp_path / "run" / "journal.jsonl").read_text()
        assert "clients" not in text, "who took part is a secret under central privacy"


def test_a_seeded_run_is_repeated_bit_for_bit(tmp_path, monkeypatch):
    recipe = replace(CENTRAL, seed=3)
    federate_into(tmp_path / "whole", recipe)
    revive = kill_in_round(monkeypatch, 3)
    with pytest.raises(Killed):
        federate_into(tmp_path / "broken", recipe)
    revive()
    federate_into(tmp_path / "broken", recipe, resume=True)
    whole, broken = (np.load(tmp_path / name / MODELS) for name in ("whole", "broken"))
    assert all(np.array_equal(whole[name], broken[name]) for name in ("models", "last"))
    lines = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "broken")]
    assert lines[0] == lines[1]


def test_a_run_with_a_ledger_is_booked_once_whatever_happens(tmp_path, drawn, monkeypatch):
    books = ledger(tmp_path)
    revive = kill_in_round(monkeypatch, 2)
    with pytest.raises(Killed):
        federate_into(tmp_path / "run", CENTRAL, ledger=books, dataset="clients")
    revive()
    assert books.spent("clients") > 2.5, "reserved before anything was drawn"
    with pytest.raises(InvalidInput, match="resume it with that ledger"):
        federate_into(tmp_path / "run", CENTRAL, resume=True)
    federate_into(tmp_path / "run", CENTRAL, resume=True, ledger=books, dataset="clients")
    assert len(books.spends()) == 1
    assert drawn["rounds"] == 6


def test_a_budget_that_is_too_small_is_refused_before_a_client_is_asked(tmp_path, drawn):
    books = ledger(tmp_path, epsilon=1.0)
    with pytest.raises(SordinaError):
        federate_into(tmp_path / "run", CENTRAL, ledger=books, dataset="clients")
    assert drawn["rounds"] == 0
    assert state_of(tmp_path / "run").state is FolderState.FRESH, "and the folder can be used again"


def test_what_cannot_be_booked_or_resumed_is_said_in_one_line(tmp_path, monkeypatch):
    books = ledger(tmp_path)
    with pytest.raises(InvalidInput, match="leave --ledger out"):
        federate_into(tmp_path / "metric", METRIC, ledger=books, dataset="clients")
    with pytest.raises(Unsupported, match="on Flower cannot be resumed"):
        federate_into(tmp_path / "flower", replace(CENTRAL, engine="flower"), resume=True)
    stateful = replace(CENTRAL, strategy="scaffold")
    monkeypatch.setattr("sordina.federated.record.save", _die)
    with pytest.raises(Killed):
        federate_into(tmp_path / "scaffold", stateful)
    with pytest.raises(Unsupported, match="vectors of their own"):
        federate_into(tmp_path / "scaffold", stateful, resume=True)


def _die(*_):
    raise Killed


@pytest.mark.parametrize("change", [{"epsilon": 0.5}, {"rounds": 60}, {"seed": 1}, {"clipping": "quantile"}])
def test_a_run_is_resumed_as_it_was_begun_or_not_at_all(tmp_path, monkeypatch, change):
    revive = kill_in_round(monkeypatch, 2)
    with pytest.raises(Killed):
        federate_into(tmp_path / "run", CENTRAL)
    revive()
    with pytest.raises(InvalidInput, match="another run"):
        federate_into(tmp_path / "run", replace(CENTRAL, **change), resume=True)


def test_a_damaged_checkpoint_or_journal_counts_as_spent(tmp_path, drawn, monkeypatch):
    revive = kill_in_round(monkeypatch, 3)
    with pytest.raises(Killed):
        federate_into(tmp_path / "run", METRIC)
    revive()
    path = tmp_path / "run" / CHECKPOINT
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(InvalidInput, match="damaged"):
        federate_into(tmp_path / "run", METRIC, resume=True)
    path.write_bytes(whole)
    with open(tmp_path / "run" / "journal.jsonl", "ab") as file:
        file.write(b'{"claim')
    federate_into(tmp_path / "run", METRIC, resume=True)
    claim = read_claim(tmp_path / "run")
    assert drawn["rounds"] == 5, "what cannot be read may have been a round: it counts as spent"
    cost = claim.details["per_participation"]
    assert (np.array(claim.more["leakage_per_client"]) >= np.minimum(drawn["clients"], 5) * cost - 1e-9).all()


def test_two_processes_never_hold_one_folder(tmp_path, monkeypatch):
    from sordina.private_files import FolderInUse
    from sordina.run_folder import RunFolder

    revive = kill_in_round(monkeypatch, 2)
    with pytest.raises(Killed):
        federate_into(tmp_path / "run", CENTRAL)
    revive()
    settings = {key: value for key, value in CENTRAL.to_dict().items() if key != "data_seed"}
    with RunFolder.begin(tmp_path / "run", "federate", {"recipe": settings}, resume=True), pytest.raises(FolderInUse):
        federate_into(tmp_path / "run", CENTRAL, resume=True)


def test_the_journal_has_every_round_before_it_is_drawn(tmp_path, monkeypatch):
    claimed = []
    whole = InProcess.map_reduce

    def watched(self, side, call, clients, rng):
        lines = (tmp_path / "run" / "journal.jsonl").read_bytes().splitlines()
        claimed.append((call.order.round, [journals.unpack(one)["claimed"] for one in lines]))
        return whole(self, side, call, clients, rng)

    monkeypatch.setattr(InProcess, "map_reduce", watched)
    federate_into(tmp_path / "run", CENTRAL)
    assert claimed == [(number, list(range(1, number + 2))) for number in range(6)]


def test_files_are_the_owners_own(tmp_path):
    federate_into(tmp_path / "run", CENTRAL)
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0
    for name in ("models.npz", "privacy.json", "journal.jsonl", "run.json", "recipe.json", "metrics.jsonl"):
        assert (tmp_path / "run" / name).stat().st_mode & 0o077 == 0, name


def call(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["sordina", "federate", *arguments])
    with pytest.raises(SystemExit) as stop:
        main.main()
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_the_command_books_resumes_and_refuses(capsys, monkeypatch, tmp_path):
    ledger(tmp_path)
    out, where = str(tmp_path / "run"), str(tmp_path / "ledger.db")
    base = ["synthetic", "--strategy", "fedavg", "--privacy", "central", "--rounds", "3", "--clients-per-round", "20"]
    booked = ["--ledger", where, "--dataset-budget", "clients", "--out", out]
    code, _, err = call(capsys, monkeypatch, *base, *booked)
    assert code == 0, err
    first = os.stat(tmp_path / "run" / MODELS).st_mtime_ns
    code, _, err = call(capsys, monkeypatch, *base, *booked)
    assert (code, len(err.strip().splitlines())) == (2, 1)
    code, told, err = call(capsys, monkeypatch, *base, *booked, "--resume", "--json")
    assert code == 0, err
    assert json.loads(told)["rounds"] == 3
    assert os.stat(tmp_path / "run" / MODELS).st_mtime_ns == first
    for bad in (["--ledger", where], ["--dataset-budget", "clients"], ["--resume"]):
        code, _, err = call(capsys, monkeypatch, *base, *bad)
        assert (code, len(err.strip().splitlines())) == (2, 1)
    code, _, err = call(capsys, monkeypatch, *base, "--epsilon", "20", "--ledger", where, "--dataset-budget", "clients",
                        "--out", str(tmp_path / "second"))  # fmt: skip
    assert (code, len(err.strip().splitlines())) == (3, 1)


def test_a_killed_run_of_gopa_goes_on_in_the_same_graph(tmp_path, monkeypatch, drawn):
    """Its graph is drawn once; a second one would let a coalition meet a client in two."""
    gopa = replace(CENTRAL, privacy="gopa", clients_per_round=12, neighbours=6, epsilon=5.0, tolerated_dropout=0.0)
    books = ledger(tmp_path, epsilon=5.5)
    revive = kill_in_round(monkeypatch, 3)
    with pytest.raises(Killed):
        federate_into(tmp_path / "run", gopa, ledger=books, dataset="clients")
    revive()
    seed = (tmp_path / "run" / "graph.json").read_text()
    facts = federate_into(tmp_path / "run", gopa, resume=True, ledger=books, dataset="clients")
    assert (tmp_path / "run" / "graph.json").read_text() == seed
    assert drawn["rounds"] == 6
    assert facts["rounds_lost"] == 1
    assert 4.9 < facts["epsilon"] <= 5.0
    assert books.spent("clients") == pytest.approx(facts["epsilon"], rel=0.35)
    os.remove(tmp_path / "run" / "graph.json")
    other = federate_into(tmp_path / "second", replace(gopa, rounds=1, epsilon=0.4))
    assert (tmp_path / "second" / "graph.json").read_text() != seed
    assert other["epsilon"] <= 0.4
