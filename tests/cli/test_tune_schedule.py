"""The schedule of `sordina tune`: as stated, else 512 rows over 10 epochs."""

import json

import pytest
from typer.testing import CliRunner

from sordina.cli.main import app

ARGUMENTS = ("tune", "digits", "--model", "mlp", "--strategy", "automatic", "--method", "composition", "--workers", "1",
             "--seed", "1", "--json")  # fmt: skip


@pytest.mark.parametrize(
    ("words", "schedule"),
    [((), (512, 10.0)), (("--batch-size", "300"), (300, 10.0)), (("--epochs", "2"), (512, 2.0))],
)
def test_what_is_not_stated_is_the_default(tmp_path, words, schedule):
    result = CliRunner().invoke(app, [*ARGUMENTS, *words, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    (search,) = answer["searches"]
    assert (answer["task"]["batch_size"], answer["task"]["epochs"]) == schedule
    assert "schedule" not in search
    assert search["runs"][0]["event"]["count"] == round(schedule[1] * 1293 / schedule[0])
    assert search["epsilon"] <= 3
