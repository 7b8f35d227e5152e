"""Tuning: try many configurations under one budget. See `search` for how to use it and `selection` for who pays."""

from sordina.accounting.calibration import METHODS
from sordina.tuning.outcome import Outcome
from sordina.tuning.plan import Scheme, make_scheme
from sordina.tuning.search import Search
from sordina.tuning.selection import Selection
from sordina.tuning.space import STRATEGIES, Between, Grid, GridFrom, Random, Strategy, log_spaced

__all__ = [
    "METHODS",
    "STRATEGIES",
    "Between",
    "Grid",
    "GridFrom",
    "Outcome",
    "Random",
    "Scheme",
    "Search",
    "Selection",
    "Strategy",
    "log_spaced",
    "make_scheme",
]
