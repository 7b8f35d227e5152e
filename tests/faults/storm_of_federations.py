"""The storm on federations and on a client's home: every kill point of every write, and every full disk.

``python -m tests.faults.storm_of_federations`` (``make storm``) tries every point; the tests some of them. After every
accident the folder is resumed, and it must hold that: rounds drawn <= rounds in the journal <= rounds in the ledger,
clients asked <= what their accounts say, and the claim in the folder is about the models in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from tests.faults.dying import Disk, Killed, dying

from sordina.accounting.events import Event, Repeated
from sordina.accounting.ledger import Ledger
from sordina.errors import SordinaError
from sordina.federated import recipe as recipes
from sordina.federated.engines import ClientSide, InProcess, RoundRequest
from sordina.federated.flower.client import ClientContext, ClientFolder, alone, answer
from sordina.federated.messages import ClientResult
from sordina.federated.population import RowOrder
from sordina.federated.privacy import central
from sordina.federated.privacy.metric import Metric, PublicRadius
from sordina.federated.run_keeper import federate_into
from sordina.journal import Journal
from sordina.privacy import Budget, Unit
from sordina.run_folder import JOURNAL, PRIVACY, FolderState, read_claim, state_of

CLIENTS, ROUNDS = 6, 4
_BASE = recipes.FederatedRecipe(
    "synthetic", "fedavg", privacy="central", rounds=ROUNDS, clients_per_round=3, patience=0,
    options={"clients": CLIENTS, "validation": 3},
)  # fmt: skip
RECIPES = {
    "central": _BASE,
    "local": recipes.replace(_BASE, privacy="local"),
    "metric": recipes.replace(_BASE, strategy="metric-pfl", privacy="metric", radius="public:0.5"),
}
BOOKED = ("central", "local")
"""Those that a ledger can keep."""


@dataclass
class Drawn:
    """What really happened, over all lives of a run."""

    rounds: int = 0
    clients: Any = field(default_factory=lambda: np.zeros(CLIENTS, dtype=int))


@contextmanager
def watched() -> Iterator[list[Drawn]]:
    """Counts rounds and clients in the last `Drawn` of the list; no figures, and one calibration for all runs."""
    box = [Drawn()]
    whole, plan, kept = InProcess.map_reduce, central.make_plan, {}

    def counting(self: InProcess, side: Any, call: Any, clients: Any, rng: Any) -> Any:
        box[-1].rounds += 1
        box[-1].clients[clients] += 1
        return whole(self, side, call, clients, rng)

    def planned(budget: Any, sampler: Any, rounds: Any, **options: Any) -> Any:
        key = (budget, sampler, rounds)
        if key not in kept:
            kept[key] = plan(budget, sampler, rounds, **options)
        return kept[key]

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(InProcess, "map_reduce", counting))
        stack.enter_context(mock.patch.object(central, "make_plan", planned))
        stack.enter_context(mock.patch("sordina.federated.record.draw", return_value=[]))
        yield box


def _books(root: Path, name: str) -> Ledger | None:
    if name not in BOOKED:
        return None
    books = Ledger(root / "ledger.db")
    books.create(
        "clients", Budget(1000.0, 1e-2), adjacency="replace-one" if name == "local" else "add-remove", unit=Unit.USER
    )
    return books


def _go(root: Path, name: str, books: Ledger | None) -> None:
    """Begin or resume the run, whatever is there."""
    folder = root / "run"
    resume = (folder / "run.json").exists() and state_of(folder).state is not FolderState.FRESH
    federate_into(folder, RECIPES[name], resume=resume, ledger=books, dataset=None if books is None else "clients")


def _count(event: Event) -> int:
    return event.count if isinstance(event, Repeated) else 1


def check(root: Path, name: str, drawn: Drawn, books: Ledger | None) -> None:
    """What must hold of a run that ended."""
    claim = read_claim(root / "run")
    claimed = Journal.open(root / "run" / JOURNAL, block=1).claimed
    assert drawn.rounds <= min(claimed, ROUNDS), (drawn.rounds, claimed)
    assert drawn.rounds >= ROUNDS - 2, "a torn claim, or a round that was lost, costs one round each"
    if books is not None:
        spends = list(books.spends().values())
        assert len(spends) == 1, "reserved once"
        assert str(spends[0].status) == "settled"
        assert claim.epsilon > 2.9
        if name == "central":
            assert _count(spends[0].event) >= min(claimed, ROUNDS)
    if name == "local":
        assert drawn.clients.max() <= claim.details["limit"]
    if name == "metric":
        spent = np.array(claim.more["leakage_per_client"])
        assert (spent >= drawn.clients * claim.details["per_participation"] - 1e-9).all()


def points(name: str) -> int:
    """How many things a whole run does to the disk."""
    with tempfile.TemporaryDirectory() as place, watched(), dying(Disk()) as disk:
        _go(Path(place), name, _books(Path(place), name))
        return disk.done


def accident(name: str, at: int, *, full: bool = False) -> None:
    """One run that dies, or whose disk is full, at point ``at``; resumed without an accident, and checked.

    Args:
        name: Which recipe.
        at: The point, from 1.
        full: A full disk instead of a death.
    """
    with tempfile.TemporaryDirectory() as place, watched() as box:
        root = Path(place)
        books = _books(root, name)
        told = ""
        with dying(Disk(at, full=full)):
            try:
                _go(root, name, books)
            except (Killed, SordinaError) as error:
                told = str(error)
        assert bool(told) <= full
        assert len(told.splitlines()) <= 1
        if (root / "run" / PRIVACY).exists():
            read_claim(root / "run")
        _go(root, name, books)
        check(root, name, box[-1], books)


class _Mean:
    """A client's work: the mean of its rows."""

    state_sizes: dict[str, int] = {"kept": 2}  # noqa: RUF012

    def width(self, sent: Any) -> int:
        return 2

    def run(self, sent: Any, cohort: Any, state: Any, order: Any) -> Any:
        rows, _, _ = cohort.rows()
        return ClientResult(rows.mean(dim=0, keepdim=True), torch.ones(1)), {"kept": state["kept"] + 1}


