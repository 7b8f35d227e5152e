"""Read a finished folder as an attacker: no clock, and no trace of one strange record."""

import json
import math

import torch
from tests.tuning.world import ROWS, mlp, world

import sordina as sd


def fitted(folder, value=None):
    x, y = world(ROWS, 0)
    if value is not None:
        x[:40] = value
    trainer = mlp(0)
    trainer.folder = folder
    trainer.fit((x, y))
    return folder


def texts(folder):
    return {path.name: path.read_text() for path in folder.rglob("*") if path.suffix in (".json", ".jsonl")}


def test_no_time_is_written(tmp_path):
    """How long a step took depends on who was drawn, and on records that are dealt with apart."""
    folder = fitted(tmp_path / "run")
    for path in folder.rglob("*"):
        if path.is_file():
            assert b"seconds" not in path.read_bytes(), path
    (events,) = (folder / "tensorboard").glob("events*")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    scalars = [event for event in EventFileLoader(str(events)).Load() if event.HasField("summary")]
    assert scalars
    assert all(event.wall_time == event.step for event in scalars)


def test_a_strange_record_leaves_no_trace(tmp_path):
    clean = texts(fitted(tmp_path / "clean"))
    for number, value in enumerate((math.nan, 3e38)):
        strange = texts(fitted(tmp_path / str(number), value))
        assert strange.keys() == clean.keys()
        for name in ("privacy.json", "run.json"):
            one, other = json.loads(clean[name]), json.loads(strange[name])
            same = one.keys() - {"run_id", "model_sha256"}
            assert {key: one[key] for key in same} == {key: other[key] for key in same}
        lines = [
            [json.loads(line).keys() for line in found["metrics.jsonl"].splitlines()] for found in (clean, strange)
        ]
        assert lines[0] == lines[1]


def test_so_does_its_model(tmp_path):
    model = torch.load(fitted(tmp_path / "run", math.nan) / "model.pt", weights_only=True)
    assert all(torch.isfinite(value).all() for value in model.values())
    assert sd.run_folder.read_claim(tmp_path / "run").private
