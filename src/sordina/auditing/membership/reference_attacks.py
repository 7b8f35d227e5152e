"""Attacks that compare the model with a few reference models: RMIA, BaVarIA, attack R; and with a population.

All read the answers of the same `Shadows`: one set of models serves LiRA, the shadow difference and these. They differ
in what they make of few of them. With one reference model there is no variance to fit: RMIA takes a ratio of
probabilities and asks how it stands among those of a population; BaVarIA fits normals as LiRA does, and lets all
samples together say what is usual where a sample's own models are too few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp
from scipy.stats import t as student_t

from sordina.auditing.membership.shadows import Shadows
from sordina.auditing.membership.target import Samples, Target
from sordina.auditing.scores import BoolArray, FloatArray
from sordina.errors import InvalidInput


@dataclass(frozen=True)
class RMIA:
    """The robust membership attack (Zarifzadeh, Liu and Shokri 2024).

    The score is the share of population samples z with ``(p(x|f) / p(x)) / (p(z|f) / p(z)) >= gamma``, where p(x) is
    the mean probability that reference models give to the truth. Offline, no reference model saw x: then ``p(x) =
    ((1 + a) p_out(x) + 1 - a) / 2``, the authors' line from models that did not see x to half that did. Ties in the
    share are broken by the ratio itself.

    Args:
        shadows: The reference models' answers.
        population: (N,) which of the samples are the population: known non-members, never ones reported on. None: all.
        online: Whether reference models that saw x count.
        gamma: How much more x must have gained than z.
        offline_a: a; 1 takes ``p_out`` as it is.
    """

    shadows: Shadows
    population: BoolArray | None = None
    online: bool = True
    gamma: float = 1.0
    offline_a: float = 0.33

    @property
    def name(self) -> str:
        """``rmia`` or ``rmia-offline``."""
        return "rmia" if self.online else "rmia-offline"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """The share of the population that gained less than x."""
        self.shadows.check(samples)
        ratio = -target.losses(samples) - self._usual()
        theirs = np.sort(ratio if self.population is None else ratio[self.population])
        if not len(theirs):
            raise InvalidInput("RMIA compares with a population: at least one known non-member.")
        share = np.searchsorted(theirs, ratio - np.log(self.gamma), side="right") / len(theirs)
        order = np.argsort(np.argsort(ratio)) / len(ratio)
        scores: FloatArray = share + order / (2 * len(theirs))  # less than one step of the share
        return scores

    def _usual(self) -> FloatArray:
        """log p(x): what reference models give to the truth."""
        out = _log_mean(-self.shadows.losses, ~self.shadows.inside)
        if self.online:
            inside = _log_mean(-self.shadows.losses, self.shadows.inside)
            usual: FloatArray = np.logaddexp(out, inside) - np.log(2)
        else:
            usual = np.logaddexp(np.log1p(self.offline_a) + out, np.log1p(-self.offline_a)) - np.log(2)
        return usual


@dataclass(frozen=True)
class BaVarIA:
    """Bayesian variance inference attack (Brannvall 2026): LiRA's ratio with normal-inverse-gamma priors.

    The confidences of models that saw x, and of those that did not, are normal with unknown mean and variance. Their
    prior is what all samples together show: the mean of the others for "out", the sample's own "out" mean plus the
    usual gain for "in", and the pooled variance. The predictive distribution is then Student's t, whose tails know how
    little a few models tell. The score is the log ratio of the two.

    Args:
        shadows: The shadow models' answers.
        online: Whether models that saw x count; else "in" is "out" moved by ``gain``.
        gain: Offline: how much a member's confidence gains, in pooled deviations.
    """

    shadows: Shadows
    online: bool = True
    gain: float = 2.0

    @property
    def name(self) -> str:
        """``bavaria`` or ``bavaria-offline``."""
        return "bavaria" if self.online else "bavaria-offline"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """Log of the ratio of the two predictive densities."""
        self.shadows.check(samples)
        phi = target.confidences(samples)
        values, inside = self.shadows.confidences, self.shadows.inside
        out = _Moments.of(values, ~inside)
        spread = out.pooled_variance() or _difference_variance(phi, out)
        center = np.full(len(phi), out.means.mean())
        out_fit = _Posterior.of(out, center, _between(out.means - center, out, spread), spread)
        if not self.online:
            step = self.gain * np.sqrt(spread)
            in_fit = _Posterior(out_fit.location + step, out_fit.scale, out_fit.freedom)
        else:
            seen = _Moments.of(values, inside)
            variance = seen.pooled_variance() or spread
            prior = out_fit.location + float((seen.means - out.means).mean())
            in_fit = _Posterior.of(seen, prior, _between(seen.means - prior, seen, variance), variance)
        return in_fit.log_density(phi) - out_fit.log_density(phi)


@dataclass(frozen=True)
class AttackR:
    """Attack R (Ye et al. 2022): the share of reference models that never saw x and fit it worse than the target.

    Smoothed by how much worse, so that a few models order the samples too.

    Args:
        shadows: The reference models' answers.
        name: How results call it.
    """

    shadows: Shadows
    name: str = "attack-r"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """The share, and within it the mean difference."""
        self.shadows.check(samples)
        phi = target.confidences(samples)
        below = np.ma.masked_array(phi - self.shadows.confidences, mask=self.shadows.inside)
        share = np.ma.filled((below > 0).mean(axis=0), 0.5)
        gain = np.ma.filled(below.mean(axis=0), 0.0)
        order = np.argsort(np.argsort(gain)) / len(gain)
        scores: FloatArray = np.asarray(share, dtype=np.float64) + order / (2 * len(self.shadows))
        return scores


@dataclass(frozen=True)
class PopulationAttack:
    """Attack P (Ye et al. 2022): how the sample's confidence stands among known non-members of its class.

    It trains nothing: what is unusual for its class among people who were not in looks like a member.

    Args:
        population: (N,) which of the samples are known non-members; never ones reported on.
        name: How results call it.
    """

    population: BoolArray
    name: str = "population"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """The normal score within the class, standardised by the class's known non-members."""
        phi = target.confidences(samples)
        classes = None if samples.labels is None or samples.labels.is_floating_point() else samples.labels.numpy()
        groups = (
            [np.ones(len(phi), dtype=bool)] if classes is None else [classes == label for label in np.unique(classes)]
        )
        overall = phi[self.population]
        scores: FloatArray = np.zeros_like(phi)
        for rows in groups:
            known = phi[rows & self.population]
            known = known if len(known) >= 10 else overall
            if not len(known):
                raise InvalidInput("the population attack needs known non-members.")
            low, middle, high = np.quantile(known, (0.16, 0.5, 0.84))
            scores[rows] = (phi[rows] - middle) / max((high - low) / 2, 1e-9)
        return scores


