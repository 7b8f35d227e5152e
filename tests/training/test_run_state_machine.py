"""The life of a run, made up by hypothesis: started, killed at any write, resumed as itself or another, twice at once,
with another ledger, left early, fitted again, settled, released. Whatever happens: what is claimed is never below what
the drawn batches cost, the ledger never below the claims, and a claim stands beside the model it speaks of.

Costs are counted as ``n / nu^2`` for n steps at noise multiplier nu: additive, and monotone in what an accountant says.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import warnings
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.faults.dying import Disk, Killed, dying
from torch import nn
from torch.nn import functional as F

import sordina as sd
from sordina import private_files, run_folder
from sordina.accounting import Composed, Gaussian, PoissonSampled, Repeated, from_dict
from sordina.accounting.ledger import Status
from sordina.errors import SordinaError
from sordina.journal import Journal
from sordina.run_folder import MODEL, MODEL_HASH, PRIVACY, RUN, FolderState, RunFolder, read_json, state_of
from sordina.training import reservations
from sordina.training.loop import Private
from sordina.training.trainer import Trainer

STEPS, LOUD, QUIET = 4, 6.0, 3.0
X = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
DATA = (X, (X[:, 0] > 0).long())


def cost(event) -> float:
    if isinstance(event, Composed):
        return sum(map(cost, event.events))
    if isinstance(event, Repeated):
        return event.count * cost(event.event)
    if isinstance(event, PoissonSampled):
        return cost(event.event)
    assert isinstance(event, Gaussian)
    return event.noise_multiplier**-2


class World:
    """Folders, ledgers, and what was really drawn in each run."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.draws: dict[Path, list[float]] = defaultdict(list)
        self.held: list = []
        self.ledgers = [sd.Ledger(self.root / f"{name}.db") for name in "ab"]
        for ledger in self.ledgers:
            ledger.create("people", sd.Budget(1000, 1e-5), accountant="rdp")
            ledger.reserve("people", Gaussian(50.0), what="somebody else's")
        self._draw = Private._draw
        Private._draw = self._counted()

    def _counted(self):
        draw = self._draw

        def counted(private):
            table = draw(private)
            self.draws[self.place_of(private)].append(private.plan.noise_multiplier)
            return table

        return counted

    @staticmethod
    def place_of(private) -> Path:
        folder = private.keeper.folder
        return folder.path if folder else Path("nowhere")

    def folder(self, number: int) -> Path:
        return self.root / f"run{number}"

    def close(self) -> None:
        Private._draw = self._draw
        for private, _ in self.held:
            private.close()
        shutil.rmtree(self.root)

    def options(self, number, noise, ledger) -> dict:
        booked = {} if ledger is None else {"ledger": self.ledgers[ledger], "dataset_budget": "people"}
        return booked | {
            "budget": sd.Budget(1000, 1e-5), "batch_size": 4, "steps": STEPS, "noise_multiplier": noise,
            "accountant": "rdp", "clipping": sd.clipping.Fixed(1.0), "folder": self.folder(number),
        }  # fmt: skip

    def train(self, number, noise, ledger, resume, kill, twice) -> None:
        options = self.options(number, noise, ledger)
        trainer = Trainer(
            nn.Linear(2, 2), F.cross_entropy, **options, learning_rate=0.1, tensorboard=False, track_epsilon=False,
        )  # fmt: skip
        with dying(Disk(kill)):
            run = trainer.fit(DATA, resume=resume)
            if twice:
                run = trainer.fit(DATA, resume=True)
        assert cost(run.event) >= self.spent(self.folder(number))

    def loop(self, number, noise, ledger, resume, kill, steps, end) -> None:
        model = nn.Linear(2, 2)
        with dying(Disk(kill)):
            private = sd.make_private(
                model, torch.optim.SGD(model.parameters(), lr=0.1), DATA, resume=resume,
                **self.options(number, noise, ledger),
            )  # fmt: skip
            batches = iter(private)
            try:
                self.go_on(private, batches, steps)
                if end == "finish":
                    private.finish()
            except Killed:
                private.close()
                raise
        if end == "hold":
            self.held.append((private, batches))
        else:
            private.close()

    @staticmethod
    def go_on(private, batches, steps) -> None:
        for x, y in itertools.islice(batches, steps):
            private.step(F.cross_entropy(private.model(x), y, reduction="none"))

    def spent(self, folder: Path) -> float:
        return sum(noise**-2 for noise in self.draws[folder])

    def check(self) -> None:
        for number in range(2):
            folder = self.folder(number)
            if not (folder / RUN).exists() or state_of(folder).state is FolderState.FRESH:
                assert not self.draws[folder]
                continue
            record = read_json(folder / RUN)
            real, claimed = self.spent(folder), min(STEPS, Journal.open(folder / "journal.jsonl").claimed)
            assert len(self.draws[folder]) <= claimed
            claim = 0.0
            if (folder / PRIVACY).exists():
                facts = read_json(folder / PRIVACY)
                claim = cost(from_dict(facts["event"]))
                assert claim >= real - 1e-9
                assert facts["steps"] == STEPS
                assert facts[MODEL_HASH] == private_files.sha256(folder / MODEL)
            self.check_ledger(folder, record["run_id"], max(real, claim))

    def check_ledger(self, folder: Path, run_id: str, least: float) -> None:
        booked = [s for one in self.ledgers for s in one.spends().values() if s.what.endswith(f"(run {run_id})")]
        assert len(booked) <= 1
        if (folder / "reservation.json").exists():
            assert sum(cost(s.event) for s in booked if s.status is not Status.RELEASED) >= least - 1e-9
        for one in self.ledgers:
            assert one.spends()[2].status is Status.OPEN, "a stranger's reservation was settled"


