"""What a model does for the first time is tested, wherever the switch was kept that turned it on."""

import contextvars
import random
import threading
import weakref
from collections import ChainMap
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sordina as sd
from sordina.gradients import Engine
from sordina.gradients._footprints import MOST_TESTS, MOST_TRAILS, Footprints, followed
from sordina.gradients.structure import Mixing


class Net(nn.Module):
    """Says what a function of its features says, which somebody may exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

    def on(self) -> bool:
        return False

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        return self.last(hidden - hidden.mean(0) if self.on() else hidden)


def quiet(engine: Engine) -> None:
    """No random test comes by."""
    engine._calls.removal.left = engine._calls.study.left = engine._loss_checks.left = 10**9


def refused_when(turn: Any, model: nn.Module, loss: Any = None) -> None:
    loss = loss or (lambda given: model(given).square().sum(1))
    x = torch.randn(6, 5)
    with Engine(model) as engine:
        for _ in range(3):
            engine.record(loss(x)).scalars()
            quiet(engine)
        turn()
        with pytest.raises(Mixing):
            engine.record(loss(x)).scalars()


class Scheduler:
    def __init__(self) -> None:
        self.epoch = 0

    def active(self) -> bool:
        return self.epoch > 5


VARIABLE, LOCAL = contextvars.ContextVar("on", default=False), threading.local()


class Deep:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def kept(how: str) -> tuple[Any, Any]:
    """What reads a switch, and what turns it on."""
    if how == "a bound method":
        scheduler = Scheduler()
        return scheduler.active, lambda: setattr(scheduler, "epoch", 9)
    if how == "a weak reference":
        scheduler = Scheduler()
        reference = weakref.ref(scheduler)
        return lambda: reference().epoch > 5, lambda: setattr(scheduler, "epoch", 9)
    if how == "a context variable":
        VARIABLE.set(False)
        return VARIABLE.get, lambda: VARIABLE.set(True)
    if how == "a variable of a thread":
        LOCAL.on = False
        return lambda: LOCAL.on, lambda: setattr(LOCAL, "on", True)
    if how == "an event":
        event = threading.Event()
        return event.is_set, event.set
    if how == "an array":
        array = np.zeros(3)
        return lambda: bool(array[1]), lambda: array.fill(1)
    if how == "a rate of PyTorch's":
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        return lambda: optimizer.param_groups[0]["lr"] < 0.05, lambda: optimizer.param_groups[0].update(lr=0.01)
    if how == "a chain of maps":
        first: dict[str, bool] = {}
        chain = ChainMap(first, {"on": False})
        return lambda: chain["on"], lambda: first.update(on=True)
    if how == "a number between round ones":
        held = SimpleNamespace(number=Decimal("0.24"))
        return lambda: held.number > Decimal("0.25"), lambda: setattr(held, "number", Decimal("0.26"))
    found: Any = SimpleNamespace(on=False)
    way, inner = found, found
    for _ in range(12):
        way = Deep(way)

    def read() -> bool:
        each = way
        while isinstance(each, Deep):
            each = each.inner
        return each.on

    return read, lambda: setattr(inner, "on", True)


PLACES = [
    *("a bound method", "a weak reference", "a context variable", "a variable of a thread", "an event", "an array"),
    *("a rate of PyTorch's", "a chain of maps", "a number between round ones", "twelve objects deep"),
]


@pytest.mark.parametrize("how", PLACES)
def test_whatever_turns_on_work_that_mixes_is_seen_in_the_step_that_does_it(how):
    """6.2 times the bound, until a random test."""
    read, turn = kept(how)
    model = Net()
    model.on = read
    refused_when(turn, model)


def test_a_switch_in_a_file_is_seen(tmp_path):
    file, model = tmp_path / "stage", Net()
    model.on = file.exists
    refused_when(file.touch, model)


@pytest.mark.parametrize("seed", range(12))
def test_random_switches_are_seen(seed):
    """Work that mixes, of several kinds, after several other kinds that do not, each turned on by a list beside."""
    chance, stage = random.Random(seed), [0]
    sound = [torch.tanh, lambda h: h * 0.5, lambda h: h - h.mean(1, keepdim=True), lambda h: h.clamp(max=2.0), F.gelu]
    mixing = [
        lambda h: h - h.mean(0),
        lambda h: h / h.detach().abs().max(),
        lambda h: h + h.detach().roll(1, 0),
        lambda h: F.softmax(h, 0),
        lambda h: h * (h.detach() > h.detach().median()).float(),
        lambda h: h + h.sum() * 0.01,
        lambda h: torch.sort(h, 0).values,
        lambda h: h @ h.T @ h,
    ]
    works = [*chance.sample(sound, 3), chance.choice(mixing)]

    class Staged(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(works[stage[0]](torch.relu(self.first(x))))

    model, x = Staged(), torch.randn(6, 5)
    with Engine(model) as engine:
        for stage[0] in (0, 1, 0, 2, 1):
            engine.record(model(x).square().sum(1)).scalars()
            quiet(engine)
        stage[0] = 3
        with pytest.raises(Mixing):
            engine.record(model(x).square().sum(1)).scalars()


@pytest.mark.parametrize(
    "mixed",
    [lambda each: each - each.mean(), lambda each: each / each.sum(), lambda each: each * each.flip(0)],
)
def test_a_loss_of_ones_own_loop_that_begins_to_mix_is_seen(mixed):
    model, on = Net(), [False]

    def loss(x: Tensor) -> Tensor:
        each = model(x).square().sum(1)
        return mixed(each) if on[0] else each

    refused_when(lambda: on.__setitem__(0, True), model, loss)


@pytest.mark.parametrize("detached", [False, True])
def test_a_loss_of_the_trainer_that_begins_to_mix_is_seen_at_once(detached, monkeypatch):
    steps, since = [0], 4

    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, target, reduction="none")
        if event.is_set():
            each = each / (each.detach() if detached else each).mean()
        return each

    event = threading.Event()

    def report(entry: dict[str, Any]) -> None:
        steps[0] = entry["step"]
        if entry["step"] == since:
            event.set()

    from sordina.gradients import removal

    monkeypatch.setattr(removal.RemovalSchedule, "due", lambda self: _once(self))
    x, y = torch.randn(60, 5), torch.arange(60) % 3
    trainer = sd.Trainer(
        Net(), loss, budget=sd.Budget(3, 1e-5), batch_size=20, steps=30, callbacks=[SimpleWatcher(report)], seed=1
    )
    with pytest.raises(Mixing):
        trainer.fit((x, y))
    assert steps[0] == since


def _balanced(each: Tensor, target: Tensor) -> Tensor:
    return each * (1 / torch.bincount(target, minlength=3).clamp_min(1))[target]


def _positive(each: Tensor, target: Tensor) -> Tensor:
    return each * torch.where(target == 1, (target == 0).sum() / (target == 1).sum().clamp_min(1), 1.0)


LATE = {
    "weights of classes in the batch": _balanced,
    "a weight of positives in the batch": _positive,
    "hard examples": lambda each, _: each * (each.detach() >= each.detach().quantile(0.7)),
    "the largest": lambda each, _: each * (each.detach() >= each.detach().topk(6).values[-1]),
    "a curriculum": lambda each, _: each * (each.detach() < each.detach().median() * 1.5),
}


def trained(loss: Any, report: Any, monkeypatch: Any, steps: int = 8) -> None:
    """Without random tests, of samples of which one is rare."""
    from sordina.gradients import removal

    monkeypatch.setattr(removal.RemovalSchedule, "due", lambda self: _once(self))
    x, y = torch.randn(60, 5), (torch.arange(60) % 10 == 0).long()
    sd.Trainer(
        Net(), loss, budget=sd.Budget(3, 1e-5), batch_size=20, steps=steps, callbacks=[SimpleWatcher(report)], seed=1
    ).fit((x, y))


@pytest.mark.parametrize("kind", LATE)
@pytest.mark.parametrize("seed", range(2))
def test_a_loss_that_begins_to_weigh_by_the_batch_is_tried_as_at_the_beginning(kind, seed, monkeypatch):
    """One random removal missed up to 11 of 12."""
    read, turn = kept(random.Random(f"{kind}{seed}").choice(PLACES))
    steps = [0]

    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, target, reduction="none")
        return LATE[kind](each, target) if read() else each

    def report(entry: dict[str, Any]) -> None:
        steps[0] = entry["step"]
        if entry["step"] == 3:
            turn()

    with pytest.raises(Mixing, match="No guarantee holds for the steps since this began"):
        trained(loss, report, monkeypatch)
    assert steps[0] == 3


def test_a_loss_that_begins_to_toss_a_coin_for_the_batch_is_computed_one_by_one_from_then_on(monkeypatch, caplog):
    on = [False]

    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, target, reduction="none")
        return each * (0.5 + torch.rand(())) if on[0] else each

    trained(loss, lambda entry: on.__setitem__(0, entry["step"] >= 3), monkeypatch)
    assert "the loss is computed on one sample at a time" in caplog.text


def test_losses_that_change_their_weights_and_mix_nothing_are_tried_now_and_then_only(monkeypatch):
    from sordina.training.losses import PerSample

    tried, step, anew = [0], [0], PerSample.anew

    def counted(self: PerSample) -> None:
        tried[0] += 1
        anew(self)

    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        smoothed = 0.1 if step[0] > 4 else 0.0
        each = F.cross_entropy(outputs, target, reduction="none", label_smoothing=smoothed)
        return each + 0.5 * 0.95 ** step[0] * outputs.square().sum(1)

    monkeypatch.setattr(PerSample, "anew", counted)
    trained(loss, lambda entry: step.__setitem__(0, entry["step"]), monkeypatch, steps=30)
    assert 1 <= tried[0] <= 6


def test_what_cannot_be_told_of_a_loss_is_not_learned(monkeypatch):
    from sordina.gradients import removal

    watch = removal.LossWatch(Net(), lambda given: given.sum(1))
    monkeypatch.setattr(removal, "others_change", lambda *_, **__: None)
    watch(torch.randn(6, 5))
    assert not watch.footprints._trails


def _once(schedule: Any) -> bool:
    """Due at first, and when somebody says so: no random test comes by."""
    due = schedule.left == 1
    schedule.left = 10**9
    return bool(due)


class SimpleWatcher:
    def __init__(self, report: Any) -> None:
        self.report = report


# The way back.


def back_by(read: Any, how: str) -> nn.Module:
    """A model that divides gradients by a statistic of the batch, in some way, where ``read`` says so."""

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: Tensor) -> Tensor:
            return hidden.view_as(hidden)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return -gradient / gradient.abs().mean() if read() else -gradient

    class Back(Net):
        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.first(x))
            if how == "a layer that turns gradients around":
                hidden = Reversed.apply(hidden)
            elif how == "a hook on a tensor" and hidden.requires_grad:
                hidden.register_hook(lambda gradient: gradient / gradient.norm() if read() else gradient)
            return self.last(hidden)

    model = Back()
    if how == "a hook on a module":
        model.last.register_full_backward_pre_hook(lambda _, given: (given[0] / given[0].norm(),) if read() else given)
    return model


@pytest.mark.parametrize("how", ["a hook on a tensor", "a hook on a module", "a layer that turns gradients around"])
@pytest.mark.parametrize("seed", range(2))
def test_a_way_back_that_begins_to_mix_is_seen_in_the_step_that_does_it(how, seed):
    """2.6 times the bound, until a random test."""
    hidden = [each for each in PLACES if each not in ("a bound method", "a rate of PyTorch's")]
    read, turn = kept(random.Random(f"{how}{seed}").choice(hidden))
    refused_when(turn, back_by(read, how))


def test_a_way_back_that_changes_but_mixes_nothing_goes_on_and_is_tested_once(monkeypatch):
    from sordina.gradients import _way_back

    tested, step, tests = [0], [0], _way_back.backward_mixes

    def counted(*args: Any) -> bool | None:
        tested[0] += 1
        return tests(*args)

    class Scaled(Net):
        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.first(x))
            if hidden.requires_grad:
                hidden.register_hook(lambda gradient: gradient * 0.5 if step[0] > 4 else gradient)
            return self.last(hidden)

    monkeypatch.setattr(_way_back, "backward_mixes", counted)
    model, x = Scaled(), torch.randn(6, 5)
    with Engine(model) as engine:
        for step[0] in range(10):
            engine.record(model(x).square().sum(1)).scalars()
            quiet(engine)
            assert tested[0] == 0 or step[0] > 4
    assert tested[0] in (0, 2)  # none if it runs one sample at a time


# Ordinary models that do other work from step to step.


class Skipping(nn.Module):
    """Leaves out layers at random."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if random.random() < 0.8:
                x = torch.relu(layer(x)) + x
        return x


