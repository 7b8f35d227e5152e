"""Losses may not depend on results of other samples: told from the graph between results and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sordina.gradients._hooks import Gathering
from sordina.gradients.removal import CHANCE
from sordina.gradients.structure import Mixing

if TYPE_CHECKING:
    from sordina.gradients._way_back import ModelCall


def check_losses_apart(losses: Tensor, calls: Sequence[ModelCall], probes: int = 1) -> None:
    """Refuse losses of which one depends on another sample's result.

    The losses of a random half of the samples get the gradient "not a number", which no factor of zero hides; it may
    reach their own results only.
    """
    try:
        # anomaly mode would stop at the probe's own NaN; where calls are chained, a checkpoint is computed again
        with torch.autograd.set_detect_anomaly(False), Gathering():
            _check_losses_apart(losses, calls, probes)
    except Mixing as error:
        if any(call.structure.unclear for call in calls):
            raise Mixing(f"{error} {UNCLEAR}") from error
        raise


def _check_losses_apart(losses: Tensor, calls: Sequence[ModelCall], probes: int) -> None:
    rows = len(losses)
    reached = [
        (edge, place)
        for call in calls
        for edge, place in zip(call.edges, call.structure.outputs, strict=True)
        if edge is not None
    ]
    if rows < 2 or not reached:
        return
    for _ in range(probes):
        _check_sizes(losses, reached)
    silent = _reach(losses, torch.zeros_like(losses), reached)
    for _ in range(probes):
        half = torch.tensor(CHANCE.sample(range(rows), CHANCE.randint(1, rows - 1)), device=losses.device)
        chosen = torch.zeros(rows, dtype=torch.bool, device=losses.device)
        chosen[half] = True
        found = _reach(losses, torch.zeros_like(losses).masked_fill(chosen, float("nan")), reached)
        for hit, before in zip(found, silent, strict=True):
            if bool((hit & ~before & ~(chosen if len(hit) == rows else torch.zeros_like(hit))).any()):
                raise Mixing.because(LOSSES_MIX)


UNCLEAR = (
    "Or the samples do not lie in the first dimension of the model's input (time first): here another one is as long, "
    "and nobody can tell. Put samples first (batch_first=True), or call the model on a batch of another size before."
)
LOSSES_MIX = (
    "the loss of one sample depends on the model's results for others (or on a result that is not one per sample)"
)


def _check_sizes(losses: Tensor, reached: Sequence[tuple[GradientEdge, Any]]) -> None:
    """Refuse losses of which one's gradient at its results depends on how large those of others are."""
    rows, edges = len(losses), [edge for edge, _ in reached]
    others = torch.ones(rows, dtype=torch.bool, device=losses.device)
    others[CHANCE.sample(range(rows), CHANCE.randint(1, rows - 1))] = False
    own = torch.Generator().manual_seed(CHANCE.getrandbits(62))  # a seeded run must not notice
    upstream = torch.rand(rows, generator=own).add_(0.5).mul_(10 ** CHANCE.uniform(-9, 3)).to(losses)
    twin = torch.where(others, upstream, upstream * CHANCE.choice((0.0, 1e3)))
    pair, chance = [], torch.get_rng_state()
    for each in (upstream, twin):
        torch.set_rng_state(chance)  # noise that is added on the way back is no mixing
        pair.append(torch.autograd.grad(losses, edges, each, retain_graph=True, allow_unused=True))
    torch.set_rng_state(chance)
    for one, two, (_, place) in zip(*pair, reached, strict=True):
        if one is None or two is None or place is None or one.shape[place.dim] % rows:
            continue
        a, b = (each.movedim(place.dim, 0).reshape(rows, -1)[others].double() for each in (one, two))
        gap = (a - b).masked_fill_((a == b) | (a.isnan() & b.isnan()), 0).norm(dim=1)
        if not bool((gap <= 1e-3 * a.nan_to_num(0, 0, 0).norm(dim=1)).all()):
            raise Mixing.because(LOSSES_MIX)


def _reach(losses: Tensor, spread: Tensor, reached: Sequence[tuple[GradientEdge, Any]]) -> list[Tensor]:
    """For each result the samples whose rows a gradient reaches; for one that is not per sample, whether any does."""
    edges: list[Any] = [edge for edge, _ in reached]
    answers = torch.autograd.grad(losses, edges, spread, retain_graph=True, allow_unused=True)
    found = []
    for answer, (_, place) in zip(answers, reached, strict=True):
        if answer is None:
            found.append(torch.zeros(len(losses), dtype=torch.bool, device=losses.device))
        elif place is None or answer.shape[place.dim] % len(losses):
            found.append((answer != 0).any()[None].expand(len(losses) + 1))
        else:
            found.append((answer != 0).movedim(place.dim, 0).reshape(len(losses), -1).any(1))
    return found
