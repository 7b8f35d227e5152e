"""A run without a server in its folder: claimed before it is drawn, figures, guarantee, and its entry in the ledger.

    recipe.json, journal.jsonl, result.json, metrics.jsonl, pair_privacy.npz
    privacy_by_distance.png, pair_privacy.png (few parties), error_by_rounds.png, validation.png
    models.npz, privacy.json

    graph.json, checkpoint.bin (until it ends)

Gossip and DECOR can be resumed: between two rounds all that there is was seen by those the account speaks of. Rounds
that were claimed and lost count as drawn, and are left out; a seeded run repeats them. A walk goes in one piece: its
account covers visits and the end, not the token that a checkpoint would show. What it reserved then counts as spent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina import private_files, random
from sordina.accounting.ledger import Ledger
from sordina.errors import InvalidInput, SordinaError, Unsupported
from sordina.federated.data import load
from sordina.federated.data.client_data import Clients
from sordina.federated.decentralized.peer_training import (
    PeerPlan,
    PeerResult,
    PeerSettings,
    PeerState,
    plan_peers,
    train_peers,
)
from sordina.federated.messages import CHECKPOINT, generator_facts, packed, unpacked
from sordina.federated.objective import flat_parameters
from sordina.federated.problem import FederatedProblem, Score
from sordina.federated.record import claim_of
from sordina.federated.run_keeper import graph_seed
from sordina.privacy import Budget
from sordina.run_folder import METRICS, MODELS, PRIVACY, RECIPE, RESULT, RunFolder, read_json
from sordina.training.losses import Loss
from sordina.training.reservations import check_pair, refuse_settled_by_others, reserve_once, settle_once

PAIRS = "pair_privacy.npz"
_SMALL = 64
"""Up to so many observers are drawn as a heat map."""

Watch = Callable[[dict[str, Any]], None]


def peer_problem(
    data: str, settings: PeerSettings, options: dict[str, Any] | None = None, data_seed: int | None = None
) -> FederatedProblem:
    """The data called ``data``; a walk on Adult trains the convex model.

    Args:
        data: A name that `sordina.federated.data.load` knows.
        settings: What is wanted.
        options: Of the data's loader.
        data_seed: Draws who validates and how parties differ; the run's seed does if left out.
    """
    given = {**({"model": "logistic"} if data == "adult" else {}), **(options or {})}
    seed = settings.seed if data_seed is None else data_seed
    return FederatedProblem.of(load(data, np.random.default_rng(seed), **given))


Problem = FederatedProblem | Callable[[int | None], FederatedProblem]
"""Model, loss and parties, or what loads them by the seed of a run's data."""


def run_peers(
    settings: PeerSettings,
    problem: Problem,
    *,
    data: str = "own data",
    initial: Tensor | None = None,
    folder: str | Path | None = None,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    observe: Watch | None = None,
    resume: bool = False,
) -> tuple[PeerResult | None, dict[str, Any]]:
    """Plan, train and, with a folder, keep the run; the result (None if it had ended before) and its facts.

    Args:
        settings: What is wanted.
        problem: Model, loss and parties, or a function that loads them.
        data: What the data are called.
        initial: The first model, flat; the problem's own if left out.
        folder: A new folder, or with ``resume`` that of the run.
        ledger: Where to reserve and settle what the run costs; needs a folder.
        dataset: The data set in the ledger.
        observe: Shown a line of facts after every round.
        resume: Continue the run in the folder.
    """
    check_pair(ledger, dataset)
    if folder is None:
        if ledger is not None or resume:
            raise InvalidInput("a ledger and resume belong to a run's folder: name it.")
        loaded = problem if isinstance(problem, FederatedProblem) else problem(None)
        ready, lines = plan_peers(settings, len(loaded.train)), list[dict[str, Any]]()
        result = train_peers(ready, loaded, initial=initial, observe=_line_by_line(lines, observe))
        return result, facts_of(result, loaded, data)
    given = {"data": data, **settings.to_dict()}
    whole = settings.topology != "walk"
    with RunFolder.begin(folder, "federate", given, resume=resume, resumable=whole) as kept:
        if kept.finished:
            return None, read_json(kept.path / RESULT)
        try:
            loaded = problem if isinstance(problem, FederatedProblem) else problem(_data_seed(kept, settings, given))
            graph = None if settings.seed is not None else graph_seed(kept)
            ready = plan_peers(settings, len(loaded.train), graph)
            settle = _reserve(ready, kept, ledger, dataset, data)
            result, facts = _go_on(ready, loaded, kept, data, initial, observe, settle)
        except SordinaError:
            kept.abandon()
            raise
    return result, facts


