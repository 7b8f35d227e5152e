"""How one sample's influence is bounded, and how the bound adapts. See `policy` for the seam."""

from sordina.clipping import names
from sordina.clipping.automatic import Automatic
from sordina.clipping.fixed import Fixed
from sordina.clipping.names import named
from sordina.clipping.online import Online, Rails
from sordina.clipping.per_layer import Part, PerLayer, arrange, by_module
from sordina.clipping.policy import Policy
from sordina.clipping.quantile import Quantile
from sordina.clipping.schedule import Decay
from sordina.clipping.sector import Follow, Sector, diameter
from sordina.clipping.trailing import Trailing

__all__ = [
    "Automatic",
    "Decay",
    "Fixed",
    "Follow",
    "Online",
    "Part",
    "PerLayer",
    "Policy",
    "Quantile",
    "Rails",
    "Sector",
    "Trailing",
    "arrange",
    "by_module",
    "diameter",
    "named",
    "names",
]
