"""The idx format, and the data sets that use it, made small."""

import gzip
import json
import struct

import numpy as np
import pytest
import torch

from sordina import datasets
from sordina.datasets.images import read_femnist, read_idx
from sordina.errors import DataNotFound, InvalidInput

CODES = {"u1": 0x08, "i4": 0x0C, "f8": 0x0E}


def to_idx(array, kind="u1"):
    header = bytes([0, 0, CODES[kind], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(f">{kind}").tobytes()


@pytest.fixture
def mnist_folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setenv("SORDINA_DATA", str(tmp_path))
    for name in ("mnist", "fashion-mnist"):
        (tmp_path / name).mkdir()
        for split, count in (("train", 6), ("t10k", 3)):
            images = rng.integers(256, size=(count, 28, 28))
            images[0, 0, :2] = 0, 255
            (tmp_path / name / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(to_idx(images)))
            (tmp_path / name / f"{split}-labels-idx1-ubyte").write_bytes(to_idx(np.arange(count) % 10))
    return tmp_path


@pytest.mark.parametrize("kind", CODES)
def test_idx_gives_back_what_was_written(tmp_path, kind):
    array = np.arange(24).reshape(2, 3, 4)
    (tmp_path / "a").write_bytes(to_idx(array, kind))
    assert np.array_equal(read_idx(tmp_path / "a"), array)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0", b"PK\3\4abcd", to_idx(np.arange(9))[:-1], to_idx(np.arange(9)) + b"x"]
)
def test_idx_refuses_what_is_not(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"idx file|cut short"):
        read_idx(tmp_path / "a")


def test_pixels_are_scaled_by_a_public_constant(mnist_folder):
    data = datasets.load("mnist")
    images, labels = data.train.tensors
    assert images.shape == (6, 1, 28, 28)
    assert images[0, 0, 0, :2].tolist() == [0.0, 1.0]
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]


def test_fashion_reconstructs_itself_or_names_the_article(mnist_folder):
    data = datasets.load("fashion-mnist")
    assert data.task == "reconstruction"
    assert torch.equal(*data.train.tensors)
    assert torch.equal(*data.test.tensors)
    named = datasets.load("fashion-mnist", task="classification")
    assert named.classes == 10
    assert named.test.tensors[1].tolist() == [0, 1, 2]
    with pytest.raises(InvalidInput, match="not language"):
        datasets.load("fashion-mnist", task="language")


def test_writers_come_from_the_packed_file_or_from_qmnist_alike(mnist_folder):
    folder = mnist_folder / "mnist-writers"
    folder.mkdir()
    writers = {"train": np.array([7, 7, 9, 9, 9, 2]), "test": np.array([5, 5, 4])}
    for split, writer in writers.items():
        labels = np.zeros((len(writer), 8), dtype=int)
        labels[:, 2] = writer
        packed = gzip.compress(to_idx(labels, "i4"))
        (folder / f"qmnist-{split}-labels-idx2-int.gz").write_bytes(packed)
    from_qmnist = datasets.load("mnist-writers").users
    np.savez(folder / "mnist_writers.npz", **{f"{split}_writer": writer for split, writer in writers.items()})
    from_packed = datasets.load("mnist-writers").users
    for users in (from_qmnist, from_packed):
        assert users.train.tolist() == writers["train"].tolist()
        assert users.test.tolist() == writers["test"].tolist()


def leaf(users):
    content = {
        "users": list(users),
        "num_samples": [len(labels) for labels in users.values()],
        "user_data": {
            user: {"x": [[label / 62] * 784 for label in labels], "y": labels} for user, labels in users.items()
        },
    }
    return json.dumps(content)


def test_femnist_takes_leafs_files(tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINA_DATA", str(tmp_path))
    for split, users in (("train", {"f1_2": [3, 61], "f0_1": [0]}), ("test", {"f9_9": [10, 11, 12]})):
        (tmp_path / "femnist" / split).mkdir(parents=True)
        (tmp_path / "femnist" / split / "all_data_0.json").write_text(leaf(users))
    (tmp_path / "femnist" / "train" / "all_data_1.json").write_text(leaf({"f5_5": [7]}))
    data = datasets.load("femnist")
    assert data.classes == 62
    assert data.users.names == ("f0_1", "f1_2", "f5_5", "f9_9")
    assert data.users.train.tolist() == [1, 1, 0, 2]
    assert data.users.test.tolist() == [3, 3, 3]
    images, labels = data.train.tensors
    assert labels.tolist() == [3, 61, 0, 7]
    assert torch.allclose(images.mean(dim=(1, 2, 3)), labels / 62)


@pytest.mark.parametrize(
    "content", ["{", "{}", leaf({"a": [62]}), leaf({"a": [1, 2]}).replace('"y": [1, 2]', '"y": [1]')]
)
def test_femnist_refuses_other_files(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InvalidInput, match=r"a\.json is not in LEAF's format"):
        read_femnist(tmp_path)


def test_femnist_refuses_an_empty_folder(tmp_path):
    with pytest.raises(DataNotFound, match="holds no json"):
        read_femnist(tmp_path)
