"""The process's own generators, which dropout and collators draw from, seeded in secret.

How many numbers a record uses up (the length of a text, the size of a batch) shifts what all later ones get. Under a
seed that is public, such as the 42 of many training scripts, one record would so choose the dropout masks of others;
under a secret one, every mask is as likely with the record as without it.
"""

from __future__ import annotations

import os
import random
import secrets

import numpy as np

_WORDS, _FIRST = 624, 24
"""Size of the Mersenne twister, and the byte in torch's state where its words (of 8 bytes each, half used) begin."""


def reseed_globally() -> None:
    """Seed the generators of torch, numpy and Python from the operating system's entropy.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> first = torch.rand(4)
    >>> _ = torch.manual_seed(0)
    >>> reseed_globally()
    >>> bool((torch.rand(4) == first).any())
    False
    """
    import torch

    torch.manual_seed(secrets.randbits(64))
    state = torch.get_rng_state()  # on a processor torch uses half of a seed only: the whole state is drawn instead
    words = np.frombuffer(os.urandom(4 * _WORDS), np.uint32).astype(np.int64)
    state[_FIRST : _FIRST + 8 * _WORDS] = torch.from_numpy(words).view(torch.uint8)
    torch.set_rng_state(state)
    random.seed(os.urandom(64))
    np.random.seed(np.frombuffer(os.urandom(64), np.uint32))  # noqa: NPY002
