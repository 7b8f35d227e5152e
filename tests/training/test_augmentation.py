"""Views of a sample: their mean gradient is clipped once, and no sample's views depend on another sample."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordina as sd
from sordina.clipping import Fixed
from sordina.errors import InvalidInput
from sordina.training import ImageShift
from sordina.training.augmentation import augmented, check_augmentation


def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 0.3 * torch.randn(x.shape, generator=generator)


def rows(count: int = 60) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long()


def bound(model: nn.Module, data: Any, **options: Any) -> Any:
    settings: dict[str, Any] = {"steps": 3, "batch_size": len(data[0]), "seed": 0, "clipping": Fixed(0.4)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return sd.make_private(model, optimizer, data, budget=sd.Budget(1e9, 1e-5), **(settings | options))


def test_the_mean_gradient_of_the_views_is_clipped_once() -> None:
    """Against the sum computed by hand, unit by unit, at a budget so large that the noise is next to nothing."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    twin = copy.deepcopy(model)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    private = bound(model, rows(), steps=1, augment=noisy, views=3)
    (x, y) = next(iter_ := iter(private))
    assert len(x) % 3 == 0
    assert torch.equal(y[0::3], y[1::3])
    assert not torch.equal(x[0], x[1])
    expected = {name: torch.zeros_like(value) for name, value in before.items()}
    for unit in range(0, len(x), 3):
        loss = nn.functional.cross_entropy(twin(x[unit : unit + 3]), y[unit : unit + 3])
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        norm = torch.cat([one.flatten() for one in gradients]).norm()
        for name, gradient in zip(expected, gradients, strict=True):
            expected[name] += gradient * min(1.0, 0.4 / float(norm))
    private.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
    assert next(iter_, None) is None
    for name, value in model.named_parameters():
        moved = (before[name] - value.detach()) / 0.5 * 60
        torch.testing.assert_close(moved, expected[name], atol=2e-3, rtol=1e-3)


def test_one_sample_moves_the_sum_by_the_threshold_at_most() -> None:
    """A unit with huge inputs in all its views adds what one clipped gradient adds."""
    x, y = rows()
    x[7] = 1e6
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    private = bound(model, (x, y), augment=noisy, views=4)
    for a, b in private:
        tape = private.engine.record(nn.functional.cross_entropy(model(a), b, reduction="none") / 4, rows_per_unit=4)
        coefficients = 0.4 / tape.scalars().norms.clamp(min=0.4)
        assert float((coefficients * tape.scalars().norms).max()) <= 0.4 * (1 + 1e-5)
        private._expected = None
        private._complete_step()


def test_views_cost_what_a_step_without_costs_and_help_nobody_to_look() -> None:
    def trained(**options: Any) -> sd.training.Run:
        torch.manual_seed(0)
        one = sd.Trainer(
            nn.Linear(4, 2), nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=20, epochs=2, seed=0, **options
        )
        return one.fit(rows())

    plain, many = trained(), trained(augment=noisy, views=4)
    assert plain.epsilon == many.epsilon
    assert plain.plan.noise_multiplier == many.plan.noise_multiplier
    assert plain.event == many.event


