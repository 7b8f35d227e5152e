"""Membership attacks: loss, neighbours in text or embedding space, and calibration by shadow models."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from scipy.stats import norm

from sordina.auditing.membership.shadows import Shadows, augmented
from sordina.auditing.membership.target import Classifier, Samples, Target
from sordina.auditing.scores import FloatArray, Scores, auc
from sordina.errors import InvalidInput, Unsupported

# The seam of membership inference: an attack gives every sample a score, the higher the more a member.


class MembershipAttack(Protocol):
    """One number per sample from one model."""

    @property
    def name(self) -> str:
        """How results call it."""
        ...

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """The higher, the more the sample looks like a member."""
        ...


SHADOW_KNOWS = "the model, how it was trained, and rows like those it was trained on"
"""What an attacker by shadow models has."""


@dataclass(frozen=True)
class LossAttack:
    """``-loss(f, x)``: members are fitted better (Yeom et al. 2018; perplexity for language models, 000 eq. 4.2)."""

    name: str = "loss"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """Minus the loss, on the scale of confidences, which orders the same and does not round at loss 0."""
        return target.confidences(samples)


@dataclass(frozen=True)
class NeighbourMaker:
    """``mean_j loss(f, x~_j) - loss(f, x)`` (000 eq. 4.5; Mattern et al. 2023), with neighbours made in text.

    A member sits in a dip of the loss, so that its neighbours fit worse than it does; a merely easy sample does not.
    ``neighbour`` maps samples to perturbed ones, see `sordina.auditing.membership.attacks`.
    """

    neighbour: Callable[[Samples, np.random.Generator], Samples]
    rng: np.random.Generator
    count: int = 10
    name: str = "neighbours"
    knows: str = "the model and the record"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """How much better the sample fits than its neighbours."""
        own = target.losses(samples)
        total: FloatArray = np.zeros_like(own)
        for _ in range(self.count):
            total += target.losses(self.neighbour(samples, self.rng))
        scores: FloatArray = total / self.count - own
        return scores


# Attacks that calibrate the target with shadow models: difference, LiRA, and Shokri's attack model.


@dataclass(frozen=True)
class ShadowDifference:
    """``mean loss(f_shadow, x) - loss(f, x)`` over the shadows that did not see x (Watson et al. 2021; 000 eq. 4.5)."""

    shadows: Shadows
    name: str = "shadow"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """How much better the target fits the sample than models that never saw it."""
        self.shadows.check(samples)
        out = np.ma.masked_array(self.shadows.losses, mask=self.shadows.inside)
        scores: FloatArray = np.ma.filled(out.mean(axis=0), self.shadows.losses.mean()) - target.losses(samples)
        return scores


@dataclass(frozen=True)
class LiRA:
    """The likelihood-ratio attack (Carlini et al. 2022) on logit-scaled confidences, with normal fits per sample.

    Online: ``log N(phi; mu_in, s_in) - log N(phi; mu_out, s_out)``. Offline, without models that saw x:
    ``log P[N(mu_out, s_out) <= phi]``. A variance per sample needs many shadows; ``global_variance`` shares one among
    all samples (None: below 64 shadows, as the authors advise).
    """

    shadows: Shadows
    online: bool = True
    global_variance: bool | None = None

    @property
    def name(self) -> str:
        """``lira-online`` or ``lira-offline``."""
        return "lira-online" if self.online else "lira-offline"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """Log-likelihood ratio, or log-probability under "out"."""
        self.shadows.check(samples)
        phi = target.confidences(samples)
        out_mean, out_scale = self._fit(~self.shadows.inside)
        if not self.online:
            return np.asarray(norm.logcdf(phi, out_mean, out_scale), dtype=np.float64)
        in_mean, in_scale = self._fit(self.shadows.inside)
        ratio = norm.logpdf(phi, in_mean, in_scale) - norm.logpdf(phi, out_mean, out_scale)
        return np.asarray(ratio, dtype=np.float64)

    def _fit(self, chosen: np.ndarray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the confidences per sample; a sample without models gets the overall mean."""
        values = np.ma.masked_array(self.shadows.confidences, mask=~chosen)
        mean = np.asarray(np.ma.filled(values.mean(axis=0), values.mean()), dtype=np.float64)
        shared = len(self.shadows) < 64 if self.global_variance is None else self.global_variance
        residuals = values - mean
        each = np.asarray(np.ma.filled(residuals.std(axis=0), 0.0), dtype=np.float64)
        pooled = float(np.sqrt((residuals**2).mean()))
        return mean, np.full_like(mean, pooled + 1e-12) if shared else np.maximum(each, 1e-6 * pooled + 1e-12)


