"""Preparation is a fixed map: the same row gives the same numbers, whoever else is in the table."""

from __future__ import annotations

import gzip

import numpy as np
import pandas
import polars
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from sordina.errors import InvalidInput
from sordina.tables import Prepare, Schema, feature_names, read_table

NAMES = ["age", "age=missing", "ward=A", "ward=B", "ward=other", "ward=missing", "admitted", "admitted=missing"]
WANTED = [
    [0.34, 0, 1, 0, 0, 0, 59 / 365, 0],
    [0.5, 1, 0, 1, 0, 0, 100 / 365, 0],
    [0.71, 0, 0, 0, 1, 0, 0.5, 1],
    [1.0, 0, 0, 0, 0, 1, 1.0, 0],
]


def test_rows_become_the_numbers_the_schema_says(patients, schema):
    table = read_table(patients, schema)
    assert feature_names(table.schema) == NAMES
    np.testing.assert_allclose(table.inputs.numpy(), WANTED, atol=1e-6)
    assert table.targets.tolist() == [1, 0, 1, 0]
    assert table.owners.tolist() == [0, 1, 0, 2]
    assert table.persons == ("p1", "p2", "p3")
    assert table.groups["ward"].tolist() == [0, 1, 2, 3]
    assert len(table.users) == 3


@pytest.mark.parametrize("kind", ["gzip", "parquet", "pandas", "polars", "pandas-types", "bom", "latin-1"])
def test_every_source_says_the_same(kind, patients, schema, tmp_path):
    frame = pandas.read_csv(patients, dtype=str, keep_default_na=False)
    options = {}
    if kind == "gzip":
        source = tmp_path / "patients.csv.gz"
        source.write_bytes(gzip.compress(patients.read_bytes()))
    elif kind == "parquet":
        source = tmp_path / "patients.parquet"
        frame.to_parquet(source)
    elif kind == "polars":
        source = polars.from_dicts(frame.to_dict("records"))
    elif kind == "pandas-types":
        source = frame.assign(
            age=pandas.to_numeric(frame["age"].replace("", None)), admitted=pandas.to_datetime(frame["admitted"])
        )
    elif kind == "bom":
        source = tmp_path / "bom.csv"
        source.write_bytes(b"\xef\xbb\xbf" + patients.read_bytes())
    elif kind == "latin-1":
        source = tmp_path / "latin.csv"
        source.write_text(patients.read_text().replace("came in late", "caf\xe9"), encoding="latin-1")
        options["encoding"] = "latin-1"
    else:
        source = frame
    table = read_table(source, schema, **options)
    np.testing.assert_allclose(table.inputs.numpy(), WANTED, atol=1e-6)
    assert table.targets.tolist() == [1, 0, 1, 0]


def test_an_encoding_without_its_mark_is_refused_in_a_line(patients, schema, tmp_path):
    source = tmp_path / "unmarked.csv"
    source.write_bytes(patients.read_text().encode("utf-16-be"))
    with pytest.raises(InvalidInput, match="is not written in utf-16"):
        read_table(source, schema, encoding="utf-16")


def test_pieces_do_not_matter(patients, schema, monkeypatch):
    whole = read_table(patients, schema).inputs
    monkeypatch.setattr("sordina.tables.readers.ROWS_AT_ONCE", 1)
    monkeypatch.setattr(
        "sordina.tables.readers.pieces.__kwdefaults__", {"encoding": "utf-8", "separator": ",", "rows_at_once": 1}
    )
    np.testing.assert_array_equal(whole.numpy(), read_table(patients, schema).inputs.numpy())


def test_a_row_does_not_depend_on_its_neighbours(patients, schema):
    alone = read_table(pandas.read_csv(patients, dtype=str, keep_default_na=False)[2:3], schema)
    np.testing.assert_array_equal(alone.inputs.numpy()[0], read_table(patients, schema).inputs.numpy()[2])


def test_log_scale(schema):
    schema["columns"]["age"].update(scale="log", high=99, optional=False)
    schema["columns"] = {"age": schema["columns"]["age"]}
    frame = pandas.DataFrame({"age": [0, 9, 99]})
    np.testing.assert_allclose(
        Prepare({"columns": schema["columns"]}).fit_transform(frame)[:, 0], [0, 0.5, 1], atol=1e-6
    )


