"""One loss per text, from the outputs of a `transformers` model.

The models' own losses average over all tokens of a batch, so the weight of a text would depend on the lengths of the
others. Here the loss of a text is the mean over *its* tokens, or their sum over a public length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordina.errors import InvalidInput, SordinaError, Unsupported

IGNORED = -100
"""The label that `transformers` gives to padding and to tokens that are not predicted."""


@dataclass(frozen=True)
class TextLoss:
    """From a model's output and its labels to one loss per text.

    Args:
        shift: Whether the output at a token predicts the next one (causal language models).
        public_length: Divide the sum over a text's tokens by this public number, instead of by its own count.
        problem: "regression", "multi_label_classification" or None, as in a model's config.
        smoothing: The share of every label that is spread over all classes.

    >>> outputs = {"logits": torch.zeros(2, 3, 4)}
    >>> TextLoss(shift=False)(outputs, torch.tensor([[1, 2, -100], [0, -100, -100]]))
    tensor([1.3863, 1.3863])
    """

    shift: bool = False
    public_length: int | None = None
    problem: str | None = None
    smoothing: float = 0.0

    def __call__(self, outputs: Any, labels: Tensor) -> Tensor:
        """The losses.

        Args:
            outputs: What the model returned.
            labels: Of every text, or of every token.
        """
        logits: Tensor = outputs["logits"]
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        if logits.dim() == 2:
            return self._of_texts(logits, labels)
        if logits.dim() != 3 or labels.dim() != 2:
            raise Unsupported(
                f"outputs of {logits.dim()} and labels of {labels.dim()} dimensions have no loss here: give "
                "loss=, a function of the model's output and the batch that returns one value per text."
            )
        logits = logits[:, logits.shape[1] - labels.shape[1] :]  # a prompt of an adapter's own comes before the text
        if self.shift:
            logits, labels = logits[:, :-1], labels[:, 1:]
        each = F.cross_entropy(
            logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED, label_smoothing=self.smoothing
        )
        if self.public_length is not None:
            return each.sum(1) / self.public_length
        return each.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)

    def _of_texts(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.problem == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none").mean(1)
        if self.problem == "regression" or logits.shape[1] == 1:
            return F.mse_loss(logits, labels.to(logits).view(logits.shape), reduction="none").mean(1)
        return F.cross_entropy(logits, labels.view(-1), reduction="none", label_smoothing=self.smoothing)


def base_of(model: nn.Module) -> nn.Module:
    """The `transformers` model inside an adapter of `peft`, or ``model`` itself.

    Args:
        model: What is trained.
    """
    inner = getattr(model, "get_base_model", None)
    return inner() if callable(inner) else model


def loss_for(model: nn.Module, public_length: int | None, smoothing: float) -> TextLoss:
    """The loss that goes with ``model``.

    Args:
        model: What is trained.
        public_length: As in `TextLoss`.
        smoothing: As in `TextLoss`.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    base = base_of(model)
    if public_length is not None and (isinstance(public_length, bool) or public_length < 1):
        raise InvalidInput(f"public_length is a number of tokens, at least 1, got {public_length!r}.")
    names = {each for name in CAUSAL.values() for each in ([name] if isinstance(name, str) else name)}
    config = getattr(base, "config", None)
    return TextLoss(type(base).__name__ in names, public_length, getattr(config, "problem_type", None), smoothing)


def losses_of_batch(model: nn.Module, batch: dict[str, Any], loss: Any) -> Tensor:
    """One loss per text of ``batch``: the model is called without the labels, or it would average over the batch.

    Args:
        model: What is trained.
        batch: What the collator made, with "labels".
        loss: A `TextLoss`, or the user's function of the output and the batch.
    """
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    base: Any = base_of(model)
    labels = batch.get("labels")
    if labels is not None and "decoder_input_ids" not in inputs and getattr(base.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = base.prepare_decoder_input_ids_from_labels(labels=labels)
    outputs = model(**inputs)
    if not isinstance(loss, TextLoss):
        return _of_texts(loss(outputs, batch), batch)
    if labels is None:
        raise InvalidInput(
            "the batches have no labels: give items with 'labels', or a collator that adds them, such as "
            "DataCollatorForLanguageModeling."
        )
    return _of_texts(loss(outputs, labels), batch)


def _of_texts(losses: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """The losses, zero where every token is masked: attention over nothing may be over all, also over the padding."""
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.dim() != 2 or losses.shape != mask.shape[:1]:
        return losses
    return torch.where(mask.ne(0).any(1), losses, 0.0)


def first_losses(model: nn.Module, batch: dict[str, Any], loss: Any) -> Tensor:
    """As `losses_of_batch`, of made-up texts: an error of the user's ``loss`` may be quoted, and is.

    Args:
        model: What is trained.
        batch: Made up.
        loss: A `TextLoss`, or the user's function of the output and the batch.
    """
    try:
        return losses_of_batch(model, batch, loss)
    except SordinaError:
        raise
    except Exception as error:
        if isinstance(loss, TextLoss):
            raise
        raise InvalidInput(
            f"loss= cannot be computed: {' '.join(str(error).split())}. It is called with the model's output and the "
            "batch, and gives one loss per text."
        ) from error


def to_device(batch: Any, device: torch.device) -> dict[str, Any]:
    """``batch`` as a plain dictionary, its tensors on ``device``.

    Args:
        batch: What a collator made.
        device: Where the model is.
    """
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in dict(batch).items()}
