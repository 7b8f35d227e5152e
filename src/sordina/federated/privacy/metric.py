"""Metric privacy: each client sanitises its whole vector before it leaves (Algorithm 2 of 000 and 001).

``SanitizeUpdate`` adds Euclidean Laplace noise with ``epsilon = n / (nu r)`` per unit of distance, so that vectors at
most r apart are told apart by at most ``epsilon r = n / nu``. The papers take ``r = |xi|``, the length of the secret
update, which Lemma 2 does not allow: it needs an epsilon that does not depend on the data (errata 4). That mode is kept
under the name `UpdateRadius`, marked as a heuristic; `PublicRadius` is sound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.messages import ClientResult, ClientUpdate, Release
from sordina.federated.population import ClientSelection, SampledClients
from sordina.federated.privacy.accounts import Leakage, exact
from sordina.federated.privacy.placement import Facts, FederationFacts, Placed, PrivacyStatement
from sordina.mechanisms.laplace import MetricLaplace
from sordina.privacy import Unit, check_positive, format_up
from sordina.sampling import FixedSize

if TYPE_CHECKING:
    from sordina.federated.algorithms.algorithm import ClientWork
    from sordina.federated.objective import Objective


@dataclass(frozen=True)
class UpdateRadius:
    """``r = |xi|``: the paper's heuristic. The noise scale itself tells how far the client moved."""

    sound: bool = False

    def __str__(self) -> str:
        return "update (heuristic)"


@dataclass(frozen=True)
class PublicRadius:
    """A radius that everybody knows beforehand: sound."""

    value: float
    sound: bool = True

    def __post_init__(self) -> None:
        check_positive("public radius", self.value)

    def __str__(self) -> str:
        return f"public:{self.value:g} (sound)"


Radius: TypeAlias = UpdateRadius | PublicRadius


def radius_of(text: str) -> Radius:
    """Read ``update`` or ``public:R``.

    >>> radius_of("public:0.5")
    PublicRadius(value=0.5, sound=True)
    """
    if text == "update":
        return UpdateRadius()
    kind, _, value = text.partition(":")
    try:
        if kind == "public":
            return PublicRadius(float(value))
    except ValueError:
        pass
    raise InvalidInput(f"radius must be 'update' or 'public:R' with R > 0, got {text!r}.")


@dataclass(frozen=True)
class MetricDP:
    """Each client sanitises what it sends; models within a radius of each other are hard to tell apart.

    Args:
        noise_multiplier: nu; each participation of a model of n numbers leaks ``n / nu``.
        radius: A public number (sound), or ``"update"`` for the paper's heuristic, which proves nothing.
        leakage_limit: What no client leaks more than, over the run; one that would withholds its update.
    """

    noise_multiplier: float = 5.0
    radius: float | str = 1.0
    leakage_limit: float | None = None
    name: ClassVar[str] = "metric"

    def __post_init__(self) -> None:
        check_positive("noise multiplier nu", self.noise_multiplier)
        if self.leakage_limit is not None:
            check_positive("leakage limit", self.leakage_limit)
        self.rule  # noqa: B018 - refuses a radius that is none

    @property
    def rule(self) -> Radius:
        """The radius as the mechanism takes it."""
        return radius_of(self.radius) if isinstance(self.radius, str) else PublicRadius(float(self.radius))

    def place(self, objective: Objective, work: ClientWork, facts: FederationFacts) -> Placed:
        """See `FederatedPrivacy`."""
        limit = None if self.leakage_limit is None else exact(self.leakage_limit)
        selection: ClientSelection = SampledClients(FixedSize(facts.clients_per_round, facts.clients))
        if facts.takes_turns:
            selection = facts.in_turn
        return Placed(work, Metric(self.noise_multiplier, self.rule), selection, limit)


