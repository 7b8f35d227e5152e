"""Nothing may be carried to a batch beside it: from the batch before, or by what read the data.

A collate function may note the largest value of its batch, a loss the mean of its labels, for the model to read. No
result of theirs shows it. So other batches are computed, and other rows are read, before one and the same batch: what
is said of it must stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sordina.gradients._chance import Generators
from sordina.gradients._rehearsal import aside
from sordina.gradients.one_by_one import close

Stir = Callable[[], Any]
"""Something that is done before a batch and may not matter for it."""


def carried(
    model: nn.Module,
    run: Callable[[], Sequence[Tensor]],
    stirs: Sequence[Stir],
    generators: Generators,
    begin: Callable[[], None],
) -> bool:
    """Whether what ``run`` says depends on which of ``stirs`` was done before; False if nobody can tell.

    Args:
        model: What is run; it is left as it was.
        run: Says something of one and the same batch.
        stirs: What is done before it, alike but for the samples.
        generators: Of the random numbers, which are the same each time.
        begin: Puts back what is kept by those that run.
    """

    def played(stir: Stir) -> list[Tensor] | None:
        begin()
        generators.seed(0)
        try:
            stir()
        except Exception:  # such a batch is not taken
            return None
        generators.seed(1)
        return [tensor.detach() for tensor in run()]

    for gradients in (False, True):
        with torch.set_grad_enabled(gradients), aside(model):
            try:
                said = [each for stir in (*stirs[:1], *stirs) if (each := played(stir)) is not None]
            except Exception:
                continue  # it needs gradients inside
            if len(said) > 2 and not _same(said[0], said[1]):  # what is done moves on, or what is said does by itself
                return (still := played(_nothing)) is not None and _same(still, played(_nothing) or [])
            return len(said) > 2 and not all(_same(said[0], each) for each in said[2:])
    return False


def _nothing() -> None:
    """What a batch may expect before it."""


def _same(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    return len(one) == len(two) and all(close(a, b, None) for a, b in zip(one, two, strict=True))


CARRIED = (
    "samples mix: what the {} of a batch depends on other samples than its own, which were read or computed before: "
    "the data set, the collate function, the augmentation, the loss or the model leaves something of them where it is "
    "read again (an attribute, a global variable), so no per-sample bound exists. Compute it from each sample alone."
)
