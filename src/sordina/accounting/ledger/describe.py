"""An event in a few words, for tables that people read."""

from __future__ import annotations

from dataclasses import fields

from sordina.accounting.events import Composed, Event, FixedSizeSampled, PoissonSampled, RandomStopping, Repeated


def describe(event: Event) -> str:
    """``event`` in a few words.

    >>> from sordina.accounting.events import Gaussian
    >>> describe(Repeated(PoissonSampled(0.01, Gaussian(1.5)), 100))
    '100 x Gaussian 1.5 at rate 0.01'
    >>> describe(Composed(()))
    'nothing'
    """
    if isinstance(event, Composed):
        return " + ".join(describe(part) for part in event.events) or "nothing"
    if isinstance(event, Repeated):
        return f"{event.count} x {_within(event.event)}"
    if isinstance(event, PoissonSampled):
        return f"{_within(event.event)} at rate {event.rate:g}"
    if isinstance(event, FixedSizeSampled):
        return f"{_within(event.event)} on {event.batch} of {event.population}"
    if isinstance(event, RandomStopping):
        return f"best of about {event.mean:g} x {_within(event.event)}"
    return " ".join([type(event).__name__, *(f"{getattr(event, field.name):g}" for field in fields(event))])


def _within(event: Event) -> str:
    text = describe(event)
    return f"({text})" if isinstance(event, Composed) and len(event.events) > 1 else text