def _go_on(
    ready: PeerPlan,
    problem: FederatedProblem,
    folder: RunFolder,
    data: str,
    initial: Tensor | None,
    observe: Watch | None,
    settle: Callable[[], None] | None,
) -> tuple[PeerResult, dict[str, Any]]:
    """Train from where the run in the folder stands, keep it on the way, and write how it ended."""
    settings, lines = ready.settings, list[dict[str, Any]]()
    if not folder.has(RECIPE):
        folder.write_json(RECIPE, {"data": data, "strategy": settings.topology, **settings.to_dict()})

    def resumed(first: PeerState) -> PeerState:
        return _resumed(first, folder, lines, secure=settings.seed is None)

    def keep(now: PeerState) -> None:
        _keep(now, folder, lines, secure=settings.seed is None)

    result = train_peers(
        ready,
        problem,
        initial=initial,
        claim=lambda number: folder.journal.claim(number + 1, settings.rounds, block=1),
        observe=_line_by_line(lines, observe),
        resumed=resumed,
        keep=keep,
    )
    facts = facts_of(result, problem, data)
    if lost := settings.rounds - len(lines):
        facts["rounds_lost"] = lost
    _write(folder, result, facts, lines, settle)
    private_files.remove(folder.path / CHECKPOINT)
    return result, facts


def _line_by_line(lines: list[dict[str, Any]], observe: Watch | None) -> Callable[[int, Score | None], None]:
    def seen(number: int, score: Score | None) -> None:
        line: dict[str, Any] = {"round": number + 1}
        if score is not None:
            line |= {"validation_loss": score.loss}
            line |= {} if score.accuracy is None else {"validation_accuracy": score.accuracy}
        lines.append(line)
        if observe is not None:
            observe(line)

    return seen


def _data_seed(folder: RunFolder, settings: PeerSettings, given: dict[str, Any]) -> int | None:
    """The seed of the data's split: drawn once for the whole life of a run, and kept with it."""
    if settings.seed is not None:
        return None
    if folder.has(RECIPE):
        return int(read_json(folder.path / RECIPE)["data_seed"])
    if folder.journal.claimed:
        raise InvalidInput(f"{folder.path / RECIPE} is gone: begin a new run in another folder.")
    seed = int(random.secure().integers(2**63 - 1))
    folder.write_json(RECIPE, {"strategy": settings.topology, **given, "data_seed": seed})
    return seed


def _keep(now: PeerState, folder: RunFolder, lines: list[dict[str, Any]], *, secure: bool) -> None:
    assert now.models is not None
    facts = {
        "number": now.number,
        "scores": [asdict(one) for one in now.scores],
        "judge": generator_facts(now.judge),
        "rng": None if secure else generator_facts(now.rng),
        "lines": lines,
    }
    folder.write(CHECKPOINT, packed(facts, {"models": now.models.numpy()}))


