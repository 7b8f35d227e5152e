"""AG News: world, sports, business or technology, from the vectors of the first words (000 chapter 3).

A text is its title and description, its first 15 words each replaced by a GloVe vector and laid end to end: 750
inputs with 50 dimensions (errata 13), 1 500 with 100. Words without a vector are passed over.
"""

from __future__ import annotations

import csv
import html
import re
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from sordina.datasets import glove
from sordina.datasets.data import Data, Task
from sordina.datasets.files import File, obtain, open_text
from sordina.errors import InvalidInput
from sordina.progress import StagedProgress

_URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
FILES = {
    "train": File(
        "ag-news/train.csv",
        "sha256:76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
        (f"{_URL}train.csv",),
    ),
    "test": File(
        "ag-news/test.csv",
        "sha256:521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
        (f"{_URL}test.csv",),
    ),
}
CLASSES = ("World", "Sports", "Business", "Sci/Tech")
COMPLETE = 120_000
_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")
_ESCAPES = re.compile(r"\s?#(\d+);")


def words(text: str) -> list[str]:
    """Lower-case words of a text, its escapes undone.

    >>> words("Oil #36;50 &lt;b&gt;Reuters&lt;/b&gt; - The U.S.\\\\economy isn #39;t")
    ['oil', 'reuters', 'the', 'u', 's', 'economy', 'isn', 't']
    """
    plain = html.unescape(_ESCAPES.sub(lambda escape: chr(int(escape[1])), text)).replace("\\", " ")
    return _WORD.findall(re.sub(r"<[^>]*>", " ", plain).lower())


def read(path: Path) -> tuple[list[int], list[list[str]]]:
    """Classes (0 to 3) and the words of every text in ``path``."""
    labels, texts = [], []
    with open_text(path) as text:
        for number, row in enumerate(csv.reader(text), start=1):
            if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                raise InvalidInput(f"{path}, row {number}: expected class 1 to 4, title and description.")
            labels.append(int(row[0]) - 1)
            texts.append(words(f"{row[1]} {row[2]}"))
    return labels, texts


def encode(texts: list[list[str]], vectors: glove.Vectors, length: int) -> torch.Tensor:
    """The vectors of the first ``length`` known words of each text, end to end; zeros where a text is short."""
    rows = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(rows, texts, strict=True):
        known = [vectors.index[word] for word in text if word in vectors.index][:length]
        row[: len(known)] = known
    return torch.from_numpy(vectors.table)[torch.from_numpy(rows)].flatten(start_dim=1)


def load(*, length: int = 15, dimension: int | None = None, progress: StagedProgress | None = None) -> Data:
    """AG News; the 120 000 training rows if ``train.csv`` is there, the subset ``train_subset.csv`` otherwise."""
    labels, texts = read(obtain(FILES["train"], "ag-news/train.csv", "ag-news/train_subset.csv", progress=progress))
    test_labels, test_texts = read(obtain(FILES["test"], progress=progress))
    vocabulary = {word for text in (*texts, *test_texts) for word in text}
    vectors = glove.load(vocabulary, dimension=dimension, progress=progress)
    share = "complete" if len(labels) == COMPLETE else f"{len(labels)} of {COMPLETE} training rows"
    return Data(
        name="ag-news",
        train=TensorDataset(encode(texts, vectors, length), torch.tensor(labels)),
        test=TensorDataset(encode(test_texts, vectors, length), torch.tensor(test_labels)),
        task=Task.CLASSIFICATION,
        classes=len(CLASSES),
        source=f"AG News (Zhang et al. 2015), {share}; {length} words x GloVe 6B, {vectors.dimension} dimensions",
    )
