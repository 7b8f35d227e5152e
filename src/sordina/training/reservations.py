"""What a run reserves in a ledger: once, found again after a crash, and settled once.

The number of a reservation means nothing without its ledger, so a run's folder keeps both (`HeldReservation`). Its
name in the ledger ends in the run's id: a run killed between the ledger's commit and its folder's note finds it there.
"""

from __future__ import annotations

from sordina.accounting import Event
from sordina.accounting.ledger import Ledger, Reservation, Spend, Status
from sordina.accounting.ledger.entries import stored_form
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, Unit
from sordina.run_folder import HeldReservation, RunFolder


def check_pair(ledger: Ledger | None, dataset: str | None) -> None:
    """Refuse a ledger without a data set in it, or the reverse.

    Args:
        ledger: The ledger, if any.
        dataset: The data set's name in it, if any.
    """
    if (ledger is None) != (dataset is None):
        raise InvalidInput("ledger and dataset_budget go together: which ledger, and which of its data sets.")


def reserve_once(
    folder: RunFolder | None,
    ledger: Ledger | None,
    dataset: str | None,
    event: Event,
    *,
    what: str,
    adjacency: Adjacency,
    unit: Unit,
) -> Reservation | None:
    """Reserve ``event`` for the run in ``folder``, or take up what it has reserved already.

    Args:
        folder: The run's folder, held; None for a run without one.
        ledger: Where to reserve; None reserves nothing, unless the run holds a reservation: then it is refused.
        dataset: The data set in the ledger.
        event: The worst the run may spend.
        what: What the run is, in a few words.
        adjacency: Of ``event``.
        unit: Of ``event``.
    """
    check_pair(ledger, dataset)
    held = None if folder is None else folder.reservation
    if ledger is None or dataset is None:
        if held is not None and folder is not None:
            raise InvalidInput(
                f"the run in {folder.path} holds reservation {held.number} on {held.dataset!r} of the ledger "
                f"{held.where}: resume it with that ledger and data set."
            )
        return None
    if folder is None:
        return ledger.reserve(dataset, event, what=what, adjacency=adjacency, unit=unit)
    if held is not None:
        folder.keep_reservation(HeldReservation(ledger.id, ledger.dataset(dataset).name, held.number, ledger.name))
        return take_up(ledger, held.number)
    mark = f"(run {folder.run_id})"
    name = ledger.dataset(dataset).name
    found = [spend for spend in ledger.spends().values() if spend.dataset == name and spend.what.endswith(mark)]
    if found:
        reservation = take_up(ledger, found[0].id)
    elif folder.journal.claimed:
        raise InvalidInput(
            f"the run in {folder.path} was begun without a ledger and has drawn steps: resume it without one, or begin "
            "a new run in another folder."
        )
    else:
        reservation = ledger.reserve(dataset, event, what=f"{what} {mark}", adjacency=adjacency, unit=unit)
    folder.keep_reservation(HeldReservation(ledger.id, name, reservation.id, ledger.name))
    return reservation


def take_up(ledger: Ledger, number: int) -> Reservation:
    """The reservation ``number``, open or settled already; one that a person released is refused.

    Args:
        ledger: The ledger that holds it.
        number: Its number.
    """
    spend = spend_of(ledger, number)
    if spend.status is Status.RELEASED:
        raise InvalidInput(
            f"reservation {number} was released: the ledger says that its run spent nothing, so the run cannot go on. "
            "Begin a new run in another folder."
        )
    return Reservation(ledger, spend, spend.who, settled=spend.status is Status.SETTLED)


def settle_once(reservation: Reservation | None, event: Event) -> None:
    """Settle ``reservation`` as ``event``; nothing to do if that was done already.

    Args:
        reservation: What `reserve_once` gave.
        event: What the run really spent. A reservation settled as something else is refused.
    """
    if reservation is None:
        return
    refuse_settled_by_others(reservation)
    spend = spend_of(reservation.ledger, reservation.id)
    if spend.status is not Status.SETTLED:
        reservation.settle(event)
    elif spend.event != stored_form(event):
        raise InvalidInput(
            f"reservation {reservation.id} was settled already, as something else than the run spent: do not release "
            "the run's model before `sordina ledger history` explains it."
        )


def refuse_settled_by_others(reservation: Reservation | None, ended: bool = True) -> None:
    """Refuse to go on where another copy of the run's folder has been paid for with the same reservation.

    Two copies draw with noise of their own: together they spend more than either, and the reservation covers one.

    Args:
        reservation: What `reserve_once` gave.
        ended: Whether the run has drawn all it will draw, so that a reservation it found settled is its own.
    """
    if reservation is None:
        return
    settled = spend_of(reservation.ledger, reservation.id).status is Status.SETTLED
    if settled and not (reservation.settled and ended):
        raise InvalidInput(
            f"reservation {reservation.id} was settled already, by another copy of this run's folder: it pays for one "
            "of them. Release nothing of this copy; begin a new run in another folder."
        )


def spend_of(ledger: Ledger, number: int) -> Spend:
    """What became of reservation ``number``, whatever its status.

    Args:
        ledger: The ledger that holds it.
        number: Its number.
    """
    spends = ledger.spends()
    if number not in spends:
        raise InvalidInput(f"the ledger {ledger.name} holds no reservation {number}: it was replaced by an older copy.")
    return spends[number]
