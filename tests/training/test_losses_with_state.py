"""Losses of results in any form, and losses that are objects: memory is refused, a count of calls is kept."""

from __future__ import annotations

import functools
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sordina as sd
from sordina.errors import InvalidInput
from sordina.training.losses import per_sample

Named = namedtuple("Named", ["logits", "extra"])


@dataclass
class Held:
    logits: torch.Tensor
    extra: torch.Tensor


FORMS = {
    "dict": (lambda a, b: {"logits": a, "extra": b}, lambda o: (o["logits"], o["extra"])),
    "tuple": (lambda a, b: (a, b), lambda o: o),
    "nested list": (lambda a, b: [[a], {"b": b}], lambda o: (o[0][0], o[1]["b"])),
    "namedtuple": (Named, lambda o: (o.logits, o.extra)),
    "dataclass": (Held, lambda o: (o.logits, o.extra)),
}


class Model(nn.Module):
    """Results in a form, with a tensor that has no rows of samples."""

    def __init__(self, form):
        super().__init__()
        self.layer, self.form = nn.Linear(4, 2), form
        self.register_buffer("constant", torch.ones(2))

    def forward(self, x):
        first = self.layer(x)
        return self.form(first, first.detach() * 2), self.constant


def fit(model, loss, data=None, **options):
    data = data or (torch.randn(60, 4), torch.randint(0, 2, (60,)))
    return sd.Trainer(
        model, loss, sd.Budget(8, 1e-3), batch_size=16, steps=options.pop("steps", 3), learning_rate=0.1, **options
    ).fit(data)


def _cut(each):
    return each.clamp(max=20 * each.detach().nanmedian())


def _rare(each, target):
    return each * 20 if (target == 1).float().mean() < 0.05 else each


MIXING = {
    "median": lambda logits, extra, y: _cut(F.cross_entropy(logits, y, reduction="none")),
    "mean of the second": lambda logits, extra, y: F.cross_entropy(logits, y, reduction="none") * extra.mean(),
    "size": lambda logits, extra, y: F.cross_entropy(logits, y, reduction="none") / len(y),
    "a share that Python reads": lambda logits, extra, y: _rare(F.cross_entropy(logits, y, reduction="none"), y),
}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("mix", MIXING)
def test_mixing_is_refused_whatever_the_form_of_results(kind, mix, tmp_path):
    make, read = FORMS[kind]
    folder = tmp_path / "run"
    with pytest.raises(InvalidInput, match="depends on other samples"):
        fit(Model(make), lambda o, y: MIXING[mix](*read(o[0]), y), folder=folder)
    assert not folder.exists()


@pytest.mark.parametrize("kind", FORMS)
def test_sound_losses_of_any_form_are_taken_as_they_are(kind, caplog):
    make, read = FORMS[kind]

    def loss(o, y):
        logits, extra = read(o[0])
        return F.cross_entropy(logits * o[1], y, reduction="none") + (logits - extra).square().mean(1) / len(o[1])

    assert fit(Model(make), loss).epsilon == pytest.approx(8, rel=0.01)
    assert not caplog.records


def test_what_python_reads_of_a_batch_is_read_of_one_sample_where_results_are_a_dictionary(caplog):
    def loss(o, y):
        return o["a"].square().sum(1) * (2.0 if float(o["a"].sum()) > 1e15 else 1.0) + y

    each = per_sample(loss)
    for rows in (2, 3):
        assert each({"a": torch.ones(rows, 2)}, torch.zeros(rows)).tolist() == [2.0] * rows
    assert "one sample at a time" in caplog.text


def test_a_loss_that_cannot_be_tried_runs_on_one_sample_at_a_time(caplog):
    """It had been taken on trust where the shapes of outputs and targets agree."""

    def loss(output, target):
        if len(output) not in (1, 4):
            raise ValueError("one or four")
        return (output - target).square().sum(1) / len(output)

    assert per_sample(loss)(torch.full((4, 2), 7.0), torch.zeros(4, 2)).tolist() == [98.0] * 4
    assert "one sample at a time" in caplog.text


class Weighing:
    """Dynamic weight averaging: weights follow the losses of earlier batches."""

    def __init__(self):
        self.calls, self.total, self.weight = 0, torch.zeros(()), 1.0

    def __call__(self, output, target):
        each = F.cross_entropy(output, target, reduction="none")
        self.total = self.total + each.detach().mean()
        self.calls += 1
        if self.calls % 200 == 0:
            self.weight = float(self.total)
        return each * self.weight


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, output, target):
        each = F.cross_entropy(output, target, reduction="none")
        if torch.is_grad_enabled():
            self.scale.mul_(0.9).add_(each.detach().mean(), alpha=0.1)
        return each


class Last:
    """Its state says nothing of the batch before last, but its losses do."""

    def __init__(self):
        self.last = 1.0

    def __call__(self, output, target):
        each, before = F.cross_entropy(output, target, reduction="none"), self.last
        self.last = float(each.detach().double().sum())
        return each * before