FOLDERS = st.integers(0, 1)
KILLS = st.one_of(st.just(0), st.just(0), st.integers(1, 90))
CHANGES = st.sampled_from([*[None] * 8, "noise", "ledger", "no ledger", "not resumed"])
FEW = st.sampled_from([1, 1, 2, 3, STEPS, 0])


class LifeOfARun(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    def _try(self, action, *args) -> None:
        with contextlib.suppress(SordinaError, Killed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            action(*args)

    def _how(self, number, change) -> tuple:
        """Noise, ledger and resume for a folder: mostly as it was begun."""
        folder = self.world.folder(number)
        noise, ledger = (QUIET, 0) if number else (QUIET, None)
        resume = (folder / RUN).exists() and change != "not resumed"
        if change == "noise":
            noise = LOUD
        if change == "ledger":
            ledger = 1
        if change == "no ledger":
            ledger = None
        return number, noise, ledger, resume

    @rule(number=FOLDERS, change=CHANGES, kill=KILLS, twice=st.booleans())
    def train(self, number, change, kill, twice):
        self._try(self.world.train, *self._how(number, change), kill, twice)

    @rule(
        number=FOLDERS, change=CHANGES, kill=KILLS, steps=FEW,
        end=st.sampled_from(["leave", "hold", "finish"]),
    )  # fmt: skip
    def loop(self, number, change, kill, steps, end):
        self._try(self.world.loop, *self._how(number, change), kill, steps, end)

    @rule(kill=KILLS, steps=FEW, finish=st.booleans())
    def go_on_with_what_is_held(self, kill, steps, finish):
        if not self.world.held:
            return
        private, batches = self.world.held.pop(0)
        with dying(Disk(kill)):
            self._try(self.world.go_on, private, batches, steps)
            if finish:
                self._try(private.finish)
        private.close()

    @rule(number=FOLDERS, steps=st.tuples(FEW, FEW, FEW))
    def two_at_once(self, number, steps):
        self.loop(number, None, 0, steps[0], "hold")
        self.loop(number, None, 0, steps[1], "leave")
        self.go_on_with_what_is_held(0, steps[2], False)

    @rule(number=FOLDERS, steps=FEW, junk=st.sampled_from([b'{"claim', b"\0\0", b'{"claimed": 1, "check": "0"}\n']))
    def tear_the_journal(self, number, steps, junk):
        path = self.world.folder(number) / "journal.jsonl"
        busy = any(World.place_of(private) == path.parent for private, _ in self.world.held)
        if path.exists() and not busy and state_of(path.parent).state is FolderState.OPEN:
            with path.open("ab") as file:
                file.write(junk)
            self.loop(number, None, 0, steps, "leave")

    @rule(number=FOLDERS)
    def release_what_was_never_drawn(self, number):
        folder = self.world.folder(number)
        kept = folder / "reservation.json"
        if kept.exists() and not self.world.draws[folder] and state_of(folder).state is FolderState.OPEN:
            told = read_json(kept)
            for ledger in self.world.ledgers:
                if ledger.id == told["ledger"]:
                    self._try(partial(ledger.release, told["number"], why="thought to be dead"))

    @invariant()
    def nothing_is_undercounted(self):
        self.world.check()

    def teardown(self):
        self.world.close()


QUICK = settings(
    max_examples=12, stateful_step_count=7, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def test_whatever_happens_to_a_run_nothing_is_undercounted():
    run_state_machine_as_test(LifeOfARun, settings=QUICK)


def no_lock(monkeypatch):
    monkeypatch.setattr(private_files, "_lock", lambda file: None)


def no_settings(monkeypatch):
    monkeypatch.setattr(run_folder, "_refuse_changes", lambda *_: None)


def any_ledger(monkeypatch):
    monkeypatch.setattr(RunFolder, "keep_reservation", lambda *_: None)
    monkeypatch.setattr(
        RunFolder, "reservation", property(lambda folder: run_folder.HeldReservation("x", "people", 2)), raising=True
    )
    monkeypatch.setattr(reservations, "settle_once", lambda reservation, event: reservation.settle(event))


def claimed_after_drawing(monkeypatch):
    def late(self, step, last, *, block=1):
        self.claimed, before = min(step, last), self.claimed
        if before:
            self.append({"claimed": before})

    monkeypatch.setattr(Journal, "claim", late)


def refunds_what_was_left_out(monkeypatch):
    finish = Private.finish

    def early(private):
        private.book, book = lambda steps: None, private.book
        try:
            return finish(private)
        finally:
            private.book = book

    monkeypatch.setattr(Private, "finish", early)


def model_without_its_hash(monkeypatch):
    def finish(folder, model, claim, settle=None):
        folder.write_json(PRIVACY, {**claim.to_dict(), MODEL_HASH: "0"})
        folder.write(MODEL, model)

    monkeypatch.setattr(RunFolder, "finish", finish)


FAULTS = [
    no_lock, no_settings, any_ledger, claimed_after_drawing, refunds_what_was_left_out,
    model_without_its_hash,
]  # fmt: skip
HUNT = settings(QUICK, max_examples=60, phases=[Phase.generate], print_blob=False)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_machine_finds_planted_faults(monkeypatch, fault):
    fault(monkeypatch)
    with pytest.raises(Exception) as found:
        run_state_machine_as_test(LifeOfARun, settings=HUNT)
    assert "AssertionError" in repr(found.value)
