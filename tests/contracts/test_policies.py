"""The contract of `sordina.clipping.policy`, run over every policy, at the start and after adapting."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass

import pytest
import torch

from sordina.clipping import Automatic, FallingNorm, Fixed, Follow, Online, Quantile, Sector, Trailing, TypicalNorm
from sordina.clipping.policy import split_at, spread
from sordina.errors import Unsupported
from sordina.privacy import Adjacency
from sordina.queries import Released, ScalarQuery, Scalars

SIZE = 7
POLICIES = {
    "fixed": Fixed(0.5),
    "quantile": Quantile(0.3, threshold=0.5),
    "online": Online(threshold=0.5),
    "online-thesis": Online.as_in_thesis(threshold=0.5),
    "automatic": Automatic(),
    "trailing": Trailing(threshold=0.5),
    "sector": Sector(threshold=1.0, low=0.2, angle=math.pi / 4),
    "sector-wide": Sector(threshold=1.0, angle=3.0),
    "sector-follow": Sector(threshold=1.0, low=0.1, angle=1.0, follow=Follow()),
    "typical-norm": TypicalNorm(),
    "typical-norm-found": TypicalNorm(longest=3),
    "falling-norm": FallingNorm(),
}


def vectors(count: int = 60) -> torch.Tensor:
    """Random directions at norms from zero to huge, and some along a common axis both ways."""
    draw = torch.Generator().manual_seed(0)
    cloud = torch.randn(count, SIZE, generator=draw, dtype=torch.float64)
    norms = torch.logspace(-6, 6, count, dtype=torch.float64)
    cloud = cloud / cloud.norm(dim=1, keepdim=True) * norms[:, None]
    axis = torch.zeros(2, SIZE, dtype=torch.float64)
    axis[0, 0], axis[1, 0] = 3.0, -3.0
    return torch.cat([cloud, axis, torch.zeros(1, SIZE, dtype=torch.float64)])


def adapted(policy, steps: int):
    state = policy.init(SIZE)
    draw = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        nobody = torch.zeros(0, dtype=torch.float64)
        queries = policy.ask(Scalars(nobody, nobody), state)
        answers = tuple(
            torch.randn((), generator=draw, dtype=torch.float64) * 3
            if isinstance(query, ScalarQuery)
            else torch.randn(SIZE, generator=draw, dtype=torch.float64) * 3
            for query in queries
        )
        state = policy.adapt(state, Released(answers, (0.1,) * len(queries), 10.0))
    return state


def contributions(policy, state, data: torch.Tensor) -> list[torch.Tensor]:
    """What each sample adds to each answer, by brute force."""
    direction = policy.direction(state)
    projections = None if direction is None else (data * direction).sum(1)
    added = []
    for query in policy.ask(Scalars(data.norm(dim=1), projections), state):
        if isinstance(query, ScalarQuery):
            added.append(query.value[:, None])
        else:
            vector = query.own[:, None] * data
            added.append(vector if query.ref is None else vector + query.ref[:, None] * direction)
    return added


cases = pytest.mark.parametrize(
    ("policy", "steps"),
    [pytest.param(policy, steps, id=f"{name}-{steps}") for name, policy in POLICIES.items() for steps in (0, 1, 5)],
)


@cases
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_one_sample_changes_an_answer_by_no_more_than_its_bound(policy, steps, adjacency):
    state = adapted(policy, steps)
    if isinstance(policy, Sector) and adjacency is Adjacency.ADD_REMOVE:
        with pytest.raises(Unsupported, match="replace-one"):
            policy.bounds(state, adjacency)
        return
    bounds = policy.bounds(state, adjacency)
    added = contributions(policy, state, vectors())
    assert len(bounds) == len(added)
    for bound, each in zip(bounds, added, strict=True):
        change = each.norm(dim=1) if adjacency is Adjacency.ADD_REMOVE else torch.cdist(each, each)
        assert change.max() <= bound * (1 + 1e-9)


@cases
def test_coefficients_are_pointwise(policy, steps):
    state = adapted(policy, steps)
    data = vectors()
    together = contributions(policy, state, data)
    alone = [contributions(policy, state, row[None]) for row in data]
    for number, each in enumerate(together):
        assert torch.equal(each, torch.cat([single[number] for single in alone]))


@cases
def test_a_sample_that_is_not_finite_has_no_weight_of_its_own(policy, steps):
    state = adapted(policy, steps)
    norms = torch.tensor([1.0, math.inf, math.nan])
    projections = None if policy.direction(state) is None else torch.tensor([0.5, math.nan, math.nan])
    for query in policy.ask(Scalars(norms, projections), state):
        if not isinstance(query, ScalarQuery):
            assert query.own[1:].tolist() == [0, 0]
            assert query.ref is None or query.ref.isfinite().all()


@cases
def test_the_split_costs_what_one_query_does(policy, steps):
    state = adapted(policy, steps)
    shares = split_at(policy, 0.8, state)
    assert spread(policy.split(0.8)) == pytest.approx(0.8, rel=1e-12)
    assert spread(shares) == pytest.approx(0.8, rel=1e-12)
    assert len(shares) == len(policy.bounds(state, Adjacency.REPLACE_ONE))


@cases
def test_a_state_survives_being_saved(policy, steps, tmp_path):
    state = adapted(policy, steps)
    torch.save(state, tmp_path / "state")
    loaded = torch.load(tmp_path / "state", weights_only=False)
    assert type(loaded) is type(state)
    for field in fields(state) if is_dataclass(state) else ():
        before, after = getattr(state, field.name), getattr(loaded, field.name)
        assert torch.equal(before, after) if isinstance(before, torch.Tensor) else before == after


@cases
def test_adapting_keeps_the_old_threshold_and_none_of_the_answers(policy, steps):
    state = adapted(policy, steps)
    before = policy.current_threshold(state)
    nobody = torch.zeros(0, dtype=torch.float64)
    queries = policy.ask(Scalars(nobody, nobody), state)
    answers = tuple(
        torch.tensor(9.0, dtype=torch.float64) if isinstance(q, ScalarQuery) else torch.full((SIZE,), 9.0).double()
        for q in queries
    )
    new = policy.adapt(state, Released(answers, (0.1,) * len(queries), 10.0))
    assert policy.current_threshold(state) == before
    kept = [getattr(new, field.name) for field in fields(new)] if is_dataclass(new) else []
    memory = {vector.untyped_storage().data_ptr() for vector in kept if isinstance(vector, torch.Tensor)}
    assert not memory & {answer.untyped_storage().data_ptr() for answer in answers}  # it becomes the gradient