def _closure():
    seen = []

    def loss(output, target):
        each = F.cross_entropy(output, target, reduction="none")
        seen.append(each.detach().sum())
        return each

    return loss


STATS = {"mean": torch.zeros(()), "calls": 0}


class InGlobal:
    """Its method keeps in a dictionary of the module's what it uses much later."""

    def __call__(self, output, target):
        STATS["mean"] = 0.99 * STATS["mean"] + 0.01 * output.detach().mean()
        return F.cross_entropy(output, target, reduction="none")


class Store:
    mean = 0.0


class InClass(InGlobal):
    def __call__(self, output, target):
        Store.mean = 0.99 * Store.mean + 0.01 * float(output.detach().mean())
        return F.cross_entropy(output, target, reduction="none")


def _in_closure_of_method():
    seen = []

    class InClosure(nn.Module):
        def forward(self, output, target):
            seen.append(output.detach().sum())
            return F.cross_entropy(output, target, reduction="none")

    return InClosure()


class LossScale:
    """Dynamic loss scaling by hand: a record whose loss is not finite halves everybody's from then on."""

    def __init__(self):
        self.scale = 1024.0

    def __call__(self, output, target):
        each = F.cross_entropy(output, target, reduction="none") * self.scale
        if not torch.isfinite(each).all():
            self.scale /= 2
        return each


class Overflows(LossScale):
    def __call__(self, output, target):
        if output.detach().abs().max() > 1e20:
            self.scale /= 2
        return F.cross_entropy(output, target, reduction="none") * self.scale


class Confident(LossScale):
    """An answer about all samples that no made-up row turns."""

    def __call__(self, output, target):
        if not (output.detach() != 0.123456).all():
            self.scale /= 2
        return F.cross_entropy(output, target, reduction="none")


class Labelled(LossScale):
    def __call__(self, output, target):
        self.scale = self.scale + (target != -100).sum()
        return F.cross_entropy(output, target, reduction="none")


class Seen(LossScale):
    """How many samples there were is the sum of sizes that nobody may know."""

    def __call__(self, output, target):
        self.scale += len(output)
        return F.cross_entropy(output, target, reduction="none")


class Centres(nn.Module):
    """Centres in parameters that do not learn; used every 50 calls."""

    def __init__(self, every=50):
        super().__init__()
        self.centre, self.sums = (nn.Parameter(torch.zeros(2), requires_grad=False) for _ in range(2))
        self.calls, self.every = 0, every

    def forward(self, output, target):
        self.calls += 1
        if torch.is_grad_enabled():
            self.sums.data = self.sums.data + output.detach().mean(0)
        if self.calls % self.every == 0:
            self.centre.data, self.sums.data = self.sums.data / self.every, torch.zeros(2)
        return F.cross_entropy(output, target, reduction="none") + 0.1 * (output - self.centre).square().sum(1)


