"""The threshold falls with all norms, stays for who is rare, and rises again."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import sordina as sd
from sordina.clipping import FallingNorm, TypicalNorm
from sordina.clipping.policy import spread
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency
from sordina.queries import Released, Scalars
from sordina.training.planning import planned_clipping

BATCH = 512


def thresholds(policy: FallingNorm, norms, nu: float = 0.7, steps: int = 200, seed: int = 0) -> list[float]:
    """The thresholds of a run in which step t sees ``norms(t)``."""
    rng, state, found = np.random.default_rng(seed), policy.init(3), []
    for step in range(steps):
        shares = policy.split_at(nu, state)
        assert spread(shares) == pytest.approx(nu)
        scales = [b * s for b, s in zip(policy.bounds(state, Adjacency.ADD_REMOVE), shares, strict=True)]
        queries = policy.ask(Scalars(norms(step)), state)
        answers = (torch.zeros(3), queries[1].value.sum() + scales[1] * rng.normal())
        state = policy.adapt(state, Released(answers, tuple(scales), float(BATCH)))
        found.append(policy.current_threshold(state))
    return found


def test_it_falls_with_all_norms_and_not_below_half_of_the_longest():
    found = thresholds(FallingNorm(), lambda t: torch.full((BATCH,), 3.0 if t < 10 else 0.3))
    assert 3.0 / 2 / 1.01 <= min(found[:10]) <= found[0] == pytest.approx(3.0, rel=0.4)
    assert min(found) >= 0.3 / 2 / 1.01
    assert found[-1] <= 0.3


def test_who_is_rare_keeps_the_weight():
    """One of twenty has long gradients, all others are learnt: a threshold that follows the usual norm loses it."""
    rare = torch.full((BATCH,), 0.01)
    rare[: BATCH // 20] = 3.0
    found = thresholds(FallingNorm(), lambda t: torch.full((BATCH,), 3.0) if t < 10 else rare)
    assert min(found[9:]) > 3.0 / 2 / 1.4


def test_it_rises_again_to_where_it_began_and_no_further():
    found = thresholds(FallingNorm(), lambda t: torch.full((BATCH,), 3.0 if t < 10 or t > 100 else 0.03), steps=300)
    assert min(found[10:100]) < 0.3
    assert found[-1] > 3.0 / 2 / 1.4
    later = thresholds(FallingNorm(), lambda t: torch.full((BATCH,), 3.0 if t < 10 else 300.0))
    assert later[-1] == max(later) == pytest.approx(3.0, rel=0.4)


def test_under_more_noise_than_the_share_it_stays():
    found = thresholds(FallingNorm(), lambda t: torch.full((BATCH,), 3.0 if t < 10 else 0.03), nu=200.0)
    assert len(set(found[10:])) == 1


def test_a_gradient_of_no_number_is_not_counted():
    policy = FallingNorm()
    state = policy.init(3)
    while not state.search.found:
        state = policy.adapt(state, Released((torch.zeros(3), torch.zeros(())), (1.0, 1.0), float(BATCH)))
    counted = policy.ask(Scalars(torch.tensor([0.0, math.inf, math.nan, 1e9])), state)[1]
    assert counted.value.tolist() == [0, 0, 0, 1]
    assert policy.bounds(state, Adjacency.REPLACE_ONE)[1] == 1.0


@pytest.mark.parametrize(
    "wrong", [{"rare": 0.0}, {"rare": 0.7}, {"factor": 1.0}, {"factor": 3.0}, {"inflation": 0.0}, {"threshold": -1.0}]
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(InvalidInput):
        FallingNorm(**wrong)


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (torch.zeros(40, 2, 9), FallingNorm),
        (torch.zeros(40, 18), TypicalNorm),
        (torch.zeros(40, 2), TypicalNorm),
        (torch.zeros(40, 1), TypicalNorm),
        (torch.zeros(40), TypicalNorm),
        (torch.zeros(40, 5).long(), TypicalNorm),
    ],
)
def test_the_form_of_a_target_decides_what_is_usual(target, kind):
    assert isinstance(planned_clipping((torch.randn(40, 2, 9), target)), kind)
    assert isinstance(planned_clipping(torch.utils.data.TensorDataset(torch.randn(40, 2, 9), target)), kind)


def test_a_run_that_gives_back_pictures_says_how_it_clipped():
    pictures = torch.rand(64, 16)
    model = torch.nn.Linear(16, 16)
    trainer = sd.Trainer(model, torch.nn.functional.mse_loss, sd.Budget(3, 1e-5), batch_size=16, epochs=1, seed=0)
    run = trainer.fit((pictures, pictures))
    assert run.privacy()["clipping"]["kind"] == "FallingNorm"
    assert run.epsilon <= 3


def test_a_run_begun_with_another_clipping_is_not_resumed_with_this_one(tmp_path):
    pictures = torch.rand(64, 16)

    class Ended(Exception):
        pass

    class End:
        def report(self, entry):
            raise Ended

    def trainer(**options):
        return sd.Trainer(
            torch.nn.Linear(16, 16), torch.nn.functional.mse_loss, sd.Budget(3, 1e-5), batch_size=16, steps=40, seed=0,
            folder=tmp_path / "run", checkpoint_every=1, **options,
        )  # fmt: skip

    with pytest.raises(Ended):
        trainer(clipping=TypicalNorm(), callbacks=[End()]).fit((pictures, pictures))
    with pytest.raises(InvalidInput, match="clipping was"):
        trainer().fit((pictures, pictures), resume=True)
    assert trainer(clipping=TypicalNorm()).fit((pictures, pictures), resume=True).steps == 40


def test_where_gradients_differ_much_it_falls_as_the_longest_do():
    spread = torch.exp(torch.randn(BATCH, generator=torch.Generator().manual_seed(0)))
    found = thresholds(FallingNorm(), lambda t: spread if t < 60 else 0.1 * spread, steps=300)
    assert found[59] == pytest.approx(1.0, rel=0.5)
    assert found[-1] == pytest.approx(0.1 * found[59], rel=0.6)
