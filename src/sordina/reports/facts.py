"""The facts a report is made of: plain frozen data, read from run folders, with no word on how they will look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sordina.errors import InvalidInput

Image = tuple[tuple[float, ...], ...]
"""Rows of grey values in [0, 1]."""


@dataclass(frozen=True)
class Claim:
    """What a run claims. ``private`` is None where nothing is on file, as for an unfinished run.

    Args:
        epsilon: The claimed epsilon.
        delta: The claimed delta.
        unit: Whose data the guarantee speaks of: a record or a person.
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one; None if nobody says.
        trust: Whom the people must trust: nobody but themselves, or whoever adds the noise.
        accountant: The accountant's name: pld (the tightest), rdp, gdp, zcdp, advanced or basic.
        noise_multiplier: The noise that was added.
        releasable: Whether it was drawn securely.
        statement: The claim in words.
    """

    private: bool | None = None
    epsilon: float | None = None
    delta: float | None = None
    unit: str = "record"
    adjacency: str | None = None
    trust: str = "central"
    sound: bool = True
    """Whether the claim is proven, not a heuristic."""
    accountant: str | None = None
    noise_multiplier: float | None = None
    releasable: bool | None = None
    statement: str = ""
    verified: bool = False
    """Whether the claim was checked against the run's own model and events (`verification`)."""
    unverified: str = ""
    """Why it was not."""
    other_model: bool = False
    """Whether it speaks of another model than the one beside it."""


@dataclass(frozen=True)
class Moment:
    """One reported step (or round) of a run."""

    step: int
    epsilon: float | None = None
    threshold: float | None = None
    learning_rate: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    scores: tuple[tuple[str, float], ...] = ()


def last(history: Sequence[Moment], fact: str) -> float | None:
    """The last known value of a `Moment`'s field."""
    values = (getattr(moment, fact) for moment in reversed(history))
    return next((value for value in values if value is not None), None)


@dataclass(frozen=True)
class Interval:
    """A measured number and its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class AttackFacts:
    """A membership attack: how well it did, and the epsilon it proves to be exceeded."""

    name: str
    members: int
    non_members: int
    measured: float
    """Lower bound on epsilon; infinite if everything was told apart."""
    delta: float
    confidence: float
    method: str = ""
    assumes: str = ""
    verdict: str = ""
    refuted: bool = False
    auc: Interval | None = None
    tpr_at: tuple[tuple[float, Interval], ...] = ()
    fpr: tuple[float, ...] = ()
    tpr: tuple[float, ...] = ()
    knows: str = ""
    """What the attacker had."""
    seconds: float | None = None
    """What the attack cost."""


@dataclass(frozen=True)
class Reconstruction:
    """An image, and what an attacker made of the update it caused."""

    attack: str
    defence: str
    original: Image
    result: Image
    psnr: float | None = None
    ssim: float | None = None
    mse: float | None = None


@dataclass(frozen=True)
class Measure:
    """One measure of an attack on a release: on the naive release, on ours, and by guessing."""

    name: str
    naive: float | None
    ours: float | None
    chance: float | None = None


@dataclass(frozen=True)
class ReleaseAttack:
    """An attack on a release of statistics: the naive one and ours."""

    attack: str
    title: str
    data: str
    private: str
    verdict: str
    measures: tuple[Measure, ...]
    x: str = ""
    y: str = ""
    log_x: bool = False
    curves: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = ()


@dataclass(frozen=True)
class ReleasedCell:
    """One released number: of a group, or of all rows if ``group`` is empty. No interval where none was asked for."""

    group: tuple[str, ...]
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ReleasedAnswer:
    """A question to a table, and what was released."""

    question: str
    cells: tuple[ReleasedCell, ...]
    confidence: float
    """Of each interval by itself."""
    epsilon: float
    """What the question cost by itself, at ``delta``."""
    delta: float
    notes: tuple[str, ...] = ()
    """What is biased, and how."""
    releasable: bool = False
    """Whether the noise was drawn securely."""


@dataclass(frozen=True)
class GroupFacts:
    """How one group of people fares; a rate is None where nobody it speaks of exists."""

    name: str
    count: int
    accuracy: float | None
    selection_rate: float | None
    true_positive_rate: float | None
    false_positive_rate: float | None


@dataclass(frozen=True)
class FairnessFacts:
    """The groups and the differences between them."""

    groups: tuple[GroupFacts, ...]
    demographic_parity_difference: float | None = None
    equalized_odds_difference: float | None = None
    equal_opportunity_difference: float | None = None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class NetworkFigure:
    """A picture that a run without a server drew, and what it shows in a sentence."""

    name: str
    title: str
    sentence: str
    png: bytes
    """Its file; for the page only, not among the plain data."""


@dataclass(frozen=True)
class NetworkFacts:
    """A run without a server: who is protected from whom. Figures are None where nothing was computed."""

    topology: str
    """``gossip``, ``walk`` or ``decor``."""
    graph: str
    parties: int | None
    rounds: int | None
    gossip_rounds: int | None
    """Of averaging, in each round of gossip."""
    protected_from: str
    worst_epsilon: float | None
    """Of the worst pair, or of decor's worst party: what the run claims."""
    mean_epsilon: float | None
    """Of the mean pair."""
    delta: float | None
    observers: int | None = None
    """The parties whose views the mean is over."""
    by_distance: tuple[tuple[float, float, float], ...] = ()
    """Of gossip: distance in the graph, mean and largest epsilon of the pairs computed."""
    figures: tuple[NetworkFigure, ...] = ()
    left_out: tuple[str, ...] = ()
    """Figures in the folder that are links, no PNG files, or too large."""


