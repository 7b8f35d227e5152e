"""Whether the width of a batch, which its longest text decides, reaches the losses of the other texts.

Texts are padded to the longest of their batch. Padded on the left, every token of a model with absolute positions gets
another position with it; and a model that does not mask (FNet) reads the padding. Then one long text changes the
gradients of all others, and no bound per text holds. So texts are padded on the right, and the width is varied: before
a run on made-up texts, and at random times on those drawn.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput, Unsupported
from sordina.gradients._chance import WithoutChance
from sordina.gradients._rehearsal import aside, moved
from sordina.gradients.one_by_one import TOLERANCE
from sordina.gradients.removal import RemovalSchedule
from sordina.gradients.structure import Mixing
from sordina.integrations.text_batches import SHORTEST, Item, TextItems, TextLimits, _collated, _flat, _made_up
from sordina.integrations.text_losses import to_device

log = logging.getLogger("sordina")
MULTIPLE = 16
"""Texts are padded to multiples of it."""
WIDTHS = (16, 64, 256)
"""Lengths of the long text that is tried, as far as the model takes it."""
_DOUBLE = 1e-5
"""In double precision; parts of many models compute in single precision in any case."""
_WHY = (
    "samples mix: a longer text in the batch changes the losses of the others, because they are padded to its length. "
    "Pad on the right, or pad all to one public length, for instance by DataCollatorWithPadding(tokenizer, "
    'padding="max_length", max_length={length}).'
)

_MASKED = (
    "item {index} begins with masked tokens (attention_mask): this model's loss of such a text depends on the longest "
    "text in its batch. Leave the masked tokens out, load the model with attn_implementation='sdpa', or pad all to one "
    "public length. Nothing was spent."
)


@contextmanager
def right_padding(*parts: Any) -> Iterator[None]:
    """Tokenizers pad on the right in here.

    Args:
        parts: Tokenizers, or collators that have one; anything else is passed over.
    """
    found: dict[int, Any] = {id(each): each for part in parts for each in (part, getattr(part, "tokenizer", None))}
    left = [each for each in found.values() if getattr(each, "padding_side", "right") == "left"]
    if left:
        log.warning(
            "padding_side is set to 'right' for the training: padded on the left, the positions of a text would "
            "depend on the length of others."
        )
    try:
        for each in left:
            each.padding_side = "right"
        yield
    finally:
        for each in left:
            each.padding_side = "left"


@contextmanager
def public_widths(collator: Any, length: int | None) -> Iterator[None]:
    """A collator that pads to the longest text pads to a multiple of a public number in here.

    Every width that occurs is studied once, which costs some steps: few widths cost little. A collator that pads to a
    stated length, or already to a multiple, is left as it is.

    Args:
        collator: Of `transformers`, or one that has its ``pad_to_multiple_of``; any other is passed over.
        length: The longest text that the model takes: no text is padded beyond it.
    """
    unset = getattr(collator, "pad_to_multiple_of", 0) is None
    if not unset or getattr(collator, "padding", True) not in (True, "longest"):
        yield
        return
    with suppress(AttributeError):  # a frozen one
        collator.pad_to_multiple_of = multiple_for(length)
    try:
        yield
    finally:
        with suppress(AttributeError):
            collator.pad_to_multiple_of = None


def multiple_for(length: int | None) -> int:
    """The largest of 16, 8, 4, 2 and 1 that divides the longest text's length.

    Args:
        length: That length; None if there is no bound.

    >>> multiple_for(512), multiple_for(500), multiple_for(None)
    (16, 4, 16)
    """
    return math.gcd(length or MULTIPLE, MULTIPLE)


class WidthCheck:
    """Varies the width of batches and looks whether losses change.

    Args:
        model: What is trained.
        losses: From a batch to one loss per text.
        collator: The user's.
        device: Where the batches go.
        length: The longest text that the model takes, if there is a bound.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Callable[[dict[str, Any]], Tensor],
        collator: Callable[[list[Any]], Any],
        device: torch.device,
        length: int | None,
    ) -> None:
        self.model, self.losses, self.collator, self.device = model, losses, collator, device
        self.length = max(SHORTEST, (length or WIDTHS[-1]) - virtual_tokens(model))
        self.schedule = RemovalSchedule()

    def rehearse(self, items: TextItems, limits: TextLimits) -> None:
        """Refuse a model or a collator by which the width matters, before anything is spent.

        Args:
            items: The first is taken for its form. Where the width matters for texts that begin with masked tokens
                only, all of them are looked through, and none may from then on.
            limits: What tokens may occur.
        """
        like = items[0]
        if self._matters(like, limits):
            raise Unsupported(f"{_WHY.format(length=self.length)} Nothing was spent.")
        if "attention_mask" in like and self._matters(like, limits, masked=True):
            check = items.check_item

            def checked(index: int, item: Item) -> None:
                if check is not None:
                    check(index, item)
                if not _flat(item.get("attention_mask"))[:1].all():
                    raise InvalidInput(_MASKED.format(index=index))

            items.check_item = checked
            for index in range(len(items)):
                items[index]

    def _matters(self, like: Item, limits: TextLimits, masked: bool = False) -> bool:
        """Whether the width matters on made-up texts, whose first token may be ``masked``."""
        rng = random.Random(1)
        given, failed = len(_flat(like.get("input_ids"))) or SHORTEST, 0
        widths = sorted({min(each, self.length) for each in WIDTHS})
        for width in widths:
            lengths = (min(SHORTEST, width), min(SHORTEST + 3, width), width)
            items = [
                {name: _made_up(name, value, given, length, limits, rng) for name, value in like.items()}
                for length in lengths
            ]
            for item in items if masked else ():
                item["attention_mask"][0] = 0
            try:
                pair = self._pair(items)
            except Exception:  # a collator that does not pad: such batches do not come about
                continue
            try:
                differs = pair is not None and self._differ(*pair, torch.Generator().manual_seed(width))
            except Exception:  # texts of that length cannot be trained on either
                failed += 1
                continue
            if differs:
                return True
        if failed == len(widths) and not masked:
            raise Unsupported(
                "whether the length of one text changes the losses of others could not be tried on made-up texts: the "
                "model does not take them. Pad all texts to one public length. Nothing was spent."
            )
        return False

    def look(self, items: list[Item]) -> None:
        """At random times, refuse a batch whose shorter texts have other losses without the longest.

        Args:
            items: Those of the batch just drawn.
        """
        if not self.schedule.due() or len(items) < 2:
            return
        try:
            pair = self._pair(items)
            differs = pair is not None and self._differ(*pair, None)
        except Exception:
            return
        if differs:
            raise Mixing(f"{_WHY.format(length=self.length)} No bound holds for the steps since this began.")

    def _pair(self, items: list[Item]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The shorter texts in the width of all of ``items``, and cut to the width that they have by themselves."""
        sizes = [len(_flat(item.get("input_ids"))) for item in items]
        kept = [index for index, size in enumerate(sizes) if size < max(sizes)]
        if not kept:
            return None
        all_of_them = _collated(self.collator, items)
        alone = _collated(self.collator, [items[index] for index in kept])
        wide = {name: value[kept] for name, value in all_of_them.items()}
        if all(value.shape == alone[name].shape for name, value in wide.items()):
            return None
        cut = {name: value[tuple(map(slice, alone[name].shape))] for name, value in wide.items()}
        return to_device(wide, self.device), to_device(cut, self.device)

    def _differ(self, wide: dict[str, Any], cut: dict[str, Any], generator: torch.Generator | None) -> bool:
        for double in (True, False):
            try:
                with (
                    torch.no_grad(),
                    aside(self.model),
                    WithoutChance(generator),
                    moved(self.model, generator, double=double),
                ):
                    one, two = (self.losses(each) for each in (wide, cut))
            except Exception:
                if not double:
                    raise
                continue
            if double and not bool(one.isfinite().all() and two.isfinite().all()):
                continue  # masks of the smallest number in single precision may be too small in double
            one, two = one.nan_to_num(), two.nan_to_num()
            kind = next(self.model.parameters()).dtype
            tolerance = _DOUBLE if double else TOLERANCE.get(kind, 0.1)
            return bool(((one - two).abs() > tolerance * (1 + one.abs())).any())
        return False


def virtual_tokens(model: nn.Module) -> int:
    """How many positions the prompts of adapters take.

    Args:
        model: What is trained.
    """
    configs: Any = getattr(model, "peft_config", None) or {}
    return max((getattr(each, "num_virtual_tokens", 0) or 0 for each in configs.values()), default=0)
