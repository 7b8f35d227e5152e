"""The demo: train with and without privacy, federate, attack, keep the books, and write one report."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from sordina import datasets, models, private_files, random
from sordina.accounting.ledger import Ledger
from sordina.auditing.audit import audit
from sordina.auditing.reconstruction import (
    DLG,
    Clipped,
    Defence,
    LayerLaplace,
    NoDefence,
    client_update,
    infer_labels,
    quality,
    sigmoid_network,
)
from sordina.clipping import Fixed, Online
from sordina.datasets import Data
from sordina.errors import BudgetRefused, InvalidInput, SordinaError
from sordina.federated import recipe as federations
from sordina.federated import record
from sordina.federated.round import RoundView
from sordina.privacy import Budget, Guarantee, format_up
from sordina.reports import reading, rendering
from sordina.run_folder import read_claim
from sordina.training import Trainer

__all__ = ["FULL", "QUICK", "DemoResult", "Size", "fresh_folder", "run"]


# The parts the demo is made of: each trains, federates or attacks, and leaves its facts in a folder.
#
# To have something to find, a few images carry a wrong label, which a model can know only by having seen them. Of twice
# as many candidates, half, drawn at random, are in the training data: telling which is a membership attack.

BAD_THRESHOLD = 100.0
"""About thirty times the gradients' norms: the noise, which is proportional to it, drowns them."""
LEAKAGE_LIMIT = 1.8
"""Three messages: a client that reached it keeps its update to itself."""
_MARGIN = 1e-5


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    plain_epochs: int = 40
    private_epochs: float = 40
    planted: int = 100
    rounds: int = 120
    clients: int = 1000
    restarts: int = 2
    iterations: int = 200


FULL = Size()
QUICK = Size(plain_epochs=8, private_epochs=4, rounds=10, clients=60, restarts=1, iterations=60)


@dataclass(frozen=True)
class Planted:
    """Digits with some wrong labels among them, and the candidates: those that are in and those that are not."""

    data: Data
    train: TensorDataset
    members: tuple[Tensor, Tensor]
    others: tuple[Tensor, Tensor]


def plant(size: Size) -> Planted:
    """Draw the candidates, their wrong labels, and who of them is in."""
    rng = random.generator(None)
    data = datasets.load("digits")
    rows = [data.train[index] for index in range(len(data.train))]
    images, labels = torch.stack([image for image, _ in rows]), torch.stack([label for _, label in rows])
    order = torch.from_numpy(rng.permutation(len(images)))
    inside, outside, rest = order[: size.planted], order[size.planted : 2 * size.planted], order[2 * size.planted :]
    shift = torch.from_numpy(rng.integers(1, 10, len(images)))
    wrong = (labels + shift) % 10
    train = TensorDataset(
        torch.cat([images[rest], images[inside]]), torch.cat([labels[rest], wrong[inside]])
    )  # fmt: skip
    return Planted(data, train, (images[inside], wrong[inside]), (images[outside], wrong[outside]))


def train_plain(planted: Planted, folder: Path, size: Size, progress: bool) -> None:
    """Without privacy."""
    trainer = Trainer(
        _network(planted), cross_entropy, Budget(math.inf, _MARGIN), epochs=size.plain_epochs, batch_size=64,
        optimizer=lambda parameters: torch.optim.Adam(list(parameters), lr=5e-3),
        folder=folder, progress=progress, tensorboard=False,
    )  # fmt: skip
    trainer.fit(planted.train, validation=planted.data.test)
    _about(planted, folder)


def train_private(
    planted: Planted, folder: Path, budget: Budget, size: Size, ledger: Ledger, dataset: str, progress: bool
) -> None:
    """At a budget, booked in the ledger; a folder called fixed gets Fixed clipping, any other Online."""
    clipping: Fixed | Online = Fixed(BAD_THRESHOLD) if folder.name == "fixed" else Online(BAD_THRESHOLD)
    trainer = Trainer(
        _network(planted), cross_entropy, budget, clipping, batch_size=128, epochs=size.private_epochs,
        folder=folder, progress=progress, tensorboard=False, ledger=ledger, dataset_budget=dataset,
    )  # fmt: skip
    trainer.fit(planted.train, validation=planted.data.test)
    _about(planted, folder)


