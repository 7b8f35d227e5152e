"""Every script in examples/ runs by itself, and says what it is there to say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "train_a_table": ("per user", "right on"),
    "fine_tune": ("per user", "accuracy on other people's notes "),
    "own_loop": ("per record", "accuracy 0."),
    "hospitals": ("for every record", "Lugano: took part 20 times, epsilon 3.00"),
    "audit_a_model": ("loss", "CLAIM REFUTED"),
    "ledger": ("per record", "refused: "),
}


def test_every_example_is_tried_and_listed():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAID)
    text = (EXAMPLES / "README.md").read_text()
    assert all(f"[{name}.py]({name}.py)" in text for name in SAID)


@pytest.mark.parametrize("name", SAID)
def test_an_example_runs(name, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key not in ("SORDINA_DATA", "SORDINA_LEDGER")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in SAID[name]:
        assert words in done.stdout, done.stdout
    assert "Traceback" not in done.stderr


def test_the_federation_of_hospitals_is_short():
    """From the data to the guarantee: two imports and about ten lines (before: 19 import lines, five objects)."""
    lines = (EXAMPLES / "hospitals.py").read_text().splitlines()
    assert sum(line.startswith(("import ", "from ")) for line in lines) == 2
