"""Random models from a grammar: no silent error, no error but Sordina's own. The long form: make random-models."""

from __future__ import annotations

import os
import time

import pytest
from tests.gradients.brute_force import Outcome
from tests.gradients.mixing_blocks import MIXING
from tests.gradients.random_models import Run, draw, failed, minimised, replace, tried
from tests.gradients.shape_blocks import SOUND

SECONDS = float(os.environ.get("SORDINA_RANDOM_MODELS_SECONDS", "6"))
"""Of processor time, for each of the two halves."""


def sweep(start: int, seconds: float = SECONDS) -> int:
    """Try programs until the time is over; fail with the smallest one that fails."""
    tried(draw(1))  # what torch loads at its first use does not count
    count, end = 0, time.process_time() + seconds
    while time.process_time() < end:
        program = draw(start + count)
        verdict = tried(program)
        if failed(verdict):
            small, found = minimised(program, verdict)
            pytest.fail(f"python -m tests.gradients.random_models --seed {program.seed}\n{small}\n{found}")
        count += 1
    return count


def test_the_same_models_every_time():
    assert sweep(0) > 5


def test_other_models_every_time():
    start = int.from_bytes(os.urandom(6), "big")
    assert sweep(start) > 5


def test_the_grammar_says_what_it_should():
    """Programs are functions of their seed, use every block, mix where planted and (nearly) nowhere else."""
    programs = [draw(seed) for seed in range(3000)]
    assert programs[17] == draw(17)
    used = {name for program in programs for name, _ in program.steps}
    assert used == set(SOUND) | set(MIXING)


def test_a_failure_becomes_small(monkeypatch):
    """A planted fault (every model with an activation counts as wrong) is reduced to the activation."""
    from tests.gradients import random_models

    right = tried(replace(draw(3), steps=(), sizes=(2,)))

    def planted(program):
        wrong = any(name == "activation" for name, _ in program.steps)
        return replace(right, outcome=Outcome.WRONG if wrong else Outcome.EXACT)

    monkeypatch.setattr(random_models, "tried", planted)
    program = next(program for seed in range(100) if failed(planted(program := draw(seed))) and len(program.steps) > 3)
    small, _ = minimised(program, planted(program))
    assert [name for name, _ in small.steps] == ["activation"]
    assert (small.entry, small.loss, small.rows_per_unit, small.clipping) == ("vector", "squares", 1, "fixed")


def test_the_long_form_goes_on_where_it_stopped(tmp_path):
    run = Run(tmp_path / "state.json", 0)
    run.counts["sound exact"] = 7
    run.save()
    assert Run(tmp_path / "state.json", 0).done == 7
    assert Run(tmp_path / "state.json", 5).done == 0
