"""UCI Adult (census income): 32 561 + 16 281 people, income above 50 000 dollars or not; sex and race as groups.

Every constant of the encoding is public. The categories are those of the data set's own documentation
(``adult.names``); the numeric ranges are those of the survey's coding (ages 17 to 90, hours 1 to 99, gains up to
99 999), or round figures; none is computed from the rows, because a maximum read off the data is a leak.
Capital gain and loss span five decades and are mostly zero: they enter as ``log(1 + v) / log(1 + highest)``. Age,
hours, gain and loss enter a second time as intervals with round limits, which lets a linear model bend. The sampling
weight ``fnlwgt`` says nothing about the person and is left out.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordina.datasets.data import Column, Data, File, Task, obtain, open_text
from sordina.errors import InvalidInput
from sordina.progress import StagedProgress

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
FILES = {
    "train": File(
        "adult/adult.data",
        "sha256:5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        (f"{_UCI}adult.data",),
    ),
    "test": File(
        "adult/adult.test",
        "sha256:a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        (f"{_UCI}adult.test",),
    ),
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COLUMNS = _words(
    "age workclass fnlwgt education education_num marital_status occupation relationship race sex "
    "capital_gain capital_loss hours_per_week native_country income"
)

RANGES = {
    "age": (17.0, 90.0),
    "education_num": (1.0, 16.0),
    "capital_gain": (0.0, 99_999.0),
    "capital_loss": (0.0, 5_000.0),
    "hours_per_week": (1.0, 99.0),
}
LOGARITHMIC = ("capital_gain", "capital_loss")

INTERVALS = {
    "age": (25, 30, 35, 45, 55, 65),
    "hours_per_week": (20, 35, 41, 50, 60),
    "capital_gain": (1, 3_000, 5_000, 7_000, 15_000),
    "capital_loss": (1, 1_500, 2_000, 2_500),
}
"""Where an interval begins; the first one begins at the lowest value."""

CATEGORIES = {
    "workclass": _words(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked ?"
    ),
    "education": _words(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
        "Doctorate 5th-6th Preschool"
    ),
    "marital_status": _words(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": _words(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
        "Armed-Forces ?"
    ),
    "relationship": _words("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": _words("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": _words("Female Male"),
    "native_country": _words(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
        "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
        "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands ?"
    ),
}

FEATURES = (
    *RANGES,
    *(f"{name}>={start}" for name, starts in INTERVALS.items() for start in (0, *starts)),
    *(f"{name}={value}" for name, values in CATEGORIES.items() for value in values),
)
"""The names of the 131 inputs, in order."""


def read(path: Path) -> dict[str, list[str]]:
    """The columns of ``path`` as text; takes UCI's own files and files with a header row."""
    rows = []
    with open_text(path) as text:
        for number, row in enumerate(csv.reader(text, skipinitialspace=True), start=1):
            if not row or row[0] == "age" or row[0].startswith("|"):
                continue
            if len(row) != len(COLUMNS):
                raise InvalidInput(f"{path}, row {number}: {len(row)} columns instead of {len(COLUMNS)}.")
            rows.append(row)
    if not rows:
        raise InvalidInput(f"{path} holds no rows.")
    return dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))


def _codes(columns: dict[str, list[str]], name: str) -> npt.NDArray[np.int64]:
    code = {value: index for index, value in enumerate(CATEGORIES[name])}
    try:
        return np.array([code[value] for value in columns[name]], dtype=np.int64)
    except KeyError as error:
        raise InvalidInput(f"adult, column {name}: {error} is not among its documented categories.") from None


def encode(columns: dict[str, list[str]]) -> npt.NDArray[np.float32]:
    """Inputs in [0, 1]: scaled numbers, then one-hot intervals and categories, in the order of `FEATURES`."""
    parts = []
    for name, (low, high) in RANGES.items():
        share = (np.clip(np.array(columns[name], dtype=np.float64), low, high) - low) / (high - low)
        if name in LOGARITHMIC:
            share = np.log1p(share * high) / math.log1p(high)
        parts.append(share[:, None].astype(np.float32))
    for name, starts in INTERVALS.items():
        interval = np.digitize(np.array(columns[name], dtype=np.float64), starts)
        parts.append(np.eye(len(starts) + 1, dtype=np.float32)[interval])
    parts += [np.eye(len(CATEGORIES[name]), dtype=np.float32)[_codes(columns, name)] for name in CATEGORIES]
    return np.concatenate(parts, axis=1)


def _split(split: str, progress: StagedProgress | None) -> tuple[TensorDataset, dict[str, Tensor]]:
    columns = read(obtain(FILES[split], f"adult/{split}.csv", progress=progress))
    rich = np.array([income.startswith(">50K") for income in columns["income"]], dtype=np.int64)
    groups = {name: torch.from_numpy(_codes(columns, name)) for name in ("sex", "race")}
    return TensorDataset(torch.from_numpy(encode(columns)), torch.from_numpy(rich)), groups


def load(*, progress: StagedProgress | None = None) -> Data:
    """Adult: 131 inputs in [0, 1], target 1 for an income above 50 000 dollars."""
    train, train_groups = _split("train", progress)
    test, test_groups = _split("test", progress)
    return Data(
        name="adult",
        train=train,
        test=test,
        task=Task.CLASSIFICATION,
        classes=2,
        groups={name: Column(train_groups[name], test_groups[name], CATEGORIES[name]) for name in train_groups},
        source="UCI Adult (Becker and Kohavi 1996), complete: 32 561 + 16 281",
    )
