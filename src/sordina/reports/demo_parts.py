"""The parts the demo is made of: each trains, federates or attacks, and leaves its facts in a folder.

To have something to find, a few images carry a wrong label, which a model can know only by having seen them. Of twice
as many candidates, half, drawn at random, are in the training data: telling which is a membership attack.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from sordina import datasets, models, private_files, randomness
from sordina.accounting.ledger import Ledger
from sordina.auditing.audit import audit
from sordina.auditing.inversion.attacks import DLG, client_update, infer_labels
from sordina.auditing.inversion.defences import Clipped, Defence, LayerLaplace, Nothing
from sordina.auditing.inversion.network import sigmoid_network
from sordina.auditing.inversion.quality import quality
from sordina.clipping import Fixed, Online
from sordina.datasets import Data
from sordina.federated import recipe as federations
from sordina.federated import record
from sordina.federated.run import Seen
from sordina.run_folder import read_claim
from sordina.training import Trainer
from sordina.types import Adjacency, Budget, Guarantee, Unit

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
    rng = randomness.generator(None)
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
    recipe = federations.Recipe(
        "synthetic-fairness", "metric-pfl-steady", noise=5.0, radius="public:1", rounds=size.rounds,
        clients_per_round=20, leakage_limit=LEAKAGE_LIMIT,
        options={"clients": size.clients, "validation": size.clients},
    )  # fmt: skip
    trace = record.Trace()
    with console.status("federating") as status:

        def observe(seen: Seen) -> None:
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
            claim=_claim(folder), random_split=True, delta=1e-5,
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
    defences: tuple[Defence, ...] = (Nothing(), LayerLaplace(1.0), Clipped(1.0, noise_multiplier=1.0))
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
    facts = read_claim(folder)
    epsilon = facts["epsilon"] if facts["private"] else math.inf
    return Guarantee(epsilon, facts["delta"], Adjacency(facts["adjacency"]), Unit(facts["unit"]))


def _about(planted: Planted, folder: Path) -> None:
    """What a report calls the run's data; not a recipe, as nobody else has the planted labels."""
    few = len(planted.members[1])
    _write(
        folder / "about.json", {"dataset": f"digits, {few} labels wrong on purpose", "population": len(planted.train)}
    )


def _write(path: Path, facts: dict[str, Any]) -> None:
    private_files.write(path, (json.dumps(facts) + "\n").encode())