class Alternating(Net):
    """Works otherwise in every second call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.ways = 0, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = torch.relu(self.first(x))
        return self.last(torch.tanh(hidden) if self.calls % 2 else hidden)


class Looping(nn.Module):
    """Of sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.Linear(10, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 5)
        for time in range(x.shape[1]):
            state = torch.tanh(self.cell(torch.cat([x[:, time], state], 1)))
        return self.last(state)


@pytest.mark.parametrize("make", [Skipping, Alternating, Looping])
def test_models_that_do_other_work_from_step_to_step_are_taken_and_soon_left_alone(make, monkeypatch):
    random.seed(0)
    model, tested = make(), [0]
    with Engine(model) as engine:
        demand = engine._calls.demand_tests

        def counted() -> None:
            tested[0] += 1
            demand()

        monkeypatch.setattr(engine._calls, "demand_tests", counted)
        for number in range(60):
            rows = 3 + number % 4
            x = torch.randn(rows, 3 + number % 3, 5) if make is Looping else torch.randn(rows, 5)
            engine.record(model(x).square().sum(1)).scalars()
            if number == 0:
                quiet(engine)
    assert tested[0] <= MOST_TRAILS + 8


def test_a_model_that_alternates_by_a_count_of_its_own_keeps_doing_so():
    model, x = Alternating(), torch.randn(6, 5)
    with Engine(model) as engine:
        for _ in range(9):
            quiet(engine)
            engine.record(model(x).square().sum(1)).scalars()
    assert model.calls == 9