def _resumed(first: PeerState, folder: RunFolder, lines: list[dict[str, Any]], *, secure: bool) -> PeerState:
    """Where the run on disk stands; rounds that were lost are drawn, and not drawn again unless they are repeated."""
    claimed, now = folder.journal.claimed, first
    if folder.has(CHECKPOINT):
        facts, arrays = unpacked(folder.read(CHECKPOINT), folder.path / CHECKPOINT)
        try:
            first.judge.bit_generator.state = facts["judge"]
            if not secure:
                first.rng.bit_generator.state = facts["rng"]
            scores = [Score(one["loss"], one["accuracy"], tuple(one["shares"])) for one in facts["scores"]]
            models = torch.from_numpy(np.array(arrays["models"]))
            now = PeerState(int(facts["number"]), models, scores, first.judge, first.rng)
            lines[:] = list(facts["lines"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{folder.path / CHECKPOINT} is damaged: begin a new run.") from error
    return replace(now, number=max(now.number, claimed)) if secure else now


def _reserve(
    ready: PeerPlan, folder: RunFolder, ledger: Ledger | None, dataset: str | None, data: str
) -> Callable[[], None] | None:
    statement = ready.account.statement
    assert statement.event is not None
    assert statement.adjacency is not None
    event = statement.event
    reservation = reserve_once(
        folder, ledger, dataset, event, what=f"federate {data} {ready.settings.topology}",
        adjacency=statement.adjacency, unit=statement.unit,
    )  # fmt: skip
    refuse_settled_by_others(reservation, folder.has(PRIVACY) or folder.journal.claimed >= ready.settings.rounds)
    return None if reservation is None else lambda: settle_once(reservation, event)


def facts_of(result: PeerResult, problem: FederatedProblem, data: str) -> dict[str, Any]:
    """What ``sordina federate --topology`` prints.

    Args:
        result: The run.
        problem: What it was run on.
        data: What the data are called.
    """
    statement, settings = result.statement, result.settings
    facts: dict[str, Any] = {
        "data": data, "source": problem.federation.source, "strategy": settings.topology, "privacy": "network",
        "graph": settings.graph, "clients": len(problem.train), "parameters": problem.objective.size,
        "rounds": settings.rounds,
    }  # fmt: skip
    if result.scores:
        facts["validation_loss"] = result.scores[-1].loss
        if result.scores[-1].accuracy is not None:
            facts["validation_accuracy"] = result.scores[-1].accuracy
    facts |= {"epsilon": statement.epsilon, "delta": statement.delta}
    if result.account.losses is not None:
        facts["epsilon_by_distance"] = by_distance(result)
    facts |= {"guarantee": statement.words, "sound": statement.sound, "releasable": result.releasable}
    return facts


def by_distance(result: PeerResult) -> list[dict[str, float]]:
    """Epsilon of the accounted pairs, by how far they are apart: mean and largest."""
    account = result.account
    assert account.losses is not None
    assert account.distances is not None
    epsilons = account.epsilons(result.settings.delta)
    table = []
    for distance in np.unique(account.distances[np.isfinite(account.distances) & (account.distances > 0)]):
        chosen = epsilons[account.distances == distance]
        table.append({"distance": float(distance), "mean": float(chosen.mean()), "largest": float(chosen.max())})
    return table


def _write(
    folder: RunFolder,
    result: PeerResult,
    facts: dict[str, Any],
    lines: list[dict[str, Any]],
    settle: Callable[[], None] | None,
) -> None:
    folder.write_json(RESULT, facts)
    folder.write(METRICS, "".join(json.dumps(one) + "\n" for one in lines).encode())
    account = result.account
    if account.losses is not None:
        table, who = account.epsilons(result.settings.delta), account.observers
        folder.write(PAIRS, lambda file: np.savez(file, epsilon=table, observers=who))
    draw_peers(result, lines, folder.path)
    models = result.model[None].numpy()
    claim = claim_of(result.statement, result.releasable, result.settings.rounds, int(facts["clients"]))
    folder.finish(lambda file: np.savez(file, models=models, last=models), claim, settle, name=MODELS)


def draw_peers(result: PeerResult, lines: list[dict[str, Any]], folder: Path) -> list[Path]:
    """The figures of a run.

    Args:
        result: The run.
        lines: Its metrics.
        folder: Where to.
    """
    from sordina.federated.record import _figure, _save

    files = []
    if result.account.losses is not None:
        table = by_distance(result)
        figure, axes = _figure()
        distances = [one["distance"] for one in table]
        axes.plot(distances, [one["mean"] for one in table], "o-", label="mean")
        axes.plot(distances, [one["largest"] for one in table], "--", label="largest")
        axes.set(xlabel="distance in the graph", ylabel="epsilon of the pair", yscale="log")
        axes.legend(fontsize="small")
        files.append(_save(figure, folder / "privacy_by_distance.png"))
        if len(result.account.observers) <= _SMALL and result.account.losses.shape[1] <= _SMALL:
            figure, axes = _figure()
            shown = axes.imshow(result.account.epsilons(result.settings.delta), cmap="viridis")
            axes.set(xlabel="whose data", ylabel="who looks", title="epsilon of every pair")
            figure.colorbar(shown)
            files.append(_save(figure, folder / "pair_privacy.png"))
    if result.errors:
        figure, axes = _figure()
        axes.plot(range(len(result.errors)), result.errors)
        axes.set(xlabel="rounds of averaging", ylabel="mean squared error due to noise", yscale="log")
        files.append(_save(figure, folder / "error_by_rounds.png"))
    if any("validation_loss" in one for one in lines):
        figure, axes = _figure()
        axes.plot([one["round"] for one in lines], [one["validation_loss"] for one in lines])
        axes.set(xlabel="round", ylabel="validation loss")
        files.append(_save(figure, folder / "validation.png"))
    return files


@dataclass
class GossipTrainer:
    """Training without a server, among parties that see their neighbours' messages. Nothing is checked before `fit`.

    Args:
        model: Any torch module; trained from its present weights, and left alone itself.
        loss: Any function or module ``(outputs, targets)`` that can give one number per row, or a name.
        budget: Epsilon and delta of every party against any other.
        topology: gossip, walk or decor.
        graph: complete, ring, grid, exponential, erdos-renyi:P, k-out:K or a file of edges.
        rounds: Steps of training; of a walk, the visits that each party can expect.
        threshold: The bound of a party's update.
        learning_rate: The step.
        gossip_rounds: Rounds of averaging in a step; as many as the graph needs if left out.
        accelerated: Chebyshev's weights in gossip.
        protect: worst, or mean: only the mean over pairs is at epsilon.
        honest_share: Of decor: the share of parties that does not collude.
        folder: Where the run is kept.
        ledger: Where the spend is reserved and settled; needs a folder.
        dataset_budget: The data set in the ledger.
        seed: Makes the run repeatable; such a model must not be released.
    """

    model: nn.Module
    loss: Loss | str
    budget: Budget
    topology: str = "gossip"
    graph: str = "exponential"
    rounds: int = 50
    threshold: float = 1.0
    learning_rate: float = 0.5
    gossip_rounds: int | None = None
    accelerated: bool = False
    protect: str = "worst"
    honest_share: float = 0.7
    folder: str | Path | None = None
    ledger: Ledger | None = None
    dataset_budget: str | None = None
    seed: int | None = None

    def fit(self, clients: Clients, validation: Any = None, *, resume: bool = False) -> PeerResult:
        """Train among ``clients``.

        Args:
            clients: As for `FederatedTrainer.fit`: one party's data each.
            validation: Held-out data, read in the clear.
            resume: Continue the run in ``folder``; a walk cannot be.
        """
        from sordina.federated.privacy.placement import NoPrivacy
        from sordina.federated.trainer import FederatedTrainer

        problem = FederatedTrainer(self.model, self.loss, NoPrivacy())._problem(self.model, clients, validation)
        result, _ = run_peers(
            self._settings(),
            problem,
            initial=flat_parameters(self.model),
            folder=self.folder,
            ledger=self.ledger,
            dataset=self.dataset_budget,
            resume=resume,
        )
        if result is None:
            raise InvalidInput(f"the run in {self.folder} has ended: its model and figures are there.")
        return result

    def _settings(self) -> PeerSettings:
        if self.budget is None or not isinstance(self.budget, Budget):
            raise Unsupported("training without a server is private: give a budget.")
        return PeerSettings(
            self.topology, self.graph, self.rounds, self.budget.epsilon, self.budget.delta, self.threshold,
            self.learning_rate, self.gossip_rounds, self.accelerated, self.protect, self.honest_share, seed=self.seed,
        )  # fmt: skip
