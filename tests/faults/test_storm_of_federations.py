"""The short form of the storm on federations: some kill points and full disks; ``make storm`` tries all."""

import pytest
from tests.faults import storm_of_federations as storm

from sordina.federated.flower.client import ClientFolder
from sordina.federated.run_keeper import FederationKeeper


@pytest.mark.parametrize("name", storm.RECIPES)
def test_a_killed_federation_goes_on_and_never_draws_more_than_it_pays(name):
    count = storm.points(name)
    assert count > 6 * storm.ROUNDS
    for at in range(1, count + 1, 12):
        storm.accident(name, at)


def test_a_full_disk_is_one_line_and_the_run_goes_on_with_room():
    for at in range(5, storm.points("metric") + 1, 20):
        storm.accident("metric", at, full=True)


def test_a_clients_account_is_never_below_what_it_released():
    for at in range(1, storm.home_points() + 1, 2):
        storm.home_accident(at, full=at % 4 == 1)


def several(happen, count, apart):
    for at in range(1, count + 1, apart):
        happen(at)


FAULTS = {
    "nothing is claimed": (FederationKeeper, "claim", lambda self, number, rounds, clients: None),
    "lost rounds are not charged": (FederationKeeper, "_charge_lost", lambda self, *rest: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch):
    monkeypatch.setattr(*FAULTS[fault])
    with pytest.raises(AssertionError):
        several(lambda at: storm.accident("metric", at), storm.points("metric"), 3)


def test_an_account_written_too_late_is_found(monkeypatch):
    """Planted: the client charges itself after it has remembered its reply."""
    keep, remember, waiting = ClientFolder.keep, ClientFolder.remember, []
    monkeypatch.setattr(ClientFolder, "keep", lambda self, total: waiting.append(total))

    def late(self, run, memory):
        remember(self, run, memory)
        keep(self, waiting.pop())

    monkeypatch.setattr(ClientFolder, "remember", late)
    with pytest.raises((AssertionError, storm.SordinaError)):
        several(storm.home_accident, storm.home_points(), 1)
