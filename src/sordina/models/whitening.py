"""Partial whitening: directions in which all inputs are alike no longer outweigh those that tell them apart."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput
from sordina.privacy import check_positive

_DIRECTIONS = 128
_ORTHONORMAL = 1e-4
_LEAST = 0.002
"""Directions with a smaller share of the second moment stay as they are."""
_EDGE = 1 / 3
"""And those with less than this part of what noise alone would show."""


class WhitenedInputs(nn.Module):
    """A first layer that shortens inputs along the leading directions of their second moment, and gives all one norm.

    With orthonormal directions v_j of shares l_j of the second moment of unit rows,

        x -> R y / |y|,    y = x - sum_j (1 - sqrt(floor / l_j)) <x, v_j> v_j    over those with l_j > floor:

    gradient descent gets as far along the others as along these, and a clipped gradient holds more of what differs from
    row to row. A private run finds the directions at its start and pays for them (`sordina.training.components`), as
    for `PCAInputs`; until then rows are only brought to the norm R.

    Args:
        inputs: Numbers in a row, flattened.
        directions: At most so many are shortened; None takes 128, or all inputs if they are fewer.
        norm: R, the norm of all rows.
        basis: A public function to orthonormal columns (inputs, n): directions are looked for in their span, for the
            noise grows with the root of n. None: all inputs.
        noise_multiplier: Of the release; None gives it a fiftieth of the budget (searches need a number).
    """

    share = 0.02
    """Of the budget's 1 / nu^2, for who states no noise."""
    row_norm = 1.0
    """Unit rows are looked at."""
    released: Tensor
    weight: Tensor

    def __init__(
        self,
        inputs: int,
        directions: int | None = None,
        *,
        norm: float = 40.0,
        basis: Callable[[], Tensor] | None = None,
        noise_multiplier: float | None = None,
    ) -> None:
        super().__init__()
        many = min(_DIRECTIONS, inputs) if directions is None else directions
        if not isinstance(many, int) or not 1 <= many <= inputs:
            raise InvalidInput(f"of {inputs} inputs there are 1 to {inputs} directions, got {many}.")
        self.in_features, self.directions = inputs, many
        self.norm = check_positive("norm", norm)
        self.basis, self.noise_multiplier = basis, noise_multiplier
        if noise_multiplier is not None:
            check_positive("noise_multiplier", noise_multiplier)
        self.register_buffer("weight", torch.zeros(many, inputs))
        self.register_buffer("released", torch.tensor(False))

    def forward(self, rows: Tensor) -> Tensor:
        """Rows, flattened, shortened where all are long, and of one norm; a row of zeros stays."""
        flat = rows.flatten(1)
        even = flat - (flat @ self.weight.T) @ self.weight
        length: Tensor = even.norm(dim=1, keepdim=True)
        return even * (self.norm / length.clamp(min=1e-12))

    def seen(self, rows: Tensor) -> Tensor:
        """Unit rows of flat ``rows`` in the basis."""
        exact = rows.double()  # rounding must not depend on who else is there
        unit: Tensor = exact / exact.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return unit if self.basis is None else unit @ self._basis(unit)

    def fill(self, moment: Tensor, noise: float) -> None:
        """Keep the leading directions of a released second ``moment``, each times the root of what it is shortened by.

        Args:
            moment: Symmetric, with noise of deviation ``noise`` off the diagonal times the root of two.
            noise: Its deviation on the diagonal.
        """
        whole = float(moment.trace())
        found, directions = torch.linalg.eigh(moment)
        kept = min(self.directions, len(found))
        floor = max(_LEAST * whole, _EDGE * noise * math.sqrt(2 * len(found)))
        shortened = 1 - (floor / found[-kept:].clamp(min=max(floor, 1e-300))).sqrt()
        chosen = (directions[:, -kept:] * shortened.clamp(min=0).sqrt()).to(self.weight)
        self.weight.zero_()
        self.weight[:kept] = (chosen if self.basis is None else self._basis(self.weight) @ chosen).T

    def check_basis(self) -> None:
        """Refuse a basis that is none: its columns must be orthonormal, as long as an input."""
        if self.basis is None:
            return
        found = self.basis() if callable(self.basis) else self.basis
        fits = isinstance(found, Tensor) and found.ndim == 2 and len(found) == self.in_features and callable(self.basis)
        if not fits or not bool(((found.T @ found - torch.eye(found.shape[1])).abs() < _ORTHONORMAL).all()):
            raise InvalidInput(
                f"the basis of WhitenedInputs is a function to a matrix of {self.in_features} rows whose columns are "
                "orthonormal: torch.linalg.qr(matrix)[0] makes them so."
            )

    def _basis(self, like: Tensor) -> Tensor:
        assert self.basis is not None
        return self.basis().to(like)
