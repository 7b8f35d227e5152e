"""WikiText-2 (Merity et al. 2016), the word-level version, cut into sequences of equal length.

The thesis audits with samples of 126 tokens. A sequence's input is its tokens but the last, its target its tokens but
the first, so that ``loss(model(inputs), targets)`` needs to know nothing else.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordina.datasets import tiny_lm
from sordina.datasets.data import Data, Task
from sordina.datasets.files import File, obtain, open_text
from sordina.errors import InvalidInput
from sordina.progress import StagedProgress

_URL = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/"
_CONTENT = {
    "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}
FILES = {
    split: File(f"wikitext-2/{split}.txt", f"sha256:{digest}", (f"{_URL}{split}.txt",))
    for split, digest in _CONTENT.items()
}
UNKNOWN, END = "<unk>", "<eos>"


def read(split: str, *, progress: StagedProgress | None = None) -> list[str]:
    """The words of "train", "valid" or "test", with ``<eos>`` at the end of each line."""
    with open_text(obtain(FILES[split], progress=progress)) as text:
        return [word for line in text for word in (*line.split(), END)]


def _sequences(ids: list[int], length: int) -> TensorDataset:
    count = len(ids) // length
    blocks: Tensor = torch.tensor(ids[: count * length]).reshape(count, length)
    return TensorDataset(blocks[:, :-1], blocks[:, 1:])


def load(
    *, length: int = 126, vocabulary: int | None = None, pieces: bool = False, progress: StagedProgress | None = None
) -> Data:
    """Sequences of ``length`` tokens, without overlap.

    Tokens are words; ``vocabulary`` keeps the most frequent ones and makes the others ``<unk>`` (which words are
    frequent is a statistic of the training text: public here, because the text is). With ``pieces`` they are the 512
    pieces of `tiny_lm`, whose vocabulary owes nothing to this text.
    """
    if length < 2 or (vocabulary is not None and vocabulary < 2):
        raise InvalidInput(f"length and vocabulary must be at least 2, got {length} and {vocabulary}.")
    train, test = (read(split, progress=progress) for split in ("train", "test"))
    if pieces:
        tokenizer = tiny_lm.load_tokenizer(progress=progress)
        spelled = {word: tokenizer.encode("\n" if word == END else f" {word}") for word in {*train, *test}}
        parts = [[token for word in words for token in spelled[word]] for words in (train, test)]
        names = tuple(piece.decode(errors="replace") for piece in tokenizer.pieces)
    else:
        ranked = [word for word, _ in Counter(train).most_common() if word != UNKNOWN]
        names = (UNKNOWN, *ranked[: None if vocabulary is None else vocabulary - 1])
        code = {name: index for index, name in enumerate(names)}
        parts = [[code.get(word, 0) for word in words] for words in (train, test)]
    return Data(
        name="wikitext-2",
        train=_sequences(parts[0], length),
        test=_sequences(parts[1], length),
        task=Task.LANGUAGE,
        classes=len(names),
        vocabulary=names,
        source="WikiText-2 (Merity et al. 2016), word level, complete",
    )
