"""Shadow models: plain training, one by one or many as one computation, on random halves of the rows."""

from __future__ import annotations

import copy
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import stack_module_state
from torch.nn import functional

from sordina import private_files
from sordina._stacked_models import mapped
from sordina.auditing.membership.target import Classifier, Samples, Target, as_target, squared_errors, text_losses
from sordina.auditing.scores import BoolArray, FloatArray
from sordina.errors import InvalidInput, Unsupported
from sordina.plan import check_whole
from sordina.progress import Progress, silent

# How a model is trained without privacy: the plain loop, and the same loop over many models as one computation.
#
# `train_together` stacks the parameters of models of one architecture and maps the forward pass over them
# (``torch.func``). The losses are summed: each depends on its own slice, so one backward pass gives every model its own
# gradient, and an elementwise optimiser on the stack is an optimiser per model. It equals the loop up to rounding.

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True)
class PlainTraining:
    """Epochs over shuffled mini-batches with an ordinary optimiser. Shadows need the target's recipe to resemble it."""

    epochs: int = 50
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimizer: str = "adam"
    weight_decay: float = 0.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs)
        check_whole("batch_size", self.batch_size)

    def build_optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        """The optimiser over ``parameters``; elementwise, so it may run on stacked models."""
        if self.optimizer not in _OPTIMIZERS:
            raise InvalidInput(f"no optimiser is called {self.optimizer!r}. Choose one of {', '.join(_OPTIMIZERS)}.")
        extra: dict[str, Any] = {"momentum": self.momentum} if self.optimizer == "sgd" else {}
        build = _OPTIMIZERS[self.optimizer]
        return build(list(parameters), lr=self.learning_rate, weight_decay=self.weight_decay, **extra)

    def batches(self, rows: int, rng: np.random.Generator) -> Iterator[Tensor]:
        """Row numbers of every mini-batch of every epoch."""
        for _ in range(self.epochs):
            yield from torch.split(torch.from_numpy(rng.permutation(rows)), self.batch_size)

    def steps(self, rows: int) -> int:
        """Number of mini-batches in all."""
        return self.epochs * -(-rows // self.batch_size)


def sample_losses(model: nn.Module, samples: Samples) -> Tensor:
    """The training loss of each sample: the mean over tokens for a language model, else `output_losses`."""
    if samples.labels is None:
        return text_losses(model, samples.inputs)
    return output_losses(model(samples.inputs), samples.labels)


def output_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Squared error where labels are real; else cross-entropy of logits (N, classes), or of a single logit (N, 1)."""
    if labels.is_floating_point():
        return squared_errors(outputs, labels)
    if outputs.dim() == 1 or outputs.shape[-1] == 1:
        flat = outputs.reshape(len(labels))
        return functional.binary_cross_entropy_with_logits(flat, labels.to(flat.dtype), reduction="none")
    return functional.cross_entropy(outputs, labels.long(), reduction="none")


def streams(count: int, rng: np.random.Generator) -> list[np.random.Generator]:
    """A generator of its own for each of ``count`` trainings, so that one after the other equals all together."""
    return [np.random.default_rng(int(seed)) for seed in rng.integers(2**63 - 1, size=count)]


def fresh(model: nn.Module, seed: int) -> nn.Module:
    """A copy of ``model`` with new initial weights."""
    clone = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialise = getattr(clone, "_init_weights", None)
        for module in clone.modules():
            if initialise is not None:
                initialise(module)
                continue
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
            elif list(module.parameters(recurse=False)):
                raise Unsupported(f"{type(module).__name__} has no reset_parameters: build the shadow models yourself.")
    return clone


def train(model: nn.Module, samples: Samples, recipe: PlainTraining, rng: np.random.Generator) -> nn.Module:
    """Train ``model`` in place, without privacy."""
    model.train()
    optimizer = recipe.build_optimizer(list(model.parameters()))
    for rows in recipe.batches(len(samples), rng):
        optimizer.zero_grad()
        torch.autograd.backward(sample_losses(model, samples.take(rows)).mean())
        optimizer.step()
    return model.eval()


def train_loop(
    models: Sequence[nn.Module],
    parts: Sequence[Samples],
    recipe: PlainTraining,
    rngs: Sequence[np.random.Generator],
    progress: Progress = silent,
) -> list[nn.Module]:
    """Train ``models[i]`` on ``parts[i]``, one after the other."""
    trained = []
    for index, (model, part, rng) in enumerate(zip(models, parts, rngs, strict=True)):
        trained.append(train(model, part, recipe, rng))
        progress(index + 1, len(models))
    return trained


def train_together(
    models: Sequence[nn.Module],
    parts: Sequence[Samples],
    recipe: PlainTraining,
    rngs: Sequence[np.random.Generator],
    progress: Progress = silent,
) -> list[nn.Module]:
    """Train ``models[i]`` on ``parts[i]``, all at once; one architecture, parts of one size, labelled samples."""
    rows = len(parts[0])
    if any(len(part) != rows or part.labels is None for part in parts):
        raise Unsupported("models train together on labelled parts of one size; use train_loop for others.")
    inputs = torch.stack([part.inputs for part in parts])
    labels = torch.stack([part.labels for part in parts if part.labels is not None])
    parameters, buffers = stack_module_state(list(models))
    skeleton = copy.deepcopy(models[0]).to("meta").train()
    optimizer = recipe.build_optimizer(list(parameters.values()))
    which = torch.arange(len(models)).unsqueeze(1)
    streams = zip(*(recipe.batches(rows, rng) for rng in rngs), strict=True)
    for done, batch in enumerate(streams, start=1):
        index = torch.stack(batch)
        optimizer.zero_grad()
        logits = mapped(skeleton, parameters, buffers, inputs[which, index])
        losses = output_losses(logits.flatten(0, 1), labels[which, index].flatten(0, 1))
        torch.autograd.backward(losses.sum() / index.shape[1])
        optimizer.step()
        progress(done, recipe.steps(rows))
    for position, model in enumerate(models):
        model.load_state_dict({name: value[position].detach() for name, value in (parameters | buffers).items()})
        model.eval()
    return list(models)


# Shadow models: trained like the target on random halves of the rows, so that each row is in some and not in others.
#
# Column j of every array belongs to row j of the samples that the shadows were made for, and an attack is asked about
# those same samples in the same order.


@dataclass(frozen=True)
class Shadows:
    """What ``m`` shadow models say of N samples, and on which of these each was trained."""

    inside: BoolArray
    """(m, N): whether shadow i was trained on sample j."""
    losses: FloatArray
    """(m, N)."""
    confidences: FloatArray
    """(m, N)."""
    logits: tuple[Tensor, ...] = ()
    """Per shadow (N, classes), for classifiers."""
    queries: FloatArray | None = None
    """(Q, m, N): confidences on the augmented copies of `augmented`, where inputs are real."""

    def __len__(self) -> int:
        return len(self.inside)

    def check(self, samples: Samples) -> None:
        """Refuse samples that these shadows were not asked about."""
        if self.inside.shape[1] != len(samples):
            raise InvalidInput(f"the shadows know {self.inside.shape[1]} samples, but {len(samples)} are attacked.")

    def take(self, columns: BoolArray) -> Shadows:
        """The same shadows on some of the samples."""
        logits = tuple(part[columns] for part in self.logits)
        queries = None if self.queries is None else self.queries[:, :, columns]
        return Shadows(self.inside[:, columns], self.losses[:, columns], self.confidences[:, columns], logits, queries)

    def first(self, count: int) -> Shadows:
        """The first ``count`` of them."""
        queries = None if self.queries is None else self.queries[:, :count]
        return Shadows(self.inside[:count], self.losses[:count], self.confidences[:count], self.logits[:count], queries)

    def save(self, path: Path) -> None:
        """Keep the answers in an .npz file.

        Args:
            path: The file.
        """
        arrays: dict[str, Any] = {"inside": self.inside, "losses": self.losses, "confidences": self.confidences}
        if self.logits:
            arrays["logits"] = torch.stack(self.logits).numpy()
        if self.queries is not None:
            arrays["queries"] = self.queries
        held = io.BytesIO()
        np.savez_compressed(held, **arrays)
        private_files.make_folder(path.parent)
        private_files.write(path, held.getvalue())

    @staticmethod
    def load(path: Path) -> Shadows:
        """Read what `save` kept.

        Args:
            path: The file.
        """
        try:
            with np.load(io.BytesIO(private_files.read(path)), allow_pickle=False) as kept:
                logits = tuple(torch.from_numpy(kept["logits"])) if "logits" in kept else ()
                answers = dict(kept)
                queries = answers.get("queries")
                return Shadows(kept["inside"], kept["losses"], kept["confidences"], logits, queries)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InvalidInput(f"{path} does not hold the answers of shadow models: remove it.") from error


def augmented(samples: Samples) -> list[Samples]:
    """The sample and four copies that mean the same: images moved by a pixel, else rows with a little noise.

    The noise is the same at every call: target and shadow models must be asked the same.
    """
    inputs = samples.inputs
    if inputs.dim() >= 3:
        moved = [torch.roll(inputs, step, dims=axis) for axis in (-1, -2) for step in (1, -1)]
    else:
        scale = 0.05 * inputs.std(dim=0, keepdim=True)
        generator = torch.Generator().manual_seed(0)
        moved = [inputs + scale * torch.randn(inputs.shape, dtype=inputs.dtype, generator=generator) for _ in range(4)]
    return [samples, *(Samples(copy, samples.labels) for copy in moved)]


def ask_augmented(targets: Sequence[Target], samples: Samples) -> FloatArray | None:
    """(Q, m, N): confidences of ``targets`` on `augmented` copies; None where inputs are not real."""
    if samples.labels is None or not samples.inputs.is_floating_point():
        return None
    return np.stack([np.stack([target.confidences(part) for target in targets]) for part in augmented(samples)])


def draw_halves(count: int, rows: int, rng: np.random.Generator) -> BoolArray:
    """(count, rows) memberships: each shadow gets half the rows, each row is in half the shadows (up to one).

    Shadows come in pairs of complementary halves, so no row is left without an "in" or an "out" model.
    """
    if count < 2:
        raise InvalidInput(f"at least two shadow models are needed, got {count}.")
    inside = np.zeros((count, rows), dtype=bool)
    for index in range(count):
        if index % 2 and rows % 2 == 0:
            inside[index] = ~inside[index - 1]
        else:
            inside[index, rng.permutation(rows)[: rows // 2]] = True
    return inside


def make_shadows(
    build: Callable[[int], nn.Module],
    samples: Samples,
    recipe: PlainTraining,
    rng: np.random.Generator,
    *,
    count: int = 16,
    together: bool = True,
    progress: Progress = silent,
) -> Shadows:
    """Train ``count`` shadow models on random halves of ``samples`` and ask them about all of it.

    ``build(i)`` gives model i with its own initial weights. ``together``: as one batched computation.
    """
    inside = draw_halves(count, len(samples), rng)
    models = [build(index) for index in range(count)]
    parts = [samples.take(row) for row in inside]
    fit = train_together if together and samples.labels is not None else train_loop
    return ask(fit(models, parts, recipe, streams(count, rng), progress), samples, inside)


def ask(models: Sequence[nn.Module], samples: Samples, inside: BoolArray) -> Shadows:
    """The answers of trained shadow models on ``samples``."""
    targets: list[Target] = [as_target(model, samples) for model in models]
    return Shadows(
        inside=inside,
        losses=np.stack([target.losses(samples) for target in targets]),
        confidences=np.stack([target.confidences(samples) for target in targets]),
        logits=tuple(target.logits(samples) for target in targets if isinstance(target, Classifier)),
        queries=ask_augmented(targets, samples),
    )
