"""What a language model gives away word for word: exposure of planted secrets, and verbatim continuation of texts.

Membership inference asks whether a text was in; extraction asks whether it comes out. Exposure (Carlini et al. 2019,
"The Secret Sharer") is the rank of a planted secret among random ones that were not planted, in bits: about 1.44 on
average for a model that never saw it, ``log2`` of the number compared for one that knows it by heart. Verbatim
continuation (Carlini et al. 2023, discoverable memorisation) prompts with the beginning of a text and compares what
follows with what stood there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina.auditing.membership.target import evaluating, token_losses
from sordina.errors import InvalidInput
from sordina.plan import check_whole


@dataclass(frozen=True)
class Secrets:
    """Canaries of one form: a common beginning, and a random secret each.

    Args:
        prefix: (P,) token ids that every canary begins with.
        secrets: (count, K) token ids, drawn at random.
        alphabet: The tokens that secrets are made of.
    """

    prefix: Tensor
    secrets: Tensor
    alphabet: Tensor

    @staticmethod
    def draw(
        prefix: Tensor, alphabet: Tensor, rng: np.random.Generator, *, count: int = 20, length: int = 8
    ) -> Secrets:
        """``count`` canaries with secrets of ``length`` tokens out of ``alphabet``."""
        check_whole("count", count)
        check_whole("length", length)
        if len(alphabet) < 2:
            raise InvalidInput("a secret needs an alphabet of two tokens at least.")
        return Secrets(prefix, _drawn(alphabet, (count, length), rng), alphabet)

    @property
    def texts(self) -> Tensor:
        """(count, P + K): what is planted in the training set."""
        return _joined(self.prefix, self.secrets)


@dataclass(frozen=True)
class Exposure:
    """How exposed each planted secret is, in bits.

    Args:
        bits: One number per secret.
        compared: How many random secrets each was ranked among.
    """

    bits: tuple[float, ...]
    compared: int

    @property
    def mean(self) -> float:
        """Over the secrets; about 1.44 (1/ln 2) by chance."""
        return float(np.mean(self.bits))

    @property
    def most(self) -> float:
        """The largest that could be seen."""
        return math.log2(self.compared + 1)

    @property
    def p_value(self) -> float:
        """Probability of so high a mean if no secret was seen: a sum of exponentials.

        Each rank is then uniform. The secrets share the ones they are compared with, so their ranks are independent
        only nearly: when there are many more of those than secrets.
        """
        from scipy.stats import gamma

        return float(gamma.sf(math.log(2) * sum(self.bits), len(self.bits)))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {
            "bits": [round(value, 3) for value in self.bits],
            "mean": self.mean,
            "most": self.most,
            "by_chance": 1 / math.log(2),
            "p_value": self.p_value,
        }


def measure_exposure(
    model: nn.Module, planted: Secrets, rng: np.random.Generator, *, others: int = 4095, batch_size: int = 256
) -> Exposure:
    """The rank of every planted secret among ``others`` random ones.

    Args:
        model: A causal language model.
        planted: What was in the training set.
        rng: Draws the others.
        others: How many; exposure is at most ``log2(others + 1)``.
        batch_size: Texts in one forward pass.
    """
    check_whole("others", others)
    drawn = _drawn(planted.alphabet, (others, planted.secrets.shape[1]), rng)
    losses = _secret_losses(model, planted.prefix, torch.cat([planted.secrets, drawn]), batch_size)
    own, theirs = losses[: len(planted.secrets)], np.sort(losses[len(planted.secrets) :])
    ranks = 1 + np.searchsorted(theirs, own, side="left")
    return Exposure(tuple(float(math.log2(others + 1) - math.log2(rank)) for rank in ranks), others)


@dataclass(frozen=True)
class Continuations:
    """How much of each text came back when prompted with its beginning.

    Args:
        matched: Tokens that agreed, of ``length``, from the first on, per text: the best of the tries.
        length: Tokens that were compared.
        tries: 1 greedy continuation, or so many sampled ones.
    """

    matched: tuple[int, ...]
    length: int
    tries: int

    @property
    def verbatim(self) -> float:
        """The share of texts that came back whole."""
        return float(np.mean([count == self.length for count in self.matched]))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {
            "texts": len(self.matched),
            "length": self.length,
            "tries": self.tries,
            "verbatim": self.verbatim,
            "mean_matched_tokens": float(np.mean(self.matched)),
        }


def measure_continuations(
    model: nn.Module,
    tokens: Tensor,
    *,
    prefix: int = 32,
    length: int = 16,
    tries: int = 1,
    seed: int = 0,
    batch_size: int = 64,
) -> Continuations:
    """Prompt with the first ``prefix`` tokens of each text and compare the next ``length``.

    Args:
        model: A causal language model.
        tokens: (N, T) token ids; texts shorter than both together are left out.
        prefix: Tokens that are given.
        length: Tokens that are compared.
        tries: 1: the most likely continuation; more: so many sampled ones, the best counts.
        seed: Of the sampling.
        batch_size: Texts in one forward pass.
    """
    for name, value in (("prefix", prefix), ("length", length), ("tries", tries)):
        check_whole(name, value)
    long = tokens[(tokens[:, : prefix + length] >= 0).all(dim=1)] if tokens.shape[1] >= prefix + length else tokens[:0]
    if not len(long):
        raise InvalidInput(f"no text has {prefix + length} tokens: choose a shorter prefix or length.")
    generator = torch.Generator().manual_seed(seed)
    best = torch.zeros(len(long), dtype=torch.long)
    for _ in range(tries):
        parts = [
            _continue(model, part[:, :prefix], length, generator if tries > 1 else None)
            for part in torch.split(long, batch_size)
        ]
        agree = torch.cat(parts) == long[:, prefix : prefix + length]
        best = torch.maximum(best, agree.long().cumprod(dim=1).sum(dim=1))
    return Continuations(tuple(int(count) for count in best), length, tries)


def _continue(model: nn.Module, tokens: Tensor, length: int, generator: torch.Generator | None) -> Tensor:
    """(N, length) tokens that follow: the most likely, or sampled."""
    start = tokens.shape[1]
    with evaluating(model):
        for _ in range(length):
            output = model(tokens)
            logits = (output if isinstance(output, Tensor) else output.logits)[:, -1]
            if generator is None:
                following = logits.argmax(dim=-1, keepdim=True)
            else:
                following = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)
            tokens = torch.cat([tokens, following], dim=1)
    return tokens[:, start:]


def _secret_losses(model: nn.Module, prefix: Tensor, secrets: Tensor, batch_size: int) -> np.ndarray:
    """The loss of each secret given the prefix."""
    with evaluating(model):
        parts = [
            token_losses(model, _joined(prefix, part))[:, len(prefix) - 1 :].double().sum(dim=1)
            for part in torch.split(secrets, batch_size)
        ]
    return torch.cat(parts).numpy()


def _joined(prefix: Tensor, secrets: Tensor) -> Tensor:
    return torch.cat([prefix.expand(len(secrets), -1), secrets], dim=1)


def _drawn(alphabet: Tensor, shape: tuple[int, int], rng: np.random.Generator) -> Tensor:
    return alphabet[torch.from_numpy(rng.integers(len(alphabet), size=shape))]