@dataclass(frozen=True)
class _Moments:
    """Number, mean and sum of squared deviations per sample; a sample without models has the overall mean."""

    counts: FloatArray
    means: FloatArray
    squares: FloatArray

    @staticmethod
    def of(values: FloatArray, chosen: BoolArray) -> _Moments:
        kept = np.ma.masked_array(values, mask=~chosen)
        means = np.asarray(np.ma.filled(kept.mean(axis=0), kept.mean()), dtype=np.float64)
        squares = np.asarray(np.ma.filled(((kept - means) ** 2).sum(axis=0), 0.0), dtype=np.float64)
        return _Moments(chosen.sum(axis=0).astype(np.float64), means, squares)

    def pooled_variance(self) -> float:
        """Within samples; 0 if no sample has two models."""
        freedom = np.maximum(self.counts - 1, 0).sum()
        return float(self.squares.sum() / freedom) if freedom else 0.0


def _difference_variance(values: FloatArray, moments: _Moments) -> float:
    """Where every sample has one model only: half the variance of the target's differences from it, by quantiles."""
    low, high = np.quantile(values - moments.means, (0.16, 0.84))
    return float(((high - low) / 2) ** 2 / 2)


def _between(deviations: FloatArray, moments: _Moments, within: float) -> float:
    """The variance of the true means about their prior: what is seen less what few models explain."""
    explained = float((within / np.maximum(moments.counts, 1)).mean())
    return max(float((deviations**2).mean()) - explained, 1e-3 * within + 1e-12)


@dataclass(frozen=True)
class _Posterior:
    """Student's t of the next confidence, per sample."""

    location: FloatArray
    scale: FloatArray
    freedom: FloatArray

    @staticmethod
    def of(moments: _Moments, prior: FloatArray, between: float, within: float) -> _Posterior:
        """The normal-inverse-gamma update from a prior mean per sample."""
        within = max(within, 1e-12)
        weight = within / between
        shape, rate = _variance_prior(moments, within)
        counts = moments.counts
        strength = weight + counts
        location = (weight * prior + counts * moments.means) / strength
        alpha = shape + counts / 2
        beta = rate + moments.squares / 2 + weight * counts * (moments.means - prior) ** 2 / (2 * strength)
        scale = np.sqrt(beta * (strength + 1) / (alpha * strength))
        return _Posterior(location, scale, 2 * alpha)

    def log_density(self, values: FloatArray) -> FloatArray:
        return np.asarray(student_t.logpdf(values, self.freedom, self.location, self.scale), dtype=np.float64)


def _variance_prior(moments: _Moments, within: float) -> tuple[float, float]:
    """Shape and rate of the inverse gamma whose mean and spread match the samples' own variances."""
    freedom = moments.counts - 1
    rows = freedom >= 3
    if rows.sum() < 10:
        return 4.0, 3.0 * within
    own = moments.squares[rows] / freedom[rows]
    chance = float((2 * own**2 / (freedom[rows] + 2)).mean())  # what few models explain of their spread
    spread = max(float(own.var()) - chance, 1e-3 * within**2)
    shape = min(2 + within**2 / spread, 50.0)
    return shape, (shape - 1) * within


def _log_mean(values: FloatArray, chosen: BoolArray) -> FloatArray:
    """log of the mean of e^values over the chosen models; a sample without any gets the mean over all."""
    count = chosen.sum(axis=0)
    everybody = logsumexp(values, axis=0) - np.log(len(values))
    some = logsumexp(np.where(chosen, values, -np.inf), axis=0, b=chosen.astype(float)) if count.any() else everybody
    with np.errstate(divide="ignore"):
        mean: FloatArray = np.where(count > 0, some - np.log(np.maximum(count, 1)), everybody)
    return mean
