"""Names of 0.1 that people wrote down keep working for two minor releases, and say what they are called now."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

import sordina as sd
from sordina._renamed import FORMER_MODULES

MOVED = {
    "sordina.types:Budget": "sordina.privacy:Budget",
    "sordina.randomness:seeded": "sordina.random:seeded",
    "sordina.seam:VectorQuery": "sordina.queries:VectorQuery",
    "sordina.mechanisms:Gaussian": "sordina.mechanisms:GaussianMechanism",
    "sordina.mechanisms:Laplace": "sordina.mechanisms:LaplaceMechanism",
    "sordina.mechanisms.metric_laplace:MetricLaplace": "sordina.mechanisms.laplace:MetricLaplace",
    "sordina.accounting.groups:group_epsilon": "sordina.accounting:group_epsilon",
    "sordina.accounting.search:search_noise": "sordina.accounting:search_noise",
    "sordina.auditing.result:Audit": "sordina.auditing:Audit",
    "sordina.federated.methods:FedAvg": "sordina.federated:FedAvg",
    "sordina.training.own_loop:make_private": "sordina.training:make_private",
    "sordina.reports.writing:report": "sordina.reports:report",
}


def found(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_works_and_warns(old):
    with pytest.warns(DeprecationWarning, match="is now"):
        assert found(old) is found(MOVED[old])


@pytest.mark.parametrize("old", FORMER_MODULES)
def test_a_former_module_stands_for_one_that_is_there(old):
    assert importlib.util.find_spec(FORMER_MODULES[old])
    with pytest.raises(AttributeError, match="no attribute 'Cauchy'"):
        _ = importlib.import_module(old).Cauchy


@pytest.mark.parametrize("half", ["client_app", "server_app"])
def test_apps_that_were_written_before_find_their_halves(half):
    pytest.importorskip("flwr")
    with pytest.warns(DeprecationWarning, match="is now"):
        assert found(f"sordina.federated.engines.deployment:{half}") is found(
            f"sordina.federated.flower.deployment:{half}"
        )


def test_what_never_was_is_not_there():
    with pytest.raises(AttributeError):
        sd.mechanisms.Cauchy  # noqa: B018
