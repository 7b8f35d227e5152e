"""SanitizeUpdate: the right noise, the exact leakage, honest words about the radius."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from sordina.errors import InvalidInput
from sordina.federated.messages import ClientResult
from sordina.federated.privacy.metric import Metric, PublicRadius, UpdateRadius, radius_of
from sordina.federated.privacy.placement import Facts


def outcome(clients=4000, size=3, length=2.0):
    anchors = torch.ones(clients, size, dtype=torch.float64)
    step = torch.zeros(clients, size, dtype=torch.float64)
    step[:, 0] = length
    return ClientResult(anchors + step, torch.full((clients,), 10), anchors)


@pytest.mark.parametrize(("radius", "r"), [(UpdateRadius(), 2.0), (PublicRadius(0.25), 0.25)])
def test_the_length_of_the_noise_is_gamma_with_scale_nu_r_over_n(radius, r):
    nu, size = 5.0, 3
    out = outcome(size=size)
    sealed = Metric(nu, radius).seal(out, None, np.random.default_rng(0)).vectors
    lengths = (sealed - out.vectors).norm(dim=1).numpy()
    assert stats.kstest(lengths, "gamma", args=(size, 0, nu * r / size)).pvalue > 1e-3
    assert stats.kstest(lengths, "gamma", args=(size, 0, 1.2 * nu * r / size)).pvalue < 1e-6
    assert torch.allclose((sealed - out.vectors).mean(0), torch.zeros(size, dtype=torch.float64), atol=5 * nu * r / 63)


@pytest.mark.parametrize(
    ("nu", "size", "leak"), [(5.0, 2, Fraction(2, 5)), (0.1, 11, Fraction(110)), (3, 11, Fraction(11, 3))]
)
def test_a_participation_leaks_exactly_n_over_nu(nu, size, leak):
    assert Metric(nu).cost(size) == leak
    assert Metric(nu, PublicRadius(7.0)).cost(size) == leak


def test_the_sound_radius_never_gives_less_noise_than_claimed():
    for r in (0.1, 0.3, 0.7, 3.3):
        from sordina.federated.privacy.metric import _per_distance

        share = Metric(0.7, PublicRadius(r)).cost(11)
        assert Fraction(_per_distance(share, r)) * Fraction(r) <= share


def test_reports_say_which_radius_was_used():
    heuristic = Metric(5.0).statement(Facts(10, 2, 6))
    sound = Metric(5.0, PublicRadius(0.5)).statement(Facts(10, 2, 6))
    assert not heuristic.sound
    assert "HEURISTIC" in heuristic.words
    assert heuristic.details["radius"] == "update (heuristic)"
    assert sound.sound
    assert "0.5" in sound.words
    assert sound.details["per_participation"] == 0.4


def test_noise_by_layer_follows_each_layers_own_update():
    out = outcome(size=4)
    out.vectors[:, 1] += 100.0
    sealed = Metric(1.0, layers=(1, 3)).seal(out, None, np.random.default_rng(0)).vectors
    lengths = (sealed - out.vectors)[:, :1].norm(dim=1).numpy()
    assert stats.kstest(lengths, "gamma", args=(1, 0, 2.0)).pvalue > 1e-3
    rest = (sealed - out.vectors)[:, 1:].norm(dim=1).numpy()
    assert stats.kstest(rest, "gamma", args=(3, 0, 100.0 / 3)).pvalue > 1e-3
    with pytest.raises(InvalidInput, match="every layer"):
        Metric(1.0, layers=(1, 2)).start(4)


def test_a_client_that_did_not_move_is_noised_like_any_other():
    """By the paper's rule it would get no noise at all, and so announce that it could not train."""
    out = outcome(clients=2, length=0.0)
    heuristic = Metric(5.0).seal(out, None, np.random.default_rng(0)).vectors
    assert not torch.isclose(heuristic, out.vectors).any()
    sound = Metric(5.0, PublicRadius(1.0)).seal(out, None, np.random.default_rng(0)).vectors
    assert not torch.isclose(sound, out.vectors).any()


@pytest.mark.parametrize("text", ["", "public", "public:", "public:-1", "public:0", "secret", "public:inf"])
def test_a_radius_that_means_nothing_is_refused(text):
    with pytest.raises(InvalidInput):
        radius_of(text)
