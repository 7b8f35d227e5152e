"""Attacks on fine-tuned language models: what the model and its public base say of every token of a text.

The adversary has the fine-tuned model f and, as everybody, the base model it started from. One forward pass of each
gives all that the attacks below need; they differ in how they read it. Token ids are (N, T); a negative id is padding,
on the right, and counts for nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from sordina.auditing.membership.target import Samples, Target, evaluating
from sordina.auditing.scores import BoolArray, FloatArray
from sordina.errors import InvalidInput

SHARE = 0.2
"""Min-K% looks at this share of the least likely tokens (Shi et al. 2024)."""
WIDTHS = (1, 2, 3, 4, 6, 9, 13, 18, 25, 32, 40)
"""Window widths in tokens, about geometrically spaced (Chen et al. 2026)."""


@dataclass(frozen=True)
class TokenAnswers:
    """What one model says of each token but the first, given those before it: arrays (N, T - 1)."""

    log_probabilities: FloatArray
    """log p of the token that stands there; 0 at padding."""
    expected: FloatArray
    """The mean of log p over the vocabulary, under p."""
    deviations: FloatArray
    """Its standard deviation."""
    right: BoolArray
    """Whether the token is the one the model finds most likely."""
    real: BoolArray
    """Whether there is a token: not padding."""

    @property
    def losses(self) -> FloatArray:
        """(N,): mean negative log-likelihood of each text's tokens."""
        return -_mean(self.log_probabilities, self.real)


def ask_tokens(model: nn.Module, samples: Samples, batch_size: int = 16) -> TokenAnswers:
    """One forward pass over every text.

    Args:
        model: A causal model that gives logits (N, T, words), or an output of `transformers` that has them.
        samples: Token ids; negative ones are padding.
        batch_size: Texts in one forward pass.
    """
    with evaluating(model):
        parts = [_ask(model, batch.inputs) for batch in samples.batches(batch_size)]
    columns = [torch.cat(column).numpy() for column in zip(*parts, strict=True)]
    return TokenAnswers(*columns)


def _ask(model: nn.Module, tokens: Tensor) -> tuple[Tensor, ...]:
    output = model(tokens.clamp_min(0))
    logits = (output if isinstance(output, Tensor) else output.logits)[:, :-1]
    following = tokens[:, 1:]
    real = following >= 0
    log_p = logits.double().log_softmax(dim=-1)
    p = log_p.exp()
    expected = (p * log_p).sum(-1)
    variance = (p * log_p.square()).sum(-1) - expected.square()
    own = log_p.gather(-1, following.clamp_min(0).unsqueeze(-1)).squeeze(-1).masked_fill(~real, 0.0)
    right = logits.argmax(dim=-1) == following
    return own, expected, variance.clamp_min(1e-12).sqrt(), right & real, real


@dataclass
class TokenView:
    """A model's answers, asked once for the rows that several attacks look at.

    Args:
        model: The model that is asked.
        batch_size: Texts in one forward pass.
    """

    model: nn.Module
    batch_size: int = 16
    _last: tuple[Tensor, TokenAnswers] | None = field(default=None, repr=False)

    def of(self, samples: Samples) -> TokenAnswers:
        """The answers on ``samples``."""
        if self._last is None or self._last[0] is not samples.inputs:
            self._last = (samples.inputs, ask_tokens(self.model, samples, self.batch_size))
        return self._last[1]


TextScore = Callable[[TokenAnswers, TokenAnswers], FloatArray]


@dataclass(frozen=True)
class TextAttack:
    """An attack that reads the answers of the fine-tuned model, and of the base where it needs them.

    Args:
        name: How results call it.
        score: From both models' answers to a score per text.
        view: The fine-tuned model's answers.
        base: The base model's; None for attacks that do without.
    """

    name: str
    score: TextScore
    view: TokenView
    base: TokenView | None = None

    @property
    def cost(self) -> str:
        """What it takes."""
        return "1 forward pass" if self.base is None else "2 forward passes"

    @property
    def knows(self) -> str:
        """What the attacker has."""
        return "the model and the text" if self.base is None else "the model, the base it started from and the text"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """The higher, the more the text looks like a member."""
        if target.model is not self.view.model:
            raise InvalidInput(f"the attack {self.name} was made for another model.")
        own = self.view.of(samples)
        return self.score(own, own if self.base is None else self.base.of(samples))


def loss_score(f: TokenAnswers, _: TokenAnswers) -> FloatArray:
    """``-loss(f)``."""
    return -f.losses


