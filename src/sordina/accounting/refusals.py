"""Combinations of sampling and adjacency for which no sound bound is known, refused in one place."""

from __future__ import annotations

from sordina.accounting.events import Event, FixedSizeSampled, Gaussian, Laplace, PoissonSampled, Shuffled
from sordina.errors import Unsupported
from sordina.types import Adjacency


def refuse_unsound(event: Event, adjacency: Adjacency) -> None:
    """Refuse a sampled event that has no guarantee under ``adjacency``."""
    if adjacency is Adjacency.ADD_REMOVE:
        refuse_fixed_size(event)
        refuse_shuffled(event)
    elif isinstance(event, PoissonSampled):
        refuse_opaque_poisson(event)


def refuse_fixed_size(event: Event) -> None:
    """Fixed-size samples keep their size, so adding a unit has no meaning for them."""
    if isinstance(event, FixedSizeSampled):
        raise Unsupported(
            "fixed-size sampling has no guarantee under add-remove neighbours: the batch keeps its size, so a unit can "
            "only be replaced. Use adjacency replace-one, or Poisson sampling."
        )


def refuse_shuffled(event: Event) -> None:
    """How many answers are shuffled is public, so a person can only be replaced."""
    if isinstance(event, Shuffled):
        raise Unsupported(
            "shuffled answers have no guarantee under add-remove neighbours: how many people answered is public. Use "
            "adjacency replace-one."
        )


def refuse_opaque_poisson(event: PoissonSampled) -> None:
    """Under replace-one a Poisson sample also compares a unit with its absence; a bare epsilon says nothing of that."""
    if not isinstance(event.event, Gaussian | Laplace):
        raise Unsupported(
            f"Poisson sampling of {type(event.event).__name__} under replace-one neighbours: its guarantee does not "
            "cover an absent unit. Use adjacency add-remove, fixed-size sampling, or Gaussian or Laplace noise."
        )
