"""dp-accounting as a second opinion, on 200 random settings, under both adjacencies, by PLD and by RDP.

Conventions differ. Our multipliers are relative to the sensitivity under the adjacency asked about; dp-accounting's PLD
always means the add-remove sensitivity, so its multiplier under replace-one is twice ours. Its RDP means what we mean.

dp-accounting's grid is not adaptive: its default step of 1e-4 is too coarse for some settings and slow for others.
Connecting the dots adds a variance of h^2/6 per step, so h = 0.025 standard deviations of the loss of one step keeps
its own excess near 1e-4, well inside the 1e-3 asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld, rdp

from sordina.accounting import Composed, FixedSizeSampled, Gaussian, Laplace, PoissonSampled, Repeated, accountant
from sordina.accounting.canonical import normal_form
from sordina.accounting.rdp import curve, epsilon_from
from sordina.privacy import Adjacency

RELATION = {
    Adjacency.ADD_REMOVE: dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    Adjacency.REPLACE_ONE: dp.NeighboringRelation.REPLACE_ONE,
}
FEW_ORDERS = [1.5, 2.0, 3.0, 4.5, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0]


@dataclass(frozen=True)
class Setting:
    rate: float
    noise: float
    steps: int
    delta: float
    adjacency: Adjacency

    def __str__(self):
        return f"{self.adjacency}-q{self.rate:.3g}-s{self.noise:.3g}-k{self.steps}-d{self.delta:.1g}"


def draw(count, seed):
    rng = np.random.default_rng(seed)

    def log_uniform(low, high):
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    return [
        Setting(
            rate=log_uniform(0.005, 0.9),
            noise=log_uniform(0.7, 6.0),
            steps=int(log_uniform(1, 2000)),
            delta=log_uniform(1e-9, 1e-3),
            adjacency=list(Adjacency)[index % 2],
        )
        for index in range(count)
    ]


SETTINGS = draw(200, seed=20)
QUARTERS = pytest.mark.parametrize("settings", [SETTINGS[start::4] for start in range(4)], ids=range(4))
"""One loop in four parts, which may run side by side; whoever disagrees is named."""


def disagreeing(settings, ours_and_theirs, *, absolute):
    found = {str(setting): ours_and_theirs(setting) for setting in settings}
    return {name: pair for name, pair in found.items() if pair[0] != pytest.approx(pair[1], rel=1e-3, abs=absolute)}


@QUARTERS
def test_pld_agrees(settings):
    assert not disagreeing(settings, by_pld, absolute=1e-6)


def by_pld(setting):
    event = Repeated(PoissonSampled(setting.rate, Gaussian(setting.noise)), setting.steps)
    ours = accountant("pld").epsilon(event, setting.delta, setting.adjacency)

    step = min(max(0.025 * setting.rate * math.sqrt(math.expm1(setting.noise**-2)), 2e-5), 1e-2)
    theirs = pld.PLDAccountant(RELATION[setting.adjacency], value_discretization_interval=step)
    doubled = 2 if setting.adjacency is Adjacency.REPLACE_ONE else 1
    theirs.compose(dp.PoissonSampledDpEvent(setting.rate, dp.GaussianDpEvent(doubled * setting.noise)), setting.steps)
    return ours, theirs.get_epsilon(setting.delta)


@QUARTERS
def test_rdp_agrees(settings):
    """Poisson under add-remove, fixed-size under replace-one: what dp-accounting's RDP knows of each."""
    assert not disagreeing(settings, by_rdp, absolute=1e-9)


def by_rdp(setting):
    ours, theirs = pair_of_events(setting)
    bag = normal_form(Repeated(ours, setting.steps))
    orders = np.array(FEW_ORDERS)
    reference = rdp.RdpAccountant(FEW_ORDERS, RELATION[setting.adjacency]).compose(theirs, setting.steps)
    found = epsilon_from(orders, curve(bag, setting.adjacency, orders), setting.delta)
    return found, reference.get_epsilon(setting.delta)


def test_a_disagreement_is_seen():
    assert disagreeing(SETTINGS[:1], lambda setting: (1.0, 1.01), absolute=1e-6)


@pytest.mark.parametrize("setting", SETTINGS[:8], ids=str)
def test_rdp_agrees_at_all_orders(setting):
    ours, theirs = pair_of_events(setting)
    reference = rdp.RdpAccountant(neighboring_relation=RELATION[setting.adjacency]).compose(theirs, setting.steps)
    found = accountant("rdp").epsilon(Repeated(ours, setting.steps), setting.delta, setting.adjacency)
    assert found == pytest.approx(reference.get_epsilon(setting.delta), rel=1e-3, abs=1e-9)


def pair_of_events(setting):
    gaussian = dp.GaussianDpEvent(setting.noise)
    if setting.adjacency is Adjacency.ADD_REMOVE:
        ours = PoissonSampled(setting.rate, Gaussian(setting.noise))
        return ours, dp.PoissonSampledDpEvent(setting.rate, gaussian)
    batch = math.ceil(setting.rate * 10_000)
    ours = FixedSizeSampled(batch, 10_000, Gaussian(setting.noise))
    return ours, dp.SampledWithoutReplacementDpEvent(10_000, batch, gaussian)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_unsampled_gaussians_agree(adjacency):
    event = Repeated(Gaussian(3.0), 20)
    theirs = pld.PLDAccountant(RELATION[adjacency], value_discretization_interval=1e-3)
    doubled = 2 if adjacency is Adjacency.REPLACE_ONE else 1
    theirs.compose(dp.GaussianDpEvent(3.0 * doubled), 20)
    assert accountant("pld").epsilon(event, 1e-6, adjacency) == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-3)


def test_delta_agrees():
    event = Repeated(PoissonSampled(0.02, Gaussian(1.1)), 300)
    theirs = pld.PLDAccountant(value_discretization_interval=2e-4)
    theirs.compose(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(1.1)), 300)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        ours = accountant("pld").delta(event, epsilon)
        assert ours == pytest.approx(theirs.get_delta(epsilon), rel=5e-3), epsilon


def test_mixed_compositions_agree():
    ours = Composed((Repeated(PoissonSampled(0.05, Gaussian(1.5)), 50), Laplace(8.0), Gaussian(10.0)))
    theirs = pld.PLDAccountant(value_discretization_interval=2e-4)
    theirs.compose(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.5)), 50)
    theirs.compose(dp.LaplaceDpEvent(8.0))
    theirs.compose(dp.GaussianDpEvent(10.0))
    assert accountant("pld").epsilon(ours, 1e-6) == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-3)


def test_sampled_laplace_agrees():
    theirs = pld.PLDAccountant(value_discretization_interval=2e-4)
    theirs.compose(dp.PoissonSampledDpEvent(0.05, dp.LaplaceDpEvent(1.0)), 100)
    ours = accountant("pld").epsilon(Repeated(PoissonSampled(0.05, Laplace(1.0)), 100), 1e-6)
    assert ours == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-3)
