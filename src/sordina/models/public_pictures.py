"""Grey pictures that nobody's data had a part in: solids, strokes and textures drawn at random.

What features of pictures look like in general can be learnt from them for nothing (`usual_directions`).

>>> made_up_pictures(6).shape
torch.Size([6, 1, 28, 28])
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from sordina.models.scattering import scattering_features

SIDE = 28
_PICTURES, _DIRECTIONS = 1800, 400


def made_up_pictures(count: int, *, seed: int = 0) -> Tensor:
    """``count`` pictures of 28 x 28, a third of them of each kind; the same for the same seed.

    Args:
        count: How many, a multiple of three.
        seed: Of the random numbers.
    """
    chance = torch.Generator().manual_seed(seed)
    third = count // 3
    return torch.cat([draw(third, chance) for draw in (_solids, _strokes, _textures)])


@functools.cache
def usual_directions(without: bytes | None = None) -> Tensor:
    """Orthonormal columns: where most of the scattering features of made-up pictures lies, as unit vectors.

    Args:
        without: A direction that is taken off the features, as the bytes of its 32-bit numbers.
    """
    off = None if without is None else torch.frombuffer(bytearray(without), dtype=torch.float32)
    features = scattering_features(made_up_pictures(_PICTURES), without=off)
    rows = nn.functional.normalize(features)
    _, directions = torch.linalg.eigh((rows @ rows.T).double())
    columns: Tensor = torch.linalg.qr(rows.T.double() @ directions[:, -_DIRECTIONS:])[0]
    return columns.float()


def _smooth(count: int, width: float, chance: torch.Generator) -> Tensor:
    """Random fields of mean about zero and deviation one, smooth over ``width`` pixels."""
    reach = int(3 * width + 1)
    bell = torch.exp(-(torch.arange(-reach, reach + 1.0) ** 2) / (2 * width**2))
    fields = torch.randn(count, 1, SIDE + 2 * reach, SIDE + 2 * reach, generator=chance)
    fields = nn.functional.conv2d(fields, bell.view(1, 1, 1, -1))
    fields = nn.functional.conv2d(fields, bell.view(1, 1, -1, 1))
    spread: Tensor = fields.flatten(1).std(1).view(-1, 1, 1, 1)
    return fields / spread


def _between(count: int, low: float, high: float, chance: torch.Generator) -> Tensor:
    return (low + (high - low) * torch.rand(count, generator=chance)).view(-1, 1, 1, 1)


def _places() -> tuple[Tensor, Tensor]:
    line = torch.linspace(-1, 1, SIDE)
    return line.view(-1, 1), line.view(1, -1)


def _solids(count: int, chance: torch.Generator) -> Tensor:
    """Bent ovals of any brightness on black, unevenly lit."""
    down, across = _places()
    tall, wide = (_between(count, 0.4, 1.3, chance) for _ in range(2))
    form = 1.1 - (down**2 / tall**2 + across**2 / wide**2) + 0.4 * _smooth(count, 4, chance)
    light = _between(count, 0.3, 0.9, chance) + 0.15 * _smooth(count, 2, chance)
    return (torch.sigmoid(10 * form) * light).clamp(0, 1)


def _strokes(count: int, chance: torch.Generator) -> Tensor:
    """Bright lines in the middle, where a random field changes its sign."""
    down, across = _places()
    lines = torch.exp(-((_smooth(count, 3, chance) / 0.18) ** 2))
    return lines * torch.sigmoid(12 * (0.7 - (down**2 + across**2).sqrt()))


def _textures(count: int, chance: torch.Generator) -> Tensor:
    """Fields of several widths, which fill the picture."""
    fields = [_between(count, 0, 1, chance) * _smooth(count, width, chance) for width in (0.7, 1.5, 3, 6)]
    return (0.5 + 0.2 * torch.stack(fields).sum(0)).clamp(0, 1)