def federate(folder: Path, size: Size, console: Console) -> None:
    """Two hypotheses among clients of two kinds, each message sanitised at the client with a public radius."""
    recipe = federations.FederatedRecipe(
        "synthetic-fairness", "metric-pfl-steady", noise_multiplier=5.0, radius="public:1", rounds=size.rounds,
        clients_per_round=20, leakage_limit=LEAKAGE_LIMIT,
        options={"clients": size.clients, "validation": size.clients},
    )  # fmt: skip
    trace = record.RoundTrace()
    with console.status("federating") as status:

        def observe(seen: RoundView) -> None:
            trace(seen)
            score = seen.round.score
            loss = f", loss {score.loss:.3g}" if score is not None else ""
            status.update(f"round {seen.round.number + 1}/{size.rounds}{loss}")

        finished = federations.run(recipe, observe)
        record.write(finished, trace, folder)
    best = min(finished.result.losses, default=math.nan)
    console.print(f"{len(finished.result.history)} rounds among {size.clients} clients, best loss {best:.3g}.")


def attack_membership(planted: Planted, folders: Sequence[Path], console: Console) -> None:
    """Loss and noisy neighbours on every model; results beside the model, in ``audit.json``."""
    for folder in track(folders, "attacking", console=console, disable=console.quiet):
        model = _network(planted)
        model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
        found = audit(
            model, planted.members, planted.others, ("loss", "noisy"),
            claim=_claim(folder), membership="fixed", delta=1e-5,
        )  # fmt: skip
        _write(folder / "audit.json", found.to_dict())
        console.print(f"{folder.name}: {found.verdict}", highlight=False)


def attack_updates(planted: Planted, folder: Path, size: Size, console: Console) -> None:
    """Rebuild one training image from the gradient a client would send: bare, clipped with noise, sanitised."""
    rng = np.random.default_rng()
    image, label = planted.data.test[0]
    original, truth = image.unsqueeze(0).double(), label.reshape(1)
    network = sigmoid_network(side=8, seed=0)
    update = client_update(network, original, truth)
    defences: tuple[Defence, ...] = (NoDefence(), LayerLaplace(1.0), Clipped(1.0, noise_multiplier=1.0))
    attack = DLG(iterations=size.iterations, restarts=size.restarts)
    cases = []
    for defence in track(defences, "rebuilding", console=console, disable=console.quiet):
        sent = defence.protect(update, rng)
        rebuilt = attack.reconstruct(network, sent, infer_labels(sent, 1), original.shape[1:], rng)
        cases.append(
            {
                "attack": attack.name, "defence": defence.name, "original": original[0].tolist(),
                "reconstruction": rebuilt[0].clamp(0, 1).nan_to_num(0.5).tolist(),
                **quality(original[0], rebuilt[0]).to_dict(),
            }
        )  # fmt: skip
    private_files.make_folder(folder)
    _write(folder / "inversion.json", {"cases": cases})


def _network(planted: Planted) -> torch.nn.Module:
    return models.build_for(planted.data, None, seed=0)


def _claim(folder: Path) -> Guarantee:
    return read_claim(folder).guarantee


def _about(planted: Planted, folder: Path) -> None:
    """What a report calls the run's data; not a recipe, as nobody else has the planted labels."""
    few = len(planted.members[1])
    _write(
        folder / "about.json", {"dataset": f"digits, {few} labels wrong on purpose", "population": len(planted.train)}
    )


def _write(path: Path, facts: dict[str, Any]) -> None:
    private_files.write(path, (json.dumps(facts) + "\n").encode())


# The demo: train with and without privacy, federate, attack, keep the books, and write one report.
#
# Everything a stage makes is written before the next begins, so an interrupt loses the stage that runs, at most; what a
# private run had reserved in the ledger stays reserved, as it may have been seen.

BUDGET = Budget(epsilon=3.0, delta=1e-5)
"""Of one private training."""
WHOLE = Budget(epsilon=4.8, delta=1e-5)
"""Of the data set: two trainings fit, by composition, and a third does not."""
DATASET = "digits"


@dataclass(frozen=True)
class DemoResult:
    """Where the demo's report is, and what it showed."""

    page: Path
    folder: Path
    seconds: float
    spent: float
    refusal: str
    runs: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "report": str(self.page), "facts": str(self.page.with_suffix(".json")), "folder": str(self.folder),
            "seconds": round(self.seconds, 1), "spent_epsilon": self.spent, "budget_epsilon": WHOLE.epsilon,
            "refused": self.refusal, "runs": list(self.runs),
        }  # fmt: skip


def fresh_folder() -> Path:
    """A folder named after the moment, below ``sordina-demo``."""
    return Path("sordina-demo") / datetime.now().strftime("%Y%m%d-%H%M%S")


