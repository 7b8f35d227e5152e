"""All that a search decides before it touches data, as one file: whoever resumes it does exactly this, nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from sordina.accounting import from_dict, to_dict
from sordina.accounting.stopping import draw_runs
from sordina.errors import InvalidInput
from sordina.training.checkpoint import atomically
from sordina.tuning.run import Order
from sordina.tuning.scheme import Scheme
from sordina.tuning.space import Configuration, Space
from sordina.types import Adjacency, Budget, Unit

PLAN = "plan.json"


@dataclass(frozen=True)
class Decision:
    """The scheme, the runs, the ledger's reservation, and what was asked for."""

    asked: dict[str, Any]
    scheme: Scheme
    orders: tuple[Order, ...]
    reservation: int | None = None

    def save(self, folder: Path) -> None:
        """Write `PLAN` into ``folder``."""
        plain = {field.name for field in fields(Scheme)} - {"event", "choice", "budget"}
        scheme = {name: getattr(self.scheme, name) for name in sorted(plain)}
        data = {
            "asked": self.asked,
            "scheme": scheme
            | {"event": to_dict(self.scheme.event), "choice": to_dict(self.scheme.choice)}
            | {"epsilon": self.scheme.budget.epsilon, "delta": self.scheme.budget.delta},
            "orders": [asdict(order) for order in self.orders],
            "reservation": self.reservation,
        }
        text = json.dumps(data, indent=1) + "\n"
        atomically(folder / PLAN, lambda path: path.write_text(text))

    @classmethod
    def load(cls, folder: Path, asked: dict[str, Any]) -> Decision:
        """The decision in ``folder``; refused if it was about something else than ``asked``."""
        try:
            data = json.loads((folder / PLAN).read_text())
            orders = tuple(Order(**order) for order in data["orders"])
            saved = data["scheme"]
            budget = Budget(saved.pop("epsilon"), saved.pop("delta"))
            scheme = Scheme(
                **saved
                | {"event": from_dict(saved["event"]), "choice": from_dict(saved["choice"]), "budget": budget}
                | {"adjacency": Adjacency(saved["adjacency"]), "unit": Unit(saved["unit"])}
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{folder} holds no search to resume: {error}.") from error
        if differing := sorted(name for name in asked if asked[name] != data["asked"].get(name)):
            raise InvalidInput(
                f"{folder} holds another search: {', '.join(differing)} differ. Resume it with the options it was "
                "started with, or choose another folder."
            )
        return cls(data["asked"], scheme, orders, data["reservation"])

    def reserved(self, number: int) -> Decision:
        """The same, with the ledger's reservation."""
        return replace(self, reservation=number)


def make_orders(
    space: Space,
    scheme: Scheme,
    configurations: list[Configuration],
    seeds: int,
    seed: int | None,
    rng: np.random.Generator,
) -> tuple[Order, ...]:
    """The runs: every configuration ``seeds`` times, or with random stopping a random number of random ones."""
    if scheme.stopping is not None:
        drawn = [space.draw(rng) for _ in range(draw_runs(scheme.stopping, rng))]
        pairs = [(configuration, number) for number, configuration in enumerate(drawn)]
    else:
        pairs = [(configuration, repetition) for repetition in range(seeds) for configuration in configurations]
    return tuple(
        Order(number, configuration, repetition, noise_seed(seed, number))
        for number, (configuration, repetition) in enumerate(pairs)
    )


def noise_seed(seed: int | None, number: int) -> int | None:
    """A seed for the noise of run ``number``, or none at all: then noise is secret."""
    return None if seed is None else int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0])
