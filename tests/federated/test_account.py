"""A client's account adds up exactly, refuses before it is passed, and survives its process."""

from fractions import Fraction

import pytest

from sordina.errors import BudgetRefused, InvalidInput
from sordina.federated.privacy.accounts import ClientAccount, exact


def test_six_participations_at_two_fifths_reach_a_limit_of_2_4_and_no_seventh_passes():
    account = ClientAccount(limit=exact(2.4))
    for _ in range(6):
        assert account.allows(exact(0.4))
        account.charge(exact(0.4))
    assert account.spent == Fraction(12, 5)
    assert not account.allows(exact(0.4))
    with pytest.raises(BudgetRefused, match="withhold"):
        account.charge(exact(0.4))
    assert account.spent == Fraction(12, 5)
    assert account.participations == 6


def test_an_account_without_a_limit_only_counts():
    account = ClientAccount()
    for _ in range(1000):
        account.charge(Fraction(11, 3))
    assert account.spent == Fraction(11000, 3)


def test_an_account_survives_a_restart(tmp_path):
    account = ClientAccount(limit=exact(2.4))
    account.charge(exact(0.4))
    account.save(tmp_path / "account.json")
    again = ClientAccount.load(tmp_path / "account.json")
    assert again == account
    again.charge(Fraction(2))
    assert not again.allows(Fraction(1, 1000))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"limit": null, "spent": "-1", "participations": 0}', '{"limit": "1/0", "spent": "0"}']
)
def test_a_damaged_account_is_refused_not_restarted(tmp_path, text):
    path = tmp_path / "account.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="do not start afresh"):
        ClientAccount.load(path)


def test_a_crash_while_saving_leaves_the_old_account(tmp_path, monkeypatch):
    import os

    path = tmp_path / "account.json"
    account = ClientAccount()
    account.charge(Fraction(1))
    account.save(path)
    account.charge(Fraction(1))

    def crash(*_):
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(InvalidInput, match="power cut"):
        account.save(path)
    assert ClientAccount.load(path).participations == 1


def test_costs_are_finite_and_never_negative():
    with pytest.raises(InvalidInput):
        exact(float("inf"))
    with pytest.raises(InvalidInput):
        ClientAccount().charge(Fraction(-1))


def test_a_kept_account_is_on_disk_before_anything_can_leave(tmp_path):
    path = tmp_path / "account.json"
    account = ClientAccount.kept(path, limit=exact(0.8))
    account.charge(exact(0.4))
    assert ClientAccount.load(path).participations == 1
    restarted = ClientAccount.kept(path)
    restarted.charge(exact(0.4))
    assert not ClientAccount.kept(path).allows(exact(0.4))


def test_an_account_that_cannot_be_written_lets_nothing_leave(tmp_path):
    account = ClientAccount.kept(tmp_path / "missing" / "account.json")
    with pytest.raises(InvalidInput, match="No such file"):
        account.charge(exact(0.4))
