"""Items of a data set of texts, made-up ones in their form, and a collator that is watched.

A collator puts items together. One that puts two texts into one sequence, or writes something of one text into the
row of another, breaks the bound per text. So it is tried before a run on made-up items, where one is replaced and the
rows of the others may not change, and on all items of the data; and at random times on the items drawn.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from sordina.errors import InvalidInput, Unsupported
from sordina.gradients.removal import CHANCE, RemovalSchedule
from sordina.integrations.text_losses import IGNORED, base_of, to_device
from sordina.training.collate_trials import Remembering, mixes_somewhere

Item = dict[str, Any]
MADE_UP, SHORTEST, LOOKS = 5, 4, 24
"""How many items are made up, how short they may be, and how often a collator is tried on them."""
MIXES = (
    "the data collator mixes samples: replacing one item changes the rows of others, so no bound per text exists. Use "
    "a collator that treats every item alike, such as DataCollatorWithPadding."
)
REMEMBERS = (
    "the data collator remembers: its rows depend on the items of batches before, so that one person's text is in the "
    "rows of others, where no bound and no account sees it. Use one without memory, such as DataCollatorWithPadding. "
    "Nothing was spent."
)
PACKS = (
    "the data collator makes {rows} rows of {items} items: packing puts the texts of several people into one sequence, "
    "which is then clipped as one of them. Give one row per text, for instance by DataCollatorWithPadding."
)
_LABELS, _PER_TOKEN = ("labels", "label", "label_ids"), ("attention_mask", "token_type_ids")
_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "seq_idx", "seq_lengths")


class TextItems(Dataset[Item]):
    """A data set of dictionaries, with the columns that the model takes.

    Args:
        source: Has a length and items by number, such as a `datasets.Dataset` or a list of dictionaries.
        columns: The names to keep; None keeps all.
    """

    def __init__(self, source: Any, columns: Sequence[str] | None) -> None:
        if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
            raise InvalidInput(
                f"cannot draw from a {type(source).__name__}: sampling at random needs a data set with a length and "
                "items by number."
            )
        self.source, self.columns = source, None if columns is None else frozenset(columns)
        self.check_item: Callable[[int, Item], Any] | None = None
        """What every item must pass, also one that was another when the data were looked through; see `TextLimits`."""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Item:
        item = self.source[index]
        if not isinstance(item, Mapping):
            raise InvalidInput(f"items of the data set must be dictionaries, such as a tokenizer's, got {type(item)}.")
        kept = {name: value for name, value in item.items() if self.columns is None or name in self.columns}
        if self.check_item is not None:
            self.check_item(index, kept)
        return kept


@dataclass(frozen=True)
class TextLimits:
    """What tokens and labels a model takes; public facts of its config.

    Args:
        vocabulary: How many tokens there are.
        labels: How many classes, or the vocabulary where tokens are predicted; None where labels are no classes.
        length: The longest text; None if there is no bound.
        per_text: Whether the labels belong to a text, so that all texts have equally many, and not to its tokens.
    """

    vocabulary: int
    labels: int | None
    length: int | None
    per_text: bool = False

    @classmethod
    def of(cls, model: nn.Module) -> TextLimits:
        """Those of ``model``.

        Args:
            model: A `transformers` model, or one with an adapter.
        """
        base: Any = base_of(model)
        config = base.config
        embedding = base.get_input_embeddings()
        words = int(getattr(embedding, "num_embeddings", 0) or config.vocab_size)
        classes = "Classification" in type(base).__name__
        other = getattr(config, "problem_type", None) not in (None, "single_label_classification")
        labels = None if classes and (other or config.num_labels == 1) else config.num_labels if classes else words
        length = getattr(config, "max_position_embeddings", None)
        length = length if length is None or length > 0 else None  # XLNet's is -1: there is no limit
        if length and "roberta" in str(getattr(config, "model_type", "")):
            length -= int(config.pad_token_id or 0) + 1
        return cls(words, labels, length, labels is None or "SequenceClassification" in type(base).__name__)

    def check(self, items: TextItems) -> None:
        """Refuse data with a token, a label or a length that the model does not take, before anything is spent.

        Every item must have one form too: a batch is made of items in the form of the first. From then on an item that
        has it no longer cannot be read.

        Args:
            items: Looked through once; no value of theirs is shown.
        """
        form: dict[str, Any] | None = None
        for index in range(len(items)):
            try:
                item = items[index]
            except InvalidInput:
                raise
            except Exception:
                raise InvalidInput(f"item {index} of the training data cannot be read: leave it out.") from None
            form = self._check_item(index, item, form)
        items.check_item = lambda index, item: self._check_item(index, item, form)

    def _check_item(self, index: int, item: Item, form: dict[str, Any] | None) -> dict[str, Any]:
        try:
            fields = {name: np.asarray(value) for name, value in item.items()}
        except Exception:
            raise InvalidInput(f"item {index} has a field whose parts are of different lengths: mend it.") from None
        self._check_values(index, fields)
        mine = self._form(fields)
        if form is not None and mine != form:
            wrong = sorted(name for name in form.keys() | mine.keys() if form.get(name) != mine.get(name))
            raise InvalidInput(
                f"item {index} has another form than item 0 in {', '.join(wrong):.100}: every item needs the same "
                "fields, of the same types and numbers of dimensions, and equally many labels per text."
            )
        return mine

    def _check_values(self, index: int, fields: Mapping[str, np.ndarray[Any, Any]]) -> None:
        if "input_ids" in fields:
            self._check_tokens(index, fields)
        labels = _flat(fields.get("labels", fields.get("label")))
        labels = labels[labels != IGNORED]
        within = labels.dtype.kind in "iub" and self.labels is not None
        within = within and 0 <= labels.min(initial=0) <= labels.max(initial=0) < self.labels
        if self.labels is not None and len(labels) and not within:
            several = labels.dtype.kind == "f" or (self.per_text and len(labels) > 1)
            more = " For numbers, or several labels of a text, set model.config.problem_type." if several else ""
            raise InvalidInput(f"item {index} has a label that is none of the model's {self.labels}.{more}")

    def _check_tokens(self, index: int, fields: Mapping[str, np.ndarray[Any, Any]]) -> None:
        tokens = fields["input_ids"]
        if tokens.ndim != 1 or not len(tokens):
            raise InvalidInput(f"item {index} is no text: input_ids must be a list of at least one token.")
        if self.length is not None and len(tokens) > self.length:
            raise InvalidInput(f"item {index} has more tokens than the model takes ({self.length}): truncate it.")
        if tokens.dtype.kind not in "iu" or not 0 <= tokens.min() <= tokens.max() < self.vocabulary:
            raise InvalidInput(f"item {index} has a token outside the model's vocabulary of {self.vocabulary}.")
        for name in _PER_TOKEN:
            if name in fields and fields[name].shape[-1:] != tokens.shape:
                raise InvalidInput(f"item {index} has not as many numbers in {name} as tokens in input_ids.")
        if "attention_mask" in fields and not fields["attention_mask"].any():
            raise InvalidInput(f"item {index} is no text: its attention_mask is zero everywhere. Leave it out.")

    def _form(self, fields: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        """Types and numbers of dimensions; of labels of a text the shape."""
        return {
            name: (field.dtype.kind, field.shape if self.per_text and name in _LABELS else field.ndim)
            for name, field in fields.items()
        }


def _flat(value: Any) -> np.ndarray[Any, Any]:
    return np.zeros(0, np.int64) if value is None else np.asarray(value).reshape(-1)


def made_up_items(like: Item, limits: TextLimits, rng: random.Random, alike: bool = False) -> list[Item]:
    """Items in the form of ``like`` with random content: the first is the longest.

    Args:
        like: An item; its form is taken, none of its values.
        limits: Which tokens and labels may occur.
        rng: Where the content comes from.
        alike: Whether all have the length of ``like``, for collators that do not pad.
    """
    given = len(_flat(like.get("input_ids"))) or SHORTEST
    longest = given if alike else max(SHORTEST, min(given, 12))
    lengths = [longest] + [longest if alike else rng.randint(SHORTEST, longest) for _ in range(MADE_UP - 1)]
    return [
        {name: _made_up(name, value, given, length, limits, rng) for name, value in like.items()} for length in lengths
    ]


def _made_up(name: str, value: Any, given: int, length: int, limits: TextLimits, rng: random.Random) -> Any:
    """One field: random tokens and labels, ones in masks, zeros elsewhere."""
    content = np.asarray(value)
    if content.dtype.kind not in "iufb":
        return value if content.dtype.kind not in "US" else "a"  # an empty text may have no token
    if content.ndim and len(content) == given:
        size = length
    else:
        size = min(len(content), length) if content.ndim and name != "labels" else len(_flat(value))
    shape = (size, *content.shape[1:]) if content.ndim else ()
    if name in _LABELS:
        size = len(content) if limits.labels is None and content.ndim else size
        shape = (size, *content.shape[1:]) if content.ndim else ()
        top = limits.labels or 2
    else:
        top = limits.vocabulary if name in ("input_ids", "decoder_input_ids") else 1
    if "attention_mask" in name:
        made = np.ones(shape, content.dtype)
    elif name == "position_ids":
        made = np.broadcast_to(np.arange(size), shape).astype(content.dtype)
    else:
        count = int(np.prod(shape))
        made = np.array([rng.randrange(top) for _ in range(count)]).reshape(shape).astype(content.dtype)
    if isinstance(value, Tensor):
        return torch.as_tensor(made).to(value.dtype)
    if isinstance(value, (np.ndarray, np.generic)):
        return made
    return made.tolist()


class WatchedCollator:
    """A data collator whose rows are plain dictionaries on one device, tested by removal at random times.

    Args:
        collator: The user's, or that of `transformers`.
        device: Where the batches go.
    """

    def __init__(self, collator: Callable[[list[Any]], Any], device: torch.device) -> None:
        self.collator, self.device = collator, device
        self.__wrapped__ = collator  # so that its generators are found, and seeded in secret
        self.schedule = RemovalSchedule()
        self.stand_in: Callable[[], list[Item]] | None = None
        """Makes up items, once their form is known."""
        self.items: list[Item] = []
        """Those of the last batch."""
        self.mixed: str = ""
        """Why the run must stop: an error in here would be taken for an item that cannot be read."""

    def __call__(self, items: list[Item]) -> dict[str, Any]:
        """The batch of ``items``."""
        if self.stand_in is not None and len(items) > 1 and self.schedule.due() and not self.mixed:
            self.mixed = self._look(items)
        self.items = [dict(item) for item in items]
        return to_device(self.collator(items), self.device)

    def _look(self, items: list[Item]) -> str:
        assert self.stand_in is not None
        try:
            return difference(self.collator, items, self.stand_in())
        except Exception:
            return ""

    def rehearse(self, like: Item, limits: TextLimits) -> tuple[dict[str, Any], int]:
        """Refuse a collator that mixes or packs; gives a made-up batch.

        Args:
            like: An item, for its form.
            limits: What tokens may occur.
        """
        if packed := [name for name in _PACKED if name in like]:
            raise Unsupported(f"items with {packed[0]!r} hold several texts in one sequence. {PACKS.split(': ')[1]}")
        rng = random.Random(0)
        try:
            alike, batch = False, self._tried(like, limits, rng, alike=False)
        except InvalidInput:
            raise
        except Exception:
            alike, batch = True, self._tried_or_refused(like, limits, rng)
        for look in range(LOOKS):
            self._tried(like, limits, rng, alike=alike, items=2 + look % (MADE_UP - 1))
            one, other, then = (made_up_items(like, limits, rng, alike=True) for _ in range(3))
            if remembers(self.collator, one, other, then):
                raise Unsupported(REMEMBERS)
        self.stand_in = lambda: made_up_items(like, limits, random.Random(CHANCE.getrandbits(64)), alike)
        return batch, MADE_UP

    def look_through(self, items: TextItems) -> None:
        """Refuse a collator of the user's that makes another row of any item when others are with it.

        Args:
            items: All of them are tried, or as many as there is time for.
        """
        if type(self.collator).__module__.split(".")[0] in ("transformers", "sordina"):
            return
        try:
            mixes = mixes_somewhere(self.collator, items, len(items))
        except Remembering:
            raise Unsupported(REMEMBERS) from None
        if mixes:
            raise Unsupported(f"{MIXES} Nothing was spent.")

    def _tried(
        self, like: Item, limits: TextLimits, rng: random.Random, *, alike: bool, items: int = MADE_UP
    ) -> dict[str, Any]:
        """A made-up batch, after the collator was seen to keep its rows apart."""
        made = made_up_items(like, limits, rng, alike)[:items]
        if reason := difference(self.collator, made, made_up_items(like, limits, rng, alike)):
            raise Unsupported(reason)
        return to_device(self.collator(made), self.device)

    def _tried_or_refused(self, like: Item, limits: TextLimits, rng: random.Random) -> dict[str, Any]:
        try:
            return self._tried(like, limits, rng, alike=True)
        except InvalidInput:
            raise
        except Exception as error:
            raise InvalidInput(
                "the data collator cannot put made-up items in the form of the data together: "
                f"{' '.join(str(error).split())[:200]}."
            ) from error


def remembers(collator: Callable[[list[Any]], Any], one: list[Item], other: list[Item], then: list[Item]) -> bool:
    """Whether the rows of ``then`` differ by which items the collator saw before.

    Args:
        collator: What is tried; copies of it work.
        one: Items that come before.
        other: As many of the same lengths, so that equally many random numbers are used up.
        then: Items that come after.
    """
    found, seed = [], CHANCE.getrandbits(32)
    for before in (one, other):
        copied = copy.deepcopy(collator)
        with _same_chance(seed):
            copied(copy.deepcopy(before))
            batch = dict(copied(copy.deepcopy(then)))
        found.append({name: value for name, value in batch.items() if isinstance(value, Tensor)})
    first, second = found
    return first.keys() != second.keys() or any(
        value.dim() != second[name].dim() or not _same_rows(value, second[name]) for name, value in first.items()
    )


def difference(collator: Callable[[list[Any]], Any], items: list[Item], others: list[Item]) -> str:
    """What is wrong if replacing one of ``items`` by one of ``others`` changes another row; empty if nothing is.

    Args:
        collator: What is tried; a copy of it works.
        items: At least two.
        others: To replace one of them by.
    """
    sizes = [len(_flat(item.get("input_ids"))) for item in items]
    longest = CHANCE.choice([index for index, size in enumerate(sizes) if size == max(sizes)])
    place = CHANCE.choice([index for index in range(len(items)) if index != longest])
    fitting = [other for other in others if len(_flat(other.get("input_ids"))) <= sizes[longest]]
    fitting = [*fitting, items[longest]]
    unlike = [other for other in fitting if not np.array_equal(_labels(other), _labels(items[place]))]
    other = CHANCE.choice(unlike or fitting)
    twins = [other if index == place else item for index, item in enumerate(items)]
    seed = CHANCE.getrandbits(32)
    one, two = (_collated(collator, each, seed) for each in (items, twins))
    rows = {len(value) for value in one.values() if value.dim()}
    if rows != {len(items)}:
        return PACKS.format(rows=min(rows, default=1), items=len(items))
    kept = [index for index in range(len(items)) if index != place]
    for name, value in one.items():
        twin = two.get(name)
        if twin is None or value.dim() != twin.dim() or not _same_rows(value[kept], twin[kept]):
            return MIXES
    return ""


def _labels(item: Item) -> np.ndarray[Any, Any]:
    return _flat(item.get("labels", item.get("label")))


def _same_rows(one: Tensor, two: Tensor) -> bool:
    """Whether the rows are the same, apart from how far they are padded."""
    if one.dim() > 1 and one.shape[1] != two.shape[1]:
        width = min(one.shape[1], two.shape[1])
        one, two = one[:, :width], two[:, :width]
    if one.shape != two.shape:
        return False
    same = one == two
    return bool((same | (one.isnan() & two.isnan())).all() if one.is_floating_point() else same.all())


def _collated(collator: Callable[[list[Any]], Any], items: list[Item], seed: int = 0) -> dict[str, Tensor]:
    with _same_chance(seed):
        batch = copy.deepcopy(collator)(copy.deepcopy(items))
    return {name: value for name, value in dict(batch).items() if isinstance(value, Tensor)}


@contextmanager
def _same_chance(seed: int) -> Iterator[None]:
    """The same random numbers every time, and afterwards those that would have come."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - collators draw from it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