def _take_part(folder: Path, rounds: int = 3) -> None:
    rows = torch.ones(4, 2)
    side = ClientSide(_Mean(), Metric(5.0, PublicRadius(0.5)))  # type: ignore[arg-type]
    client_context = ClientContext(side, lambda: alone(rows, rows[:, :1], 0), ClientFolder(folder), Fraction(10))
    for number in range(rounds):
        answer(client_context, RoundRequest({"model": torch.zeros(2)}, None, RowOrder(0, number)), 7, 0)


def home_points() -> int:
    """How many things a client does to its disk in three rounds."""
    with tempfile.TemporaryDirectory() as place, dying(Disk()) as disk:
        _take_part(Path(place) / "home")
        return disk.done


def home_accident(at: int, *, full: bool = False) -> None:
    """A client that dies, or whose disk is full, at point ``at``: its account is never below what it released."""
    cost, drawn, seal = Fraction(2, 5), [0], Metric.seal

    def counting(self: Metric, *rest: Any) -> Any:
        drawn[0] += 1
        return seal(self, *rest)

    def spent() -> Fraction:
        return ClientFolder(folder).total().leakage.per_distance / 2

    with tempfile.TemporaryDirectory() as place, mock.patch.object(Metric, "seal", counting):
        folder = Path(place) / "home"
        with dying(Disk(at, full=full)), suppress(Killed, SordinaError):
            _take_part(folder)
        assert drawn[0] * cost <= spent()
        _take_part(folder)
        assert drawn[0] * cost <= spent() <= (drawn[0] + 1) * cost
        assert ClientFolder(folder).total().of_run(7).spent == spent()


def all_accidents() -> Iterable[tuple[str, Callable[[], None]]]:
    """Every accident of the long form, with its name."""
    for name in RECIPES:
        for at in range(1, points(name) + 1):
            yield f"{name} killed at {at}", lambda name=name, at=at: accident(name, at)
        for at in range(1, points(name) + 1, 3):
            yield f"{name} full at {at}", lambda name=name, at=at: accident(name, at, full=True)
    for at in range(1, home_points() + 1):
        for full in (False, True):
            yield f"home at {at}, full {full}", lambda at=at, full=full: home_accident(at, full=full)


def main() -> None:
    """The long form."""
    failed = done = 0
    for name, happen in all_accidents():
        done += 1
        try:
            happen()
        except Exception as error:
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
    print(f"federations: {done} accidents, {failed} failures")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
