"""What Medicare paid American hospitals in 2011 for the four conditions most of them treat (000 section 2.5.1).

The thesis keeps "the 4 most widely treated conditions, which amount to simple pneumonia; kidney and urinary tract
infections; heart failure and shock; esophagitis and digestive system disorders". These are exactly the four DRGs that
the most hospitals report: 194, 690, 292 and 392.

It then counts 2947 hospitals without printing how. All hospitals that report any of the four are 3151. The rule kept
here, *at least three of the four, in the contiguous states or the District of Columbia*, gives 2947 exactly; it is our
reconstruction. Two others come within one: 2948 is also the number of distinct ZIP codes of the 3151, and the number of
hospitals left when ZIP codes are read as integers, so that those that begin with 0 find no coordinates.

Inputs are brought "in the range of the units" (the thesis, point iv) by public powers of ten: the index of the
condition as it is, degrees by 10, dollars by 1 000. No statistic of the data is used.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from operator import itemgetter

import numpy as np
import torch
from torch.utils.data import TensorDataset

from sordina.datasets.data import Column, Data, File, Task, obtain, open_text
from sordina.errors import InvalidInput

CHARGES = File(
    "cms-inpatient/inpatient_drg100_fy2011.csv.gz",
    "sha256:fadb9aa684008e0f9078ad811451627756b87151e6ea94cc780814b476697ccd",
)
COORDINATES = File(
    "cms-inpatient/us_zip_latlon.csv.gz", "sha256:ed31257e5aa67db31d9ec2a50a97ca4cc3474086edeca0b8d2953733412b7b09"
)
CONDITIONS = ("194", "690", "292", "392")
"""By falling number of hospitals; the position is the "increasing index" that the network sees."""
CONDITION_NAMES = (
    "simple pneumonia",
    "kidney and urinary tract infections",
    "heart failure and shock",
    "esophagitis and digestive disorders",
)
DEGREES = 10.0
DOLLARS = 1_000.0
_OVERSEAS = ("AK", "HI")
_TRAIN_SHARE = 0.7


def _columns(file: File, *names: str) -> Iterator[tuple[str, ...]]:
    path = obtain(file)
    with open_text(path) as text:
        rows = csv.reader(text)
        header = next(rows, [])
        if not set(names) <= set(header):
            raise InvalidInput(f"{path} must have the columns {', '.join(names)}.")
        yield from map(itemgetter(*map(header.index, names)), rows)


def read(*, conditions: int = 3, contiguous: bool = True) -> dict[str, list[tuple[float, float, float, float]]]:
    """Rows ``(index, longitude, latitude, payment)``, scaled, of every hospital that treats ``conditions`` or more."""
    if not 1 <= conditions <= len(CONDITIONS):
        raise InvalidInput(f"conditions must lie between 1 and {len(CONDITIONS)}, got {conditions}.")
    places = {code: (float(lon), float(lat)) for code, lon, lat in _columns(COORDINATES, "zip", "lon", "lat")}
    hospitals = defaultdict(list)
    charges = _columns(CHARGES, "DRG", "Provider Id", "State", "Zip", "Average Total Payments")
    for condition, provider, state, code, payment in charges:
        if condition in CONDITIONS and code in places and not (contiguous and state in _OVERSEAS):
            index, (longitude, latitude) = float(CONDITIONS.index(condition)), places[code]
            row = (index, longitude / DEGREES, latitude / DEGREES, float(payment) / DOLLARS)
            hospitals[provider].append(row)
    return {name: rows for name, rows in sorted(hospitals.items()) if len(rows) >= conditions}


def load(*, seed: int = 0, conditions: int = 3, contiguous: bool = True) -> Data:
    """Predict the average payment (thousands of dollars); 70 % of the hospitals train, the others test."""
    hospitals = read(conditions=conditions, contiguous=contiguous)
    names = tuple(hospitals)
    order = np.random.default_rng(seed).permutation(len(names))
    cut = int(_TRAIN_SHARE * len(names))
    parts, users = [], []
    for chosen in (sorted(order[:cut]), sorted(order[cut:])):
        rows = torch.tensor([row for hospital in chosen for row in hospitals[names[hospital]]], dtype=torch.float32)
        parts.append(TensorDataset(rows[:, :3], rows[:, 3:]))
        users.append(torch.tensor([int(hospital) for hospital in chosen for _ in hospitals[names[hospital]]]))
    return Data(
        name="hospital",
        train=parts[0],
        test=parts[1],
        task=Task.REGRESSION,
        users=Column(users[0], users[1], names),
        source=f"CMS inpatient charges, fiscal year 2011: {len(names)} hospitals, DRGs {', '.join(CONDITIONS)}",
    )
