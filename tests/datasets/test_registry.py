"""All data sets come in one shape."""

import pytest
import torch

from sordina import datasets
from sordina.datasets.data import find
from sordina.errors import DataNotFound, InvalidInput

FILES = {
    "digits": None,
    "adult": "adult/train.csv.gz",
    "mnist": "mnist/train-images-idx3-ubyte.gz",
    "fashion-mnist": "fashion-mnist/train-images-idx3-ubyte.gz",
    "ag-news": "ag-news/test.csv.gz",
    "hospital": "cms-inpatient/us_zip_latlon.csv.gz",
    "mnist-writers": "mnist-writers/mnist_writers.npz",
    "wikitext-2": "wikitext-2/train.txt.gz",
}
SHAPES = {
    "digits": ((1, 8, 8), 1437, 360, 10),
    "adult": ((131,), 32_561, 16_281, 2),
    "mnist": ((1, 28, 28), 60_000, 10_000, 10),
    "fashion-mnist": ((1, 28, 28), 60_000, 10_000, 0),
    "ag-news": ((1500,), None, 7_600, 4),
    "hospital": ((3,), None, None, 0),
    "mnist-writers": ((1, 28, 28), 60_000, 10_000, 10),
    "wikitext-2": ((125,), 2_088_628 // 126, 245_569 // 126, 33_278),
}


@pytest.mark.parametrize("name", FILES)
def test_every_data_set_has_the_same_shape(name):
    if FILES[name] and find(FILES[name]) is None:
        pytest.skip(f"{FILES[name]} is not in SORDINA_DATA")
    data = datasets.load(name)
    shape, train, test, classes = SHAPES[name]
    assert data.name == name
    assert data.input_shape == shape
    assert data.classes == classes
    assert data.source
    assert (len(data.train), len(data.test)) == (train or len(data.train), test or len(data.test))
    for part in (data.train, data.test):
        x, y = part.tensors
        assert x.dtype == (torch.int64 if data.task == datasets.Task.LANGUAGE else torch.float32)
        assert torch.isfinite(x).all()
        if data.classes:
            assert int(y.min()) >= 0
            assert int(y.max()) < data.classes
    columns = [*data.groups.values(), *([data.users] if data.users else [])]
    for column in columns:
        assert (len(column.train), len(column.test)) == (len(data.train), len(data.test))
    if data.users:
        assert not set(data.users.train.tolist()) & set(data.users.test.tolist())


def test_unknown_names_and_options_are_refused_with_a_list():
    with pytest.raises(InvalidInput, match=r"unknown data set 'imagenet': choose one of digits, adult, mnist, "):
        datasets.load("imagenet")
    with pytest.raises(InvalidInput, match="data set digits has no option 'sed': it takes seed"):
        datasets.load("digits", sed=1)


def test_without_data_and_net_each_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def offline(*_, **__):
        raise OSError("no net")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    for name in set(datasets.names()) - {"digits"}:
        with pytest.raises(DataNotFound, match=str(tmp_path)) as refusal:
            datasets.load(name)
        assert "\n" not in str(refusal.value)


def test_digits_are_split_once_and_for_all_by_the_seed():
    data, again, other = datasets.load("digits"), datasets.load("digits"), datasets.load("digits", seed=1)
    assert torch.equal(data.train.tensors[0], again.train.tensors[0])
    assert not torch.equal(data.train.tensors[0], other.train.tensors[0])
    for split in (data, other):
        rows = torch.cat([split.train.tensors[0], split.test.tensors[0]]).flatten(1)
        assert len(rows) == 1797
        assert float(rows.max()) == 1.0
        assert float(rows.sum(dtype=torch.float64)) == pytest.approx(561_718 / 16)
