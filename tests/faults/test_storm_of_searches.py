"""The short form of the storm on searches: some kill points; ``make storm`` tries all."""

import pytest
from tests.faults import storm_of_searches as storm

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # who is killed closes no file
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.parametrize("method", storm.METHODS)
def test_a_killed_search_goes_on_and_is_paid_for_once(method):
    for at in range(7, storm.points(method), 24):
        storm.accident(method, at)


def test_a_search_killed_between_its_last_run_and_its_choice_goes_on():
    """All runs had ended, so there was nothing to group: it could not be resumed."""
    count = storm.points("composition")
    for at in range(count - 24, count, 4):
        storm.accident("composition", at)
