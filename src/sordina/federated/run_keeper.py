"""A federation in its folder: claimed before it is drawn, checkpointed after every round, resumed, and ended once.

    recipe.json       the recipe, with the seed of the data's split where that was drawn
    graph.json        under GOPA the seed of the graph, which is public, drawn once for the whole life of the run
    journal.jsonl     every round before it is drawn; with its clients, where they keep accounts and are no secret
    checkpoint.bin    where the run stands: public state and released values only, one file, checked
    result.json, metrics.jsonl, figures; then models.npz, privacy.json, settlement (`RunFolder.finish`)

Rounds that were claimed and lost in a kill count as drawn: a secure run goes on behind them, with as many rounds fewer,
and the clients that were asked are charged. A seeded run repeats them bit for bit instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina import journal as journals
from sordina import private_files, random
from sordina.accounting import Event
from sordina.accounting.ledger import Ledger, Reservation
from sordina.errors import InvalidInput, SordinaError, Unsupported
from sordina.federated import recipe as recipes
from sordina.federated import record
from sordina.federated.compression import Compressed
from sordina.federated.decentralized.gopa import GOPA
from sordina.federated.messages import CHECKPOINT, GRAPH, Refusal, generator_facts, pack, packed, unpack, unpacked
from sordina.federated.privacy.accounts import ClientAccount
from sordina.federated.privacy.placement import Facts, Placement
from sordina.federated.problem import Score
from sordina.federated.recipe import FederatedRecipe
from sordina.federated.round import FederatedMethod, FederationState, Round, RoundView
from sordina.federated.setup import FederatedSetup, Finished
from sordina.run_folder import JOURNAL, PRIVACY, RECIPE, RESULT, RunFolder, read_json
from sordina.training.reservations import check_pair, refuse_settled_by_others, reserve_once, settle_once

_STATE, _PRIVACY, _BEST, _COUNTS = "state", "privacy", "best", "participations"


class FederationKeeper:
    """Keeps one federation in ``folder``; every round is claimed by itself, so that a torn claim costs one round.

    Args:
        folder: The run's folder, held.
        trace: What the figures and metrics.jsonl are made of.
        data: What the data are called in the ledger's history.
        ledger: Where to reserve, if anywhere.
        dataset: The data set in the ledger.
    """

    def __init__(
        self,
        folder: RunFolder,
        trace: record.RoundTrace,
        data: str,
        ledger: Ledger | None = None,
        dataset: str | None = None,
    ) -> None:
        self.folder, self.trace, self.data = folder, trace, data
        folder.journal = journals.Journal.open(folder.journal.path, block=1)
        self.ledger, self.dataset = ledger, dataset
        self.reservation: Reservation | None = None
        self._rng: np.random.Generator | None = None
        self._kept = True

    def settled(self, setup: FederatedSetup) -> FederatedSetup:
        """The setup with GOPA's graph, drawn once and kept: a run that goes on goes on among the same neighbours.

        Args:
            setup: The run.
        """
        privacy = setup.privacy
        if not isinstance(privacy, GOPA) or privacy.graph_seed is not None or setup.facts.seed is not None:
            return setup
        seed = graph_seed(self.folder)
        return replace(setup, privacy=replace(privacy, graph_seed=seed))

    def begin(self, method: FederatedMethod, setup: FederatedSetup, size: int, rng: np.random.Generator) -> None:
        """Reserve what the plan may cost, before the first client is asked.

        Args:
            method: The run's parts.
            setup: The run.
            size: The length of a client's vector.
            rng: The generator of the run.
        """
        self._rng = None if random.releasable(rng) else rng
        reason, rounds = _not_resumable(method, setup), setup.facts.rounds
        self._kept = reason is None
        if reason is not None and self.folder.journal.claimed:
            raise Unsupported(
                f"the run in {self.folder.path} cannot be resumed: {reason}. What it reserved counts as spent; begin a "
                "new run in another folder."
            )
        if self.ledger is None and self.folder.reservation is None:
            return
        planned = method.placement.statement(_planned(method.placement, rounds, size))
        if planned.event is None or planned.adjacency is None:
            raise InvalidInput(
                f"a ledger keeps (epsilon, delta), which {planned.placement} privacy does not have: leave --ledger out."
            )
        self.reservation = reserve_once(
            self.folder, self.ledger, self.dataset, planned.event, what=f"federate {self.data} {setup.algorithm.name}",
            adjacency=planned.adjacency, unit=planned.unit,
        )  # fmt: skip
        if not self.folder.finished:
            refuse_settled_by_others(
                self.reservation, self.folder.has(PRIVACY) or self.folder.journal.claimed >= rounds
            )

    def resumed(self, first: FederationState, accounts: Sequence[ClientAccount], cost: Fraction) -> FederationState:
        """Where the run on disk stands; rounds that were lost are drawn and charged."""
        claimed = self.folder.journal.claimed
        if not claimed:
            return first
        now = first
        if self.folder.has(CHECKPOINT):
            facts, arrays = unpacked(self.folder.read(CHECKPOINT), self.folder.path / CHECKPOINT)
            now = self._restored(first, facts, arrays)
            for account, count in zip(accounts, arrays.get(_COUNTS, np.zeros(0, np.int64)).tolist(), strict=False):
                account.participations, account.spent = int(count), int(count) * cost
        if self._rng is None:
            if cost:
                self._charge_lost(now.number, claimed, accounts, cost)
            now.number = max(now.number, claimed)
        return now

    def claim(self, number: int, rounds: int, clients: NDArray[np.int64] | None) -> None:
        """One record a round, on the disk before anything of it is drawn."""
        if number < self.folder.journal.claimed:
            return
        facts: dict[str, Any] = {"claimed": number + 1}
        if clients is not None:
            facts["clients"] = clients.tolist()
        self.folder.journal.append(facts)
        self.folder.journal.claimed = number + 1

    def keep(self, now: FederationState, accounts: Sequence[ClientAccount]) -> None:
        """The whole state in one file, whole or not at all."""
        if not self._kept:
            return
        arrays = {f"{_STATE}{path}": value for path, value in pack(now.state).items()}
        arrays |= {f"{_PRIVACY}{path}": value for path, value in pack(now.privacy).items()}
        arrays |= {_BEST: now.best.numpy()}
        counts = np.array([account.participations for account in accounts], dtype=np.int64)
        if counts.any():
            arrays[_COUNTS] = counts
        facts = {
            "number": now.number,
            "silent": now.silent,
            "seed": now.seed,
            "lowest": repr(now.lowest),
            "losses": [repr(one) for one in now.losses],
            "history": [_round_facts(one) for one in now.history],
            "judge": generator_facts(now.judge),
            "rng": None if self._rng is None else generator_facts(self._rng),
            "lines": self.trace.lines,
        }
        self.folder.write(CHECKPOINT, packed(facts, arrays))

    def settlement(self, event: Event | None) -> Callable[[], object] | None:
        """What settles the run's reservation as ``event``; None if nothing was reserved.

        Args:
            event: What the run spent.
        """
        return None if self.reservation is None or event is None else lambda: settle_once(self.reservation, event)

    def finish(self, finished: Finished) -> dict[str, Any]:
        """Write the folder's documents, the models and the claim, and settle; may be repeated after a kill."""
        settle = self.settlement(finished.result.statement.event)
        lost = max(0, min(finished.setup.facts.rounds, self.folder.journal.claimed) - len(finished.result.history))
        facts = record.save(finished, self.trace, self.folder, settle, {"rounds_lost": lost} if lost else {})
        private_files.remove(self.folder.path / CHECKPOINT)
        return facts

    def _restored(
        self, first: FederationState, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> FederationState:
        try:
            judge = np.random.default_rng()
            judge.bit_generator.state = facts["judge"]
            if self._rng is not None:
                self._rng.bit_generator.state = facts["rng"]
            now = FederationState(
                unpack(_within(arrays, _STATE), first.state),
                unpack(_within(arrays, _PRIVACY), first.privacy),
                int(facts["seed"]),
                judge,
                unpack({":t": arrays[_BEST]}, None),
                float(facts["lowest"]),
                int(facts["number"]),
                int(facts["silent"]),
                [float(one) for one in facts["losses"]],
                [_round(one) for one in facts["history"]],
            )
            self.trace.lines[:] = list(facts["lines"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, SordinaError):
                raise
            raise InvalidInput(f"{self.folder.path / CHECKPOINT} is damaged: begin a new run.") from error
        return now

    def _charge_lost(self, kept: int, claimed: int, accounts: Sequence[ClientAccount], cost: Fraction) -> None:
        """Whoever may have answered in a round that was lost has paid for it; if that is not known, everybody."""
        asked: dict[int, list[int]] = {}
        for one in self.folder.read(JOURNAL).split(b"\n"):
            found = journals.unpack(one)
            if found is not None and "clients" in found:
                asked[int(found["claimed"]) - 1] = found["clients"]
        for number in range(kept, claimed):
            for client in asked.get(number, range(len(accounts))):
                if accounts[client].allows(cost):
                    accounts[client].charge(cost)


Watch = Callable[[RoundView], None]


def federate_into(
    path: Path,
    recipe: FederatedRecipe,
    *,
    resume: bool = False,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    observe: Watch | None = None,
) -> dict[str, Any]:
    """Run ``recipe`` in the folder ``path``, or go on with it there; returns the facts of result.json.

    Args:
        path: The folder; one that holds a run is refused, unless it is to be resumed.
        recipe: The run.
        resume: Continue the run in the folder.
        ledger: Where to reserve and settle what the run costs.
        dataset: The data set in the ledger.
        observe: Shown every round.
    """
    settings = {key: value for key, value in recipe.to_dict().items() if key != "data_seed"}

    def go(folder: RunFolder, seen: Watch, keeper: FederationKeeper) -> Finished:
        return recipes.run(_with_data_seed(recipe, folder), seen, keeper=keeper)

    return kept(
        path, {"recipe": settings}, go, data=recipe.data, engine=recipe.engine, resume=resume, ledger=ledger,
        dataset=dataset, observe=observe,
    )[0]  # fmt: skip


def kept(
    path: Path,
    settings: dict[str, Any],
    go: Callable[[RunFolder, Watch, FederationKeeper], Finished],
    *,
    data: str,
    engine: str = "in-process",
    resume: bool = False,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    observe: Watch | None = None,
) -> tuple[dict[str, Any], Finished | None]:
    """Keep what ``go`` runs in the folder ``path``; returns result.json, and the run unless it had ended before.

    Args:
        path: The folder; one that holds a run is refused, unless it is to be resumed.
        settings: All that decides what the run does, as plain data.
        go: Runs it, given the folder, an observer and a keeper.
        data: What the data are called in the ledger's history.
        engine: Where it runs.
        resume: Continue the run in the folder.
        ledger: Where to reserve and settle what the run costs.
        dataset: The data set in the ledger.
        observe: Shown every round.
    """
    check_pair(ledger, dataset)
    if resume and engine != "in-process":
        raise Unsupported("a run on Flower cannot be resumed: its clients' accounts go on, the run begins anew.")
    trace = record.RoundTrace()

    def seen(one: RoundView) -> None:
        trace(one)
        if observe is not None:
            observe(one)

    with RunFolder.begin(path, "federate", settings, resume=resume) as folder:
        if folder.finished:
            return read_json(folder.path / RESULT), None
        try:
            keeper = FederationKeeper(folder, trace, data, ledger, dataset)
            finished = go(folder, seen, keeper)
            return keeper.finish(finished), finished
        except SordinaError:
            folder.abandon()
            raise


def graph_seed(folder: RunFolder) -> int:
    """The seed of the graph of a run: drawn when it begins, and kept with it.

    Args:
        folder: The run's folder, held.
    """
    if not folder.journal.claimed:
        folder.write_json(GRAPH, {"graph_seed": int(random.secure().integers(2**63 - 1))})
    elif not folder.has(GRAPH):
        raise InvalidInput(f"{folder.path / GRAPH} is gone: begin a new run in another folder.")
    return int(read_json(folder.path / GRAPH)["graph_seed"])


def _with_data_seed(recipe: FederatedRecipe, folder: RunFolder) -> FederatedRecipe:
    """The recipe with the seed of its data, drawn once for the whole life of a run and kept with it."""
    if folder.has(RECIPE):
        return replace(recipe, data_seed=read_json(folder.path / RECIPE).get("data_seed"))
    if folder.journal.claimed:
        raise InvalidInput(f"{folder.path / RECIPE} is gone: begin a new run in another folder.")
    if recipe.seed is None and recipe.data_seed is None:
        recipe = replace(recipe, data_seed=int(random.secure().integers(2**63 - 1)))
    folder.write_json(RECIPE, recipe.to_dict())
    return recipe


def _not_resumable(method: FederatedMethod, setup: FederatedSetup) -> str | None:
    if method.work.state_sizes:
        return (
            f"the clients of {setup.algorithm.name} keep vectors of their own between rounds, which no disk ever sees"
        )
    if setup.engine != "in-process":
        return "a run on Flower keeps no checkpoint"
    return None if setup.faults.calm else "messages that were under way are not kept"


def _planned(placement: Placement, rounds: int, size: int) -> Facts:
    """What a run will have done when it ends: all rounds, and as many participations as its noise was made for."""
    inner = placement.placement if isinstance(placement, Compressed) else placement
    return Facts(rounds, size, getattr(inner, "participations", 0))


def _round_facts(one: Round) -> dict[str, Any]:
    """A round as plain data; without the counts where they are a secret."""
    facts = asdict(one)
    if one.secret:
        hidden = Round(one.number, None, 0, 0, 0, down=one.down, up=one.up, secret=True)
        facts = asdict(hidden) | {"score": facts["score"]}
    return facts


def _round(facts: Mapping[str, Any]) -> Round:
    score = facts["score"]
    whole = None if score is None else Score(score["loss"], score["accuracy"], tuple(score["shares"]))
    return Round(**{**facts, "score": whole, "refused": tuple(Refusal(**one) for one in facts["refused"])})


def _within(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
