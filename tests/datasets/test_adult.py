"""Adult: the same from UCI's own files, from public constants only, row by row."""

import numpy as np
import pytest
import torch

from sordina import datasets
from sordina.datasets import adult
from sordina.datasets.data import find
from sordina.errors import InvalidInput

HEADER = ",".join(adult.COLUMNS)
ROWS = [
    "39,State-gov,77516,Bachelors,13,Never-married,Adm-clerical,Not-in-family,White,Male,2174,0,40,United-States,<=50K",
    "90,?,1484705,Doctorate,16,Widowed,?,Wife,Black,Female,99999,4356,99,Trinadad&Tobago,>50K",
    "17,Private,12285,Preschool,1,Divorced,Sales,Own-child,Other,Male,0,0,1,?,<=50K",
]


@pytest.fixture
def ours(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("\n".join([HEADER, *ROWS]))
    return path


def uci(rows, test=False):
    lines = [row.replace(",", ", ") + ("." if test else "") for row in rows]
    return "\n".join([*(["|1x3 Cross validator"] if test else []), *lines, "", ""])


@pytest.mark.parametrize("test", [False, True])
def test_ucis_files_read_the_same(ours, tmp_path, test):
    (tmp_path / "adult.data").write_text(uci(ROWS, test))
    original, own = adult.read(tmp_path / "adult.data"), adult.read(ours)
    assert np.array_equal(adult.encode(original), adult.encode(own))
    assert [income.rstrip(".") for income in original["income"]] == own["income"]


def test_inputs_are_what_their_names_say(ours):
    inputs = adult.encode(adult.read(ours))
    assert inputs.shape == (3, len(adult.FEATURES)) == (3, 131)
    rows = [dict(zip(adult.FEATURES, row.tolist(), strict=True)) for row in inputs]
    assert rows[0]["age"] == pytest.approx((39 - 17) / (90 - 17))
    assert rows[0]["capital_gain"] == pytest.approx(np.log1p(2174) / np.log1p(99_999))
    assert rows[1]["capital_gain"] == pytest.approx(1)
    assert rows[1]["occupation=?"] == rows[1]["sex=Female"] == rows[1]["education=Doctorate"] == 1
    assert rows[0]["age>=35"] == rows[0]["hours_per_week>=35"] == rows[0]["capital_gain>=1"] == 1
    assert rows[2]["capital_gain>=0"] == 1
    assert inputs.min() == 0
    assert inputs.max() == 1
    hot = len(adult.INTERVALS) + len(adult.CATEGORIES)
    assert np.array_equal(inputs[:, len(adult.RANGES) :].sum(axis=1), [hot] * 3)


def test_a_row_is_encoded_alike_in_any_company(ours):
    columns = adult.read(ours)
    together = adult.encode(columns)
    alone = [adult.encode({name: [values[row]] for name, values in columns.items()}) for row in range(3)]
    assert np.array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (f"{HEADER}\n{ROWS[0]},extra", "row 2: 16 columns instead of 15"),
        (HEADER, "holds no rows"),
    ],
)
def test_malformed_files_are_refused(tmp_path, content, complaint):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InvalidInput, match=complaint):
        adult.read(tmp_path / "a.csv")


def test_an_undocumented_category_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text(ROWS[0].replace("State-gov", "Pirate"))
    with pytest.raises(InvalidInput, match="workclass: 'Pirate' is not among"):
        adult.encode(adult.read(tmp_path / "a.csv"))


def test_the_real_data_have_their_known_counts():
    if find("adult/train.csv.gz") is None:
        pytest.skip("adult/train.csv.gz is not in SORDINA_DATA")
    data = datasets.load("adult")
    assert int(data.train.tensors[1].sum()) == 7_841
    assert int(data.test.tensors[1].sum()) == 3_846
    sex, race = data.groups["sex"], data.groups["race"]
    assert torch.bincount(sex.train).tolist() == [10_771, 21_790]
    assert dict(zip(race.names, torch.bincount(race.train).tolist(), strict=True))["White"] == 27_816