def test_a_seeded_run_with_views_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    class Kill:
        def __enter__(self) -> Kill:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def report(self, entry: dict[str, Any]) -> None:
            if entry["step"] == 5:
                raise RuntimeError("killed")

    def trainer(**options: Any) -> sd.Trainer:
        torch.manual_seed(0)
        return sd.Trainer(
            nn.Linear(4, 2), nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=20, steps=8, epochs=None,
            seed=0, augment=noisy, views=2, checkpoint_every=2, tensorboard=False, **options,
        )  # fmt: skip

    whole = trainer().fit(rows())
    with pytest.raises(RuntimeError):
        trainer(folder=tmp_path / "run", callbacks=[Kill()]).fit(rows())
    run = trainer(folder=tmp_path / "run").fit(rows(), resume=True)
    for ours, theirs in zip(run.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_users_with_many_rows_have_views_of_each() -> None:
    x, y = rows(40)
    owners = torch.arange(40) // 4
    users = sd.sampling.Users(owners.numpy(), rows_per_user=4)
    model = nn.Linear(4, 2)
    private = bound(model, (x, y), augment=noisy, views=3, users=users, batch_size=5)
    for a, b in private:
        assert len(a) % 12 == 0
        private.step(nn.functional.cross_entropy(model(a), b, reduction="none"))
    private.finish()


def test_shifts_are_shifts() -> None:
    image = torch.zeros(500, 1, 6, 6)
    image[:, 0, 3, 2] = 1.0
    views = ImageShift(2).many(image, torch.Generator().manual_seed(0))
    places = {tuple(int(each) for each in one.nonzero()[0, 1:]) for one in views}
    assert places == {(row, column) for row in range(1, 6) for column in range(0, 5)}
    assert set(views.sum((1, 2, 3)).tolist()) == {1.0}
    mirrored = ImageShift(0, flip=True).many(image, torch.Generator().manual_seed(0))
    assert 200 < int(mirrored[:, 0, 3, 3].sum()) < 300
    assert int(mirrored[:, 0, 3, 2].sum()) == 500 - int(mirrored[:, 0, 3, 3].sum())
    assert ImageShift(2)(image[0], torch.Generator().manual_seed(3)).shape == (1, 6, 6)


def test_a_row_on_which_the_function_fails_stays_as_it_is_and_stops_nothing() -> None:
    def picky(x: Tensor, generator: torch.Generator) -> Tensor:
        if x[0] > 1e5:
            raise ValueError("secret")
        return x[:2] if x[0] < -1e5 else x + 1

    x = torch.tensor([[0.0, 0, 0], [1e6, 0, 0], [-1e6, 0, 0]])
    changed, _ = augmented((x, torch.arange(3)), picky, 0)
    torch.testing.assert_close(changed, torch.tensor([[1.0, 1, 1], [1e6, 0, 0], [-1e6, 0, 0]]))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"views": 4}, "give augment"),
        ({"views": 0, "augment": noisy}, "at least 1"),
        ({"augment": lambda x, generator: x[:2]}, "keep the form"),
        ({"augment": lambda x: x}, "fails on an input"),
        ({"augment": "shift"}, "augment"),
    ],
)
def test_refuses_before_anything_is_spent(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        bound(nn.Linear(4, 2), rows(), **options)


def test_a_view_in_memory_that_is_used_again_stays_its_own_rows() -> None:
    """Before copies were made, every row of a batch became the last one: one record moved the sum by 17 C."""
    memory = torch.zeros(4)

    def reuses(x: Tensor, generator: torch.Generator) -> Tensor:
        return memory.copy_(x).mul_(2.0)

    x = rows(5)[0]
    assert torch.equal(augmented(x, reuses, 0), 2 * x)


@pytest.mark.parametrize("form", [lambda x: x.to_sparse(), lambda x: x.to("meta"), lambda x: x.tolist()])
def test_a_view_of_an_odd_kind_stops_nothing(form: Any) -> None:
    x = rows(5)[0]
    x[2] = 7.0

    def odd(row: Tensor, generator: torch.Generator) -> Any:
        return form(row) if bool((row == 7).all()) else -row

    views = augmented(x, odd, 0)
    keep = torch.arange(5) != 2
    assert torch.equal(views[keep], -x[keep])


def test_what_remembers_rows_or_has_chance_of_its_own_is_refused() -> None:
    class Mixing:
        last: Tensor | None = None

        def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
            before, self.last = self.last, x
            return x if before is None else (x + before) / 2

    chance = np.random.default_rng(0)
    for augment in (Mixing(), lambda x, generator: x + float(chance.normal())):
        with pytest.raises(InvalidInput, match="remembers"):
            bound(nn.Linear(4, 2), rows(), augment=augment)
    bound(nn.Linear(4, 2), rows(), augment=lambda x, generator: x + torch.randn(4))  # the process's own is secret


class Blends:
    """Now and then, a row is blended with the one before."""

    def __init__(self, toss: Any) -> None:
        self.toss, self.last = toss, torch.zeros(4)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        before, self.last = self.last, x
        return (x + before) / 2 if self.toss(generator) < 0.05 else x


@pytest.mark.parametrize(
    "toss",
    [
        lambda generator: float(torch.rand((), generator=generator)),
        lambda generator: float(torch.rand(())),
        lambda generator: random.random(),
        lambda generator: np.random.rand(),  # noqa: NPY002
    ],
    ids=["generator", "torch", "python", "numpy"],
)
def test_what_remembers_rows_by_the_toss_of_a_coin_is_refused(toss: Any) -> None:
    """Asked with one seed, it was taken: one record moved the sum by 1.6 C."""
    with pytest.raises(InvalidInput, match="remembers"):
        check_augmentation(Blends(toss), 1, torch.zeros(2, 4))


def test_what_draws_without_a_memory_passes() -> None:
    def jittered(x: Tensor, generator: torch.Generator) -> Tensor:
        if torch.rand((), generator=generator) < 0.3:
            x = x.flip(0)
        return x * random.random() + torch.randn(x.shape, generator=generator)

    check_augmentation(jittered, 2, torch.zeros(2, 4))


def test_what_holds_the_data_is_refused() -> None:
    x, y = rows()

    class FromData:
        def __init__(self, data: Any) -> None:
            self.data = data

        def __call__(self, row: Tensor, generator: torch.Generator) -> Tensor:
            return (row + self.data[int(torch.randint(60, (), generator=generator))][0]) / 2

    def mixed(row: Tensor, generator: torch.Generator) -> Tensor:
        return (row + x[int(torch.randint(60, (), generator=generator))]) / 2

    dataset = torch.utils.data.TensorDataset(x, y)
    for augment, data in ((mixed, (x, y)), (mixed, dataset), (FromData(dataset), dataset), (FromData(dataset), (x, y))):
        with pytest.raises(InvalidInput, match="holds the training data"):
            sd.make_private(
                model := nn.Linear(4, 2), torch.optim.SGD(model.parameters(), lr=0.5), data, budget=sd.Budget(1, 1e-5),
                steps=3, batch_size=10, augment=augment,
            )  # fmt: skip
    public = torch.ones(4)
    bound(nn.Linear(4, 2), (x, y), augment=lambda row, generator: row + public)


def test_a_shift_of_what_is_no_image_is_refused_before_anything_is_spent() -> None:
    with pytest.raises(InvalidInput, match="height"):
        bound(nn.Linear(4, 2), rows(), augment=ImageShift())
