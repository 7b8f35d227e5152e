"""The exact accountant of linear Gaussian views: closed forms, sensitivities, likelihood ratios, planted faults."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import norm

from sordina.accounting import linear_gaussian as lg
from sordina.errors import InvalidInput, Unsupported


def test_a_central_gaussian():
    n = 50
    noise = np.array([[3.0]])
    assert lg.mu(np.ones((1, n)), noise=noise, sensitivity=2.0) == pytest.approx(2 / 3, rel=1e-12)
    assert lg.event(lg.mu([1.0], noise=noise)).noise_multiplier == pytest.approx(3.0, rel=1e-12)


def test_independent_local_noise():
    scales = np.array([1.0, 2.0, 5.0])
    losses = lg.squared_losses(np.eye(3), noise=np.diag(scales))
    assert losses == pytest.approx(1 / scales**2, rel=1e-12)
    assert (losses >= 1 / scales**2).all()
    assert lg.mu(np.eye(3), noise=np.diag(scales), sensitivity=2.0) == pytest.approx(2.0)


@pytest.mark.parametrize("height", [1, 3, 6])
def test_tree_aggregation(height):
    """A leaf is in one node of each level: sensitivity^2 = height + 1 (Dwork et al. 2010; Kairouz et al. 2021)."""
    leaves = 2**height
    rows = [np.kron(np.eye(leaves >> level), np.ones(1 << level)) for level in range(height + 1)]
    signal = np.vstack(rows)
    assert lg.mu(signal, noise=4.0 * np.eye(len(signal))) == pytest.approx(math.sqrt(height + 1) / 4, rel=1e-10)


@pytest.mark.parametrize(("steps", "separation"), [(8, 8), (12, 4), (9, 3)])
def test_correlated_noise_with_repeated_participation(steps, separation):
    """DP-FTRL: prefix sums ``A x + B C^-1 z``; its sensitivity is that of ``C`` (Choquette-Choo et al. 2023, Thm 2)."""
    coefficients = [1.0]
    for k in range(1, steps):
        coefficients.append(coefficients[-1] * (2 * k - 1) / (2 * k))
    root = np.array([[coefficients[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])
    prefix = np.tril(np.ones((steps, steps)))
    assert np.allclose(root @ root, prefix)
    first = np.arange(0, steps, separation)
    chosen = [first + shift for shift in range(separation) if (first + shift < steps).all()]
    known = max(float(np.linalg.norm(root[:, columns].sum(axis=1))) for columns in chosen)
    found = max(lg.mu(prefix[:, columns], noise=root, together=True) for columns in chosen)
    assert found == pytest.approx(known, rel=1e-9)
    assert found >= known


def test_banded_noise_keeps_participations_apart():
    """BandMF: participations at least the band apart do not overlap, so mu^2 is the number of them."""
    steps, band = 12, 3
    matrix = sum(np.eye(steps, k=-shift) / 2**shift for shift in range(band))
    matrix /= np.linalg.norm(matrix, axis=0)
    columns = np.arange(0, steps, band)
    assert lg.mu(matrix[:, columns], noise=np.eye(steps), together=True) == pytest.approx(2.0, rel=1e-9)


def test_together_is_an_upper_bound_for_every_choice_of_vectors():
    rng = np.random.default_rng(0)
    signal, noise = rng.normal(size=(6, 3)), rng.normal(size=(6, 9))
    bound = lg.mu(signal, noise=noise, together=True)
    inverse = np.linalg.inv(noise @ noise.T)
    for _ in range(200):
        moves = rng.normal(size=(3, 4))
        moves /= np.linalg.norm(moves, axis=1, keepdims=True)
        shift = signal @ moves
        assert math.sqrt(np.trace(shift.T @ inverse @ shift)) <= bound


def laplacian(n: int, degree: int, rng: np.random.Generator) -> sparse.csr_array:
    rows = np.repeat(np.arange(n), degree)
    columns = (rows + rng.integers(1, n, size=rows.size)) % n
    graph = sparse.coo_array((np.ones(rows.size), (rows, columns)), shape=(n, n)).tocsr()
    graph = ((graph + graph.T) > 0).astype(float)
    return sparse.csr_array(sparse.diags_array(graph.sum(axis=1)) - graph)


def test_sparse_and_dense_agree_and_bound_from_above():
    rng = np.random.default_rng(1)
    matrix = sparse.csr_array(1e4 * laplacian(300, 6, rng) + sparse.eye_array(300))
    exact = np.diagonal(np.linalg.inv(matrix.toarray()))
    dense = lg.squared_losses(np.eye(300), covariance=matrix.toarray())
    found = lg.squared_losses(sparse.eye_array(300), covariance=matrix)
    assert found == pytest.approx(exact, rel=1e-5)
    assert (found >= exact * (1 - 1e-12)).all()
    assert dense == pytest.approx(exact, rel=1e-6)
    assert (dense >= exact * (1 - 1e-12)).all()


def test_bounds_hold_against_many_digits():
    """Random and ill-conditioned covariances, against 60 digits."""
    import mpmath

    rng = np.random.default_rng(2)
    with mpmath.workdps(60):
        for condition in (1e0, 1e4, 1e8, 1e10):
            basis, _ = np.linalg.qr(rng.normal(size=(8, 8)))
            noise = basis * np.geomspace(1, 1 / math.sqrt(condition), 8)
            signal = rng.normal(size=8)
            exact_noise = mpmath.matrix(noise.tolist())
            solved = mpmath.lu_solve(exact_noise * exact_noise.T, mpmath.matrix(signal.tolist()))
            truth = sum(mpmath.mpf(float(a)) * b for a, b in zip(signal, solved, strict=True))
            found = lg.squared_losses(signal, noise=noise)[0]
            assert truth <= found <= truth * (1 + 1e-3)


def test_a_view_without_noise_in_a_direction_is_refused():
    with pytest.raises(Unsupported, match="carries no noise"):
        lg.mu([1.0, 1.0], noise=[[1.0], [0.0]])
    with pytest.raises(Unsupported, match="without noise"):
        lg.mu([1.0, 0.0], noise=[[1.0], [1.0]])  # the difference of the two is noiseless
    with pytest.raises(Unsupported, match="near singular"):
        lg.mu([1.0, 1.0], noise=[[1.0], [1.0]])  # seen twice
    with pytest.raises(Unsupported):
        lg.mu([1.0, 0.0], noise=[[1.0, 0.0], [1.0, 1e-9]])
    with pytest.raises(Unsupported, match="no noise can be proven"):
        lg.squared_losses(sparse.eye_array(5), covariance=laplacian(5, 2, np.random.default_rng(0)))
    assert lg.mu([0.0, 1.0], noise=[[0.0], [2.0]]) == pytest.approx(0.5)


def test_odd_input_is_refused():
    for signal, noise in (([1.0], [[math.nan]]), ([1.0, 2.0], [[1.0]]), ([math.inf], [[1.0]])):
        with pytest.raises(InvalidInput):
            lg.mu(signal, noise=noise)
    with pytest.raises(InvalidInput):
        lg.mu([1.0])
    with pytest.raises(Unsupported, match="too large"):
        lg.mu(np.ones(5000), noise=np.eye(5000))


def ratios(signal: np.ndarray, noise: np.ndarray, views: np.ndarray) -> np.ndarray:
    """The log-likelihood ratio of "moved" against "not moved", for views of zero and of moved values."""
    solved = np.linalg.solve(noise @ noise.T, signal)
    return views @ solved - signal @ solved / 2


def test_the_likelihood_ratio_has_the_law_that_mu_says():
    rng = np.random.default_rng(3)
    signal, noise = rng.normal(size=5), rng.normal(size=(5, 7))
    mu = lg.mu(signal, noise=noise)
    views = rng.normal(size=(40_000, 7)) @ noise.T
    absent, present = ratios(signal, noise, views), ratios(signal, noise, views + signal)
    for sample, sign in ((absent, -1), (present, 1)):
        assert sample.mean() == pytest.approx(sign * mu**2 / 2, abs=5 * mu / 200)
        assert sample.std() == pytest.approx(mu, rel=0.03)


def test_a_noise_that_the_coalition_knows_must_not_be_counted():
    """Planted: the account counts a noise that the coalition can subtract; the best test then beats the claim."""
    rng = np.random.default_rng(4)
    signal, noise = np.array([1.0, 0.0]), np.array([[1.0, 2.0, 0.0], [0.0, -2.0, 1.0]])
    wrong, right = lg.mu(signal, noise=noise), lg.mu(signal, noise=noise[:, [0, 2]])
    assert right > 1.2 * wrong
    drawn = rng.normal(size=(20_000, 3))
    known = drawn[:, [1]] * noise[:, 1]
    views = drawn @ noise.T - known
    absent, present = (ratios(signal, noise[:, [0, 2]], views + shift) for shift in (0.0, signal))
    cut = np.quantile(absent, 0.99)
    power = (present > cut).mean()
    assert power > norm.cdf(wrong - norm.ppf(0.99)) + 0.02  # impossible under the wrong claim
    assert power < norm.cdf(right - norm.ppf(0.99)) + 0.02
