"""The mechanisms: each states its guarantee, its error bound, its density or probability, and the event it causes."""

from __future__ import annotations

import warnings
from typing import Any

from sordina.mechanisms.correlated import BandedNoise, CorrelatedNoise, LambdaCGD, ToeplitzNoise
from sordina.mechanisms.discrete import DiscreteGaussian, DiscreteLaplace
from sordina.mechanisms.exponential import Exponential
from sordina.mechanisms.gaussian import GaussianMechanism
from sordina.mechanisms.laplace import LaplaceMechanism, MetricLaplace
from sordina.mechanisms.mechanism import Mechanism
from sordina.mechanisms.randomized_response import RandomizedResponse
from sordina.mechanisms.sparse_vector import SparseVector

__all__ = [
    "BandedNoise",
    "CorrelatedNoise",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Exponential",
    "GaussianMechanism",
    "LambdaCGD",
    "LaplaceMechanism",
    "Mechanism",
    "MetricLaplace",
    "RandomizedResponse",
    "SparseVector",
    "ToeplitzNoise",
]

_FORMER = {"Gaussian": GaussianMechanism, "Laplace": LaplaceMechanism}


def __getattr__(name: str) -> Any:
    """The names of 0.1, which events have too; they go with 0.4."""
    if name not in _FORMER:
        raise AttributeError(f"module 'sordina.mechanisms' has no attribute {name!r}")
    warnings.warn(f"sordina.mechanisms.{name} is now {name}Mechanism.", DeprecationWarning, stacklevel=2)
    return _FORMER[name]
