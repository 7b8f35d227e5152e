"""Audit a model that was trained by anybody, or scores that anybody computed: what do they prove?"""

from __future__ import annotations

import copy
import hashlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom
from torch import Tensor, nn

from sordina.auditing.bounds import Bound, TwoRates, check_confidence, most_promising, shared_confidences
from sordina.auditing.findings import AttackResult, Audit
from sordina.auditing.membership.attacks import (
    SHADOW_KNOWS,
    AttackModel,
    AugmentedLiRA,
    LiRA,
    LossAttack,
    MembershipAttack,
    NoisyNeighbours,
    ShadowDifference,
)
from sordina.auditing.membership.foreign_models import loss_target, retrain_shadows
from sordina.auditing.membership.query_attacks import LabelOnly, QuantileRegression
from sordina.auditing.membership.reference_attacks import RMIA, AttackR, BaVarIA, PopulationAttack
from sordina.auditing.membership.shadows import PlainTraining, Shadows, fresh, make_shadows
from sordina.auditing.membership.target import (
    Classifier,
    LanguageModel,
    Regressor,
    Samples,
    Target,
    as_samples,
    as_target,
)
from sordina.auditing.one_run import Membership, OneRun, PairedRun
from sordina.auditing.scores import BoolArray, FloatArray, Scores
from sordina.auditing.trade_off import AnyMechanism, HypothesisFamily
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, Guarantee, check_delta, check_seed
from sordina.progress import Progress, silent

# Audit a model that was trained by anybody: members, non-members, attacks, and what they prove.
#
#     result = sd.audit(model, (x_train, y_train), (x_test, y_test), attacks=["loss", "lira-online"])
#     print(result.verdict)
#
# Rows are split once: on the tuning part noise levels, thresholds and numbers of guesses are chosen; the other part is
# reported on, the same for all attacks.

SHADOWED: dict[str, Callable[[Shadows, BoolArray], MembershipAttack]] = {
    "shadow": lambda shadows, _: ShadowDifference(shadows),
    "lira-online": lambda shadows, _: LiRA(shadows),
    "lira-augmented": lambda shadows, _: AugmentedLiRA(shadows),
    "lira-offline": lambda shadows, _: LiRA(shadows, online=False),
    "rmia": RMIA,
    "rmia-offline": lambda shadows, population: RMIA(shadows, population, online=False),
    "bavaria": lambda shadows, _: BaVarIA(shadows),
    "bavaria-offline": lambda shadows, _: BaVarIA(shadows, online=False),
    "attack-r": lambda shadows, _: AttackR(shadows),
    "attack-model": lambda shadows, _: AttackModel(shadows),
}
"""Attacks by shadow models, made from their answers and from which rows are known non-members."""
USUAL_DELTA = 1e-5
"""Where bounds are taken if no delta was claimed."""
UNSHADOWED = ("loss", "noisy", "population", "quantile-regression", "label-only")
ATTACKS = (*UNSHADOWED, *SHADOWED)
"""The names that `audit` knows; those of `SHADOWED` train shadow models, once for all of them."""


