"""A run without a server in its folder: claimed before it is drawn, figures, guarantee, and its entry in the ledger.

    recipe.json, journal.jsonl, result.json, metrics.jsonl, pair_privacy.npz
    privacy_by_distance.png, pair_privacy.png (few parties), error_by_rounds.png, validation.png
    models.npz, privacy.json

Such a run cannot be resumed: parties keep no checkpoint of each other's states. What it reserved counts as spent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from sordina.accounting.ledger import Ledger
from sordina.errors import InvalidInput, SordinaError, Unsupported
from sordina.federated.client_data import Clients
from sordina.federated.data import load
from sordina.federated.decentralized.peer_training import PeerPlan, PeerResult, PeerSettings, plan_peers, train_peers
from sordina.federated.objective import flat_parameters
from sordina.federated.problem import FederatedProblem, Score
from sordina.federated.record import privacy_facts
from sordina.privacy import Budget
from sordina.run_folder import METRICS, MODELS, RECIPE, RESULT, RunFolder
from sordina.training.losses import Loss
from sordina.training.reservations import check_pair, reserve_once, settle_once

PAIRS = "pair_privacy.npz"
_SMALL = 64
"""Up to so many observers are drawn as a heat map."""

Watch = Callable[[dict[str, Any]], None]


def peer_problem(data: str, settings: PeerSettings, options: dict[str, Any] | None = None) -> FederatedProblem:
    """The data called ``data``; a walk on Adult trains the convex model.

    Args:
        data: A name that `sordina.federated.data.load` knows.
        settings: What is wanted.
        options: Of the data's loader.
    """
    given = {**({"model": "logistic"} if data == "adult" else {}), **(options or {})}
    return FederatedProblem.of(load(data, np.random.default_rng(settings.seed), **given))


def run_peers(
    settings: PeerSettings,
    problem: FederatedProblem,
    *,
    data: str = "own data",
    initial: Tensor | None = None,
    folder: str | Path | None = None,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    observe: Watch | None = None,
) -> tuple[PeerResult, dict[str, Any]]:
    """Plan, train and, with a folder, keep the run; the result and its facts.

    Args:
        settings: What is wanted.
        problem: Model, loss and parties.
        data: What the data are called.
        initial: The first model, flat; the problem's own if left out.
        folder: A new folder.
        ledger: Where to reserve and settle what the run costs; needs a folder.
        dataset: The data set in the ledger.
        observe: Shown a line of facts after every round.
    """
    check_pair(ledger, dataset)
    lines: list[dict[str, Any]] = []

    def seen(number: int, score: Score | None) -> None:
        line: dict[str, Any] = {"round": number + 1}
        if score is not None:
            line |= {"validation_loss": score.loss}
            line |= {} if score.accuracy is None else {"validation_accuracy": score.accuracy}
        lines.append(line)
        if observe is not None:
            observe(line)

    if folder is None:
        if ledger is not None:
            raise InvalidInput("a ledger belongs to a run's folder: name it.")
        ready = plan_peers(settings, len(problem.train))
        result = train_peers(ready, problem, initial=initial, observe=seen)
        return result, facts_of(result, problem, data)
    with RunFolder.begin(folder, "federate", {"data": data, **settings.to_dict()}) as kept:
        try:
            ready = plan_peers(settings, len(problem.train))
            settle = _reserve(ready, kept, ledger, dataset, data)
            kept.write_json(RECIPE, {"data": data, "strategy": settings.topology, **settings.to_dict()})
            last = settings.rounds
            result = train_peers(
                ready,
                problem,
                initial=initial,
                claim=lambda number: kept.journal.claim(number + 1, last, block=1),
                observe=seen,
            )
        except SordinaError:
            kept.abandon()
            raise
        facts = facts_of(result, problem, data)
        _write(kept, result, facts, lines, settle)
    return result, facts


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
    claim = privacy_facts(result.statement, result.releasable, result.settings.rounds, int(facts["clients"]))
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

    def fit(self, clients: Clients, validation: Any = None) -> PeerResult:
        """Train among ``clients``.

        Args:
            clients: As for `FederatedTrainer.fit`: one party's data each.
            validation: Held-out data, read in the clear.
        """
        from sordina.federated.privacy.placement import NoPrivacy
        from sordina.federated.trainer import FederatedTrainer

        problem = FederatedTrainer(self.model, self.loss, NoPrivacy())._problem(self.model, clients, validation)
        return run_peers(
            self._settings(),
            problem,
            initial=flat_parameters(self.model),
            folder=self.folder,
            ledger=self.ledger,
            dataset=self.dataset_budget,
        )[0]

    def _settings(self) -> PeerSettings:
        if self.budget is None or not isinstance(self.budget, Budget):
            raise Unsupported("training without a server is private: give a budget.")
        return PeerSettings(
            self.topology, self.graph, self.rounds, self.budget.epsilon, self.budget.delta, self.threshold,
            self.learning_rate, self.gossip_rounds, self.accelerated, self.protect, self.honest_share, seed=self.seed,
        )  # fmt: skip
