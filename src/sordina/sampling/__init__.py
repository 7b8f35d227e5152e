"""Who takes part in a step. See `sampler` for the seam."""

from sordina.sampling.fixed_size import FixedSize
from sordina.sampling.poisson import Poisson
from sordina.sampling.sampler import Indices, Sampler
from sordina.sampling.users import PADDING, Users

__all__ = ["PADDING", "FixedSize", "Indices", "Poisson", "Sampler", "Users"]