def audit(
    model: Any,
    members: Any,
    non_members: Any,
    attacks: Sequence[str | MembershipAttack] = ("loss", "noisy"),
    *,
    membership: str | Membership = "own",
    claim: Guarantee | None = None,
    mechanism: HypothesisFamily | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    recipe: PlainTraining | None = None,
    shadows: int = 16,
    shadow_folder: str | Path | None = None,
    base: nn.Module | None = None,
    loss: Callable[..., Tensor] | None = None,
    embedding: str | None = None,
    tuning: float = 0.3,
    seed: int | None = None,
    progress: Progress = silent,
    random_split: bool | None = None,
) -> Audit:
    """Attack ``model`` and bound its epsilon from below.

    Args:
        model: What was trained: a module; what `Trainer.fit` or `FederatedTrainer.fit` gave, then its claim counts; a
            scikit-learn model; or a function from rows to probabilities (or to numbers, with real labels).
        members: Who was trained on: ``(inputs, labels)``, token ids, or a torch data set.
        non_members: Who was not, in the same form.
        attacks: Names of `ATTACKS`, or attacks.
        membership: How it was decided who was in: ``"coins"`` (each row by a fair coin of its own; ``"coins:0.2"`` for
            another chance of in; then give all rows that a coin was thrown for), ``"fixed"`` (a random part of so many
            rows) or ``"own"`` (not by chance). Any other difference between the two groups looks like leakage, so
            under ``"own"`` no claim is called refuted.
        claim: The guarantee to hold the bounds against.
        mechanism: What is known of the mechanism beside its claim (`sordina.auditing.trade_off`): a tighter bound.
        delta: Where the bounds are taken, never below the claim's. If left out: the claim's, or 1e-5 if nothing was
            claimed (an infinite epsilon claims nothing).
        confidence: That of all bounds together: half of the error is for the attack that promises most on the tuning
            rows, the others share the rest.
        recipe: How shadow models are trained; should be the target's own way.
        shadows: How many of them.
        shadow_folder: Keeps their answers, for another audit of the same rows with the same seed and recipe.
        base: For a fine-tune: what shadow models start from. Without it they start from new weights.
        loss: Of a module that is neither a classifier, a regression nor a language model, or has several inputs:
            ``loss(outputs, targets)``. Members are then ``(x, ..., y)``, or a mapping of named tensors with ``labels``.
        embedding: The layer that noise is added behind, by name.
        tuning: The share of rows that attacks are tuned on; the others are reported on.
        seed: Makes the audit repeatable.
        progress: Told of every shadow model.
        random_split: The old way to say ``membership="fixed"``.
    """
    model, claim, proved = _trained(model, claim)
    if not attacks:
        raise InvalidInput(f"an audit needs at least one attack. Choose from {', '.join(ATTACKS)}.")
    drawn = _drawn(membership, random_split)
    rng = np.random.default_rng(None if seed is None else check_seed(seed))
    (shadow_rng,) = rng.spawn(1)
    judge = Judge.of(drawn, claim, delta, confidence, mechanism)
    if isinstance(model, nn.Module) and (loss is not None or _several(members)):
        model, members, non_members = loss_target(model, loss, members, non_members)
    rows = _Rows.of(as_samples(members), as_samples(non_members), tuning, drawn, rng)
    target = as_target(model, rows.samples, embedding)
    trained: Shadows | None = None
    attempts = []
    for attack in attacks:
        start = time.process_time()
        if isinstance(attack, str) and attack in SHADOWED:
            trained = trained or _kept_shadows(
                shadow_folder if _known_by_rows(target, rows.samples) else None, rows.samples,
                (recipe, shadows, seed, _kind_of(target), None if base is None else _weights_of(base)),
                lambda: _train_shadows(target, rows.samples, recipe, shadows, base, shadow_rng, progress),
            )  # fmt: skip
        ready = _ready(attack, target, rows, trained, rng)
        tuned, reported = rows.split.separate(ready.scores(target, rows.samples))
        seconds = time.process_time() - start
        attempts.append(Attempt(ready.name, tuned, reported, told_by(ready) | {"seconds": seconds}))
    return Audit(judge(attempts), claim, proved)


