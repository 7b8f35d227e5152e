"""Words to numbers: AG News with GloVe, WikiText in sequences, and the tiny language model."""

import csv
import io
import zipfile

import numpy as np
import pytest
import torch

from sordina import datasets
from sordina.datasets import texts, tiny_lm
from sordina.datasets.data import find
from sordina.errors import InvalidInput


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("ag-news", "glove", "wikitext-2"):
        (tmp_path / name).mkdir()
    return tmp_path


def write_news(path, rows):
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    path.write_text(text.getvalue())


def write_glove(path, vectors):
    path.write_text("".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in vectors.items()))


def test_news_are_the_vectors_of_their_first_known_words(folder):
    ball, bank = np.full(50, 1.0), np.full(50, 2.0)
    write_glove(folder / "glove" / "glove.6B.50d.txt", {"ball": ball, "bank": bank, "unused": bank})
    write_news(folder / "ag-news" / "train_subset.csv", [(2, "Ball, qwxz BANK", "ball"), (3, "Bank", "")])
    write_news(folder / "ag-news" / "test.csv", [(4, "", "nothing known")])
    data = datasets.load("ag-news")
    assert data.input_shape == (750,)
    words = data.train.tensors[0].reshape(2, 15, 50)[:, :, 0]
    assert words[0].tolist() == [1, 2, 1] + [0] * 12
    assert words[1].tolist() == [2] + [0] * 14
    assert data.train.tensors[1].tolist() == [1, 2]
    assert not data.test.tensors[0].any()
    assert "2 of 120000 training rows" in data.source
    assert datasets.load("ag-news", length=2).input_shape == (100,)


def test_the_whole_training_set_is_taken_where_there_is_one(folder):
    write_glove(folder / "glove" / "glove.6B.50d.txt", {"ball": np.ones(50)})
    for name, rows in (("train_subset", 1), ("train", 3), ("test", 1)):
        write_news(folder / "ag-news" / f"{name}.csv", [(1, "ball", "")] * rows)
    assert len(datasets.load("ag-news").train) == 3


@pytest.mark.parametrize("row", [(5, "a", "b"), ("class", "title", "description"), (1, "a")])
def test_other_rows_are_refused(folder, row):
    write_news(folder / "a.csv", [(1, "a", "b"), row])
    with pytest.raises(InvalidInput, match="row 2: expected class 1 to 4"):
        texts.read_ag_news(folder / "a.csv")


def test_glove_is_read_from_its_own_archive(folder):
    with zipfile.ZipFile(folder / "glove" / "glove.6B.zip", "w") as archive:
        archive.writestr("glove.6B.50d.txt", "the " + "1 " * 50 + "\nball " + "2 " * 50 + "\n")
        archive.writestr("glove.6B.100d.txt", "ball " + "3 " * 100 + "\n")
    vectors = texts.load_vectors({"ball", "absent"})
    assert vectors.index == {"ball": 1}
    assert vectors.table.tolist() == [[0.0] * 50, [2.0] * 50]
    assert texts.load_vectors({"ball"}, dimension=100).dimension == 100


def test_vectors_of_another_length_are_refused(folder):
    write_glove(folder / "glove" / "glove.6B.50d.txt", {"ball": np.ones(49)})
    with pytest.raises(InvalidInput, match="line 1: 49 numbers where 50 belong"):
        texts.load_vectors({"ball"}, dimension=50)


def test_sequences_predict_the_next_token(folder):
    for split in ("train", "test"):
        (folder / "wikitext-2" / f"{split}.txt").write_text("a b a\n c <unk> a\n")
    data = datasets.load("wikitext-2", length=4)
    assert data.vocabulary == ("<unk>", "a", "<eos>", "b", "c")
    x, y = data.train.tensors
    assert x.tolist() == [[1, 3, 1], [4, 0, 1]]
    assert y.tolist() == [[3, 1, 2], [0, 1, 2]]
    small = datasets.load("wikitext-2", length=4, vocabulary=3)
    assert small.vocabulary == ("<unk>", "a", "<eos>")
    assert small.train.tensors[0].tolist() == [[1, 0, 1], [0, 0, 1]]
    with pytest.raises(InvalidInput, match="at least 2"):
        datasets.load("wikitext-2", length=1)


def needs_tiny_lm():
    if find(tiny_lm.WEIGHTS.path) is None:
        pytest.skip(f"{tiny_lm.WEIGHTS.path} is not in SORDINA_DATA")


def test_the_tiny_model_tells_its_documented_story():
    needs_tiny_lm()
    tokenizer, model = tiny_lm.load_tokenizer(), tiny_lm.load_model()
    prompt = torch.tensor([tokenizer.encode("Once upon a time", begin=True)])
    assert prompt.tolist() == [[1, 403, 407, 261, 378]]
    for _ in range(40):
        prompt = torch.cat([prompt, model(prompt).logits[:, -1:].argmax(dim=-1)], dim=1)
    story = tokenizer.decode(prompt[0].tolist())
    assert story.startswith(
        " Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    )
    assert sum(parameter.numel() for parameter in model.parameters()) == 260_032


@pytest.mark.parametrize("text", ["", "the cat sat", "naïve 日本 <0x41>\n", "a" * 50])
def test_the_tokenizer_spells_back_any_text(text):
    needs_tiny_lm()
    tokenizer = tiny_lm.load_tokenizer()
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert all(0 <= token < 512 for token in tokens)


def test_wikitext_in_pieces():
    needs_tiny_lm()
    if find("wikitext-2/train.txt.gz") is None:
        pytest.skip("wikitext-2/train.txt.gz is not in SORDINA_DATA")
    data = datasets.load("wikitext-2", pieces=True)
    assert data.classes == 512
    text = tiny_lm.load_tokenizer().decode(data.train.tensors[0][0].tolist())
    assert text.startswith("\n = Valkyria Chronicles III = \n".replace(" \n", "\n"))
