"""Attacks that train no shadow models and ask the model more: quantile regression, labels only, rounds observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina.auditing.membership.attacks import Peak, search_peak
from sordina.auditing.membership.shadows import sample_losses
from sordina.auditing.membership.target import Classifier, Samples, Target, evaluating, noise
from sordina.auditing.scores import FloatArray, Scores, auc
from sordina.errors import InvalidInput, Unsupported


@dataclass(frozen=True)
class QuantileRegression:
    """How far the confidence lies above what a non-member with such features would have (Bertran et al. 2023).

    One model, fitted on known non-members, predicts two quantiles of the confidence from inputs and label; no shadow
    model is trained. The score counts the distance from the median in units of the distance between the two.

    Args:
        seed: Of the regression.
        name: How results call it.
        models: The fitted regressions; `tuned` makes them.
    """

    seed: int = 0
    name: str = "quantile-regression"
    models: tuple[Any, Any] | None = None

    @property
    def needs_tuning(self) -> bool:
        """Whether `tuned` must come first."""
        return self.models is None

    def tuned(self, target: Target, members: Samples, non_members: Samples) -> QuantileRegression:
        """Fit on the non-members, who must not be reported on; members are not looked at."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        features, truth = _features(non_members), target.confidences(non_members)
        leaf = max(5, len(truth) // 50)
        models = tuple(
            HistGradientBoostingRegressor(
                loss="quantile", quantile=level, max_iter=60, min_samples_leaf=leaf, random_state=self.seed
            ).fit(features, truth)
            for level in (0.5, 0.9)
        )
        return replace(self, models=(models[0], models[1]))

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """The standardised distance from the predicted median."""
        if self.models is None:
            raise InvalidInput("quantile regression needs known non-members: call tuned(...) first.")
        features, own = _features(samples), target.confidences(samples)
        middle, high = (model.predict(features) for model in self.models)
        width = np.maximum(high - middle, 0.05 * float(np.median(np.abs(high - middle))) + 1e-9)
        scores: FloatArray = (own - middle) / width
        return scores


def _features(samples: Samples) -> FloatArray:
    """Inputs as a flat table with the label beside; wide inputs by 32 random projections, the same every time."""
    flat = samples.inputs.reshape(len(samples), -1).double().numpy()
    if flat.shape[1] > 64:
        flat = flat @ np.random.default_rng(0).normal(size=(flat.shape[1], 32)) / np.sqrt(flat.shape[1])
    label = (
        np.zeros((len(flat), 0)) if samples.labels is None else samples.labels.reshape(len(flat), -1).double().numpy()
    )
    table: FloatArray = np.concatenate([flat, label], axis=1)
    return table


@dataclass(frozen=True)
class LabelOnly:
    """Votes of predicted labels under noise: a member lies farther from the decision boundary (Choquette-Choo 2021).

    Nothing but the predicted class is used. The score is the share of noisy copies of the input that are still given
    the true label; sigma is found on the tuning rows.

    Args:
        rng: Draws the noise.
        sigma: Its standard deviation, in units of each input's own over the samples.
        queries: Noisy copies of each sample.
        name: How results call it.
        peak: What the search for sigma saw.
    """

    rng: np.random.Generator
    sigma: float | None = None
    queries: int = 40
    name: str = "label-only"
    peak: Peak | None = None

    @property
    def needs_tuning(self) -> bool:
        """Whether `tuned` must come first."""
        return self.sigma is None

    def tuned(self, target: Target, members: Samples, non_members: Samples) -> LabelOnly:
        """The attack at the sigma that tells these tuning rows apart best."""

        def value(sigma: float) -> float:
            attempt = replace(self, sigma=sigma, queries=min(self.queries, 10))
            return auc(Scores(attempt.scores(target, members), attempt.scores(target, non_members))).value

        peak = search_peak(value, 1e-2, 3.0, 7)
        return replace(self, sigma=peak.sigma, peak=peak)

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """The share of noisy copies with the true label."""
        if not isinstance(target, Classifier) or samples.labels is None:
            raise Unsupported("the label-only attack looks at predicted classes: it needs a classifier.")
        if self.sigma is None:
            raise InvalidInput("the label-only attack needs sigma: call tuned(...) first.")
        if not samples.inputs.is_floating_point():
            raise Unsupported("the label-only attack adds noise to real inputs.")
        scale = samples.inputs.std(dim=0, keepdim=True).clamp_min(1e-6)
        right = torch.zeros(len(samples), dtype=torch.float64)
        for _ in range(self.queries):
            moved = samples.inputs + scale * noise(samples.inputs, self.sigma, self.rng)
            right += (target.logits(Samples(moved, samples.labels)).argmax(dim=1) == samples.labels).double()
        own = target.logits(samples).argmax(dim=1) == samples.labels
        scores: FloatArray = (right / self.queries + own.double()).numpy()
        return scores


@dataclass(frozen=True)
class RoundsObserver:
    """Somebody who watched the rounds of a federation: does each step of the model follow the sample's gradient?

    The score is the mean, over observed rounds, of the cosine between the step from one released model to the next and
    the direction that would have lowered the sample's loss most (Nasr et al. 2019; Li et al. 2023).

    Args:
        rounds: The released models, in order: two at least.
        name: How results call it.
    """

    rounds: Sequence[nn.Module]
    name: str = "rounds-observer"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """The mean cosine."""
        if len(self.rounds) < 2:
            raise InvalidInput("an observer of rounds needs two released models at least.")
        total = torch.zeros(len(samples), dtype=torch.float64)
        for before, after in zip(self.rounds[:-1], self.rounds[1:], strict=True):
            total += _alignment(before, after, samples)
        scores: FloatArray = (total / (len(self.rounds) - 1)).numpy()
        return scores


def _alignment(before: nn.Module, after: nn.Module, samples: Samples) -> Tensor:
    """(N,): cosine of the step and of each sample's descent direction."""
    names = [name for name, parameter in before.named_parameters() if parameter.requires_grad]
    old, new = dict(before.named_parameters()), dict(after.named_parameters())
    step = [(new[name] - old[name]).detach() for name in names]
    length = torch.stack([part.double().square().sum() for part in step]).sum().sqrt()
    found = []
    with evaluating(before), torch.enable_grad():
        for index in range(len(samples)):
            loss = sample_losses(before, samples.take([index])).sum()
            slopes = torch.autograd.grad(loss, [old[name] for name in names], allow_unused=True)
            kept = [(part, slope) for part, slope in zip(step, slopes, strict=True) if slope is not None]
            product = sum((part * slope).double().sum() for part, slope in kept)
            norm = torch.stack([slope.double().square().sum() for _, slope in kept]).sum().sqrt()
            found.append(-product / (length * norm).clamp_min(1e-12))
    return torch.stack(found)