def audit_scores(
    scores: Mapping[str, ArrayLike],
    member: ArrayLike,
    *,
    membership: str | Membership = "own",
    claim: Guarantee | None = None,
    mechanism: HypothesisFamily | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    tuning: float = 0.3,
    seed: int | None = None,
) -> Audit:
    """What scores prove that were computed elsewhere: one number per record and attack.

    Scores may be made with any knowledge of the model and the records, but not with who was in (``member``).

    Args:
        scores: For each attack, by name, the scores of all records: the higher, the more a member.
        member: Whether each record was trained on.
        membership: How that was decided, as in `audit`.
        claim: The guarantee to hold the bounds against.
        mechanism: What is known of the mechanism beside its claim.
        delta: Where the bounds are taken, never below the claim's. If left out: the claim's, or 1e-5 if nothing was
            claimed (an infinite epsilon claims nothing).
        confidence: That of all bounds together.
        tuning: The share of records that guesses are tuned on.
        seed: Makes the audit repeatable.

    >>> member = np.arange(1000) % 2 == 0
    >>> audit_scores({"told": member + 0.1}, member, membership="coins", delta=0.0, seed=0).epsilon_lower > 4
    True
    """
    drawn = Membership.of(membership)
    inside = np.asarray(member, dtype=bool).reshape(-1)
    judge = Judge.of(drawn, claim, delta, confidence, mechanism)
    rng = np.random.default_rng(None if seed is None else check_seed(seed))
    order = rng.permutation(len(inside))
    split = RowSplit.of(inside[order], tuning, drawn, rng)
    attempts = []
    for name, values in scores.items():
        given = np.asarray(values, dtype=np.float64).reshape(-1)
        if len(given) != len(inside):
            raise InvalidInput(f"{name} has {len(given)} scores for {len(inside)} records.")
        attempts.append(Attempt(name, *split.separate(given[order])))
    if not attempts:
        raise InvalidInput("an audit needs the scores of at least one attack.")
    return Audit(judge(attempts), claim)


@dataclass(frozen=True)
class Attempt:
    """The scores of one attack, before they are judged.

    Args:
        name: The attack's name.
        tuned: On the rows that everything is chosen on.
        reported: On the others.
        told: What else `AttackResult` should know of it.
    """

    name: str
    tuned: Scores
    reported: Scores
    told: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Judge:
    """From scores to what they prove: the same bounds for every attack of an audit, the error shared among them.

    Args:
        membership: How it was decided who was in.
        claim: What was claimed.
        delta: Where the bounds are taken.
        confidence: That of all bounds together.
        bounds: The first one decides; the others are shown beside it.
    """

    membership: Membership
    claim: Guarantee | None
    delta: float
    confidence: float
    bounds: tuple[Bound, ...]

    @staticmethod
    def of(
        membership: Membership,
        claim: Guarantee | None,
        delta: float | None,
        confidence: float,
        mechanism: HypothesisFamily | None = None,
    ) -> Judge:
        """One run decides; two rates, which takes rows for independent trials, is shown beside it."""
        kind = PairedRun if claim is not None and claim.adjacency is Adjacency.REPLACE_ONE else OneRun
        bounds: tuple[Bound, ...] = (kind(membership, AnyMechanism()), TwoRates())
        if mechanism is not None:
            bounds = (kind(membership, mechanism), *bounds)
        stated = None if claim is None or math.isinf(claim.epsilon) else claim.delta
        usual = USUAL_DELTA if stated is None else stated
        # Below the claimed delta a bound speaks of something that was never claimed: it would refute what is true.
        where = max(usual if delta is None else check_delta(delta), stated or 0.0)
        return Judge(membership, claim, check_delta(where), check_confidence(confidence), bounds)

    def __call__(self, attempts: Sequence[Attempt]) -> tuple[AttackResult, ...]:
        """The results of all attacks, half of the error for the one that promises most on the tuning rows."""
        scores = [(one.tuned, one.reported) for one in attempts]
        favourite = most_promising(self.bounds[0], scores, self.delta, self.confidence)
        shares = shared_confidences(self.confidence, len(attempts), favourite)
        return tuple(self._result(one, each) for one, each in zip(attempts, shares, strict=True))

    def _result(self, one: Attempt, confidence: float) -> AttackResult:
        found = tuple(bound.epsilon_lower(one.tuned, one.reported, self.delta, confidence) for bound in self.bounds)
        return AttackResult(
            one.name, one.reported, found, self.claim, self.confidence, membership=self.membership, **one.told
        )


def _drawn(membership: str | Membership, random_split: bool | None) -> Membership:
    if random_split is None:
        return Membership.of(membership)
    warnings.warn(
        'random_split is now membership: "fixed" for a random part of so many rows, "coins" or "own".',
        DeprecationWarning,
        stacklevel=3,
    )
    return Membership("fixed" if random_split else "own")


