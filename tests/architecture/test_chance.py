"""A test that fails fails again: all chance comes from one seed and the test's name."""

import os
import random
import secrets

import numpy as np
import pytest
import torch

from sordina.random.generators import secure


def drawn():
    return (
        secrets.token_hex(8),
        float(np.random.default_rng().random()),
        random.random(),
        float(torch.rand(())),
        float(secure().normal()),
    )


@pytest.mark.skipif(os.environ.get("SORDINA_SEED") == "random", reason="other numbers each time were asked for")
def test_a_test_draws_the_same_numbers_each_time(request):
    first = drawn()
    item = request.node
    conftest = next(
        each for each in item.config.pluginmanager.get_plugins() if hasattr(each, "_unbooked_fits_are_forgotten")
    )
    conftest.pytest_runtest_setup(item)
    assert drawn() == first
    assert drawn() != first
