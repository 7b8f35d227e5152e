"""What Python reads of samples: a branch on several of them cannot break the bound, and a harmless one costs nothing.

In the engine before, a model that branches on a number of the whole batch was accepted whenever no made-up row fell on
the other side (one of the random models with a sensitivity of 1.88 times the bound).
"""

from __future__ import annotations

import contextlib
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.gradients.brute_force import judge
from torch import Tensor, nn
from torch.nn import functional as F

from sordina.errors import Unsupported
from sordina.gradients import Engine
from sordina.gradients._reads import Reads
from sordina.gradients._rehearsal import fingerprint
from sordina.gradients.removal import LossWatch, RemovalSchedule
from sordina.gradients.structure import Mixing
from sordina.training.losses import per_sample

WIDTH, FAR = 4, 1e9


class Around(nn.Module):
    """A layer, something in between, and a head."""

    def __init__(self, between) -> None:
        super().__init__()
        self.layer, self.head, self.between = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2), between

    def forward(self, *inputs):
        return self.head(self.between(torch.tanh(self.layer(inputs[0])), *inputs))


def either(h, far):
    return h * 3 if far else h.sin()


class Silent(torch.autograd.Function):
    """Nothing forward; backward, a gradient's mean decides."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient * 3 if bool(gradient.mean().abs() > FAR) else gradient


def far(value):
    """In a range where no made-up row lies, and infinity does not."""
    return (value > FAR) & (value < 1e3 * FAR)


READING = {
    "bool": lambda h, x: either(h, far(x.mean())),
    "item": lambda h, x: either(h, far(x.mean().item())),
    "float": lambda h, x: either(h, far(float(x.max()))),
    "int": lambda h, x: either(h, far(int(x.nan_to_num(0, 0, 0).max()))),
    "tolist": lambda h, x: either(h, far(x.mean(0).tolist()[0])),
    "numpy": lambda h, x: either(h, far(x.detach().numpy().mean())),
    "array": lambda h, x: either(h, far(np.asarray(x.detach()).mean())),
    "equal": lambda h, x: either(h, not torch.equal(far(x), x > np.inf)),
    "allclose": lambda h, x: either(h, not torch.allclose(far(x).to(x), torch.zeros_like(x))),
    "any": lambda h, x: either(h, far(x).any()),
    "all": lambda h, x: either(h, not (~far(x)).all()),
    "how many": lambda h, x: either(h, far(x).sum() > 0),
    "in": lambda h, x: either(h, True in far(x)),
    "how far": lambda h, x: either(h, range(far(x).sum())),
    "a slice": lambda h, x: either(h, len(x.flatten()[: far(x).sum()])),
    "a shape": lambda h, x: either(h, len(far(x).nonzero())),
    "a mask": lambda h, x: either(h, x[far(x)].numel()),
    "different values": lambda h, x: either(h, len(torch.unique(far(x))) > 1),
    "sparse": lambda h, x: either(h, far(x).to_sparse().values().numel()),
    "written down": lambda h, x: either(h, f"{far(x).sum()}" != "0"),
    "a copy changed in place": lambda h, x: either(h, torch.zeros(()).add_(far(x).sum()) > 0),
    "where": lambda h, x: torch.where(far(x.mean()), h * 3, h.sin()),
    "where, any": lambda h, x: torch.where(far(x).any(), h * 3, h.sin()),
    "where, by column": lambda h, x: torch.where(far(x.mean(0)), h * 3, h.sin()),
    "where, by many columns": lambda h, x: torch.where(far(x.mean(0)).repeat(6)[:4], h * 3, h.sin()),
    "a product": lambda h, x: h.sin() + far(x.mean()) * h,
}


def far_batch() -> Tensor:
    """Six records, one of them where no made-up row lies."""
    x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[2] = 100 * FAR
    return x


def losses(model, x):
    return (model(x) + 1).square().sum(1)


@pytest.mark.parametrize("name", READING)
def test_a_branch_on_several_samples_cannot_break_the_bound(name):
    torch.manual_seed(0)
    verdict = judge(Around(READING[name]).double(), losses, far_batch(), sizes=(5,), all_records=True, planted=True)
    assert verdict.sound, verdict
    assert verdict.sensitivity <= 1 + 1e-5
    assert any("one sample at a time" in line for line in verdict.told), verdict


def structure_of(model, *inputs):
    with Engine(model) as engine:
        result = model(*inputs)
        return engine._calls.made[0].structure, result


@pytest.mark.parametrize("between", [lambda h, x: Silent.apply(h), None], ids=["a function", "a hook"])
def test_a_backward_pass_that_reads_runs_one_sample_at_a_time(between):
    def hooked(h, x):
        if h.requires_grad:
            h.register_hook(lambda g: g * 3 if bool(g.mean().abs() > FAR) else g)
        return h

    assert "decide" in structure_of(Around(between or hooked), torch.randn(6, WIDTH))[0].alone


class FrozenEncoder(nn.Module):
    """Features of a frozen encoder, and a head that learns."""

    def __init__(self, fast: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.words, self.head = nn.Embedding(30, 8), nn.Linear(8, 2)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=fast).eval()
        self.words.requires_grad_(False)
        self.encoder.requires_grad_(False)

    def forward(self, words):
        with torch.no_grad():
            features = self.encoder(self.words(words), src_key_padding_mask=words == 0)
        return self.head(features[:, -1])


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype")
def test_a_question_about_all_samples_that_no_tag_names_is_seen():
    """A fast path asks whether all texts are padded on the right: one that is not changed all others (4.8 C)."""
    words = torch.randint(1, 30, (6, 12)) * (torch.arange(12) < 8)
    assert "enable_nested_tensor=False" in structure_of(FrozenEncoder(True), words)[0].alone
    assert not structure_of(FrozenEncoder(False), words)[0].alone


def mask_of(x: Tensor) -> Tensor:
    return torch.ones(len(x), WIDTH, dtype=torch.bool)


def asserted(h, fine):
    assert fine
    return h


HARMLESS = {
    "nothing": lambda h, x, m: h,
    "a check": lambda h, x, m: h if torch.isfinite(x).all() else 1 / 0,
    "an assertion": lambda h, x, m: asserted(h, not torch.isnan(x).any()),
    "a shorter way without a mask": lambda h, x, m: h if m.all() else h.masked_fill(~m, 0),
    "the same by counting": lambda h, x, m: h if m.sum() == m.numel() else h.masked_fill(~m, 0),
    "a mask that is added": lambda h, x, m: F.softmax(h if m.all() else h + (1.0 - m.to(h)) * -1e9, 1),
    "a word in a log": lambda h, x, m: h if True in ~m else h * 1,
    "a number of a parameter": lambda h, x, m: h * (2 if x.shape[1] > 2 else 1),
    "truths of every sample": lambda h, x, m: torch.where(x.mean(1, keepdim=True) > 0, h, -h),
    "truths of every value": lambda h, x, m: torch.where((x > 0).flatten().view_as(x), h, -h),
    "a table of constants": lambda h, x, m: h.masked_fill(x.new_ones(WIDTH).cumsum(0) > 2, 0),
    "one hot": lambda h, x, m: h + F.one_hot(x.argmax(1), WIDTH),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_read_without_consequences_costs_nothing(name):
    x = torch.randn(6, WIDTH)
    assert structure_of(Around(HARMLESS[name]), x, mask_of(x))[0].alone == ""


def test_a_shorter_way_that_is_another_one_is_run_apart():
    wide = torch.ones(6, 40, dtype=torch.bool)  # of 40 truths a made-up row never has all
    model = Around(lambda h, x, m: h if m.all() else h * 2)
    assert "decide" in structure_of(model, torch.randn(6, WIDTH), wide)[0].alone


def test_a_padded_language_model_still_runs_at_once():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=13, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).train()
    tokens = torch.randint(1, 13, (6, 12))
    mask = (torch.arange(12) < torch.randint(1, 13, (6, 1))).long()
    with Engine(model) as engine:
        result = model(input_ids=tokens, attention_mask=mask)
        structure = engine._calls.made[0].structure
    assert result.logits.shape == (6, 2)
    assert structure.alone == ""
    assert len(structure.reads) > 0


class Later(nn.Module):
    """Branches on the batch from the tenth step on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(WIDTH, 2), 0

    def forward(self, x):
        self.calls += 1
        h = self.layer(x)
        return either(h, x.mean() > FAR) if self.calls > 10 else h


