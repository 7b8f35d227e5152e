"""Attacks that calibrate the target with shadow models: difference, LiRA, and Shokri's attack model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from sordina.auditing.membership.samples import Samples
from sordina.auditing.membership.shadows import Shadows
from sordina.auditing.membership.target import Classifier, Target
from sordina.auditing.scores import FloatArray
from sordina.errors import Unsupported


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