class Queue(nn.Module):
    """A queue of features that is too large to be put back after every trial."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.zeros(1 << 20, 2))
        self.at = 0

    def forward(self, output, target):
        self.queue[self.at : self.at + len(output)] += output.detach()
        self.at = (self.at + len(output)) % 1000
        return F.cross_entropy(output, target, reduction="none")


def _on_itself(output, target):
    _on_itself.mean = 0.99 * getattr(_on_itself, "mean", 0) + 0.01 * float(output.detach().mean())
    return F.cross_entropy(output, target, reduction="none")


REMEMBERING = {
    "global of a method": (InGlobal, "global STATS"),
    "class of a method": (InClass, "global mean"),
    "closure of a method": (_in_closure_of_method, "seen of forward"),
    "loss scale": (LossScale, "scale"),
    "overflows": (Overflows, "scale"),
    "turned answer": (Confident, "scale"),
    "labels that count": (Labelled, "scale"),
    "samples seen": (Seen, "scale"),
    "frozen parameter": (Centres, "parameter sums"),
    "huge": (Queue, "buffer queue"),
    "wrapped by PyTorch": (lambda: nn.DataParallel(Running(), []), "buffer module.scale"),
    "function": (lambda: _on_itself, "mean"),
    "object": (Weighing, "total"),
    "method": (lambda: Weighing().__call__, "total"),
    "partial": (lambda: functools.partial(Weighing()), "func.total"),
    "lambda": (lambda: (lambda held: lambda o, y: held(o, y))(Weighing()), "held.total"),
    "buffer": (Running, "buffer scale"),
    "closure": (_closure, "seen"),
    "the losses": (Last, "the losses themselves"),
}


@pytest.mark.parametrize("kind", REMEMBERING)
def test_a_loss_that_remembers_data_is_refused_by_name(kind, tmp_path):
    make, name = REMEMBERING[kind]
    folder = tmp_path / "run"
    with pytest.raises(InvalidInput, match=rf"keeps data between batches in '\(?{name}"):
        fit(nn.Linear(4, 2), make(), folder=folder)
    assert not folder.exists()


def test_a_loss_that_begins_to_remember_later_is_stopped():
    class Later(Weighing):
        def __call__(self, output, target):
            if self.calls > 8:
                return super().__call__(output, target)
            self.calls += 1
            return F.cross_entropy(output, target, reduction="none")

    with pytest.raises(InvalidInput, match="keeps data between batches"):
        fit(nn.Linear(4, 2), Later(), steps=150)


class CountedInGlobal:
    def __call__(self, output, target):
        STATS["calls"] += 1
        return F.cross_entropy(output, target, reduction="none") * (1 + 1 / STATS["calls"])


class CountedInParameter(nn.Module):
    """Beside a teacher: what does not change is no memory."""

    def __init__(self):
        super().__init__()
        self.steps = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.teacher = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, output, target):
        self.steps += 1
        kept = torch.where(output.isfinite().all(1, keepdim=True), output, 0)
        return F.cross_entropy(output + self.teacher(kept), target, reduction="none") / float(self.steps)


@pytest.mark.parametrize("failing", [False, True])
def test_counts_in_globals_and_in_parameters_that_do_not_learn_are_taken(failing):
    """A row that fails is not counted once more."""

    def picky(output, target):
        each = loss(output, target)
        if bool((output.detach() > 1e3).any()):
            raise ValueError("too large")
        return each

    x, y = torch.randn(60, 4), torch.randint(0, 2, (60,))
    x[::9] *= 1e9 if failing else 1
    for make, count in ((CountedInGlobal, lambda loss: STATS["calls"]), (CountedInParameter, lambda loss: loss.steps)):
        STATS["calls"], loss = 0, make()
        run = sd.Trainer(
            nn.Linear(4, 2), picky, sd.Budget(8, 1e-3), batch_size=16, steps=12, learning_rate=0.1,
            sampling="fixed-size",
        ).fit((x, y))  # fmt: skip
        assert run.steps == count(loss) == 12


class Annealed:
    def __init__(self):
        self.calls = 0

    def __call__(self, output, target):
        self.calls += 1
        return F.cross_entropy(output, target, reduction="none") * (1 + 1 / self.calls)


class AnnealedModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, output, target):
        self.calls += 1
        return F.cross_entropy(output, target, reduction="none") * (1 + 1 / self.calls)


@pytest.mark.parametrize("make", [Annealed, AnnealedModule])
@pytest.mark.parametrize("form", ["tensor", "dict", "one at a time"])
def test_a_loss_that_counts_its_calls_counts_batches_and_nothing_else(make, form):
    loss = make()

    def seen(o, y):
        value = o["a"] if form == "dict" else o
        each = loss(value, y)
        return each * (0.5 if float(value.sum()) > 1e9 else 1) if form == "one at a time" else each

    model = nn.Sequential(nn.Linear(4, 2), Wrap()) if form == "dict" else nn.Linear(4, 2)
    data = torch.randn(60, 4), torch.randint(0, 2, (60,))
    run = sd.Trainer(
        model, seen, sd.Budget(8, 1e-3), batch_size=16, steps=40, learning_rate=0.1, sampling="fixed-size"
    ).fit(data, validation=(torch.randn(9, 4), torch.randint(0, 2, (9,))))
    assert run.steps == loss.calls == 40


class Wrap(nn.Module):
    def forward(self, x):
        return {"a": x}


def test_anomaly_detection_does_not_stop_at_our_own_probe():
    with torch.autograd.set_detect_anomaly(True):
        assert fit(nn.Linear(4, 2), F.cross_entropy).steps == 3
        assert torch.is_anomaly_enabled()


def test_scores_on_the_training_data_are_refused():
    x, y = torch.randn(60, 4), torch.randint(0, 2, (60,))
    data = torch.utils.data.TensorDataset(x, y)
    for one, two in (((x, y), (x, y)), (data, data), (data, (x, y)), (data, torch.utils.data.Subset(data, [1, 2]))):
        trainer = sd.Trainer(nn.Linear(4, 2), F.cross_entropy, sd.Budget(8, 1e-3), batch_size=16, steps=2)
        with pytest.raises(InvalidInput, match="validation data are the training data"):
            trainer.fit(one, validation=two)
    trainer = sd.Trainer(nn.Linear(4, 2), F.cross_entropy, sd.Budget(float("inf"), 0), batch_size=16, steps=2)
    assert trainer.fit(data, validation=data).validation


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(2, 4))

    def forward(self, output, target):
        return F.cross_entropy(output @ self.centres.T, target, reduction="none")


def test_a_loss_with_parameters_that_would_not_learn_is_refused():
    with pytest.raises(InvalidInput, match=r"parameters of its own \(centres\)"):
        fit(nn.Linear(4, 4), Head())
    assert fit(nn.Linear(4, 4), Head().requires_grad_(False)).steps == 3