def test_a_branch_that_starts_later_is_found_before_long(caplog):
    model, x = Later(), torch.randn(8, WIDTH)
    with Engine(model) as engine, caplog.at_level(logging.WARNING):
        while not caplog.messages and model.calls < 600:
            engine.record(model(x).square().sum(1))
        assert 10 <= model.calls < 600
        tape = engine.record(model(x).square().sum(1))
    assert "one sample at a time" in caplog.messages[0]
    model.zero_grad()
    model(x[:1]).square().sum().backward()
    squares = sum(float(each.grad.square().sum()) for each in model.parameters())
    assert float(tape.scalars().norms[0]) == pytest.approx(squares**0.5, rel=1e-4)


def test_a_model_that_runs_one_sample_at_a_time_is_watched_in_that_way(monkeypatch):
    """It was compared with the whole batch, and a record could stop the run."""
    monkeypatch.setattr(RemovalSchedule, "due", lambda self: True)
    model, x = Around(READING["bool"]).double(), far_batch()
    with Engine(model) as engine:
        watch = LossWatch(model, lambda batch: losses(model, batch))
        for _ in range(12):
            engine.record(watch(x))
            monkeypatch.setattr(engine._calls, "study", SimpleNamespace(due=lambda: False))


@pytest.mark.parametrize("far_off", [lambda x: x.mean() > 1e30, lambda x: x.roll(1, 0) < -1e30], ids=["mean", "next"])
def test_a_comparison_far_away_is_refused(far_off):
    with pytest.raises(Mixing):
        structure_of(Around(lambda h, x: torch.where(far_off(x), h * 3, h.sin())), torch.randn(6, WIDTH))