@dataclass(frozen=True)
class AugmentedLiRA:
    """LiRA on several queries (Carlini et al. 2022): the mean of its log ratio over augmented copies of the sample.

    Args:
        shadows: The shadow models' answers, on augmented copies too.
        name: How results call it.
    """

    shadows: Shadows
    name: str = "lira-augmented"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """The mean over the copies."""
        if self.shadows.queries is None:
            raise Unsupported("augmented copies need real inputs: use lira-online.")
        total: FloatArray = np.zeros(len(samples))
        for answers, copies in zip(self.shadows.queries, augmented(samples), strict=True):
            total += LiRA(replace(self.shadows, confidences=answers)).scores(target, copies)
        scores: FloatArray = total / len(self.shadows.queries)
        return scores


@dataclass(frozen=True)
class AttackModel:
    """A classifier per class on the shadows' outputs, taught to tell those they saw (Shokri et al. 2017; 003 IV).

    003's attack model saw (label, output) in one classifier of a well-fitted target and did not learn. Here there is
    one per class, on the log-odds of every class, in which the confidence in the truth is linear.
    """

    shadows: Shadows
    name: str = "attack-model"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """Log-odds of membership."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        self.shadows.check(samples)
        if not isinstance(target, Classifier) or samples.labels is None:
            raise Unsupported("an attack model per class needs a classifier; use LiRA or the shadow difference.")
        labels = samples.labels.long().numpy()
        known = [_features(logits.numpy()) for logits in self.shadows.logits]
        asked = _features(target.logits(samples).numpy())
        scores: FloatArray = np.zeros(len(samples))
        for label in np.unique(labels):
            rows = labels == label
            features = np.concatenate([part[rows] for part in known])
            truth = np.concatenate([inside[rows] for inside in self.shadows.inside])
            if truth.all() or not truth.any():
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(features, truth)
            scores[rows] = model.decision_function(asked[rows])
        return scores


def _features(logits: FloatArray) -> FloatArray:
    """Log-odds of every class: the log-probabilities, without rounding at probability 1."""
    others = np.stack(
        [np.logaddexp.reduce(np.delete(logits, k, axis=1), axis=1) for k in range(logits.shape[1])], axis=1
    )
    features: FloatArray = np.clip(logits - others, -60, 60)
    return features


# Noisy neighbours (000 chapter 4): calibrate the loss with neighbours made by noise in the embedding space.
#
#     score(x) = mean_j ppx(f, e(x) + rho_j) - ppx(f, x),   rho_j ~ N(0, sigma^2 I_n)        (eq. 4.5, 4.6)
#
# sigma is the standard deviation: the expected distance ``sigma sqrt(n)`` of eq. 4.7 needs it (errata 7; the thesis
# writes ``N(0, sigma I)``). The AUC as a function of sigma has one peak (figure 4.2), so a one-dimensional search finds
# it, on a tuning split, never on the samples that the attack is judged on. Cost: ``neighbours`` forward passes, no
# training.

_GOLDEN = (math.sqrt(5) - 1) / 2
_TO_COMPARE = 3


@dataclass(frozen=True)
class Peak:
    """What the search for sigma saw: every sigma it tried with its AUC on the tuning split, and the best."""

    sigma: float
    tried: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class NoisyNeighbours:
    """The attack; ``sigma = None`` asks for `tuned` first.

    Args:
        rng: Draws the noise.
        sigma: Its standard deviation.
        neighbours: Noisy copies of each sample.
        name: How results call it.
        peak: What the search for sigma saw.
        base: For a fine-tune, the model it started from: the same difference under the same noise is subtracted, so
            that what noise does to an ordinary sample cancels ("referenced").
    """

    rng: np.random.Generator
    sigma: float | None = None
    neighbours: int = 10
    name: str = "noisy"
    knows: str = "the model's inside (to add noise) and the record with its label"
    peak: Peak | None = None
    base: Target | None = None

    @property
    def needs_tuning(self) -> bool:
        """Whether `tuned` must come first."""
        return self.sigma is None

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """How much better the sample fits than its noisy neighbours."""
        if self.sigma is None:
            raise InvalidInput("noisy neighbours need sigma: call tuned(target, members, non_members) first.")
        if self.base is None:
            return self._depth(target, samples, self.sigma, self.rng)
        seed = int(self.rng.integers(2**63 - 1))
        deep, before = (
            self._depth(model, samples, self.sigma, np.random.default_rng(seed)) for model in (target, self.base)
        )
        return deep - before

    def _depth(self, target: Target, samples: Samples, sigma: float, rng: np.random.Generator) -> FloatArray:
        own = target.losses(samples)
        total: FloatArray = np.zeros_like(own)
        for _ in range(self.neighbours):
            total += target.noisy_losses(samples, sigma, rng)
        depth: FloatArray = total / self.neighbours - own
        return depth

    def tuned(
        self,
        target: Target,
        members: Samples,
        non_members: Samples,
        low: float = 1e-3,
        high: float = 10.0,
        evaluations: int = 10,
    ) -> NoisyNeighbours:
        """The attack at the sigma whose AUC on these tuning samples is highest. They must not be reported on.

        To compare sigmas, a few neighbours are enough.
        """

        def value(sigma: float) -> float:
            attempt = replace(self, sigma=sigma, neighbours=min(self.neighbours, _TO_COMPARE))
            return auc(Scores(attempt.scores(target, members), attempt.scores(target, non_members))).value

        peak = search_peak(value, low, high, evaluations)
        return replace(self, sigma=peak.sigma, peak=peak)


def search_peak(value: Callable[[float], float], low: float, high: float, evaluations: int = 10) -> Peak:
    """The maximum of a unimodal function of ``log sigma``: a coarse sweep to bracket it, then golden sections.

    The sweep (half of the evaluations) keeps noise on the flat parts, where the AUC is 1/2, from leading astray.

    >>> round(search_peak(lambda sigma: -math.log(sigma) ** 2, 1e-2, 1e3, evaluations=30).sigma, 2)
    1.0
    """
    if not 0 < low < high or evaluations < 4:
        raise InvalidInput(
            f"the search for sigma needs 0 < low < high and 4 evaluations, got {low}, {high}, {evaluations}."
        )
    tried: dict[float, float] = {}

    def at(point: float) -> float:
        point = round(point, 9)
        if point not in tried:
            tried[point] = value(math.exp(point))
        return tried[point]

    grid = [float(point) for point in np.linspace(math.log(low), math.log(high), (evaluations + 1) // 2)]
    best = max(range(len(grid)), key=lambda index: at(grid[index]))
    left, right = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    while len(tried) < evaluations and right - left > 1e-3:
        inner, outer = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
        left, right = (left, outer) if at(inner) >= at(outer) else (inner, right)
    summit = max(tried, key=lambda point: tried[point])
    return Peak(math.exp(summit), tuple((math.exp(point), tried[point]) for point in sorted(tried)))


# Neighbours made in text: lower-casing (Carlini et al. 2021) and swapped words (after Mattern et al. 2023).
#
# Samples are token ids; a vocabulary says what each stands for. Words are swapped for words of similar frequency, where
# Mattern et al. ask a second language model for synonyms: this needs no download, and is a weaker attack.


@dataclass(frozen=True)
class LowerCase:
    """Every word in lower case, where the vocabulary has it."""

    vocabulary: Sequence[str]

    def __call__(self, samples: Samples, rng: np.random.Generator) -> Samples:
        """There is one such neighbour: ask for one."""
        code = {word: index for index, word in enumerate(self.vocabulary)}
        lower = torch.tensor([code.get(word.lower(), index) for index, word in enumerate(self.vocabulary)])
        return Samples(lower[samples.inputs])


@dataclass(frozen=True)
class WordSwap:
    """Each token but the first is swapped with probability ``share`` for one at most ``reach`` ranks away.

    The vocabulary must be ordered by frequency, as that of `sordina.datasets.texts` is.
    """

    vocabulary: Sequence[str]
    share: float = 0.2
    reach: int = 20

    def __call__(self, samples: Samples, rng: np.random.Generator) -> Samples:
        """A new neighbour at every call."""
        if not 0 < self.share <= 1 or self.reach < 1:
            raise InvalidInput(f"needs 0 < share <= 1 and reach >= 1, got {self.share} and {self.reach}.")
        tokens = samples.inputs.numpy()
        step = rng.integers(1, self.reach + 1, size=tokens.shape) * rng.choice((-1, 1), size=tokens.shape)
        moved = np.abs(tokens + step)
        moved = np.where(moved < len(self.vocabulary), moved, 2 * (len(self.vocabulary) - 1) - moved)
        swap = rng.random(tokens.shape) < self.share
        swap[:, 0] = False
        return Samples(torch.from_numpy(np.where(swap, moved, tokens)))