def test_sizes_of_batches_are_nothing_new():
    prints, net = Footprints(), nn.Sequential(nn.Linear(5, 4), nn.Flatten(), nn.ReLU())
    for number, rows in enumerate((20, 33, 100, 47)):
        with followed(prints.trail()) as trail:
            net(torch.randn(rows, 5)).view(rows, -1)[: rows // 2].mean(1)
        assert prints.new(trail) == (number == 0)
        prints.learn(trail)


@pytest.mark.parametrize(("one", "two"), [(-1, -2), (1, True), (0, False), (1, 1.0), (0.3, 0.1), (-0.5, 0.5)])
def test_values_that_python_hashes_alike_are_told_apart(one, two):
    """A mean over -1 and one over -2 are as different as can be: 3.1 times the bound."""
    footprints, seen = Footprints(), list[bool]()
    for value in (one, two):
        with followed(footprints.trail()) as trail:
            torch.full((2,), value, dtype=torch.float32)
        seen.append(footprints.new(trail))
        footprints.learn(trail)
    assert seen == [True, True]


def test_only_so_much_is_tested():
    prints, tested = Footprints(), 0
    for number in range(500):
        with followed(prints.trail()) as trail:
            (torch.ones(3) * 2.0 ** (number % 100)).sum()
        tested += prints.new(trail)
    assert tested == MOST_TRAILS + MOST_TESTS


def test_what_is_followed_inside_is_not_what_is_followed_outside():
    prints = Footprints()
    with followed(prints.trail()) as outer:
        torch.ones(2).sum()
        before = outer.whole
        with followed(prints.trail()) as inner:
            torch.ones(2).mean()
        with followed(None):
            torch.ones(2).prod()
        assert outer.whole == before
        torch.ones(2).sum()
        assert outer.whole != before != inner.whole