def test_mixing_in_single_precision_only_is_seen():
    """The study runs small models in double precision, and a removal test believed double precision."""

    def between(h, x):
        return h - h.detach().mean(0) if h.dtype == torch.float32 else h

    def train(engine, model):
        for _ in range(20):
            engine.record(model(torch.randn(6, WIDTH)).square().sum(1))

    model = Around(between)
    with Engine(model) as engine, pytest.raises(Mixing):
        train(engine, model)


def test_mixing_of_many_where_there_are_gradients_is_seen():
    """The study knows small batches, and a removal test ran without gradients: 1.23 C by one record of twelve."""

    def between(h, x):
        return h - h.detach().mean(0) if h.requires_grad and len(h) >= 40 else h

    model = Around(between)
    with Engine(model) as engine, pytest.raises(Mixing):
        engine.record(model(torch.randn(60, WIDTH)).square().sum(1))


@pytest.mark.parametrize("wrap", [lambda y: SimpleNamespace(y=y), lambda y: y.numpy(), lambda y: [{"y": y.numpy()}]])
def test_samples_in_unknown_objects_are_refused(wrap):
    with pytest.raises(Unsupported, match="nobody knows whose samples"):
        structure_of(Around(lambda h, x, y: h), torch.randn(6, WIDTH), wrap(torch.randn(6, WIDTH)))


def test_a_second_tensor_of_samples_is_not_taken_for_a_constant():
    """It was: where samples mix through it, the model was studied again with that tensor held fixed, and accepted."""
    torch.manual_seed(0)
    x, y = torch.randn(6, WIDTH), torch.randn(6, WIDTH)
    with pytest.raises(Mixing):
        structure_of(Around(lambda h, x, y: h - y.mean(0)), x, y)
    with pytest.raises(Mixing):
        structure_of(Around(lambda h, x, y: h * y.sum()), x, y[:, 0])


def test_a_constant_is_one_also_where_a_batch_happens_to_be_as_large():
    model, weights = Around(lambda h, x, w: h * w.sum()), torch.randn(6)
    with Engine(model) as engine:
        for rows in (5, 6, 7):
            engine.record(model(torch.randn(rows, WIDTH), weights).square().sum(1))
    with Engine(model), pytest.raises(Mixing):
        model(torch.randn(6, WIDTH), weights)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16])
def test_a_fingerprint_sees_what_leaves_sums_where_they_were(kind):
    def model():
        torch.manual_seed(0)
        made = nn.Linear(30, 30).to(kind)
        made.weight.data[0, :6] = torch.tensor([0.0, 2.0, 1.0, 0.5, -1.0, 4.0])
        return made

    def changed(change):
        one = model()
        before = fingerprint(one)
        with torch.no_grad():
            change(one.weight.data)
        after = fingerprint(one)
        return before["bias"] == after["bias"] and before["weight"] != after["weight"]

    def swap(w):
        w[0, [1, 2]] = w[0, [2, 1]]

    def apart(w):
        w[0, 1] += 0.25
        w[0, 2] -= 0.25

    assert not changed(lambda w: None)
    assert changed(swap)
    assert changed(apart)
    assert changed(lambda w: w.copy_(w.flip(0)))
    assert changed(lambda w: w.copy_(w[torch.randperm(30)]))
    assert changed(lambda w: w[3].neg_())
    assert changed(lambda w: w[7, 7].mul_(1.01))


