import pytest

ROWS = """patient_id,age,ward,admitted,note,outcome
p1,34,A,2021-03-01,came in late,ill
p2,,B,2021-04-11,"a long, quoted note",well
p1,71,C,,x,ill
p3, 200 ,?,2022-01-01,y,well
"""
SCHEMA = {
    "target": "outcome",
    "person": "patient_id",
    "rows_per_person": 2,
    "groups": ["ward"],
    "columns": {
        "patient_id": {"kind": "person"},
        "age": {"kind": "number", "low": 0, "high": 100},
        "ward": {"kind": "category", "values": ["A", "B"]},
        "admitted": {"kind": "date", "low": "2021-01-01", "high": "2022-01-01"},
        "note": {"kind": "text"},
        "outcome": {"kind": "category", "values": ["well", "ill"], "optional": False},
    },
}


@pytest.fixture
def patients(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(ROWS)
    return path


@pytest.fixture
def schema():
    return {**SCHEMA, "columns": {name: dict(facts) for name, facts in SCHEMA["columns"].items()}}
