"""The hospital charges: the four conditions and the 2947 hospitals of the thesis."""

import csv
from collections import Counter

import pytest
import torch

from sordina import datasets
from sordina.datasets import hospital
from sordina.datasets.data import find, open_text
from sordina.errors import InvalidInput

pytestmark = pytest.mark.skipif(find(hospital.CHARGES.path) is None, reason="the charges are not in SORDINA_DATA")


def test_the_four_conditions_are_those_most_hospitals_report():
    with open_text(find(hospital.CHARGES.path)) as text:
        reported = Counter(row["DRG"] for row in csv.DictReader(text))
    assert tuple(drg for drg, _ in reported.most_common(4)) == hospital.CONDITIONS


def test_the_rule_gives_the_thesis_count_and_others_do_not():
    assert len(hospital.read()) == 2947
    everyone = hospital.read(conditions=1, contiguous=False)
    assert len(everyone) == 3151
    assert len(hospital.read(conditions=4)) == 2725
    with pytest.raises(InvalidInput, match="between 1 and 4, got 5"):
        hospital.read(conditions=5)


def test_rows_are_in_the_range_of_the_units():
    data = datasets.load("hospital")
    x, y = data.train.tensors
    assert set(x[:, 0].tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert -12.5 < float(x[:, 1].min()) < float(x[:, 1].max()) < -6.6
    assert 2.4 < float(x[:, 2].min()) < float(x[:, 2].max()) < 5.0
    assert 3.0 < float(y.min()) < float(y.max()) < 24


def test_hospitals_train_or_test_but_never_both():
    data, other = datasets.load("hospital", seed=0), datasets.load("hospital", seed=1)
    train, test = set(data.users.train.tolist()), set(data.users.test.tolist())
    assert (len(train), len(test)) == (2062, 885)
    assert not train & test
    assert not torch.equal(data.users.train, other.users.train)
