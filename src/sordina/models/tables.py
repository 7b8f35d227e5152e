"""Networks for vectors: tables, averaged or concatenated words, flattened images, and the linear models."""

from __future__ import annotations

from torch import nn

from sordina.models.images import activation_named


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
