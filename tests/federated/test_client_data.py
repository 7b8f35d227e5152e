"""Federations: as the thesis describes them, with their known truths."""

import json

import numpy as np
import pytest
import torch

from sordina import models
from sordina.datasets.data import find
from sordina.errors import InvalidInput
from sordina.federated import data
from sordina.models import losses, metrics


def rng(seed=0):
    return np.random.default_rng(seed)


def fit(shards, bias=False):
    x, y = (torch.cat([shard[i] for shard in shards]).double() for i in (0, 1))
    columns = [x, torch.ones(len(x), 1, dtype=x.dtype)] if bias else [x]
    return torch.linalg.lstsq(torch.cat(columns, dim=1), y).solution.squeeze(1)


def of_cluster(federation, cluster):
    return [shard for shard, c in zip(federation.train, federation.clusters[0], strict=True) if c == cluster]


def usable(federation):
    """The names it carries build a model whose loss and metric take its rows."""
    model = models.build(federation.model, **federation.options)
    x, y = federation.validation[0]
    outputs = model(x[:8])
    assert losses.named(federation.loss)(outputs, y[:8]).shape == (len(y[:8]),)
    assert metrics.named(federation.metric)(outputs, y[:8]) >= 0
    for groups in federation.groups.values():
        assert [len(codes) for codes in groups.train] == [len(y) for _, y in federation.train]
        assert [len(codes) for codes in groups.validation] == [len(y) for _, y in federation.validation]
    return federation


def test_synthetic_follows_its_two_laws():
    federation = usable(data.load("synthetic", rng()))
    assert len(federation.train) == len(federation.validation) == 100
    assert federation.model == "linear"
    for cluster, theta in enumerate(federation.optima):
        for x, y in of_cluster(federation, cluster):
            assert x.shape == (10, 2)
            noise = y.squeeze(1) - x @ theta
            assert float(noise.min()) >= -1e-4
            assert float(noise.max()) <= 1 + 1e-4
        # Least squares with an intercept: standard error about sqrt(1/12/500) = 0.013.
        assert torch.allclose(fit(of_cluster(federation, cluster), bias=True)[:2], theta.double(), atol=0.07)
    assert torch.stack(federation.optima).tolist() == [[5, 6], [4, -4.5]]


def test_synthetic_is_decided_by_the_generator():
    first, again, other = (data.load("synthetic", rng(seed), clients=9, samples=3) for seed in (0, 0, 1))
    assert len(first.train) == 9
    assert torch.equal(first.train[3][0], again.train[3][0])
    assert not torch.equal(first.train[3][0], other.train[3][0])
    with pytest.raises(InvalidInput, match="need clients and samples"):
        data.load("synthetic", rng(), clients=0)


def test_the_minority_is_one_in_five_and_judged_the_other_way():
    federation = usable(data.load("synthetic-fairness", rng()))
    groups = federation.groups["group"]
    assert groups.names == ("majority", "minority")
    for clusters in federation.clusters:
        assert (clusters.count(0), clusters.count(1)) == (800, 200)
    assert [int(codes[0]) for codes in groups.train] == federation.clusters[0]
    for cluster, optimum in enumerate(federation.optima):
        assert torch.allclose(fit(of_cluster(federation, cluster), bias=True), optimum.double(), atol=0.05)
    values = torch.tensor([[-1.0], [0.0], [20.0], [15.0], [16.0]])
    assert federation.outcome(values, torch.tensor([0, 0, 0, 1, 1])).tolist() == [0, 1, 1, 1, 0]
    with pytest.raises(InvalidInput, match="minority's share"):
        data.load("synthetic-fairness", rng(), minority=0)


def test_hospitals_are_2947_clients_split_70_to_30():
    if find("cms-inpatient/us_zip_latlon.csv.gz") is None:
        pytest.skip("the hospital charges are not in SORDINA_DATA")
    federation = usable(data.load("hospital", rng()))
    assert (len(federation.train), len(federation.validation)) == (2062, 885)
    assert federation.root
    assert all(3 <= len(y) <= 4 for _, y in federation.train)
    places = [{tuple(row) for row in x[:, 1:].tolist()} for x, _ in federation.train]
    assert all(len(place) == 1 for place in places)


@pytest.fixture
def leaf(tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINA_DATA", str(tmp_path))
    for split, rows in (("train", 3), ("test", 1)):
        folder = tmp_path / "femnist" / split
        folder.mkdir(parents=True)
        users = [f"f{index}" for index in range(40)]
        image = (np.arange(784) / 784).round(3).tolist()
        content = {"users": users, "user_data": {user: {"x": [image] * rows, "y": [5] * rows} for user in users}}
        (folder / "all.json").write_text(json.dumps(content))


def test_femnist_holds_out_a_tenth_of_the_writers_and_turns_half(leaf):
    federation = usable(data.load("femnist", rng()))
    assert (len(federation.train), len(federation.validation)) == (36, 4)
    assert federation.options == {"classes": 62}
    upright = torch.arange(784).reshape(28, 28)
    for (x, y), turned in zip(federation.train, federation.clusters[0], strict=True):
        assert len(y) == 4
        expected = torch.rot90(upright, 1) if turned else upright
        assert torch.equal((x[0, 0] * 784).round().long(), expected)
    assert 0 < sum(federation.clusters[0]) < 36
    assert sum(data.load("femnist", rng(), probability=0).clusters[0]) == 0


def test_an_even_class_is_good_for_the_upright_and_bad_for_the_turned(leaf):
    federation = data.load("femnist", rng())
    classes, turned = torch.tensor([4, 5, 4, 5]), torch.tensor([0, 0, 1, 1])
    assert federation.outcome(classes, turned).tolist() == [1, 0, 0, 1]


def test_mnist_writers_are_its_people():
    if find("mnist-writers/mnist_writers.npz") is None:
        pytest.skip("mnist-writers is not in SORDINA_DATA")
    federation = usable(data.load("mnist-writers", rng()))
    assert (len(federation.train), len(federation.validation)) == (539, 297)
    sizes = [len(y) for _, y in federation.train]
    assert (sum(sizes), min(sizes), max(sizes)) == (60_000, 19, 131)


@pytest.mark.parametrize("partition", ["iid", "label", "quantity"])
def test_adult_is_dealt_to_fifty(partition):
    if find("adult/train.csv.gz") is None:
        pytest.skip("adult/train.csv.gz is not in SORDINA_DATA")
    federation = usable(data.load("adult", rng(), partition=partition))
    assert len(federation.train) == 50
    assert sum(len(y) for _, y in federation.train) == 32_561
    assert sum(int(y.sum()) for _, y in federation.train) == 7_841
    sex = federation.groups["sex"]
    assert sum(int((codes == sex.names.index("Female")).sum()) for codes in sex.train) == 10_771
    for (x, _), codes in zip(federation.train, sex.train, strict=True):
        female = x[:, -44]
        assert torch.equal(female.long(), (codes == 0).long())


def test_unknown_names_options_and_partitions_are_refused():
    with pytest.raises(InvalidInput, match="unknown federation 'reddit': choose one of synthetic, "):
        data.load("reddit", rng())
    with pytest.raises(InvalidInput, match="has no option 'rows': it takes clients, validation, samples"):
        data.load("synthetic", rng(), rows=3)
    if find("adult/train.csv.gz") is not None:
        with pytest.raises(InvalidInput, match="unknown partition 'fair'"):
            data.load("adult", rng(), partition="fair")
