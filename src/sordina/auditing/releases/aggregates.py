"""Membership in aggregates (Homer et al. 2008): who was in a study, from nothing but its published means.

A person with bits x is scored by ``sum_j (x_j - p_j) (mean_j - p_j)``: who was in has pulled the means a little their
way, and over thousands of attributes (p_j: how common each is among everybody, known) the little adds up.
"""

from __future__ import annotations

import math

import numpy as np

from sordina.auditing.releases.release_study import ReleaseStudy, StudyCurve, StudyLine
from sordina.auditing.scores import Roc, Scores, auc, roc, tpr_at
from sordina.mechanisms import DiscreteGaussian
from sordina.mechanisms.mechanism import whole
from sordina.privacy import check_delta, check_epsilon, format_up
from sordina.random import generator, releasable

_FALSE = 0.01
_POINTS = 200


def aggregates_study(
    *,
    members: int = 200,
    others: int = 1000,
    attributes: int = 5000,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    seed: int | None = None,
) -> ReleaseStudy:
    """How well members of a study are told from others of the same population, from its means.

    Ours publishes noisy counts: a person changes each of the counts by at most one, so their L2 sensitivity is
    ``sqrt(attributes)``, and discrete Gaussian noise for that makes them (epsilon, delta)-DP.

    Args:
        members: Of the study.
        others: People who were not in it.
        attributes: Bits of every person, each with a known share in the population.
        epsilon: Of our means.
        delta: Of our means.
        seed: Makes the study repeatable.
    """
    whole("members", members), whole("others", others), whole("attributes", attributes)
    check_epsilon(epsilon), check_delta(delta)
    rng, world = generator(seed), np.random.default_rng(seed)
    shares = world.uniform(0.05, 0.95, size=attributes)
    inside = world.random((members, attributes)) < shares
    outside = world.random((others, attributes)) < shares
    mechanism = DiscreteGaussian(math.sqrt(attributes), epsilon, delta)
    counts = inside.sum(axis=0)
    published = {"exact": counts / members, "ours": mechanism.release(counts, rng) / members}
    curves: list[StudyCurve] = []
    areas, found = {}, {}
    for name, means in published.items():
        scores = Scores((inside - shares) @ (means - shares), (outside - shares) @ (means - shares))
        areas[name], found[name] = auc(scores).value, tpr_at(scores, _FALSE).value
        curves.append(_curve(f"{name} means", roc(scores)))
    return ReleaseStudy(
        attack="aggregates",
        title="Who was in the study",
        data=f"{members} members, {others} others, {attributes} attributes",
        private=f"all means ({format_up(epsilon)}, {format_up(delta)})-DP per person",
        verdict=(
            f"From exact means {found['exact']:.0%} of the members are found at {_FALSE:.0%} false alarms (area under "
            f"the curve {areas['exact']:.3f}); from ours {found['ours']:.1%} ({areas['ours']:.3f})."
        ),
        lines=(
            StudyLine(f"members found at {_FALSE:.0%} false alarms", found["exact"], found["ours"], _FALSE),
            StudyLine("area under the curve", areas["exact"], areas["ours"], 0.5),
        ),
        x="false alarms",
        y="members found",
        curves=(*curves, StudyCurve("guessing", (0.0, 1.0), (0.0, 1.0))),
        releasable=releasable(rng),
    )


def _curve(label: str, found: Roc) -> StudyCurve:
    places = np.unique(np.linspace(0, len(found.fpr) - 1, _POINTS).astype(int))
    return StudyCurve(label, tuple(found.fpr[places].tolist()), tuple(found.tpr[places].tolist()))
