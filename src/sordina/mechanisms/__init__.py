"""The mechanisms: each states its guarantee, its error bound, its density or probability, and the event it causes."""

from sordina.mechanisms.discrete import DiscreteGaussian, DiscreteLaplace
from sordina.mechanisms.exponential import Exponential
from sordina.mechanisms.gaussian import GaussianMechanism
from sordina.mechanisms.laplace import LaplaceMechanism
from sordina.mechanisms.mechanism import Mechanism
from sordina.mechanisms.metric_laplace import MetricLaplace
from sordina.mechanisms.randomized_response import RandomizedResponse
from sordina.mechanisms.sparse_vector import SparseVector

__all__ = [
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Exponential",
    "GaussianMechanism",
    "LaplaceMechanism",
    "Mechanism",
    "MetricLaplace",
    "RandomizedResponse",
    "SparseVector",
]
