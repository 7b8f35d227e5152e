import pytest
from tests.tuning.world import HELD_OUT, ROWS, world


@pytest.fixture
def train():
    return world(ROWS, 0)


@pytest.fixture
def held_out():
    return world(HELD_OUT, 1)
