"""The scattering transform of images (Bruna and Mallat 2013): fixed wavelet features, the same for every data set.

With Morlet wavelets psi of J scales and L angles and a low-pass filter phi,

    S0 = x * phi,   S1 = |x * psi_a| * phi,   S2 = ||x * psi_a| * psi_b| * phi   (scale of b larger than that of a),

sampled every 2^J pixels: ``1 + J L + L^2 J (J - 1) / 2`` channels, 81 for J = 2 and L = 8. Nothing is learned, so the
features cost no privacy; a linear model on them is what Tramer and Boneh (2021) train. Filters are built in the
frequency domain: a Gaussian of spatial width ``0.8 2^j`` around the frequency ``3 pi / 4 / 2^j``, with an envelope of
ratio 4/L, less a multiple of the Gaussian at zero, so that a wavelet does not see a constant.

>>> Scattering()(torch.zeros(2, 1, 28, 28)).shape
torch.Size([2, 81, 7, 7])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput
from sordina.progress import Progress, silent

VERSION = "scattering 1"
"""To be raised with every change of the features: caches are named by it."""
_WIDTH, _FREQUENCY, _TURNS = 0.8, 3 * math.pi / 4, 2


class Scattering(nn.Module):
    """Scattering features of grey images, ``(n, 1, h, w) -> (n, channels, h / 2^J, w / 2^J)``.

    Args:
        scales: J.
        angles: L.
        shape: Height and width of the images, multiples of 2^J.
    """

    def __init__(self, scales: int = 2, angles: int = 8, shape: tuple[int, int] = (28, 28)) -> None:
        super().__init__()
        if scales < 1 or angles < 1:
            raise InvalidInput(f"scattering needs at least one scale and one angle, got {scales} and {angles}.")
        step = 2**scales
        if any(side < 2 * step or side % step for side in shape):
            raise InvalidInput(f"scattering of {scales} scales needs sides that are multiples of {step}, got {shape}.")
        self.scales, self.angles, self.shape, self.step = scales, angles, shape, step
        size = tuple(side + 2 * step for side in shape)
        wavelets = [[morlet(size, scale, turn, angles) for turn in range(angles)] for scale in range(scales)]
        self.register_buffer("wavelets", torch.stack([torch.stack(one) for one in wavelets]), persistent=False)
        self.register_buffer("low_pass", gaussian(size, _WIDTH * 2 ** (scales - 1)), persistent=False)

    @property
    def channels(self) -> int:
        """How many features a place has."""
        return 1 + self.scales * self.angles + self.angles**2 * self.scales * (self.scales - 1) // 2

    def forward(self, images: Tensor) -> Tensor:
        """The features."""
        if images.shape[1:] != (1, *self.shape):
            raise InvalidInput(f"scattering was made for images (n, 1, {self.shape[0]}, {self.shape[1]}).")
        padded = nn.functional.pad(images, [self.step] * 4, mode="reflect")[:, 0]
        spectrum = torch.fft.fft2(padded)
        found = [self._smooth(spectrum, 0)]
        firsts: list[tuple[int, Tensor]] = []
        for scale in range(self.scales):
            for turn in range(self.angles):
                modulus = torch.fft.fft2(self._filtered(spectrum, scale, turn, 0).abs())
                firsts.append((scale, modulus))
                found.append(self._smooth(modulus, scale))
        for scale, modulus in firsts:
            for second in range(scale + 1, self.scales):
                for turn in range(self.angles):
                    twice = torch.fft.fft2(self._filtered(modulus, second, turn, scale).abs())
                    found.append(self._smooth(twice, second))
        return torch.stack(found, 1)

    def _filtered(self, spectrum: Tensor, scale: int, turn: int, sampled: int) -> Tensor:
        """A spectrum sampled every ``2^sampled`` pixels through a wavelet, sampled every ``2^scale`` pixels."""
        wavelets: Tensor = self.get_buffer("wavelets")
        wavelet = _fold(wavelets[scale, turn], 2**sampled, mean=False)
        filtered: Tensor = torch.fft.ifft2(_fold(spectrum * wavelet, 2 ** (scale - sampled)))
        return filtered

    def _smooth(self, spectrum: Tensor, sampled: int) -> Tensor:
        low = _fold(self.get_buffer("low_pass"), 2**sampled, mean=False)
        smooth: Tensor = torch.fft.ifft2(_fold(spectrum * low, 2 ** (self.scales - sampled))).real
        return smooth[..., 1:-1, 1:-1]


def _fold(spectrum: Tensor, factor: int, *, mean: bool = True) -> Tensor:
    """The spectrum of what is left when only every ``factor``-th pixel is kept (a filter's own is summed instead)."""
    if factor == 1:
        return spectrum
    *rest, height, width = spectrum.shape
    folded = spectrum.reshape(*rest, factor, height // factor, factor, width // factor)
    return folded.mean((-4, -2)) if mean else folded.sum((-4, -2))


def _frequencies(size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    rows, columns = (2 * math.pi * torch.fft.fftfreq(side, dtype=torch.float64) for side in size)
    return rows[:, None], columns[None, :]


def _bump(size: tuple[int, ...], width: float, slant: float, angle: float, centre: float) -> Tensor:
    """A Gaussian around a frequency, periodised."""
    rows, columns = _frequencies(size)
    total = torch.zeros(size[0], size[1], dtype=torch.float64)
    for down in range(-_TURNS, _TURNS + 1):
        for right in range(-_TURNS, _TURNS + 1):
            y, x = rows + 2 * math.pi * down, columns + 2 * math.pi * right
            along = math.cos(angle) * x + math.sin(angle) * y - centre
            across = -math.sin(angle) * x + math.cos(angle) * y
            total += torch.exp(-0.5 * width**2 * (along.square() + (across / slant).square()))
    return total


def gaussian(size: tuple[int, ...], width: float) -> Tensor:
    """The low-pass filter in the frequency domain: one at zero.

    Args:
        size: Height and width of the spectrum.
        width: Standard deviation in pixels.
    """
    bump = _bump(size, width, 1.0, 0.0, 0.0)
    return (bump / bump[0, 0]).float()


def morlet(size: tuple[int, ...], scale: int, turn: int, angles: int) -> Tensor:
    """A Morlet wavelet in the frequency domain: zero at zero.

    Args:
        size: Height and width of the spectrum.
        scale: j.
        turn: Which of the angles.
        angles: How many there are in half a turn.
    """
    width, slant, angle = _WIDTH * 2**scale, 4 / angles, math.pi * turn / angles
    bump = _bump(size, width, slant, angle, _FREQUENCY / 2**scale)
    flat = _bump(size, width, slant, angle, 0.0)
    return (bump - flat * bump[0, 0] / flat[0, 0]).float()


@torch.no_grad()
def scattering_features(
    images: Tensor,
    groups: int = 27,
    batch_size: int = 500,
    *,
    without: Tensor | None = None,
    progress: Progress = silent,
) -> Tensor:
    """Scattering of ``images``, each then normalised on its own in groups of channels: no statistics of the data.

    Args:
        images: Grey images (n, 1, h, w).
        groups: Of channels, each brought to mean 0 and variance 1 in every image.
        batch_size: Images at once.
        without: A public direction in the space of features, whose part of every image's features is taken off.
        progress: Told how many images are done.
    """
    transform = Scattering(shape=(images.shape[2], images.shape[3]))
    parts = []
    for some in torch.split(images.float(), batch_size):
        parts.append(nn.functional.group_norm(transform(some), groups))
        progress(sum(map(len, parts)), len(images))
    features = torch.cat(parts).flatten(1)
    if without is not None:
        along = without / without.norm()
        for some in torch.split(features, batch_size):
            some.sub_(torch.outer(some @ along, along))
    return features
