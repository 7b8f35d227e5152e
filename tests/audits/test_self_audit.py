"""``sordina audit self``, in short: all checks hold, all planted faults are caught, every part is looked at."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from sordina.auditing import self_audit as module
from sordina.auditing.canaries import FAULTS
from sordina.auditing.self_audit import planted_faults, self_audit
from sordina.auditing.self_checks import CheckResult, checks, layer_models
from sordina.cli.main import app
from sordina.clipping import NAMES
from sordina.errors import InvalidInput
from sordina.gradients.layers import RULES

FAULTS_PLANTED = planted_faults()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("name", checks())
def test_the_claim_holds(name):
    found = checks()[name](np.random.default_rng(1))
    assert found.holds, found


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("fault", FAULTS_PLANTED, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught_and_taken_out_again(fault):
    with fault.plant():
        found = fault.check(np.random.default_rng(2))
    assert not found.holds, found


def test_every_part_is_looked_at():
    assert set(layer_models()) == {kind.__name__ for kind in RULES}
    assert {f"policy {name}" for name in NAMES} <= set(checks())
    assert set(FAULTS) <= {fault.name for fault in FAULTS_PLANTED}


def test_one_failure_is_enough(monkeypatch):
    def fails(rng):
        return CheckResult("it", False, "seen")

    def holds(rng):
        return CheckResult("it", True, "seen")

    class Fault:
        name, plant = "rust", staticmethod(lambda: __import__("contextlib").nullcontext())

    for check, caught, passed in ((holds, fails, True), (fails, fails, False), (holds, holds, False)):
        Fault.check = staticmethod(caught)
        monkeypatch.setattr(module, "checks", lambda check=check: {"it": check})
        monkeypatch.setattr(module, "planted_faults", lambda: (Fault,))
        found = self_audit(seed=0)
        assert found.passed is passed
        done = CliRunner().invoke(app, ["audit", "self", "--audits", "0", "--seed", "0", "--json"])
        assert done.exit_code == (0 if passed else 1)
        assert json.loads(done.stdout)["passed"] is passed
        shown = CliRunner().invoke(app, ["audit", "self", "--audits", "0", "--seed", "0"])
        assert ("All held" in shown.output) is passed


def test_soundness_is_part_of_it(monkeypatch):
    monkeypatch.setattr(module, "checks", dict)
    monkeypatch.setattr(module, "planted_faults", tuple)
    found = self_audit(audits=20, canaries=200, seed=3)
    assert found.soundness is not None
    assert {tally.audits for tally in found.soundness.tallies} == {20}
    assert found.passed
    with pytest.raises(InvalidInput):
        self_audit(repeats=0)