@dataclass(frozen=True)
class Metric:
    """SanitizeUpdate with noise multiplier ``nu``; each participation leaks ``n / nu`` within the radius.

    ``layers`` are the lengths of the vector's layers, to noise each by itself (the option of 000 section 2.5.1 against
    gradient inversion): layer l leaks ``n_l / nu``, together again ``n / nu``.
    """

    noise_multiplier: float
    radius: Radius = UpdateRadius()
    layers: tuple[int, ...] = ()
    vectors_released: bool = True
    hides_failures: bool = True

    def __post_init__(self) -> None:
        check_positive("noise multiplier nu", self.noise_multiplier)

    def check(self, selection: ClientSelection, rounds: int) -> None:
        """Any clients, any number of rounds."""

    def start(self, size: int) -> None:
        """Nothing to remember; the layers must cover the vector."""
        if self.layers and sum(self.layers) != size:
            raise InvalidInput(f"the layers hold {sum(self.layers)} numbers, the vector {size}: list every layer.")

    def cost(self, size: int) -> Fraction:
        """Exactly ``n / nu``."""
        return Fraction(size) / exact(self.noise_multiplier)

    def leakage(self, size: int) -> Leakage:
        """``n / (nu R)`` per unit of distance; by the paper's radius ``n / nu``, which bounds nothing."""
        if isinstance(self.radius, PublicRadius):
            return Leakage(per_distance=self.cost(size) / exact(self.radius.value))
        return Leakage(heuristic=self.cost(size))

    def seal(self, outcome: ClientResult, state: None, rng: np.random.Generator) -> ClientUpdate:
        """Lines 2 to 5 of Algorithm 2, for every client.

        By the paper's radius a client that did not move would get no noise, and so tell that it could not train; it
        gets that of radius 1.
        """
        pieces = zip(_split(outcome.vectors, self.layers), _split(outcome.moved_by(), self.layers), strict=True)
        return ClientUpdate(
            vectors=torch.cat([self._sanitise(vectors, moved, rng) for vectors, moved in pieces], dim=1)
        )

    def _sanitise(self, vectors: Tensor, moved: Tensor, rng: np.random.Generator) -> Tensor:
        share = self.cost(vectors.shape[1])
        if isinstance(self.radius, PublicRadius):
            released: Tensor = MetricLaplace(_per_distance(share, self.radius.value), Unit.USER).release_rows(
                vectors, rng
            )
            return released
        lengths = moved.double().norm(dim=1, keepdim=True)
        units = torch.where(lengths > 0, lengths, 1.0)
        noised = units * MetricLaplace(_per_distance(share, 1.0), Unit.USER).release_rows(vectors / units, rng)
        return torch.as_tensor(noised).to(vectors)

    def open(self, update: ClientUpdate, state: None, rng: np.random.Generator) -> tuple[Release | None, None]:
        """The sanitised vectors and their plain mean: sample counts are not revealed."""
        if update.vectors is None or not len(update.vectors):
            return None, None
        return Release(update.vectors.mean(dim=0), update.vectors), None

    def statement(self, facts: Facts) -> PrivacyStatement:
        """Leakage within the radius, and whether it is proven."""
        each, total = float(self.cost(facts.size)), float(self.cost(facts.size) * facts.participations)
        if isinstance(self.radius, PublicRadius):
            words = (
                f"Metric privacy at the client, sound: models within distance {self.radius.value:g} of each other are "
                f"told apart by at most {format_up(each)} per participation, whatever the data; participations add up."
            )
            told = ""
        else:
            words = (
                "Metric privacy at the client, HEURISTIC radius: the noise follows the length of the secret update, so "
                f"the leakage of {format_up(each)} per participation is the paper's figure, not a proven bound "
                "(errata 4)."
            )
            told = "even if it were one, "
        if facts.participations:
            words += f" In {facts.participations} participations {format_up(total)}: {told}{leakage_in_words(total)}."
        details = {"nu": self.noise_multiplier, "radius": str(self.radius), "per_participation": each, "n": facts.size}
        return PrivacyStatement("metric", words, sound=self.radius.sound, details=details)


def leakage_in_words(leakage: float) -> str:
    """What a leakage means to a person: how often the best guess between two equally likely models is right.

    ``e^l / (1 + e^l)``, rounded up.

    Args:
        leakage: In all.

    >>> leakage_in_words(0.4)
    'whoever guesses which of two such models it was is right at most 60 % of the time, a coin 50 %'
    >>> leakage_in_words(22.4)[-33:]
    'that is practically no protection'
    """
    right = 1 / (1 + math.exp(-leakage))
    shown = math.ceil(1000 * right) / 10 if right > 0.99 else math.ceil(100 * right)
    words = f"whoever guesses which of two such models it was is right at most {shown:g} % of the time, a coin 50 %"
    return f"{words}; that is practically no protection" if right > 0.99 else words


def _per_distance(share: Fraction, radius: float) -> float:
    """``epsilon = (n / nu) / r``, rounded down so that ``epsilon r`` never passes ``n / nu``."""
    return math.nextafter(float(share / Fraction(radius)), 0.0)


def _split(rows: Tensor, layers: Sequence[int]) -> Sequence[Tensor]:
    return torch.split(rows, list(layers), dim=1) if layers else (rows,)
