"""Models of the reproductions, by name; their first weights come from a seed that is an argument.

>>> model = build("mnist-cnn", seed=0)
>>> sum(parameter.numel() for parameter in model.parameters())
551322
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from sordina.errors import InvalidInput
from sordina.models import losses, metrics, networks
from sordina.models.networks import PCAInputs
from sordina.models.scattering import Scattering
from sordina.models.whitening import WhitenedInputs

__all__ = ["PCAInputs", "Scattering", "WhitenedInputs", "build", "build_for", "default", "losses", "metrics", "names"]

_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "mnist-cnn": networks.mnist_cnn,
    "small-cnn": networks.small_cnn,
    "small-cnn-ws": networks.small_cnn_ws,
    "group-norm-cnn": networks.group_norm_cnn,
    "autoencoder": networks.autoencoder,
    "femnist-cnn": networks.femnist_cnn,
    "digits-cnn": networks.digits_cnn,
    "digits-cnn-ws": networks.digits_cnn_ws,
    "mlp": networks.mlp,
    "pca-mlp": networks.pca_mlp,
    "adult-mlp": networks.adult_mlp,
    "ag-news": networks.ag_news,
    "hospital": networks.hospital,
    "logistic": networks.logistic,
    "svm": networks.svm,
    "linear": networks.linear,
}

_DEFAULTS = {
    "digits": "digits-cnn",
    "adult": "adult-mlp",
    "mnist": "mnist-cnn",
    "mnist-writers": "small-cnn",
    "fashion-mnist": "autoencoder",
    "ag-news": "ag-news",
    "hospital": "hospital",
    "femnist": "femnist-cnn",
}


def names() -> tuple[str, ...]:
    """The names `build` knows."""
    return tuple(_BUILDERS)


def default(dataset: str) -> str:
    """The name of the model that the founding documents train on ``dataset``.

    >>> default("fashion-mnist")
    'autoencoder'
    """
    if dataset not in _DEFAULTS:
        raise InvalidInput(f"no default model for the data set {dataset!r}: choose one of {', '.join(_BUILDERS)}.")
    return _DEFAULTS[dataset]


def build(name: str, *, seed: int = 0, **options: Any) -> nn.Module:
    """The model called ``name``, its weights drawn from ``seed``; torch's global generator stays as it was.

    >>> build("resnet")
    Traceback (most recent call last):
    sordina.errors.InvalidInput: unknown model 'resnet': choose one of mnist-cnn, ...
    """
    if name not in _BUILDERS:
        raise InvalidInput(f"unknown model {name!r}: choose one of {', '.join(_BUILDERS)}.")
    known = inspect.signature(_BUILDERS[name]).parameters
    for option in options:
        if option not in known:
            raise InvalidInput(f"model {name} has no option {option!r}: it takes {', '.join(known) or 'none'}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _channels_last(_BUILDERS[name](**options))


def _channels_last(model: nn.Module) -> nn.Module:
    """Weights of convolutions stored channels last, and so the images between layers: pooling is three times faster.

    On one thread a private step of `small-cnn` takes 37 % of what it took, of `mnist-cnn` 72 %.
    """
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model


class Described(Protocol):
    """What `build_for` needs to know of a data set; `sordina.datasets.Data` knows it."""

    @property
    def name(self) -> str:
        """Its name in the registry."""
        ...

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        ...

    @property
    def classes(self) -> int:
        """Number of classes, 0 if there are none."""
        ...


def build_for(data: Described, name: str | None = None, *, seed: int = 0, **options: Any) -> nn.Module:
    """The model called ``name`` (or the data set's `default`), with as many inputs and classes as ``data`` has.

    Args:
        seed: For the first weights.
    """
    name = default(data.name) if name is None else name
    sizes = {"inputs": math.prod(data.input_shape), "classes": data.classes}
    known = inspect.signature(_BUILDERS[name]).parameters if name in _BUILDERS else {}
    fitting = {size: value for size, value in sizes.items() if size in known and value}
    return build(name, seed=seed, **{**fitting, **options})
