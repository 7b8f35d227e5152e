"""Local privacy: every answer is randomised on the person's device, and nobody has to be trusted.

>>> from sordina.statistics.local import Frequency
>>> Frequency(values=64, epsilon=1.0).guarantee.epsilon
1.0
"""

from sordina.statistics.local.coins import LocalEstimate, projected
from sordina.statistics.local.collection import PROTOCOLS, AnswerShare, Collection, Frequency
from sordina.statistics.local.frequencies import GRR, OUE, FrequencyProtocol, Memoised
from sordina.statistics.local.hashed import OLH, HadamardResponse
from sordina.statistics.local.means import MEANS, Duchi, Hybrid, MeanProtocol, Piecewise, mean_protocol
from sordina.statistics.local.strings import CommonStrings, HeavyHitters
from sordina.statistics.local.vectors import BoxVector, GaussianVector

__all__ = [
    "GRR",
    "MEANS",
    "OLH",
    "OUE",
    "PROTOCOLS",
    "AnswerShare",
    "BoxVector",
    "Collection",
    "CommonStrings",
    "Duchi",
    "Frequency",
    "FrequencyProtocol",
    "GaussianVector",
    "HadamardResponse",
    "HeavyHitters",
    "Hybrid",
    "LocalEstimate",
    "MeanProtocol",
    "Memoised",
    "Piecewise",
    "mean_protocol",
    "projected",
]
