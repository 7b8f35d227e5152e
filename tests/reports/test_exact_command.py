"""What a report prints as the exact command is one that the command line takes."""

from __future__ import annotations

import pytest

from sordina.cli.train import TrainingOptions
from sordina.reports.reading import _command


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"features": "scattering", "whitened": True}, "--whitened"),
        ({"features": "scattering", "whitened": False}, "--no-whitened"),
        ({"features": "scattering"}, "--no-whitened"),
        ({"model": "mlp"}, ""),
    ],
)
def test_whether_features_were_whitened_is_said(facts, said):
    command = _command("train", {"dataset": "mnist", "epsilon": 3.0, **facts})
    assert command is not None
    assert command.endswith(said)
    assert ("whitened" in command) == bool(said)
    assert "whitened" in TrainingOptions.__dataclass_fields__