def test_in_a_pipeline_with_names(patients, schema):
    frame = pandas.read_csv(patients, dtype=str, keep_default_na=False)
    pipeline = make_pipeline(Prepare(schema), FunctionTransformer())
    np.testing.assert_allclose(pipeline.fit_transform(frame), WANTED, atol=1e-6)
    assert list(Prepare(schema).set_output(transform="pandas").fit_transform(frame).columns) == NAMES
    assert list(Prepare(schema).get_feature_names_out()) == NAMES


def test_regression_targets_are_scaled(patients, schema):
    schema["target"] = "age"
    frame = pandas.read_csv(patients, dtype=str, keep_default_na=False)
    frame.loc[1, "age"] = "50"
    np.testing.assert_allclose(read_table(frame, schema).targets.numpy(), [0.34, 0.5, 0.71, 1.0], atol=1e-6)


BROKEN = {
    "not a number": ("p1,34,", "p1,3y4SECRET,", "row 1, column 'age'"),
    "not a date": ("2022-01-01", "SECRET", "row 4, column 'admitted'"),
    "unknown class": ("x,ill", "x,SECRET", "row 3: the target"),
    "missing class": ("x,ill", "x,", "row 3, column 'outcome' is missing"),
    "too many fields": ("x,ill", "x,ill,SECRET", "row 3"),
    "far too many fields": ("x,ill", "x,ill,SECRET,SECRET", "row 3"),
    "too few fields": ("71,C,,x,ill", "SECRET", "row 3"),
    "infinite": ("34", "inf", "row 1, column 'age'"),
    "open quote": ("x,ill", '"SECRET,ill', ""),
    "duplicate header": ("ward", "age", "two columns called 'age'"),
    "no such column": ("ward", "wing", "no column 'ward'"),
    "unnamed column": ("ward,", ",", "column 3"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_refused_in_one_line(case, patients, schema):
    old, new, where = BROKEN[case]
    patients.write_text(patients.read_text().replace(old, new, 1))
    with pytest.raises(InvalidInput) as refused:
        read_table(patients, schema)
    assert where in str(refused.value)
    assert "SECRET" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_are_none(tmp_path, schema):
    import os

    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("patient_id,age,ward,admitted,note,outcome\n")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"patient_id,age\n" * 10000)[:60])
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nonsense")
    (tmp_path / "latin.csv").write_bytes(
        "patient_id,age,ward,admitted,note,outcome\np,1,A,,\xe9,ill\n".encode("latin-1")
    )
    for source in [*sorted(tmp_path.iterdir()), tmp_path, tmp_path / "nowhere.csv", 7]:
        with pytest.raises(InvalidInput):
            read_table(source, schema)


def test_a_schema_with_open_fields_prepares_nothing(patients, schema):
    del schema["columns"]["age"]["low"]
    with pytest.raises(InvalidInput, match=r"age \(low\)"):
        read_table(patients, schema)


def test_toml_round_trip(tmp_path, schema):
    made = Schema.load(schema)
    path = tmp_path / "schema.toml"
    path.write_text(made.to_toml())
    assert Schema.load(path) == made


@pytest.mark.parametrize(
    "change",
    [
        {"target": "nowhere"}, {"person": "age"}, {"groups": ["age"]}, {"strange": 1}, {"columns": {}},
        {"columns": {"a": {"kind": "number", "low": 2, "high": 1}}}, {"columns": {"a": {"kind": "colour"}}},
        {"columns": {"a": {"kind": "number", "low": "x"}}}, {"missing": "NA"},
        {"columns": {"a": {"kind": "category", "values": ["x", "x"]}}},
        {"columns": {"a": {"kind": "number", "low": float("nan")}}}, {"rows_per_person": 0}, {"columns": {"a": 3}},
        {"target": "note"},
    ],
)  # fmt: skip
def test_schemas_that_cannot_be(schema, change):
    with pytest.raises(InvalidInput):
        Schema.load({**schema, **change})
