"""Convolutional networks of the thesis and of the private-training literature.

The thesis prints architectures that do not give its parameter counts; errata 13 says which reading does, and the tests
hold every network to its count.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import nn

from sordina.errors import InvalidInput

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def activation_named(name: str) -> Callable[[], nn.Module]:
    """The activation's class, or a refusal that lists the names."""
    if name not in ACTIVATIONS:
        raise InvalidInput(f"unknown activation {name!r}: choose one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def mnist_cnn(*, activation: str = "relu", classes: int = 10) -> nn.Sequential:
    """000 table 3.5, 551 322 parameters: the first convolution needs padding 3 (errata 13)."""
    act = activation_named(activation)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, padding=3),
        act(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4),
        act(),
        nn.Flatten(),
        nn.Linear(32 * 23 * 23, 32),
        act(),
        nn.Linear(32, classes),
    )


def small_cnn(*, activation: str = "tanh", classes: int = 10) -> nn.Sequential:
    """26 010 parameters with strides of 2: the network on which private MNIST is usually compared.

    Papernot et al. 2021 found bounded activations to suit clipped gradients; Tramer and Boneh 2021 use this network.
    """
    act = activation_named(activation)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        act(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        act(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        act(),
        nn.Linear(32, classes),
    )


def autoencoder() -> nn.Sequential:
    """000 table 3.6, 48 705 parameters: 28 x 28 down to 64 x 20 x 20 and back, no padding."""
    widths = (1, 8, 16, 32, 64)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3), nn.LeakyReLU()]
    for before, after in pairwise(reversed(widths)):
        layers += [nn.ConvTranspose2d(before, after, 3), nn.LeakyReLU()]
    layers[-1] = nn.Sigmoid()
    return nn.Sequential(*layers)


def femnist_cnn(*, activation: str = "relu", classes: int = 62) -> nn.Sequential:
    """000 table 2.5, 1 206 590 parameters with 62 classes: kernels of 3 x 3, not 2 x 2 (errata 13)."""
    act = activation_named(activation)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        act(),
        nn.Conv2d(32, 64, 3),
        act(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        act(),
        nn.Linear(128, classes),
    )


def digits_cnn(*, activation: str = "tanh", classes: int = 10) -> nn.Sequential:
    """A small network for 8 x 8 images, 6 090 parameters."""
    act = activation_named(activation)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        act(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        act(),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, classes),
    )
