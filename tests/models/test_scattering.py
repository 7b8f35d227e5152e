"""Scattering: known values, translation, energy, and no statistics of other images."""

from __future__ import annotations

import pytest
import torch

from sordina.errors import InvalidInput
from sordina.models.scattering import Scattering, gaussian, morlet, scattering_features


def images(count: int = 3, side: int = 28) -> torch.Tensor:
    return torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(0))


def test_there_are_81_channels_of_7_by_7():
    transform = Scattering()
    assert transform(images()).shape == (3, transform.channels, 7, 7) == (3, 81, 7, 7)
    assert Scattering(1, 4)(images()).shape == (3, 5, 14, 14)


def test_a_constant_image_has_a_mean_and_nothing_else():
    found = Scattering()(torch.full((1, 1, 28, 28), 0.7))
    assert torch.allclose(found[:, 0], torch.tensor(0.7), atol=1e-5)
    assert found[:, 1:].abs().max() < 1e-5


def test_a_translated_image_has_translated_features():
    """By 2^J pixels: all features move by one place (away from the padding)."""
    image = torch.zeros(1, 1, 64, 64)
    image[:, :, 24:40, 24:40] = images(1, 16)
    transform = Scattering(shape=(64, 64))
    here, there = transform(image), transform(image.roll((4, 8), (2, 3)))
    assert torch.allclose(here.roll((1, 2), (2, 3))[..., 4:-4, 4:-4], there[..., 4:-4, 4:-4], atol=1e-5)


def test_small_deformations_change_features_less_than_pixels():
    image = torch.zeros(1, 1, 28, 28)
    image[:, :, 8:20, 12:15] = 1
    transform = Scattering()
    moved = image.roll(1, 3)
    features = (transform(moved) - transform(image)).norm() / transform(image).norm()
    assert features < 0.6 * (moved - image).norm() / image.norm()


def test_filters_do_not_add_energy():
    """Littlewood-Paley: ``|phi|^2 + half the wavelets' both ways`` stays near one or below at every frequency."""
    size = (36, 36)
    total = gaussian(size, 1.6).square()
    for scale in range(2):
        for turn in range(8):
            one = morlet(size, scale, turn, 8).square()
            total = total + 0.5 * (one + one.flip(0, 1).roll((1, 1), (0, 1)))
    assert total.min() > 0.05
    assert total.max() < 2.5
    assert morlet(size, 1, 3, 8)[0, 0].abs() < 1e-6


def test_a_coefficient_is_its_formula():
    """One of the second order, by plain convolutions at full resolution, sampled at the end."""
    transform, image = Scattering(), images(1)
    padded = torch.nn.functional.pad(image, [4] * 4, mode="reflect")[0, 0]
    size = tuple(padded.shape)

    def through(values, spectrum):
        return torch.fft.ifft2(torch.fft.fft2(values) * spectrum)

    first = through(padded, morlet(size, 0, 2, 8)).abs()
    second = through(first, morlet(size, 1, 5, 8)).abs()
    smooth = through(second, gaussian(size, 1.6)).real[::4, ::4][1:-1, 1:-1]
    found = transform(image)[0, 1 + 16 + 2 * 8 + 5]
    assert torch.allclose(found, smooth, atol=0.05 * float(smooth.abs().max()))


def test_features_of_an_image_do_not_depend_on_the_others():
    some = images(4)
    assert torch.allclose(scattering_features(some)[1:2], scattering_features(some[1:2]), atol=1e-5)


def test_wrong_sides_are_refused():
    with pytest.raises(InvalidInput, match="multiples of 4"):
        Scattering(shape=(30, 30))
    with pytest.raises(InvalidInput, match="made for images"):
        Scattering()(torch.zeros(1, 3, 28, 28))


def test_a_public_direction_is_taken_off_every_image_on_its_own():
    images = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    plain = scattering_features(images)
    direction = torch.randn(plain.shape[1], generator=torch.Generator().manual_seed(1))
    off = scattering_features(images, without=direction, batch_size=4)
    assert float((off @ direction).abs().max()) < 1e-2
    along = direction / direction.norm()
    torch.testing.assert_close(off + torch.outer(plain @ along, along), plain)
    torch.testing.assert_close(scattering_features(images[:1], without=direction), off[:1])