class Swapping(nn.Module):
    """From the tenth step on it moves two weights by as much as the other way round, behind everybody's back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(WIDTH, 2), 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 10:
            step = 2.0**-10 * x.detach().sign()[0, 0]
            self.layer.weight.data[0, 1] += step
            self.layer.weight.data[0, 2] -= step
        return self.layer(x)


def test_weights_moved_to_and_fro_in_a_forward_pass_are_seen():
    model, x = Swapping(), torch.randn(8, WIDTH)
    with torch.no_grad():
        model.layer.weight.copy_(torch.randint(-8, 8, (2, WIDTH)) / 8)

    def train(engine):
        for _ in range(600):
            engine.record(model(x).square().sum(1))

    with Engine(model) as engine, pytest.raises(Unsupported, match=r"changes the parameter|mix"):
        train(engine)


def branching(output, target):
    each = F.mse_loss(output, target, reduction="none")
    return each * 3 if each.detach().mean() > FAR else each


def test_a_loss_that_branches_on_the_batch_is_computed_row_by_row(caplog):
    each = per_sample(lambda output, target: branching(output, target).sum(1))
    output, target = torch.randn(5, 3), torch.randn(5, 3)
    output[2] = 1e8
    with caplog.at_level(logging.WARNING):
        together = each(output, target)
    assert "one sample at a time" in caplog.messages[0]
    rest = [0, 1, 3, 4]
    assert torch.equal(together[rest], each(output[rest], target[rest]))


def test_a_loss_that_only_checks_is_computed_at_once(caplog):
    def checked(output, target):
        if torch.isnan(output).any():
            raise ValueError("not a number")
        return F.cross_entropy(output, target, reduction="none")

    with caplog.at_level(logging.WARNING):
        for loss in (checked, F.cross_entropy, F.mse_loss, F.binary_cross_entropy_with_logits):
            floats = loss in (F.mse_loss, F.binary_cross_entropy_with_logits)
            target = torch.rand(5, 3) if floats else torch.randint(0, 3, (5,))
            per_sample(loss)(torch.randn(5, 3), target)
    assert not caplog.messages


class Inverted(nn.Module):
    """Matrices of all records are inverted; if one of them has no inverse, all are made regular."""

    def __init__(self):
        super().__init__()
        self.matrix, self.head = nn.Linear(12, 9, bias=False), nn.Linear(9, 3)

    def forward(self, x):
        matrices = self.matrix(x).view(-1, 3, 3)
        try:
            inverses = torch.linalg.inv(matrices)
        except RuntimeError:
            inverses = torch.linalg.inv(matrices + 0.1 * torch.eye(3))
        return self.head(torch.tanh(inverses).flatten(1))


def test_an_error_that_a_forward_pass_catches_says_something_of_all_samples():
    """A record of zeros sent everybody the other way (4.2 C)."""
    model = Inverted()
    with Engine(model) as engine, pytest.raises(Mixing):
        engine.record(model(torch.randn(8, 12)).square().sum(1))
    x = torch.zeros(4, 12)
    with Reads([x], 4) as reads, contextlib.suppress(RuntimeError):
        torch.linalg.inv(model.matrix(x).view(-1, 3, 3))
    assert reads.unknown(frozenset())


@pytest.mark.parametrize("number", [0.0, 1.0])
def test_counts_of_an_exact_number_are_refused(number):
    """Random rows hold neither zero nor one, rows of tables do."""
    model = Counting(number)
    with Engine(model) as engine, pytest.raises(Mixing):
        engine.record(model(torch.rand(8, 4)).square().sum(1))


class Counting(nn.Module):
    """Scales by how many records have a number in their first column."""

    def __init__(self, number):
        super().__init__()
        self.inner, self.number = nn.Linear(4, 2), number

    def forward(self, x):
        return self.inner(x) * (1 + (x[:, 0] == self.number).sum())


class FullRows(nn.Module):
    """Scales by how many records say yes to everything."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 3)

    def forward(self, x):
        return self.inner(x.float() * (1 + x.float().prod(1).sum()))


def test_a_count_of_records_that_say_yes_to_everything_is_refused():
    """A batch without such a record showed nothing, the next one mixed (2.07 C)."""
    model = FullRows()
    with Engine(model) as engine, pytest.raises(Mixing):
        engine.record(model(torch.arange(8)[:, None] % 7 > torch.arange(8)).square().sum(1))