def _trained(model: Any, claim: Guarantee | None) -> tuple[Any, Guarantee | None, bool]:
    """The module of a run, what it claims for a record unless a claim was given, and whether that was computed here."""
    told = getattr(model, "guarantee", None)
    if isinstance(model, nn.Module) or told is None:
        return model, claim, False
    own = claim is None and _computed_here(model)
    if claim is None and isinstance(told, Guarantee):
        claim = told
    elif claim is None and getattr(told, "epsilon", None) is not None and told.adjacency is not None:
        claim = Guarantee(told.epsilon, told.delta, told.adjacency, told.unit)
    return model.model, claim, own and claim is not None


def _computed_here(model: Any) -> bool:
    """Whether what ``model`` states was computed from the events that ran, soundly, under noise that nobody knows.

    Any object may have an attribute ``guarantee``: that is a claim.
    """
    from sordina.federated.result import FederatedResult
    from sordina.training.run import Run as TrainingRun

    run = model.run if isinstance(getattr(model, "run", None), TrainingRun) else model
    if isinstance(run, TrainingRun):
        return run.releasable
    return isinstance(run, FederatedResult) and run.releasable and run.guarantee.sound


@dataclass(frozen=True)
class RowSplit:
    """Who of the rows is a member, and who is for tuning.

    Args:
        member: Whether each row was trained on.
        tuning: Whether it is for tuning.
    """

    member: BoolArray
    tuning: BoolArray

    @staticmethod
    def of(member: BoolArray, share: float, membership: Membership, rng: np.random.Generator) -> RowSplit:
        """A random ``share`` of the rows to tune on.

        After coins it is drawn without a look at them: equal shares of both sides would let the tuning part tell how
        many coins of the other part fell on "in". In a split of fixed size that is known anyway, and equal shares leave
        a split of fixed size.
        """
        inside = int(member.sum())
        if min(inside, len(member) - inside) < 10:
            raise InvalidInput(f"needs at least 10 members and non-members, got {inside} and {len(member) - inside}.")
        if not 0 < share < 1:
            raise InvalidInput(f"the part to tune on must lie between 0 and 1, got {share}.")
        if membership.drawn == "coins":
            _check_coins(inside, len(member), membership.probability)
        tuning = np.zeros(len(member), dtype=bool)
        blind = membership.drawn == "coins"
        for rows in (np.arange(len(member)),) if blind else (np.flatnonzero(member), np.flatnonzero(~member)):
            tuning[rng.permutation(rows)[: max(2, round(share * len(rows)))]] = True
        return RowSplit(member, tuning)

    def separate(self, scores: FloatArray) -> tuple[Scores, Scores]:
        """Scores of the tuning part and of the reported part."""
        tuned, reported = (
            Scores(scores[self.member & part], scores[~self.member & part]) for part in (self.tuning, ~self.tuning)
        )
        return tuned, reported


def _check_coins(inside: int, records: int, chance: float) -> None:
    """Refuse counts that the coins would give once in a million times: rows were left out by a look at the coins."""
    if min(binom.cdf(inside, records, chance), binom.sf(inside - 1, records, chance)) < 1e-6:
        raise InvalidInput(
            f"{inside} of {records} rows are members, which coins of chance {chance:g} do not give: hand in every row "
            "that a coin was thrown for, or a part drawn without a look at the coins. For a random part of fixed size "
            "say fixed."
        )


@dataclass(frozen=True)
class _Rows:
    """All rows in random order, and how they are split."""

    samples: Samples
    split: RowSplit

    @staticmethod
    def of(
        members: Samples, non_members: Samples, share: float, membership: Membership, rng: np.random.Generator
    ) -> _Rows:
        order = rng.permutation(len(members) + len(non_members))
        split = RowSplit.of(order < len(members), share, membership, rng)
        return _Rows((members + non_members).take(order), split)

    @property
    def population(self) -> BoolArray:
        """Known non-members: those of the tuning part."""
        known: BoolArray = ~self.split.member & self.split.tuning
        return known

    def part(self, member: bool, tuning: bool) -> Samples:
        return self.samples.take((self.split.member == member) & (self.split.tuning == tuning))