def run(folder: Path, *, size: Size = FULL, console: Console | None = None) -> DemoResult:
    """Do it all in ``folder``, which must be new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder} is in use: give the demo a new folder with --out.")
    demo = _Demo(folder, size, console or Console(stderr=True))
    start = time.perf_counter()
    stages = demo.stages()
    with _one_thread():
        for number, (title, stage) in enumerate(stages, 1):
            demo.console.rule(f"{number}/{len(stages)}  {title}", align="left")
            try:
                stage()
            except KeyboardInterrupt:
                demo.console.print(demo.kept(), highlight=False)
                raise
    seconds = time.perf_counter() - start
    demo.console.print(f"Done in {seconds:.0f} s.")
    names = tuple(path.name for path in demo.finished())
    return DemoResult(demo.page, folder, seconds, demo.ledger.spent(DATASET), demo.refusal, names)


@dataclass
class _Demo:
    folder: Path
    size: Size
    console: Console
    refusal: str = ""

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    @property
    def shown(self) -> bool:
        return not self.console.quiet

    @cached_property
    def ledger(self) -> Ledger:
        self.folder.mkdir(parents=True, exist_ok=True)
        ledger = Ledger(self.folder / "ledger.db")
        ledger.create(DATASET, WHOLE)
        return ledger

    @cached_property
    def planted(self) -> Planted:
        return plant(self.size)

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        """The titles and what is done, in order."""
        return (
            ("Handwritten digits, without privacy", self.plain),
            (f"The same at ε = {BUDGET.epsilon:g}: Online clipping, from a bad first threshold", self.online),
            (f"The same at ε = {BUDGET.epsilon:g}: Fixed clipping at that threshold", self.fixed),
            ("One more private training, which the ledger refuses", self.refused),
            ("A personalised federation under metric privacy", self.federated),
            ("Attacks: who was in the training data?", self.membership),
            ("Attack: rebuild an image from a client's update", self.inversion),
            ("The report", self.report),
        )

    def plain(self) -> None:
        train_plain(self.planted, self.folder / "plain", self.size, self.shown)

    def online(self) -> None:
        self._private("online")

    def fixed(self) -> None:
        self._private("fixed")

    def refused(self) -> None:
        """Ask for a third training; nothing may be read or written."""
        try:
            self._private("refused")
        except BudgetRefused as refusal:
            self.refusal = str(refusal)
            self.console.print(f"Refused, as it must be: {refusal}", highlight=False)
            return
        raise SordinaError("the ledger let a training pass that overspends the budget: do not trust it, report this.")

    def federated(self) -> None:
        federate(self.folder / "federation", self.size, self.console)

    def membership(self) -> None:
        attack_membership(self.planted, [self.folder / name for name in ("plain", "online", "fixed")], self.console)

    def inversion(self) -> None:
        attack_updates(self.planted, self.folder / "updates", self.size, self.console)

    def report(self) -> None:
        facts = reading.report(
            self.finished(), title="Sordina demo: what leaks, and what does not", ledger=self.folder / "ledger.db"
        )
        command = ["sordina", "demo", "--out", str(self.folder), *(["--quick"] if self.size == QUICK else [])]
        facts = replace(facts, refusals=(self.refusal,), commands=(shlex.join(command), *facts.commands))
        rendering.write(facts, self.page)

    def finished(self) -> list[Path]:
        """The folders of runs that ended, in the order of the stages."""
        names = ("plain", "online", "fixed", "federation", "updates")
        marks = ("privacy.json", "inversion.json")
        return [self.folder / name for name in names if any((self.folder / name / mark).is_file() for mark in marks)]

    def kept(self) -> str:
        """What an interrupt leaves."""
        finished = self.finished()
        lines = [f"Interrupted. Kept in {self.folder}: {', '.join(path.name for path in finished) or 'no run yet'}."]
        cut = [path.parent.name for path in self.folder.glob("*/journal.jsonl") if path.parent not in finished]
        if cut:
            lines.append(f"Cut off: {', '.join(cut)}. What it reserved in the ledger stays booked as spent.")
        if (self.folder / "ledger.db").exists():
            spent = self.ledger.spent(DATASET) if "ledger" in vars(self) else 0.0
            lines.append(f"Ledger: {format_up(spent)} of ε = {WHOLE.epsilon:g} booked on {DATASET!r}.")
        if finished:
            lines.append(f"A report of what is there: sordina report {' '.join(map(str, finished))}")
        return "\n".join(lines)

    def _private(self, name: str) -> None:
        train_private(self.planted, self.folder / name, BUDGET, self.size, self.ledger, DATASET, self.shown)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Models this small are faster on one thread, on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
