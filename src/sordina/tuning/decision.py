"""All that a search decides before it touches data, on disk: whoever resumes it does exactly this, nothing else.

With random stopping the list of runs, and so their number K, is sealed in the internal part of the folder (`secret`):
drawn once, before anything is reserved, so that no kill and no resume draws it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from sordina.accounting import from_dict, to_dict
from sordina.accounting.stopping import draw_runs
from sordina.errors import InvalidInput, Unsupported
from sordina.run_folder import RunFolder, read_json
from sordina.tuning import secret
from sordina.tuning.run import Order
from sordina.tuning.scheme import Schedule, Scheme
from sordina.tuning.space import Configuration, Space
from sordina.types import Adjacency, Budget, Unit

PLAN = "plan.json"
ORDERS = "orders.json"


@dataclass(frozen=True)
class Decision:
    """The scheme and the runs. ``started`` is when it was decided, in seconds since 1970."""

    scheme: Scheme
    orders: tuple[Order, ...]
    started: float

    def save(self, folder: RunFolder) -> None:
        """Write `PLAN` into ``folder``; with random stopping the runs go into its internal part, before."""
        plain = {field.name for field in fields(Scheme)} - {"event", "choice", "budget"}
        scheme = {name: getattr(self.scheme, name) for name in sorted(plain)}
        data: dict[str, Any] = {
            "scheme": scheme
            | {"event": to_dict(self.scheme.event), "choice": to_dict(self.scheme.choice)}
            | {"epsilon": self.scheme.budget.epsilon, "delta": self.scheme.budget.delta},
            "started": self.started,
        }
        orders = [asdict(order) for order in self.orders]
        if self.scheme.stopping is not None:
            secret.write_json(folder, ORDERS, {"orders": orders})
        else:
            data["orders"] = orders
        folder.write_json(PLAN, data)

    @classmethod
    def load(cls, folder: RunFolder) -> Decision | None:
        """The decision in ``folder``; None if none was made. The runs of a stopped search that has ended are gone."""
        if not folder.has(PLAN):
            return None
        data = read_json(folder.path / PLAN)
        try:
            saved = data["scheme"]
            budget = Budget(saved.pop("epsilon"), saved.pop("delta"))
            scheme = Scheme(
                **saved
                | {"event": from_dict(saved["event"]), "choice": from_dict(saved["choice"]), "budget": budget}
                | {"adjacency": Adjacency(saved["adjacency"]), "unit": Unit(saved["unit"])}
            )
            if scheme.stopping is None:
                listed = data["orders"]
            else:
                listed = [] if folder.finished else read_json(secret.part(folder.path) / ORDERS)["orders"]
            return cls(scheme, tuple(Order(**order) for order in listed), float(data["started"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"{folder.path / PLAN} is damaged: begin a new search in another folder.") from error


def decide(
    space: Space,
    scheme: Scheme,
    configurations: list[Configuration],
    seeds: int,
    rng: np.random.Generator,
    seed: int | None,
) -> Decision:
    """The runs: every configuration ``seeds`` times, or with random stopping a random number of random ones.

    The runs of a stopped search are drawn alike and independently of their number: configuration, first weights
    (``weights`` seeds them) and, under a ``seed``, noise.

    Args:
        space: Where configurations come from.
        scheme: How the search is paid for.
        configurations: Those of a search that tries each of them.
        seeds: How often each of these is tried.
        rng: Draws the runs.
        seed: That of the whole search; None keeps all noise secret.
    """
    if scheme.stopping is not None:
        drawn = [
            Order(number, space.draw(rng), weights=_draw_seed(rng), seed=None if seed is None else _draw_seed(rng))
            for number in range(draw_runs(scheme.stopping, rng))
        ]
        return Decision(scheme, tuple(drawn), time.time())
    pairs = [(configuration, repetition) for repetition in range(seeds) for configuration in configurations]
    orders = [
        Order(number, configuration, repetition, noise_seed(seed, number), repetition)
        for number, (configuration, repetition) in enumerate(pairs)
    ]
    return Decision(scheme, tuple(orders), time.time())


def check_costs(
    orders: tuple[Order, ...], schedule_of: Callable[[Configuration], Schedule], scheme: Scheme, common: Schedule
) -> None:
    """Refuse a stopped search whose runs would not all do the same to the data.

    Args:
        orders: The runs.
        schedule_of: From a configuration to its `Schedule`.
        scheme: How the search is paid for.
        common: The schedule that was paid for.
    """
    if scheme.stopping is not None and any(schedule_of(order.configuration) != common for order in orders):
        raise Unsupported("random stopping needs runs that all cost the same: take composition, or one schedule.")


def noise_seed(seed: int | None, number: int) -> int | None:
    """A seed for the noise of run ``number``, or none at all: then noise is secret."""
    return None if seed is None else int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0])


def _draw_seed(rng: np.random.Generator) -> int:
    """Small enough for every library's ``seed``; drawn alike for all runs, so who finds it learns no number."""
    return int(rng.integers(1 << 31))
