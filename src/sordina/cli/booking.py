"""The two options that book a run, ``--ledger`` and ``--dataset-budget``, checked in one place before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordina.errors import InvalidInput

if TYPE_CHECKING:
    from sordina.accounting.ledger import Ledger


def booked_on(ledger: str | None, dataset_budget: str | None) -> Ledger | None:
    """The ledger a run is booked on, open and holding the data set; None if neither option is given.

    Args:
        ledger: What ``--ledger``, or ``SORDINA_LEDGER`` in its place, says.
        dataset_budget: What ``--dataset-budget`` says.

    Raises:
        InvalidInput: One option without the other, a ledger that is not there, or one without that data set. A run
            that its user believes to be booked must never run unbooked.
    """
    if ledger is None and dataset_budget is None:
        return None
    if dataset_budget is None:
        raise InvalidInput(
            "--ledger (or SORDINA_LEDGER) says where to book, but not what: add --dataset-budget NAME, or leave the "
            "ledger out (unset SORDINA_LEDGER) to train without booking."
        )
    if ledger is None:
        raise InvalidInput("--dataset-budget needs the ledger it is in: add --ledger FILE, or set SORDINA_LEDGER.")
    from sordina.accounting.ledger import Ledger

    book = Ledger(ledger)
    book.dataset(dataset_budget)
    return book
