"""Accounting: what happened (events), who judges it (accountants), how much noise a budget buys.

>>> from sordina.accounting import Account, Gaussian, PoissonSampled
>>> account = Account()
>>> account.record(PoissonSampled(0.01, Gaussian(2.0)), count=100)
>>> account.epsilon(1e-5) < 1
True
"""

from sordina.accounting.accountants import NAMES, Account, Accountant, accountant, group, group_epsilon
from sordina.accounting.calibration import SearchPlan, noise_multiplier, search_noise
from sordina.accounting.events import (
    NOTHING,
    ApproximateDP,
    Composed,
    Event,
    FixedSizeSampled,
    Gaussian,
    GroupSampled,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomStopping,
    Repeated,
    Shuffled,
    ZeroConcentrated,
    from_dict,
    to_dict,
)
from sordina.accounting.gaussian import combined_multiplier, gaussian_delta, gaussian_epsilon, joint
from sordina.accounting.stopping import draw_runs
from sordina.accounting.stopping import stopping as random_stopping

__all__ = [
    "NAMES",
    "NOTHING",
    "Account",
    "Accountant",
    "ApproximateDP",
    "Composed",
    "Event",
    "FixedSizeSampled",
    "Gaussian",
    "GroupSampled",
    "Laplace",
    "PoissonSampled",
    "PureDP",
    "RandomStopping",
    "Repeated",
    "SearchPlan",
    "Shuffled",
    "ZeroConcentrated",
    "accountant",
    "combined_multiplier",
    "draw_runs",
    "from_dict",
    "gaussian_delta",
    "gaussian_epsilon",
    "group",
    "group_epsilon",
    "joint",
    "noise_multiplier",
    "random_stopping",
    "search_noise",
    "to_dict",
]
