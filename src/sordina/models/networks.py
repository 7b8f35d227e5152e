"""Networks of the thesis and of the private-training literature: for images, for vectors, and linear models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput
from sordina.privacy import check_positive

# Convolutional networks of the thesis and of the private-training literature.
#
# The thesis prints architectures that do not give its parameter counts; errata 13 says which reading does, and the
# tests hold every network to its count.

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def activation_named(name: str) -> Callable[[], nn.Module]:
    """The activation's class, or a refusal that lists the names."""
    if name not in ACTIVATIONS:
        raise InvalidInput(f"unknown activation {name!r}: choose one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


class PCAInputs(nn.Linear):
    """A first layer of principal components of the training rows, which a private run finds and pays for at its start.

    Until then it passes the first ``components`` inputs on. What it holds afterwards was released, is part of the saved
    model and is not trained (`sordina.training.components`).

    Args:
        inputs: Numbers in a row, flattened.
        components: How many of them stay.
        row_norm: Public bound on the norm of a row: longer ones count as shortened; None takes ``sqrt(inputs) / 3``.
        noise_multiplier: Of the release; None gives it a tenth of the budget (searches need a number).
    """

    share = 0.1
    """Of the budget's 1 / nu^2, for who states no noise."""
    released: Tensor

    def __init__(
        self, inputs: int, components: int, *, row_norm: float | None = None, noise_multiplier: float | None = None
    ) -> None:
        if not 1 <= components <= inputs:
            raise InvalidInput(f"of {inputs} inputs there are 1 to {inputs} components, got {components}.")
        super().__init__(inputs, components, bias=False)
        nn.init.eye_(self.weight)
        self.weight.requires_grad_(False)
        self.row_norm = check_positive("row_norm", inputs**0.5 / 3 if row_norm is None else row_norm)
        self.noise_multiplier = noise_multiplier
        if noise_multiplier is not None:
            check_positive("noise_multiplier", noise_multiplier)
        self.register_buffer("released", torch.tensor(False))

    def forward(self, rows: Tensor) -> Tensor:
        """Rows, flattened, along the components."""
        return super().forward(rows.flatten(1))

    def seen(self, rows: Tensor) -> Tensor:
        """Of flat ``rows``, that whose second moment is wanted; shortened to ``row_norm`` by who computes it."""
        return rows.double()

    def fill(self, moment: Tensor, noise: float) -> None:
        """Keep the eigenvectors of a released second ``moment``; how much ``noise`` is on it does not matter."""
        self.weight.copy_(torch.linalg.eigh(moment).eigenvectors[:, -self.out_features :].flip(1).T)


def pca_mlp(
    *,
    inputs: int = 784,
    classes: int = 10,
    components: int = 60,
    hidden: int = 200,
    noise_multiplier: float | None = None,
) -> nn.Sequential:
    """Abadi et al. 2016: components of the inputs, found privately, and a network of one hidden layer on them."""
    components = min(components, inputs)
    return nn.Sequential(
        PCAInputs(inputs, components, noise_multiplier=noise_multiplier),
        nn.Linear(components, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


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


class Centred(nn.Module):
    """Pixels from 0 to 1 as numbers from -1 to 1: a public step, which leaves the first layer better conditioned."""

    def forward(self, images: Tensor) -> Tensor:
        """Every pixel on its own."""
        return 2 * images - 1


def small_cnn(*, activation: str = "tanh", classes: int = 10, centred: bool = False) -> nn.Sequential:
    """26 010 parameters with strides of 2: the network on which private MNIST is usually compared.

    Papernot et al. 2021 found bounded activations to suit clipped gradients; Tramer and Boneh 2021 use this network.

    Args:
        activation: Its name.
        classes: How many.
        centred: Take pixels from 0 to 1 as from -1 to 1.
    """
    act = activation_named(activation)
    return nn.Sequential(
        *([Centred()] if centred else []),
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


def group_norm_cnn(*, activation: str = "relu", classes: int = 10, centred: bool = False) -> nn.Sequential:
    """19 338 parameters: three convolutions of 3 x 3 with strides of 2, each with a group norm, and a linear layer.

    Fewer weights than `small_cnn` take less noise, and group norms keep what noise does to the scale of one layer from
    the next.

    Args:
        activation: Its name.
        classes: How many.
        centred: Take pixels from 0 to 1 as from -1 to 1.
    """
    act = activation_named(activation)
    layers: list[nn.Module] = [Centred()] if centred else []
    for before, after in pairwise((1, 16, 32, 32)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(4, after), act()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4 * 4, classes))


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


# Weight standardisation (Qiao et al. 2019) with group norm, as De et al. (2022) train privately: the weights that reach
# an output of a convolution have mean zero and variance 1 / fan-in, whatever noise has done to their scale.

_TINY = 1e-6


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose weights are standardised, output channel by output channel, before they are used."""

    def forward(self, input: Tensor) -> Tensor:
        """Convolve with the standardised weights."""
        flat = self.weight.flatten(1)
        centred = flat - flat.mean(1, keepdim=True)
        weight = (centred / (centred.norm(dim=1, keepdim=True) + _TINY)).view_as(self.weight)
        return nn.functional.conv2d(input, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def small_cnn_ws(*, activation: str = "tanh", classes: int = 10) -> nn.Sequential:
    """`small_cnn` with standardised weights and group norm, 26 106 parameters; a step takes some four times as long."""
    act = activation_named(activation)
    return nn.Sequential(
        StandardisedConv2d(1, 16, 8, stride=2, padding=3),
        nn.GroupNorm(4, 16),
        act(),
        nn.MaxPool2d(2, stride=1),
        StandardisedConv2d(16, 32, 4, stride=2),
        nn.GroupNorm(4, 32),
        act(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        act(),
        nn.Linear(32, classes),
    )


def digits_cnn_ws(*, activation: str = "tanh", classes: int = 10) -> nn.Sequential:
    """`digits_cnn` with standardised weights and group norm, 6 186 parameters."""
    act = activation_named(activation)
    return nn.Sequential(
        StandardisedConv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        act(),
        nn.MaxPool2d(2),
        StandardisedConv2d(16, 32, 3),
        nn.GroupNorm(4, 32),
        act(),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, classes),
    )


# Networks for vectors: tables, averaged or concatenated words, flattened images, and the linear models.


def mlp(*, inputs: int = 64, hidden: int = 32, classes: int = 10, activation: str = "relu") -> nn.Sequential:
    """One hidden layer; images are flattened first."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), activation_named(activation)(), nn.Linear(hidden, classes)
    )


def adult_mlp(*, inputs: int = 131, hidden: int = 64, dropout: float = 0.0, activation: str = "relu") -> nn.Sequential:
    """003 section VI-B: two dense layers, ReLU and dropout between them, cross-entropy over two classes.

    003 prints neither the width nor the dropout rate. Noise already regularises private training, so dropout is 0
    unless asked for.
    """
    return nn.Sequential(
        nn.Linear(inputs, hidden), activation_named(activation)(), nn.Dropout(dropout), nn.Linear(hidden, 2)
    )


def ag_news(*, inputs: int = 1500, classes: int = 4) -> nn.Sequential:
    """000 table 3.7: 113 156 parameters for 15 words x GloVe-50 = 750 inputs (errata 13), 209 156 for GloVe-100.

    The table lists a LeakyReLU after the last layer too. Scores of a softmax need none, so there is none here.
    """
    return nn.Sequential(
        nn.Linear(inputs, 128), nn.LeakyReLU(), nn.Linear(128, 128), nn.LeakyReLU(), nn.Linear(128, classes)
    )


def hospital() -> nn.Sequential:
    """000 section 2.5.1: 3 inputs, 2 hidden units, 1 output, 11 parameters (errata 13)."""
    return nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))


def logistic(*, inputs: int = 131, classes: int = 2) -> nn.Linear:
    """Logistic regression, with one row of weights per class; starts at zero, as the problem is convex (003 VI-C)."""
    return _zero(nn.Linear(inputs, classes))


def svm(*, inputs: int = 131) -> nn.Linear:
    """A linear support vector machine: one score, trained with `losses.hinge`; starts at zero."""
    return _zero(nn.Linear(inputs, 1))


def linear(*, inputs: int = 2, bias: bool = False) -> nn.Linear:
    """Linear regression ``x . theta``: the hypotheses of 000 eq. 2.26-2.27, drawn from N(0, I)."""
    model = nn.Linear(inputs, 1, bias=bias)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def _zero(model: nn.Linear) -> nn.Linear:
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model