def _ready(
    attack: str | MembershipAttack, target: Target, rows: _Rows, shadows: Shadows | None, rng: np.random.Generator
) -> MembershipAttack:
    """The attack by name, its free parameters tuned on the tuning rows."""
    if isinstance(attack, str):
        attack = _named(attack, rows, shadows, rng)
    if getattr(attack, "needs_tuning", False):
        tuned: MembershipAttack = attack.tuned(  # type: ignore[attr-defined]
            target, rows.part(member=True, tuning=True), rows.part(member=False, tuning=True)
        )
        return tuned
    return attack


def _named(name: str, rows: _Rows, shadows: Shadows | None, rng: np.random.Generator) -> MembershipAttack:
    if name in SHADOWED and shadows is not None:
        return SHADOWED[name](shadows, rows.population)
    makers: dict[str, Callable[[], MembershipAttack]] = {
        "loss": LossAttack,
        "noisy": lambda: NoisyNeighbours(rng),
        "population": lambda: PopulationAttack(rows.population),
        "quantile-regression": QuantileRegression,
        "label-only": lambda: LabelOnly(rng),
    }
    if name not in makers:
        raise InvalidInput(f"no attack is called {name!r}. Choose one of {', '.join(ATTACKS)}.")
    return makers[name]()


def _train_shadows(
    target: Target,
    samples: Samples,
    recipe: PlainTraining | None,
    count: int,
    base: nn.Module | None,
    rng: np.random.Generator,
    progress: Progress,
) -> Shadows:
    if hasattr(target, "retrained"):
        return retrain_shadows(target, samples, recipe or PlainTraining(), rng, count, progress)
    model: nn.Module = target.model
    first = int(rng.integers(2**31))

    def build(index: int) -> nn.Module:
        return fresh(model, first + index) if base is None else copy.deepcopy(base)

    return make_shadows(build, samples, recipe or PlainTraining(), rng, count=count, progress=progress)


def _known_by_rows(target: Target, samples: Samples) -> bool:
    """Whether the samples are the rows themselves, not numbers of rows that are kept elsewhere."""
    return isinstance(target, Classifier | Regressor | LanguageModel) or samples.inputs.is_floating_point()


def _kind_of(target: Target) -> str:
    """What is trained: the architecture of a module, the settings of an estimator."""
    return repr(target.estimator) if hasattr(target, "estimator") else repr(target.model)


def _weights_of(base: nn.Module) -> str:
    """A digest of what a fine-tune starts from."""
    held = hashlib.sha256()
    for name, value in base.state_dict().items():
        held.update(name.encode() + value.detach().cpu().contiguous().float().numpy().tobytes())
    return held.hexdigest()


def _kept_shadows(
    folder: str | Path | None, samples: Samples, settings: tuple[Any, ...], make: Callable[[], Shadows]
) -> Shadows:
    """The shadow models of these rows and settings: kept ones, or new ones that are kept."""
    if folder is None:
        return make()
    held = hashlib.sha256(repr(settings).encode())
    for part in (samples.inputs, samples.labels):
        held.update(b"" if part is None else part.contiguous().numpy().tobytes())
    path = Path(folder) / f"shadows-{held.hexdigest()[:32]}.npz"
    if path.exists():
        return Shadows.load(path)
    made = make()
    made.save(path)
    return made


def _several(data: Any) -> bool:
    """Whether rows have several inputs, or named ones."""
    return isinstance(data, Mapping) or (isinstance(data, tuple | list) and len(data) > 2)


def told_by(attack: MembershipAttack) -> dict[str, Any]:
    """What an attack tried, and what the attacker has: it may say so itself, as ``knows``."""
    peak = getattr(attack, "peak", None)
    details = {} if peak is None else {"sigma": peak.sigma, "auc_by_sigma": [list(point) for point in peak.tried]}
    usual = SHADOW_KNOWS if hasattr(attack, "shadows") else "the model and the record with its label"
    return {"details": details, "knows": str(getattr(attack, "knows", usual))}
