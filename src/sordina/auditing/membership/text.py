"""Neighbours made in text: lower-casing (Carlini et al. 2021) and swapped words (after Mattern et al. 2023).

Samples are token ids; a vocabulary says what each stands for. Words are swapped for words of similar frequency, where
Mattern et al. ask a second language model for synonyms: this needs no download, and is a weaker attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sordina.auditing.membership.samples import Samples
from sordina.errors import InvalidInput


@dataclass(frozen=True)
class LowerCase:
    """Every word in lower case, where the vocabulary has it."""

    vocabulary: Sequence[str]

    def __call__(self, samples: Samples, rng: np.random.Generator) -> Samples:
        """There is one such neighbour: ask for one."""
        code = {word: index for index, word in enumerate(self.vocabulary)}
        lower = torch.tensor([code.get(word.lower(), index) for index, word in enumerate(self.vocabulary)])
        return Samples(lower[samples.inputs])


@dataclass(frozen=True)
class WordSwap:
    """Each token but the first is swapped with probability ``share`` for one at most ``reach`` ranks away.

    The vocabulary must be ordered by frequency, as that of `sordina.datasets.wikitext` is.
    """

    vocabulary: Sequence[str]
    share: float = 0.2
    reach: int = 20

    def __call__(self, samples: Samples, rng: np.random.Generator) -> Samples:
        """A new neighbour at every call."""
        if not 0 < self.share <= 1 or self.reach < 1:
            raise InvalidInput(f"needs 0 < share <= 1 and reach >= 1, got {self.share} and {self.reach}.")
        tokens = samples.inputs.numpy()
        step = rng.integers(1, self.reach + 1, size=tokens.shape) * rng.choice((-1, 1), size=tokens.shape)
        moved = np.abs(tokens + step)
        moved = np.where(moved < len(self.vocabulary), moved, 2 * (len(self.vocabulary) - 1) - moved)
        swap = rng.random(tokens.shape) < self.share
        swap[:, 0] = False
        return Samples(torch.from_numpy(np.where(swap, moved, tokens)))
