"""What a search leaves behind: one model, one guarantee, and how the choice was made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sordina.accounting import Account, Composed, Event, from_dict, to_dict
from sordina.errors import InvalidInput
from sordina.privacy import Guarantee, delta_warning
from sordina.privacy_claim import PrivacyClaim
from sordina.run_folder import MODEL, RESULTS, RunFolder, read_claim, read_json
from sordina.training.run import versions
from sordina.tuning.plan import Scheme
from sordina.tuning.runner import RunResult, load_weights
from sordina.tuning.selection import Selection, SelectionKind
from sordina.tuning.space import Configuration

CAVEATS = (
    "The numbers of training and validation records that rates and shares are computed from are treated as public.",
    "Gradients are computed and added up in floating point. Noise of an exactly known law covers the sum of "
    "clipped ones over the reals, not its rounding, nor that a gradient may be rounded otherwise beside others.",
)

SECRET = (
    "With random stopping the guarantee is against who sees the outcome alone, not the machine's clock, its processes "
    "or the internal part of the folder while the search runs: these tell how many runs there were."
)


@dataclass(frozen=True)
class Outcome:
    """The chosen model and configuration, with the guarantee of the *whole* search.

    Args:
        scheme: What the search cost.
        selection: How the best run was found.
        releasable: Whether the noise was drawn securely.
        metric: What was compared.
        repetitions: Runs per configuration.
    """

    model: nn.Module
    configuration: Configuration
    scheme: Scheme
    selection: Selection
    runs: tuple[RunResult, ...]
    """The runs that may be shown: all of them, or with random stopping the chosen one alone."""
    candidates: int
    """How many configurations the search was about."""
    releasable: bool
    metric: str | None = None
    score: float | None = None
    """The exact score the choice was made by; None under private selection, which shows no score."""
    spread: float | None = None
    """Standard deviation of the score over seeds, in the thesis's protocol."""
    repetitions: int = 1

    @cached_property
    def guarantee(self) -> Guarantee:
        """The claim for the search as a whole, from the events of what ran."""
        delta, adjacency, unit = self.scheme.budget.delta, self.scheme.adjacency, self.scheme.unit
        private = math.isfinite(self.scheme.budget.epsilon)
        return Guarantee(self.account().epsilon(delta) if private else math.inf, delta, adjacency, unit)

    def account(self) -> Account:
        """What ran, event by event, and what choosing cost; with random stopping, the stopped event as a whole."""
        account = Account(self.scheme.accountant, self.scheme.adjacency)
        for event in self.events():
            account.record(event)
        return account

    def events(self) -> list[Event]:
        """What is charged, one repetition of the thesis's protocol only; runs paid for but not made count too."""
        if self.scheme.stopping is not None or len(self.runs) < self.candidates * self.repetitions:
            return [self.scheme.event]
        paid = [run for run in self.runs if run.repetition == 0 or self.repetitions == 1]
        return [*(from_dict(run.event) for run in paid), self.scheme.choice]

    def statement(self) -> str:
        """The guarantee and the selection in a sentence."""
        if math.isinf(self.scheme.budget.epsilon):
            return f"NOT PRIVATE: searched without noise. {self.selection.label}."
        claim = f"{self.guarantee} for the whole search. {self.selection.label}"
        if not self.releasable:
            claim += ". NOT FOR RELEASE: seeded noise or a selection nobody paid for"
        return " ".join([f"{claim}.", *self._warnings()])

    def save(self, folder: RunFolder, settle: Callable[[], object]) -> None:
        """Write `RESULTS`, then ``model.pt`` and ``privacy.json``, settle, and say that the search has ended.

        Args:
            folder: The search's folder.
            settle: Settles the search's reservation.
        """
        folder.write_json(RESULTS, self.facts())
        folder.finish(lambda file: torch.save(self.model.state_dict(), file), self.claim, settle)

    @classmethod
    def load(cls, folder: Path, model: nn.Module, scheme: Scheme, selection: Selection) -> Outcome:
        """The outcome saved in ``folder``.

        Args:
            folder: That of a search that has ended.
            model: Has the right shape, and gets the weights.
            scheme: How the search was paid for.
            selection: How the best run was found.
        """
        read_claim(folder)
        load_weights(model, folder / MODEL)
        facts = read_json(folder / RESULTS)
        try:
            return cls(
                model, facts["configuration"], scheme, selection, tuple(RunResult(**run) for run in facts["runs"]),
                facts["candidates"], facts["releasable"], facts["metric"], facts["score"],
                facts["spread"], facts["repetitions"],
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"{folder / RESULTS} is damaged: it is not the outcome of a search.") from error

    @property
    def claim(self) -> PrivacyClaim:
        """The guarantee of the whole search, the way it came about and its limits."""
        return PrivacyClaim.of(
            self.guarantee,
            statement=self.statement(),
            accountant=self.scheme.accountant,
            noise_multiplier=self.scheme.noise_multiplier,
            event=_plain(to_dict(Composed(tuple(self.events())))),
            releasable=self.releasable,
            caveats=tuple(self.caveats),
            versions=versions(),
        )

    def privacy(self) -> dict[str, Any]:
        """The claim as plain data."""
        return self.claim.to_dict()

    @property
    def caveats(self) -> list[str]:
        """What the guarantee does not cover."""
        exact = [] if self.selection.kind is SelectionKind.PRIVATE else [self.selection.label]
        return [*CAVEATS, *([SECRET] if self.scheme.stopping is not None else []), *exact, *self._warnings()]

    def _warnings(self) -> list[str]:
        said = delta_warning(self.scheme.budget.delta, self.scheme.population, str(self.scheme.unit))
        return [said] if said else []

    def facts(self) -> dict[str, Any]:
        """Everything but the model, as plain data."""
        guarantee = self.guarantee
        return {
            "configuration": self.configuration,
            "metric": self.metric,
            "score": self.score,
            "spread": self.spread,
            "repetitions": self.repetitions,
            "epsilon": guarantee.epsilon if math.isfinite(guarantee.epsilon) else None,
            "delta": guarantee.delta,
            "adjacency": str(guarantee.adjacency),
            "unit": str(guarantee.unit),
            "statement": self.statement(),
            "selection": {
                "kind": str(self.selection.kind),
                "label": self.selection.label,
                "event": _plain(to_dict(self.scheme.choice)),
            },
            "method": self.scheme.method,
            "reason": self.scheme.reason,
            "noise_multiplier": self.scheme.noise_multiplier,
            "noise_by_method": self.scheme.noise_by_method,
            "accountant": self.scheme.accountant,
            "event": _plain(to_dict(self.scheme.event)),
            "candidates": self.candidates,
            **({} if self.scheme.chosen is None else {"schedule": asdict(self.scheme.chosen)}),
            "runs": [vars(run) for run in self.runs],
            "releasable": self.releasable,
            "caveats": self.caveats,
        }


def _plain(value: Any) -> Any:
    """JSON knows no infinity: it is written as the text "inf"."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
