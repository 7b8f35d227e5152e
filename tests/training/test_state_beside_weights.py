"""What is saved beside trained weights holds nothing of the data, however a forward pass writes it."""

import pytest
import torch
from torch import nn

import sordina as sd
from sordina.errors import Unsupported
from sordina.training import run
from sordina.training.run import HeldWeights


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 3), 0
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        self.look(x)
        return self.layer(x)

    def look(self, x):
        pass


class Extra(Base):
    """Saves what it saw last by PyTorch's own way to save more than tensors."""

    seen = None

    def look(self, x):
        self.seen = x.detach().clone()

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


class Late(Base):
    """A buffer that comes in a later step."""

    def look(self, x):
        self.calls += self.training
        if self.calls == 12:
            self.register_buffer("kept", x.detach().clone())


class ByData(Base):
    """A buffer written past autograd's notice, in batches larger than those it was studied on."""

    def look(self, x):
        if len(x) > 40:
            self.mean.data.copy_(x.detach().mean(0))


def fitted(model, folder=None, **options):
    x, y = torch.randn(200, 6), torch.randint(0, 3, (200,))
    trainer = sd.Trainer(
        model, nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=64, steps=30, tensorboard=False,
        folder=folder, clipping=sd.clipping.Fixed(1.0), **options,
    )  # fmt: skip
    return trainer.fit((x, y))


@pytest.mark.parametrize("kind", [Extra, Late, ByData])
@pytest.mark.parametrize("kept", [True, False])
def test_raw_data_in_a_state_dict_are_refused(tmp_path, kind, kept):
    with pytest.raises(Unsupported, match="public_buffers="):
        fitted(kind(), tmp_path / "run" if kept else None, checkpoint_every=10 if kept else None)
    assert not (tmp_path / "run" / "model.pt").exists()
    for path in (tmp_path / "run").glob("checkpoint*"):
        state = torch.load(path, weights_only=False)["model"]
        assert "kept" not in state
        assert not state["mean"].any()
        assert (state.get("_extra_state") or {"seen": None})["seen"] is None


def test_what_is_declared_public_may_change(tmp_path):
    class Counts(Base):
        def look(self, x):
            self.mean.data += self.training

    run = fitted(Counts(), tmp_path / "run", public_buffers=["mean"])
    assert any("mean" in caveat for caveat in run.caveats)


def test_a_frozen_weight_written_in_training_is_refused():
    class Frozen(Base):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)

        def look(self, x):
            if len(x) > 40:
                self.frozen.data.copy_(x.detach().mean(0))

    with pytest.raises(Unsupported, match="frozen"):
        fitted(Frozen())


def test_other_first_buffers_do_not_stop_a_resumed_run(tmp_path):
    """Random features are drawn anew when a model is built again; the checkpoint's are the run's."""

    class Features(Base):
        def __init__(self):
            super().__init__()
            self.mean.normal_()

    class Stop:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def report(self, entry):
            if entry["step"] >= 15:
                raise KeyboardInterrupt

    model = Features()
    with pytest.raises(KeyboardInterrupt):
        fitted(model, tmp_path / "run", checkpoint_every=10, callbacks=[Stop()])
    again = Features()
    x, y = torch.randn(200, 6), torch.randint(0, 3, (200,))
    sd.Trainer(
        again, nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=64, steps=30, tensorboard=False,
        folder=tmp_path / "run", clipping=sd.clipping.Fixed(1.0), checkpoint_every=10,
    ).fit((x, y), resume=True)  # fmt: skip
    assert torch.equal(again.mean, model.mean)


class IntoWeights(Base):
    """Writes raw data into what is trained, once, past autograd's notice (a code book that is restarted from inputs).

    Its number of calls is a count of steps, which a test of the engine puts back.
    """

    def look(self, x):
        self.calls += self.training
        if self.calls == 7:
            self.layer.weight.data[0] = x[0].detach()


@pytest.mark.parametrize("copied", [True, False])
def test_raw_data_in_trained_weights_are_refused(monkeypatch, copied):
    monkeypatch.setattr(run, "_COPIED", 1 << 14 if copied else 0)
    with pytest.raises(Unsupported, match=r"changes the parameter 'layer\.weight'|samples mix"):
        fitted(IntoWeights())


