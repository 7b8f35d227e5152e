"""How one sample's influence is bounded, and how the bound adapts. See `policy` for the seam."""

from sordina.clipping.automatic import Automatic
from sordina.clipping.fixed import Fixed
from sordina.clipping.online import Online
from sordina.clipping.per_layer import Part, PerLayer, arrange, by_module
from sordina.clipping.policy import Policy
from sordina.clipping.quantile import Quantile
from sordina.clipping.sector import Follow, Sector, diameter
from sordina.clipping.trailing import Trailing

__all__ = [
    "Automatic",
    "Fixed",
    "Follow",
    "Online",
    "Part",
    "PerLayer",
    "Policy",
    "Quantile",
    "Sector",
    "Trailing",
    "arrange",
    "by_module",
    "diameter",
]
