"""A second moment of the inputs, released once before the first step and paid for with it: for their principal
components (`sordina.models.PCAInputs`) or the directions that are shortened (`sordina.models.WhitenedInputs`).

Rows are shortened to norm p; one row changes ``sum x x^T`` by ``x x^T``, whose Frobenius norm is ``|x|^2 <= p^2`` (000
eq. 1.9-1.11, errata 1). The upper triangle, off the diagonal times sqrt 2, has the same distances, so Gaussian noise of
``nu p^2`` on it is one `Gaussian` event of noise multiplier nu under add/remove; the directions are eigenvectors of
what was released. Every row counts, so nothing is amplified. Composed with the steps it is one claim of the run.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from sordina.accounting import Event, Gaussian, noise_multiplier
from sordina.errors import InvalidInput, Unsupported
from sordina.models.networks import PCAInputs
from sordina.models.whitening import WhitenedInputs
from sordina.privacy import Adjacency, Budget
from sordina.private_step import add_noise
from sordina.training.batches import Rows, blank_batch, inputs_and_target

FoundInputs: TypeAlias = PCAInputs | WhitenedInputs
"""A layer that a run fills from its rows. `seen` says what is summed up, `fill` keeps what follows from the sum."""
_ROWS = 4096


def components_of(model: nn.Module) -> FoundInputs | None:
    """The layer of ``model`` whose components are still to be found.

    Args:
        model: What is trained.
    """
    found = [one for one in model.modules() if isinstance(one, FoundInputs) and not bool(one.released)]
    if len(found) > 1:
        raise InvalidInput("a model has at most one layer of principal components, or of whitened inputs.")
    return found[0] if found else None


def components_event(model: nn.Module, budget: Budget, adjacency: Adjacency, *, users: bool) -> Event | None:
    """What finding the components of ``model`` costs; None where there are none to find.

    Args:
        model: What is trained.
        budget: Of the run.
        adjacency: Whose neighbours.
        users: Whether a unit may own several rows.
    """
    layer = components_of(model)
    if layer is None or math.isinf(budget.epsilon):
        return None
    if users or adjacency is not Adjacency.ADD_REMOVE:
        raise Unsupported(
            f"what {type(layer).__name__} needs is found for records that come or go: leave users out, and sampling "
            "as poisson."
        )
    return Gaussian(layer.noise_multiplier or noise_multiplier(Gaussian, budget, adjacency) / math.sqrt(layer.share))


def check_components(model: nn.Module, rows: Rows) -> None:
    """Refuse, before anything is booked, a layer that cannot be filled from ``rows``.

    Args:
        model: What is to be trained.
        rows: The data, of which only the form counts.
    """
    layer = components_of(model)
    if layer is None:
        return
    (inputs, *_), _ = inputs_and_target(blank_batch(rows)[0])
    width, name = inputs[0].numel(), type(layer).__name__
    if width != layer.in_features:
        raise InvalidInput(
            f"{name} takes the inputs themselves, as the first layer: a row has {width} numbers, the layer "
            f"{layer.in_features}."
        )
    if isinstance(layer, WhitenedInputs):
        layer.check_basis()


@torch.no_grad()
def find_components(layer: FoundInputs, rows: Rows, event: Event | None, rng: np.random.Generator) -> None:
    """Fill ``layer`` with the components of ``rows``, noised as ``event`` says; without one, exactly.

    Args:
        layer: The model's.
        rows: What is trained on; a row that is not finite counts nothing.
        event: What was paid for.
        rng: A secure generator if what comes out is to be released.
    """
    total: Tensor | None = None
    piece = (
        _ROWS if isinstance(rows.source, tuple) else 1
    )  # what puts items together may mix many, and be seen by nobody
    for start in range(0, rows.size, piece):
        (inputs, *_), _ = inputs_and_target(rows.take(np.arange(start, min(start + piece, rows.size))))
        flat = layer.seen(inputs.detach().flatten(1).cpu())
        norms = flat.norm(dim=1, keepdim=True)
        short = flat * (layer.row_norm / norms.clamp(min=1e-300)).clamp(max=1.0)
        short = torch.where(norms.isfinite() & short.isfinite().all(1, keepdim=True), short, torch.zeros_like(short))
        moment = short.T @ short
        total = moment if total is None else total.add_(moment)
    if total is None:
        raise InvalidInput("the data are empty: there is nobody to train on.")
    size, sigma = len(total), 0.0
    upper = torch.triu_indices(size, size)
    weight = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2.0)).double()
    released = total[upper[0], upper[1]] * weight
    if isinstance(event, Gaussian):
        sigma = event.noise_multiplier * layer.row_norm**2
        released = add_noise(released.contiguous(), float(np.nextafter(sigma, np.inf)), rng)
    total[upper[0], upper[1]] = released / weight
    total[upper[1], upper[0]] = released / weight
    layer.fill(total, sigma)
    layer.released.fill_(True)
