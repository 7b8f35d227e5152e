"""Bad parameters and bad inputs: each an `InvalidInput` of one line, before anything is released."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sordina.errors import BudgetRefused, InvalidInput, SordinaError, Unsupported
from sordina.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    GaussianMechanism,
    LaplaceMechanism,
    MetricLaplace,
    RandomizedResponse,
    SparseVector,
)
from sordina.random.generators import seeded

NAN, INF = math.nan, math.inf
REFUSED = {
    "sensitivity 0": lambda: LaplaceMechanism(0, 1),
    "sensitivity negative": lambda: GaussianMechanism(-1, 1, 1e-5),
    "sensitivity NaN": lambda: Exponential(NAN, 1),
    "sensitivity infinite": lambda: SparseVector(INF, 1, 0),
    "sensitivity a word": lambda: LaplaceMechanism("one", 1),
    "sensitivity a boolean": lambda: LaplaceMechanism(True, 1),
    "sensitivity not whole": lambda: DiscreteLaplace(1.5, 1),
    "sensitivity below 1 for integers": lambda: DiscreteGaussian(0.5, 1, 1e-5),
    "epsilon 0": lambda: LaplaceMechanism(1, 0),
    "epsilon negative": lambda: RandomizedResponse(-1),
    "epsilon NaN": lambda: MetricLaplace(NAN),
    "epsilon infinite": lambda: DiscreteLaplace(1, INF),
    "epsilon none": lambda: Exponential(1, None),
    "epsilon below what 63 bits can tell": lambda: RandomizedResponse(1e-19),
    "delta 0 for a Gaussian": lambda: GaussianMechanism(1, 1, 0),
    "delta 0 for a discrete Gaussian": lambda: DiscreteGaussian(1, 1, 0),
    "delta 1": lambda: GaussianMechanism(1, 1, 1),
    "delta negative": lambda: DiscreteGaussian(1, 1, -1e-5),
    "delta NaN": lambda: GaussianMechanism(1, 1, NAN),
    "classical at epsilon 1": lambda: GaussianMechanism(1, 1, 1e-5, calibration="classical"),
    "unknown calibration": lambda: GaussianMechanism(1, 1, 1e-5, calibration="tight"),
    "unknown adjacency": lambda: LaplaceMechanism(1, 1, adjacency="close"),
    "unknown unit": lambda: LaplaceMechanism(1, 1, unit="household"),
    "monotonic with replace-one": lambda: Exponential(1, 1, monotonic=True, adjacency="replace-one"),
    "monotonic no boolean": lambda: Exponential(1, 1, monotonic="yes"),
    "limit 0": lambda: SparseVector(1, 1, 0, limit=0),
    "limit a fraction": lambda: SparseVector(1, 1, 0, limit=1.5),
    "threshold infinite": lambda: SparseVector(1, 1, INF),
    "threshold far out": lambda: SparseVector(1, 1, 1e20),
    "one category": lambda: RandomizedResponse(1, 1),
    "temperature 0": lambda: Exponential(1e-300, 1e100),
    "scale out of range": lambda: LaplaceMechanism(1e-300, 1e10),
    "scale out of range for integers": lambda: DiscreteLaplace(1, 1e-15),
    "value NaN": lambda: LaplaceMechanism(1, 1).release(NAN),
    "value infinite": lambda: GaussianMechanism(1, 1, 1e-5).release(np.array([1.0, -INF])),
    "tensor NaN": lambda: MetricLaplace(1).release(torch.tensor([NAN])),
    "tensor complex": lambda: LaplaceMechanism(1, 1).release(torch.ones(2, dtype=torch.complex64)),
    "tensor of booleans": lambda: LaplaceMechanism(1, 1).release(torch.ones(2, dtype=torch.bool)),
    "value a word": lambda: LaplaceMechanism(1, 1).release("secret"),
    "value none": lambda: LaplaceMechanism(1, 1).release(None),
    "value ragged": lambda: LaplaceMechanism(1, 1).release([[1.0], [1.0, 2.0]]),
    "value complex": lambda: LaplaceMechanism(1, 1).release(1j),
    "whole floats for integers": lambda: DiscreteLaplace(1, 1).release(3.0),
    "float tensor for integers": lambda: DiscreteGaussian(1, 1, 1e-5).release(torch.ones(2)),
    "booleans as counts": lambda: DiscreteLaplace(1, 1).release(np.array([True])),
    "integers too large": lambda: DiscreteLaplace(1, 1).release(2**62),
    "unsigned too large": lambda: DiscreteLaplace(1, 1).release(np.array([2**64 - 1], np.uint64)),
    "category unknown": lambda: RandomizedResponse(1, 3).release([0, 3]),
    "category negative": lambda: RandomizedResponse(1, 3).release(-1),
    "booleans of three": lambda: RandomizedResponse(1, 3).release(True),
    "no responses": lambda: RandomizedResponse(1).estimate(np.array([], int)),
    "frequency 2": lambda: RandomizedResponse(1).mean_squared_error(10, 2.0),
    "no respondents": lambda: RandomizedResponse(1).mean_squared_error(0),
    "no candidates": lambda: Exponential(1, 1).release([]),
    "a table of scores": lambda: Exponential(1, 1).release([[1.0, 2.0]]),
    "score infinite": lambda: Exponential(1, 1).release([1.0, INF]),
    "a table of queries": lambda: SparseVector(1, 1, 0).release([[1.0]]),
    "query NaN": lambda: SparseVector(1, 1, 0).watch().ask(NAN),
    "no coordinates": lambda: MetricLaplace(1).release(np.array([])),
    "rows of nothing": lambda: MetricLaplace(1).release_rows(np.zeros(3)),
    "event without distance": lambda: MetricLaplace(1).event(),
    "distance 0": lambda: MetricLaplace(1).event(0),
    "confidence 1": lambda: LaplaceMechanism(1, 1).error_bound(1.0),
    "confidence 0": lambda: Exponential(1, 1).error_bound(0.0),
    "confidence negative": lambda: SparseVector(1, 1, 0).error_bound(-0.5),
    "confidence NaN": lambda: MetricLaplace(1).error_bound(NAN),
    "size 0": lambda: GaussianMechanism(1, 1, 1e-5).error_bound(0.9, 0),
    "a seed for a generator": lambda: LaplaceMechanism(1, 1).release(1.0, 42),
}


@pytest.mark.parametrize("case", REFUSED)
def test_is_refused_in_one_line(case):
    with pytest.raises(InvalidInput) as caught:
        REFUSED[case]()
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_classical_calibration_says_what_to_use():
    with pytest.raises(Unsupported, match="use analytic"):
        GaussianMechanism(1, 1.0, 1e-5, calibration="classical")
    assert GaussianMechanism(1, 0.99, 1e-5, calibration="classical").sigma > GaussianMechanism(1, 0.99, 1e-5).sigma


def test_a_halted_sparse_vector_answers_no_more():
    watch = SparseVector(1, 100.0, threshold=0.0, limit=2).watch(seeded(0))
    assert [watch.ask(-50), watch.ask(50), watch.halted, watch.ask(50), watch.halted] == [
        False,
        True,
        False,
        True,
        True,
    ]
    with pytest.raises(BudgetRefused):
        watch.ask(-50)


def test_refusals_share_one_root():
    assert issubclass(InvalidInput, SordinaError)
    assert issubclass(InvalidInput, ValueError)


@pytest.mark.parametrize(
    "extreme",
    [
        {"sensitivity": 1e-320, "epsilon": 1e-320}, {"sensitivity": 1e308, "epsilon": 1e308},
        {"epsilon": 1e-320, "limit": 2**63},
    ],
)  # fmt: skip
def test_a_sparse_vector_of_extreme_numbers_is_refused_in_words(extreme):
    """Found by pairs of bad arguments (``make storm``)."""
    with pytest.raises(InvalidInput):
        SparseVector(**({"sensitivity": 1.0, "epsilon": 1.0, "threshold": 1.0, "limit": 1} | extreme))
