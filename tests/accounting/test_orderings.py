"""Who is above whom: basic >= advanced >= RDP >= PLD, and GDP >= PLD."""

from __future__ import annotations

import numpy as np
import pytest

from sordina.accounting import FixedSizeSampled, Gaussian, Laplace, PoissonSampled, PureDP, Repeated, accountant
from sordina.accounting.canonical import normal_form
from sordina.accounting.composition import mu
from sordina.accounting.gaussian import gaussian_epsilon
from sordina.privacy import Adjacency

COMPARED = Repeated(PoissonSampled(0.00853, Gaussian(1.0)), 1170)


def spent(name, event, delta=1e-5, adjacency=Adjacency.ADD_REMOVE):
    return accountant(name).epsilon(event, delta, adjacency)


def test_the_regime_of_account_compare():
    basic, advanced, rdp, pld = (spent(name, COMPARED) for name in ("basic", "advanced", "rdp", "pld"))
    assert basic >= advanced >= rdp >= pld
    assert pld == pytest.approx(1.6601, rel=1e-4)


@pytest.mark.parametrize(
    "event", [Repeated(PureDP(0.01), 2000), Repeated(Laplace(50.0), 1000), Repeated(Gaussian(60.0), 500)]
)
def test_advanced_gains_on_basic_where_it_should(event):
    basic, advanced, rdp, pld = (spent(name, event) for name in ("basic", "advanced", "rdp", "pld"))
    assert basic > 1.5 * advanced
    assert advanced > rdp > pld


def settings(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        rate, noise = float(10 ** rng.uniform(-3, 0)), float(10 ** rng.uniform(-0.3, 1))
        yield rate, noise, int(10 ** rng.uniform(0, 3.5)), float(10 ** rng.uniform(-9, -3))


@pytest.mark.parametrize(
    "setting", list(settings(25, 3)), ids=lambda setting: "q{:.2g}-s{:.2g}-k{}-d{:.0e}".format(*setting)
)
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_nobody_is_below_pld(setting, adjacency):
    rate, noise, steps, delta = setting
    event = Repeated(PoissonSampled(rate, Gaussian(noise)), steps)
    if adjacency is Adjacency.REPLACE_ONE:
        event = Repeated(FixedSizeSampled(max(1, round(1e4 * rate)), 10_000, Gaussian(noise)), steps)
    least = spent("pld", event, delta, adjacency)
    for name in ("rdp", "gdp", "zcdp", "advanced", "basic"):
        assert spent(name, event, delta, adjacency) >= least * (1 - 1e-4), name


def test_the_bare_central_limit_would_be_too_small():
    """Why `gdp` is raised to `pld`: its own limit claims 12 % less than is spent."""
    bare = gaussian_epsilon(1 / mu(normal_form(COMPARED), Adjacency.ADD_REMOVE), 1e-5)
    assert bare < 0.9 * spent("pld", COMPARED)
    assert spent("gdp", COMPARED) == spent("pld", COMPARED)


def test_gdp_is_exact_for_gaussians():
    event = Repeated(Gaussian(7.0), 30)
    assert spent("gdp", event) == pytest.approx(spent("pld", event), rel=1e-9)


def test_replace_one_costs_at_most_twice_the_noise():
    """Full-ball clipping: sensitivity 2C instead of C, so the same noise is half the multiplier."""
    event = Repeated(PoissonSampled(0.01, Gaussian(2.0)), 500)
    halved = Repeated(PoissonSampled(0.01, Gaussian(1.0)), 500)
    assert spent("pld", event) < spent("pld", halved, adjacency=Adjacency.REPLACE_ONE)
    assert spent("pld", halved, adjacency=Adjacency.REPLACE_ONE) < spent("pld", halved)
