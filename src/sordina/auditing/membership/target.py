"""The rows an attack looks at, and the model under attack as attacks see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset, default_collate

from sordina.auditing.scores import FloatArray
from sordina.errors import InvalidInput, Unsupported

# The rows an attack looks at.


@dataclass(frozen=True)
class Samples:
    """``inputs`` (N, ...) with their ``labels`` (N,); a language model's samples are token ids and need no labels."""

    inputs: Tensor
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != len(self.inputs):
            raise InvalidInput(f"{len(self.inputs)} inputs but {len(self.labels)} labels.")

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: Any) -> Samples:
        """The rows at ``rows`` (indices or a mask)."""
        rows = torch.as_tensor(rows)
        return Samples(self.inputs[rows], None if self.labels is None else self.labels[rows])

    def batches(self, size: int) -> Iterator[Samples]:
        """Consecutive parts of at most ``size`` rows."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield Samples(self.inputs[part], None if self.labels is None else self.labels[part])

    def __add__(self, other: Samples) -> Samples:
        if (self.labels is None) != (other.labels is None):
            raise InvalidInput("members and non-members must both have labels, or neither.")
        labels = None if self.labels is None or other.labels is None else torch.cat([self.labels, other.labels])
        return Samples(torch.cat([self.inputs, other.inputs]), labels)


def as_samples(data: Any) -> Samples:
    """Samples from what users hold: `Samples`, ``(inputs, labels)``, a tensor of token ids, or a torch data set.

    >>> len(as_samples((torch.zeros(3, 2), torch.zeros(3))))
    3
    """
    if isinstance(data, Samples):
        return data
    if isinstance(data, Tensor):
        return Samples(data)
    if isinstance(data, TensorDataset):
        data = data.tensors
    elif isinstance(data, Dataset):
        data = default_collate([data[index] for index in range(len(data))])  # type: ignore[arg-type]
    if isinstance(data, tuple | list) and len(data) in (1, 2):
        return Samples(*(_tensor(part) for part in data))
    raise InvalidInput(f"cannot read rows from {type(data).__name__}: give (inputs, labels), token ids or a data set.")


def _tensor(part: Any) -> Tensor:
    """A tensor of arrays, lists, and pandas' frames and columns of numbers."""
    try:
        return torch.as_tensor(part.to_numpy(copy=True) if hasattr(part, "to_numpy") else part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            "rows and labels must be numbers: code labels as 0, 1, ... in the order of the model's classes, and give "
            "a function that takes prepared rows where columns hold words."
        ) from error


# The model under attack, as attacks see it: losses, confidences, and losses with noise inside.
#
# A confidence is ``log(p / (1 - p))`` of the probability p given to the truth (LiRA's logit scaling), so that
# ``loss = -log p = softplus(-confidence)``: both ways of looking are one number, exact where p rounds to 1.