def reference_score(f: TokenAnswers, base: TokenAnswers) -> FloatArray:
    """``loss(base) - loss(f)``: what the text gained by the fine-tuning."""
    return base.losses - f.losses


def min_k_score(f: TokenAnswers, _: TokenAnswers) -> FloatArray:
    """Min-K% (Shi et al. 2024): the mean log p of the `SHARE` least likely tokens."""
    return _lowest(f.log_probabilities, f.real)


def min_k_plus_score(f: TokenAnswers, _: TokenAnswers) -> FloatArray:
    """Min-K%++ (Zhang et al. 2025): the same, standardised per position by the mean and deviation of log p."""
    return _lowest((f.log_probabilities - f.expected) / f.deviations, f.real)


def window_score(f: TokenAnswers, base: TokenAnswers) -> FloatArray:
    """Window comparison (Chen et al. 2026): the share of windows in which f's mean loss is below the base's.

    The share is taken for each of `WIDTHS` that fits into the text, and averaged over the widths. Memorisation sits in
    few places; a vote of windows is not drowned by large losses elsewhere, as a mean is.
    """
    gains = np.where(f.real, f.log_probabilities - base.log_probabilities, 0.0)
    sums = np.concatenate([np.zeros((len(gains), 1)), gains.cumsum(axis=1)], axis=1)
    lengths = f.real.sum(axis=1)
    votes, widths = np.zeros(len(gains)), np.zeros(len(gains))
    for width in WIDTHS:
        if width > gains.shape[1]:
            break
        above = sums[:, width:] - sums[:, :-width] > 0
        inside = np.arange(above.shape[1])[None, :] + width <= lengths[:, None]
        count = inside.sum(axis=1)
        votes += np.where(count > 0, (above & inside).sum(axis=1) / np.maximum(count, 1), 0.0)
        widths += count > 0
    scores: FloatArray = votes / np.maximum(widths, 1)
    return scores


def error_zone_score(f: TokenAnswers, base: TokenAnswers) -> FloatArray:
    """Error zone (Ilic et al. 2026): where f's top token is wrong, rises over falls of log p of the truth.

    There the fine-tuning could not yet win, but what it saw it lifts; the score is the logarithm of the sum of rises
    over the sum of falls against the base.
    """
    zone = f.real & ~f.right
    change = np.where(zone, f.log_probabilities - base.log_probabilities, 0.0)
    rises, falls = np.maximum(change, 0).sum(axis=1), np.maximum(-change, 0).sum(axis=1)
    scores: FloatArray = np.log(rises + 1e-6) - np.log(falls + 1e-6)
    return scores


@dataclass(frozen=True)
class Zlib:
    """The loss over the text's compressed length (Carlini et al. 2021): a text that is easy for zlib is no memory.

    Args:
        view: The fine-tuned model's answers.
        decode: From a text's token ids to the text.
    """

    view: TokenView
    decode: Callable[[list[int]], str]
    name: str = "zlib"
    cost: str = "1 forward pass"
    knows: str = "the model and the text"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """Minus the text's whole loss per byte of its compression."""
        answers = self.view.of(samples)
        rows = samples.inputs.tolist()
        texts = (self.decode([token for token in row if token >= 0]) for row in rows)
        lengths = np.array([len(zlib.compress(text.encode())) for text in texts], dtype=float)
        scores: FloatArray = (answers.log_probabilities * answers.real).sum(axis=1) / lengths
        return scores


TEXT_ATTACKS: dict[str, tuple[TextScore, bool]] = {
    "loss": (loss_score, False),
    "reference": (reference_score, True),
    "min-k": (min_k_score, False),
    "min-k++": (min_k_plus_score, False),
    "windows": (window_score, True),
    "error-zone": (error_zone_score, True),
}
"""The attacks that read tokens: how they score, and whether they need the base."""


def _mean(values: FloatArray, real: BoolArray) -> FloatArray:
    mean: FloatArray = np.where(real, values, 0.0).sum(axis=1) / np.maximum(real.sum(axis=1), 1)
    return mean


def _lowest(values: FloatArray, real: BoolArray) -> FloatArray:
    """The mean of the `SHARE` lowest values of each row, of one at least."""
    ordered = np.sort(np.where(real, values, np.inf), axis=1)
    count = np.maximum(1, np.ceil(SHARE * real.sum(axis=1))).astype(int)
    chosen = np.arange(values.shape[1])[None, :] < count[:, None]
    return _mean(np.where(np.isfinite(ordered), ordered, 0.0), chosen)