@dataclass(frozen=True)
class RunFacts:
    """One run folder."""

    name: str
    kind: str
    """``train``, ``federate``, ``audit`` or ``release``."""
    claim: Claim = Claim()
    dataset: str | None = None
    model: str | None = None
    population: int | None = None
    finished: bool = True
    steps: int | None = None
    clipping: str | None = None
    history: tuple[Moment, ...] = ()
    loss: float | None = None
    """On validation data, of the model that was kept."""
    accuracy: float | None = None
    scores: tuple[tuple[str, float], ...] = ()
    """All scores on validation data by name, also those of the best constant answer (``constant_...``)."""
    attacks: tuple[AttackFacts, ...] = ()
    reconstructions: tuple[Reconstruction, ...] = ()
    release: ReleaseAttack | None = None
    answers: tuple[ReleasedAnswer, ...] = ()
    """Of a release of statistics."""
    leakage: tuple[float, ...] = ()
    """What each client leaked, by its own account."""
    leakage_limit: float | None = None
    fairness: FairnessFacts | None = None
    network: NetworkFacts | None = None
    """Of a run without a server."""
    caveats: tuple[str, ...] = ()
    command: str | None = None
    versions: tuple[tuple[str, str], ...] = ()
    card: tuple[tuple[str, str], ...] = ()
    """Questions and answers of its privacy card."""

    @property
    def private(self) -> bool:
        """Whether it claims any privacy."""
        return bool(self.claim.private)

    @property
    def measured(self) -> AttackFacts | None:
        """The attack with the largest bound."""
        return max(self.attacks, key=lambda attack: attack.measured, default=None)


@dataclass(frozen=True)
class Booking:
    """One spend in a ledger, priced by itself."""

    what: str
    who: str
    time: str
    status: str
    epsilon: float


@dataclass(frozen=True)
class AccountFacts:
    """A data set's budget and all that was booked on it."""

    dataset: str
    budget: float
    delta: float
    unit: str
    adjacency: str
    spent: float
    bookings: tuple[Booking, ...] = ()


@dataclass(frozen=True)
class Report:
    """Everything a page is made from.

    Args:
        title: Above the page.
        created: When.
        runs: The runs it shows.
        accounts: The ledger's accounts it shows.
    """

    title: str
    created: str
    runs: tuple[RunFacts, ...]
    accounts: tuple[AccountFacts, ...] = ()
    refusals: tuple[str, ...] = ()
    """Runs that the budget did not allow, in the words of the refusal."""
    commands: tuple[str, ...] = field(default=())
    """How the report itself came about."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise InvalidInput("a report needs at least one run folder.")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; an infinite number becomes the string "inf", and bytes are left out."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if not isinstance(inner, bytes)}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    return value
