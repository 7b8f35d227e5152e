"""The storm on training: every kill point of every write, torn files, full disks, concurrent starts and resumes.

``python -m tests.faults.storm [--kills N] [--torn N] [--full N] [--races N]`` (``make storm``) runs the long form; the
tests run a short one. After every accident the folder is resumed until it ends or says in one line why it does not, and
it must hold that: batches drawn <= steps in the journal <= steps in the ledger; the claim in the folder is about the
model in it, and no smaller than what was drawn.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tests.faults.dying import Disk, Killed, dying
from torch import nn
from torch.nn import functional as F

import sordina as sd
from sordina.accounting import Composed, Event, Gaussian, PoissonSampled, Repeated, from_dict
from sordina.accounting.ledger import Ledger, Status
from sordina.errors import SordinaError
from sordina.journal import Journal
from sordina.run_folder import CHECKPOINT, JOURNAL, MODEL, PRIVACY, RESERVATION, RUN, FolderState, read_claim, state_of
from sordina.training.loop import Private

STEPS = 6
X = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
DATA = (X, (X[:, 0] > 0).long())


def steps_of(event: Event) -> int:
    """How many steps ``event`` stands for."""
    if isinstance(event, Composed):
        return sum(map(steps_of, event.events))
    if isinstance(event, Repeated):
        return event.count * steps_of(event.event)
    return int(isinstance(event, (Gaussian, PoissonSampled)))


@dataclass
class Tally:
    """What happened in a storm."""

    accidents: int = 0
    finished: int = 0
    refused: int = 0
    lost: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{self.accidents} accidents: {self.finished} folders finished, {self.refused} said why not "
            f"({self.reasons}), {self.lost} steps lost"
        )


class Victim:
    """A small run in a folder and a ledger of its own."""

    def __init__(self, root: Path, *, own_loop: bool = False) -> None:
        self.folder, self.own_loop, self.drawn = root / "run", own_loop, 0
        self.ledger = Ledger(root / "ledger.db")
        self.ledger.create("people", sd.Budget(1000, 1e-5), accountant="rdp")

    def life(self, disk: Disk, *, resume: bool) -> None:
        """Begin or resume, and go on to the end, on ``disk``; counts the batches that were drawn."""
        draw = Private._draw

        def counted(private: Private) -> list:
            table = draw(private)
            self.drawn += 1
            return table

        Private._draw = counted  # type: ignore[method-assign]
        try:
            with dying(disk):
                (self._loop if self.own_loop else self._train)(resume)
        finally:
            Private._draw = draw  # type: ignore[method-assign]

    def _options(self) -> dict:
        return {
            "budget": sd.Budget(1000, 1e-5), "batch_size": 4, "steps": STEPS, "noise_multiplier": 5.0,
            "accountant": "rdp", "clipping": sd.clipping.Quantile(), "folder": self.folder, "ledger": self.ledger,
            "dataset_budget": "people", "checkpoint_every": 2,
        }  # fmt: skip

    def _train(self, resume: bool) -> None:
        trainer = sd.Trainer(
            nn.Linear(2, 2), F.cross_entropy, **self._options(), learning_rate=0.1, tensorboard=False,
            track_epsilon=False,
            recipe={"dataset": "points"},
        )  # fmt: skip
        trainer.fit(DATA, resume=resume)

    def _loop(self, resume: bool) -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        private = sd.make_private(model, optimizer, DATA, resume=resume, **self._options())
        try:
            for x, y in itertools.islice(private, STEPS - 1):
                private.step(F.cross_entropy(model(x), y, reduction="none"))
            private.finish()
        finally:
            private.close()

    def check(self, *, damaged: bool = False) -> None:
        """What must hold at any moment; in a folder that was ``damaged`` a claim may be unreadable."""
        state = state_of(self.folder)
        if state.state is FolderState.FRESH:
            assert self.drawn == 0
            return
        if state.state is FolderState.BROKEN:
            return
        claimed = min(STEPS, Journal.open(self.folder / JOURNAL).claimed)
        booked = [spend for spend in self.ledger.spends().values() if spend.status is not Status.RELEASED]
        assert len(booked) <= 1
        if (self.folder / RESERVATION).exists() or self.drawn:
            assert self.drawn <= claimed <= sum(steps_of(spend.event) for spend in booked), (self.drawn, claimed)
        if (self.folder / PRIVACY).exists():
            try:
                facts = read_claim(self.folder)
            except SordinaError:
                if damaged:
                    return
                raise
            assert self.drawn <= steps_of(from_dict(dict(facts.event or {}))) == STEPS

    def recover(self, tally: Tally, *, damaged: bool = False) -> None:
        """Resume the run: it ends, or says why not."""
        tally.accidents += 1
        self.check(damaged=damaged)
        why = ""
        try:
            self.life(Disk(), resume=(self.folder / RUN).exists())
        except SordinaError as error:
            why = str(error)
        self.check(damaged=damaged)
        assert self.drawn <= STEPS
        if why:
            assert "\n" not in why
            assert len(why) < 600
            tally.refused += 1
            key = " ".join(why.replace(str(self.folder), "FOLDER").split()[:12])
            tally.reasons[key] = tally.reasons.get(key, 0) + 1
            return
        assert state_of(self.folder).state is FolderState.FINISHED
        spends = list(self.ledger.spends().values())
        assert [spend.status for spend in spends] == [Status.SETTLED]
        assert steps_of(spends[0].event) == STEPS
        tally.finished += 1
        tally.lost += int(read_claim(self.folder).more["lost_steps"])


def accident(disk: Disk, tally: Tally, *, own_loop: bool = False, then: int = 0) -> bool:
    """One run that meets ``disk``, is killed again at ``then`` as it resumes, and recovers; false if all went well."""
    with tempfile.TemporaryDirectory() as root:
        victim = Victim(Path(root), own_loop=own_loop)
        with suppress(Killed, SordinaError):
            victim.life(disk, resume=False)
        if not disk.dead:
            return False
        if then:
            with suppress(Killed, SordinaError):
                victim.life(Disk(then), resume=(victim.folder / RUN).exists())
        victim.recover(tally)
        return True


def kill_points(*, own_loop: bool = False) -> int:
    """How many things a run does to the disk."""
    with tempfile.TemporaryDirectory() as root:
        disk = Disk()
        Victim(Path(root), own_loop=own_loop).life(disk, resume=False)
        return disk.done


def kills(count: int, tally: Tally, dice: random.Random) -> None:
    """Kill at every point, in both loops, then twice at random points, ``count`` times in all."""
    every = [(at, own, 0) for own in (False, True) for at in range(1, kill_points(own_loop=own) + 1)]
    twice = [(dice.randint(1, 60), dice.random() < 0.5, dice.randint(1, 60)) for _ in range(max(0, count - len(every)))]
    for at, own, then in [*every, *twice][:: max(1, len(every) // count)][:count]:
        accident(Disk(at), tally, own_loop=own, then=then)


def full_disks(count: int, tally: Tally) -> None:
    """A disk that is full from a point on, for ``count`` points, with room again afterwards."""
    points = kill_points()
    for number in range(count):
        accident(Disk(1 + number * points // count if count < points else 1 + number % points, full=True), tally)


def torn_files(count: int, tally: Tally, dice: random.Random) -> None:
    """Interrupted and finished runs, one of whose files is cut, overwritten with zeros or continued with junk.

    Of the journal the last record is cut: what was synced before it stays, as on a disk that keeps its word.
    """
    names = [JOURNAL, CHECKPOINT, RUN, RESERVATION, PRIVACY, MODEL]
    for number in range(count):
        with tempfile.TemporaryDirectory() as root:
            victim = Victim(Path(root))
            with suppress(Killed, SordinaError):
                victim.life(Disk(dice.randint(25, 130)), resume=False)
            path = victim.folder / names[number % len(names)]
            if path.exists():
                path.write_bytes(damaged(path.read_bytes(), dice, last_line=path.name == JOURNAL))
            victim.recover(tally, damaged=True)


def damaged(content: bytes, dice: random.Random, *, last_line: bool) -> bytes:
    """``content`` after an accident."""
    first = content.rstrip(b"\n").rfind(b"\n") + 1 if last_line else 0
    cut = dice.randint(min(first + 1, len(content)), len(content)) if last_line else dice.randrange(len(content) + 1)
    return dice.choice([content[:cut], content + b'{"torn', b"\0" * len(content)])


RACER = textwrap.dedent(
    """
    import sys, torch, sordina as sd
    torch.set_num_threads(1)
    x = torch.randn(100, 5)
    trainer = sd.Trainer(torch.nn.Linear(5, 2), torch.nn.functional.cross_entropy, sd.Budget(6, 1e-5), batch_size=20,
                         steps=300, noise_multiplier=9.0, folder=sys.argv[1], learning_rate=0.1, track_epsilon=False,
                         tensorboard=False)
    try:
        trainer.fit((x, (x[:, 0] > 0).long()), resume=sys.argv[2] == "resume")
    except sd.errors.SordinaError as error:
        sys.exit(error.exit_code)
    """
)


def race(folder: Path, racers: int = 3) -> None:
    """Concurrent starts: one trains. Killed in the middle, concurrent resumes: one goes on (or finds it finished)."""

    def go(mode: str, after: float | None = None) -> list[int]:
        command = [sys.executable, "-c", RACER, str(folder), mode]
        processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(racers)]
        if after is not None:
            while not (folder / JOURNAL).exists() and any(one.poll() is None for one in processes):
                time.sleep(0.01)
            time.sleep(after)
            for one in processes:
                one.kill()
        return sorted(process.wait(timeout=600) for process in processes)

    codes = go("fresh", after=0.2)
    assert set(codes) <= {0, 2, -9}, codes
    codes = go("resume")
    assert codes.count(0) >= 1, codes
    assert set(codes) <= {0, 2}, codes
    facts = read_claim(folder)
    assert facts.more["steps"] == 300
    claimed = Journal.open(folder / JOURNAL).claimed
    assert claimed >= 300


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser()
    for name, count in (("kills", 1000), ("torn", 300), ("full", 300), ("races", 5)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dice = random.Random(options.seed)
    for name, storm in (
        ("kills", lambda tally: kills(options.kills, tally, dice)),
        ("full disks", lambda tally: full_disks(options.full, tally)),
        ("torn files", lambda tally: torn_files(options.torn, tally, dice)),
    ):
        tally, start = Tally(), time.process_time()
        storm(tally)
        print(f"{name}: {tally}; {time.process_time() - start:.0f} s CPU", flush=True)
    for number in range(options.races):
        with tempfile.TemporaryDirectory() as root:
            race(Path(root) / "run")
        print(f"race {number + 1}: one of three", flush=True)


if __name__ == "__main__":
    main()
