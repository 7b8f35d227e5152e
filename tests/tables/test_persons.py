"""One person is one person, however the pieces of a table hold the id: else rows_per_person bounds nothing."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas
import pytest

from sordina.errors import InvalidInput
from sordina.tables import Schema, read_table
from sordina.tables import readers as table_files
from sordina.tables.discover import _one_row_each
from sordina.tables.prepare import person_texts, present_texts, readable_numbers

SCHEMA = {
    "target": "y",
    "person": "p",
    "columns": {
        "p": {"kind": "person"},
        "x": {"kind": "number", "low": 0, "high": 1},
        "y": {"kind": "category", "values": ["a", "b"]},
    },
}
OPEN = Schema.load({"person": "p", "columns": {"p": {"kind": "person"}, "x": {"kind": "category"}}})


def discovered(source):
    return len(next(iter(_one_row_each(source, OPEN, np.random.default_rng(0), {})))[1])


@pytest.mark.parametrize(
    "ids", [[7, 7.0, "7", " 7 "], ["q", " q", "q ", "q"], [2**60, float(2**60), str(2**60), 2**60]]
)
def test_one_id_written_in_several_ways_is_one_person(ids):
    frame = pandas.DataFrame({"p": pandas.Series(ids, dtype=object), "x": [0.5] * 4, "y": ["a"] * 4})
    assert len(read_table(frame, SCHEMA).persons) == 1
    assert discovered(frame) == 1


def test_a_missing_id_in_one_piece_of_a_parquet_file_does_not_split_the_others(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows, large = table_files.ROWS_AT_ONCE + 10, 2**53 + 1
    ids = pyarrow.array([7, large] * (rows // 2 - 1) + [large, None], pyarrow.int64())
    parquet.write_table(
        pyarrow.table({"p": ids, "x": pyarrow.array([0.5] * rows), "y": pyarrow.array(["a"] * rows)}), tmp_path / "t.pq"
    )
    assert len(read_table(tmp_path / "t.pq", SCHEMA).persons) == 3
    assert discovered(tmp_path / "t.pq") == 3


def test_one_odd_value_does_not_change_what_counts_as_missing_elsewhere():
    """A text in a column of a frame makes it a column of objects: the other rows must read as before."""
    schema = Schema.load({"missing": ["-999", "NA"], "columns": {"x": {"kind": "number"}}})
    plain, mixed = np.array([1.0, -999.0, 3.0]), np.array([1.0, -999.0, 3.0, "odd"], dtype=object)
    assert readable_numbers(plain, schema["x"], schema).tolist() == [1.0, 3.0]
    assert readable_numbers(mixed, schema["x"], schema).tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    "odd",
    [pandas.NA, pandas.NaT, None, np.array([1, 2]), Decimal("sNaN"), np.datetime64("NaT"), "\ud800", b"x", [1]],
    ids=repr,
)
def test_no_value_of_a_frame_stops_reading_with_a_traceback(odd):
    """A nullable column of whole numbers holds pandas.NA, which cannot even be compared."""
    schema = Schema.load({"columns": {"c": {"kind": "category"}, "d": {"kind": "date"}, "n": {"kind": "number"}}})
    raw = np.empty(2, dtype=object)
    raw[0], raw[1] = "2020-01-01", odd
    assert "2020-01-01" in present_texts(raw, schema["c"], schema)
    assert len(readable_numbers(raw, schema["d"], schema)) == 1
    assert len(readable_numbers(raw, schema["n"], schema)) == 0
    assert len(person_texts(raw)) == 2


def test_a_whole_number_in_a_text_is_the_same_person_with_zeros_behind_its_point():
    from sordina.tables.prepare import person_texts

    texts = person_texts(np.array(["7", "7.0", " 7 ", "7.00", "07", "7.5", "A.0"], dtype=object))
    assert texts == ["7", "7", "7", "7", "07", "7.5", "A.0"]


def test_a_column_of_kind_person_is_the_person_column_and_there_is_one_at_most():
    columns = {"who": {"kind": "person"}, "x": {"kind": "number", "low": 0, "high": 1}}
    schema = Schema.load({"columns": columns})
    assert schema.person == "who"
    assert Schema.load(schema.to_dict()) == schema
    with pytest.raises(InvalidInput, match="one column says whose row it is"):
        Schema.load({"person": "who", "columns": {**columns, "other": {"kind": "person"}}})
