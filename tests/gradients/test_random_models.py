"""Random models from a grammar: no silent error, no error but Sordina's own. The long form: make random-models."""

from __future__ import annotations

import pytest
from tests.gradients.brute_force import Outcome
from tests.gradients.mixing_blocks import MIXING
from tests.gradients.random_models import Run, draw, failed, minimised, replace, tried
from tests.gradients.shape_blocks import SOUND

MODELS = 40
"""In each of the two halves; the same programs everywhere, for what a test says may not depend on the machine."""
STARTS = (0, 10**9)
"""Two ranges of seeds. Others are for ``make random-models``."""


@pytest.mark.parametrize("start", STARTS)
def test_models_of_the_grammar(start):
    """Fails with the smallest program that fails."""
    for seed in range(start, start + MODELS):
        program = draw(seed)
        verdict = tried(program)
        if failed(verdict):
            small, found = minimised(program, verdict)
            pytest.fail(f"python -m tests.gradients.random_models --seed {program.seed}\n{small}\n{found}")


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
    assert (Run(tmp_path / "state.json").start, Run(tmp_path / "state.json").done) == (0, 7)
    assert Run(tmp_path / "none.json").start != Run(tmp_path / "none.json").start


def test_what_one_way_of_trying_has_shown_no_other_takes_back():
    """Samples in an order of their own: seen with many words, and not with two, which the gradient needed to speak."""
    assert not failed(tried(draw(3045000083)))
