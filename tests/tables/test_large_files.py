"""Large CSV files are parsed by pyarrow where that reads what Python's own reader would: the same, and as refused."""

from __future__ import annotations

import gzip

import numpy as np
import pandas
import pytest

from sordina.errors import InvalidInput
from sordina.tables import read_table, readers

COLUMNS = {
    "who": {"kind": "person"},
    "n": {"kind": "number", "low": -10, "high": 1000},
    "m": {"kind": "number", "low": 0, "high": 10, "missing": ["", "-9"]},
    "c": {"kind": "category", "values": ["a", "b", "ä"]},
    "d": {"kind": "date", "low": "2020-01-01", "high": "2021-01-01"},
    "y": {"kind": "category", "values": ["no", "yes"]},
}
SCHEMA = {"target": "y", "columns": COLUMNS}
VALUES = {
    "who": ["7", "7.0", " 8", "", "x"],
    "n": ["1", " 2 ", "1e2", "", "NA", "+3", ".5", "5.", "-0", "NaN", "1_0", "inf", "nonsense", "0x1"],
    "m": ["1", "-9", "-9.0", "", "2.5"],
    "c": ["a", "b ", "ä", "", "?", "z", "A"],
    "d": ["2020-05-01", "2020-06-01T10:00:00", "", "never"],
    "y": ["no", "yes", " yes", "", "perhaps"],
}


def outcome(path, **reading):
    try:
        table = read_table(path, SCHEMA, **reading)
    except InvalidInput as error:
        return str(error)
    return [table.inputs.numpy().tolist(), table.targets.tolist(), table.owners.tolist(), table.persons]


def rows(rng, size, wild):
    first = 5 if wild else 2
    return [[str(rng.choice(VALUES[name][: len(VALUES[name]) if wild else first])) for name in COLUMNS]
            for _ in range(size)]  # fmt: skip


def write(path, table, separator=",", end="\n", encoding="utf-8", quote=False, ragged=False):
    lines = [separator.join(f'"{one}"' if quote else one for one in row) for row in [list(COLUMNS), *table]]
    if ragged:
        lines[len(lines) // 2] += separator
    text = end.join([*lines, ""])
    data = text.encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("seed", range(40))
def test_both_readers_agree(seed, tmp_path, monkeypatch):
    rng = np.random.default_rng(seed)
    encoding, separator = rng.choice(["utf-8", "latin-1", "utf-16"]), rng.choice([",", ";", "\t"])
    path = tmp_path / ("t.csv.gz" if seed % 5 == 0 else "t.csv")
    table = rows(rng, 30, wild=seed % 4 == 0)
    options = {"ragged": seed % 11 == 3, "quote": seed % 7 == 2, "end": ["\n", "\r\n", "\r", "\n\n"][seed % 4 - 4]}
    write(path, table, str(separator), encoding=str(encoding), **options)
    monkeypatch.setattr(readers, "_BLOCK", 100)
    reading = {"encoding": str(encoding), "separator": str(separator)}
    found = outcome(path, **reading)
    monkeypatch.setattr(readers, "_arrow_parser", lambda rows, schema: None)
    expected = outcome(path, **reading)
    if isinstance(expected, str):  # which of several bad values is met first may differ
        assert isinstance(found, str)
    else:
        assert found == expected


def test_a_quote_far_down_hands_over_to_the_other_reader(tmp_path, monkeypatch):
    table = rows(np.random.default_rng(0), 200, wild=False)
    path = tmp_path / "t.csv"
    write(path, table)
    text = path.read_text().splitlines()
    text[150] = text[150].replace(",a,", ',"a",').replace(",b ,", ',"b",')
    text[160] = '"8\n9"' + text[160][text[160].index(",") :]
    path.write_text("\n".join(text) + "\n")
    monkeypatch.setattr(readers, "_BLOCK", 1000)
    found = outcome(path)
    monkeypatch.setattr(readers, "_arrow_parser", lambda rows, schema: None)
    assert found == outcome(path)
    assert len(found[1]) == 200


def test_the_byte_order_mark_and_a_quoted_header_do_not_matter(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbf"who",n,m,c,d,y\n1,2,3,a,2020-02-02,yes\n')
    frame = pandas.DataFrame([["1", "2", "3", "a", "2020-02-02", "yes"]], columns=list(COLUMNS))
    assert outcome(path) == outcome(frame)