@pytest.mark.parametrize("microbatch", [None, 1])
@pytest.mark.parametrize("copied", [True, False])
def test_a_loop_of_ones_own_may_change_weights_between_steps_and_the_model_may_not(monkeypatch, microbatch, copied):
    monkeypatch.setattr(run, "_COPIED", 1 << 14 if copied else 0)
    x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
    for model in (Base(), IntoWeights()):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        private = sd.make_private(
            model, optimizer, (x, y), budget=sd.Budget(3, 1e-5), batch_size=5, steps=12, microbatch=microbatch
        )

        def clamped(model=model, private=private):
            for inputs, targets in private:
                with torch.no_grad():
                    model.layer.weight.clamp_(-0.3, 0.3)
                    model.layer.bias.clamp_(-0.1, 0.1)  # the step before may have been an empty batch's
                private.step(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
                model.layer.bias.data.clamp_(-0.1, 0.1)
            private.finish()

        model.layer.weight.data.clamp_(-0.3, 0.3)
        model.layer.bias.data.clamp_(-0.1, 0.1)
        if isinstance(model, IntoWeights):
            with pytest.raises(Unsupported, match=r"changes the parameter|samples mix"):
                clamped()
        else:
            clamped()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_every_value_is_looked_at(monkeypatch, kind, copied, start):
    monkeypatch.setattr(run, "_COPIED", 1 << 14 if copied else 0)
    monkeypatch.setattr(run, "_PIECE", 4)
    storage = torch.randn(64).to(kind)
    parameters = {"a": torch.randn(3).to(kind), "b": storage[start : start + 23], "c": torch.randn(4, 6).to(kind).T}
    parameters["b"][0] = float("nan")
    held = HeldWeights(parameters)
    held.hold()
    held.check()
    for name, tensor in parameters.items():
        for place in range(tensor.numel()):
            held.hold()
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), tensor.shape))
            tensor.data[index] = 5.0
            with pytest.raises(Unsupported, match=f"'{name}'"):
                held.check()


class Teacher(Base):
    """A second layer that averages the released weights of the first."""

    def __init__(self):
        super().__init__()
        self.average = nn.Linear(6, 3).requires_grad_(False)


def taught(public_buffers):
    model, x, y = Teacher(), torch.randn(40, 6), torch.randint(0, 3, (40,))
    private = sd.make_private(
        model, torch.optim.SGD(model.layer.parameters(), lr=0.1), (x, y), budget=sd.Budget(3, 1e-5), batch_size=20,
        steps=6, public_buffers=public_buffers,
    )  # fmt: skip
    try:
        for inputs, targets in private:
            private.step(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
            for average, weight in zip(model.average.parameters(), model.layer.parameters(), strict=True):
                average.data.lerp_(weight.data, 0.1)
        private.finish()
    except Unsupported:
        pass
    return private.trained_steps


def test_an_untrained_weight_that_a_loop_changes_is_refused_after_the_first_step_or_named():
    assert taught(()) == 1
    assert taught(("average.weight", "average.bias")) == 6


class Listens(torch.optim.SGD):
    """Sees the inputs of a layer, as K-FAC does."""

    def __init__(self, layer):
        super().__init__(layer.parameters(), lr=0.1)
        layer.register_forward_pre_hook(self.keep)

    def keep(self, module, inputs):
        self.seen = inputs[0]


class Unknown(torch.optim.SGD):
    pass


def test_an_optimiser_that_listens_to_the_model_is_refused_and_one_that_nobody_knows_is_said():
    x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))

    def fit(make):
        return sd.Trainer(
            Base(), nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=20, steps=2, optimizer=make
        ).fit((x, y))

    assert any("Unknown is not one that Sordina knows" in one for one in fit(lambda p: Unknown(p, lr=0.1)).caveats)
    assert not any("Sordina knows" in one for one in fit(lambda p: torch.optim.Adam(p)).caveats)
    model = Base()
    with pytest.raises(Unsupported, match="listens to layer"):
        sd.make_private(model, Listens(model.layer), (x, y), budget=sd.Budget(3, 1e-5), batch_size=20, steps=2)