class Target(Protocol):
    """What every attack may ask. All answers have one number per sample."""

    @property
    def model(self) -> nn.Module:
        """The model itself."""
        ...

    def losses(self, samples: Samples) -> FloatArray:
        """The loss of each sample; for a language model its perplexity as in 000 eq. 4.1, a mean log-likelihood."""
        ...

    def confidences(self, samples: Samples) -> FloatArray:
        """``log(p / (1 - p))`` of the truth."""
        ...

    def noisy_losses(self, samples: Samples, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Losses with ``N(0, sigma^2 I)`` added to the embedding, or to the input where there is none."""
        ...


@dataclass(frozen=True)
class Classifier:
    """A model that maps inputs to logits, one per class; a single logit is that of class 1 against class 0."""

    model: nn.Module
    embedding: str | None = None
    """Name of the submodule whose output gets the noise; None: the input itself."""
    batch_size: int = 1024

    def logits(self, samples: Samples) -> Tensor:
        """(N, classes), in double precision."""
        with evaluating(self.model):
            parts = [two_sided(self.model(batch.inputs)) for batch in samples.batches(self.batch_size)]
        return torch.cat(parts)

    def confidences(self, samples: Samples) -> FloatArray:
        """``z_y - log sum_(k != y) e^(z_k)``."""
        return _numpy(confidence(self.logits(samples), _labels(samples)))

    def losses(self, samples: Samples) -> FloatArray:
        """Cross-entropy."""
        return _numpy(functional.softplus(-confidence(self.logits(samples), _labels(samples))))

    def noisy_losses(self, samples: Samples, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Cross-entropy of noisy neighbours."""
        if self.embedding is None:
            if not samples.inputs.is_floating_point():
                raise Unsupported("noise needs real inputs: name the embedding layer whose output gets it.")
            return self.losses(Samples(samples.inputs + noise(samples.inputs, sigma, rng), samples.labels))
        with _noise_after(named(self.model, self.embedding), sigma, rng):
            return self.losses(samples)


@dataclass(frozen=True)
class Regressor:
    """A model with real targets, one or many per sample (an autoencoder's are its inputs): squared error."""

    model: nn.Module
    batch_size: int = 1024

    def losses(self, samples: Samples) -> FloatArray:
        """Mean squared error of each sample."""
        with evaluating(self.model):
            parts = [
                squared_errors(self.model(batch.inputs), _labels(batch)) for batch in samples.batches(self.batch_size)
            ]
        return _numpy(torch.cat(parts))

    def confidences(self, samples: Samples) -> FloatArray:
        """Minus the loss: there is no probability to take the logit of."""
        return -self.losses(samples)

    def noisy_losses(self, samples: Samples, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Squared error of noisy neighbours, against the sample's own target."""
        return self.losses(Samples(samples.inputs + noise(samples.inputs, sigma, rng), samples.labels))


@dataclass(frozen=True)
class LanguageModel:
    """A causal model: token ids (N, T) to logits (N, T, words), or to an output of `transformers` that has them.

    A negative id is padding on the right: the model is shown some token there, and what it says of it is left out.
    """

    model: nn.Module
    embedding: str | None = None
    """Name of the embedding; None: what the model calls its input embeddings."""
    batch_size: int = 16

    def losses(self, samples: Samples) -> FloatArray:
        """Mean negative log-likelihood of each token given those before it (000 eq. 4.1)."""
        with evaluating(self.model):
            parts = [text_losses(self.model, batch.inputs) for batch in samples.batches(self.batch_size)]
        return _numpy(torch.cat(parts))

    def confidences(self, samples: Samples) -> FloatArray:
        """Logit of the geometric mean of the tokens' probabilities."""
        losses = self.losses(samples)
        confidences: FloatArray = -np.log(np.expm1(np.maximum(losses, 1e-12)))
        return confidences

    def noisy_losses(self, samples: Samples, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Perplexity of noisy neighbours (000 eq. 4.6)."""
        layer = named(self.model, self.embedding) if self.embedding else _input_embeddings(self.model)
        with _noise_after(layer, sigma, rng):
            return self.losses(samples)


def as_target(model: Any, samples: Samples, embedding: str | None = None) -> Target:
    """The fitting target: a language model without labels, a regressor with real ones, else a classifier.

    What is no module is asked for ``predict_proba`` or ``predict``, or called (`foreign_models`).
    """
    if not isinstance(model, nn.Module):
        if all(hasattr(model, name) for name in ("losses", "confidences", "noisy_losses")):
            target: Target = model
            return target
        from sordina.auditing.membership.foreign_models import predictor_target

        real = samples.labels is not None and samples.labels.is_floating_point()
        return predictor_target(model, regression=real and not hasattr(model, "classes_"))
    if samples.labels is None:
        return LanguageModel(model, embedding)
    return Regressor(model) if samples.labels.is_floating_point() else Classifier(model, embedding)


def two_sided(logits: Tensor) -> Tensor:
    """(N, classes) in double precision, from (N, classes), (N, 1) or (N,)."""
    logits = logits.double()
    logits = logits.reshape(len(logits), -1)
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """(N,): mean squared error over everything but the rows."""
    return (outputs - targets.reshape(outputs.shape)).square().reshape(len(outputs), -1).mean(dim=1)


def confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """``z_y - log sum_(k != y) e^(z_k)``, over the last dimension.

    >>> confidence(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor([2.])
    """
    index = labels.long().unsqueeze(-1).expand(*logits.shape[:-1], 1)
    own = logits.gather(-1, index).squeeze(-1)
    return own - logits.scatter(-1, index, -torch.inf).logsumexp(-1)


def token_losses(model: nn.Module, tokens: Tensor) -> Tensor:
    """(N, T - 1): the negative log-likelihood of each token but the first; 0 at padding, which is a negative id.

    The last position is asked too and left out afterwards, which keeps the logits in one piece: half the time.
    """
    shown = tokens.clamp_min(0)
    output = model(shown)
    logits = output if isinstance(output, Tensor) else output.logits
    following = shown.roll(-1, dims=1)
    losses = functional.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none")
    return losses.view(tokens.shape)[:, :-1].masked_fill(tokens[:, 1:] < 0, 0.0)


def text_losses(model: nn.Module, tokens: Tensor) -> Tensor:
    """(N,): the mean over the tokens of each text but its first."""
    return token_losses(model, tokens).sum(dim=1) / (tokens[:, 1:] >= 0).sum(dim=1).clamp_min(1)


def named(model: nn.Module, name: str) -> nn.Module:
    """The submodule ``name``, or an error that lists the embeddings there are."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if name not in modules:
        known = [key for key, module in modules.items() if isinstance(module, nn.Embedding)]
        raise InvalidInput(f"the model has no layer {name!r}; its embeddings are {known or 'none'}.")
    return modules[name]


def _input_embeddings(model: nn.Module) -> nn.Module:
    getter = getattr(model, "get_input_embeddings", None)
    if getter is not None:
        layer: nn.Module = getter()
        return layer
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if not embeddings:
        raise Unsupported("the model has no embedding layer: name the layer whose output gets the noise.")
    return embeddings[0]


def _labels(samples: Samples) -> Tensor:
    if samples.labels is None:
        raise InvalidInput("a classifier is attacked with labelled samples: give (inputs, labels).")
    return samples.labels


def noise(like: Tensor, sigma: float, rng: np.random.Generator) -> Tensor:
    """``N(0, sigma^2 I)`` in the shape of ``like``."""
    seed = int(rng.integers(2**63 - 1))
    return sigma * torch.randn(like.shape, dtype=like.dtype, generator=torch.Generator().manual_seed(seed))


def _numpy(values: Tensor) -> FloatArray:
    return values.double().cpu().numpy()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients; the model leaves as it came."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


@contextmanager
def _noise_after(layer: nn.Module, sigma: float, rng: np.random.Generator) -> Iterator[None]:
    handle = layer.register_forward_hook(lambda _, __, output: output + noise(output, sigma, rng))
    try:
        yield
    finally:
        handle.remove()
