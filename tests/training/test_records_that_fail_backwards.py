"""A record on whose way back something fails adds nothing, and nobody sees that it was drawn."""

import pytest
import torch
from torch import nn

import sordina as sd
from sordina.errors import Unsupported


class Refusing(torch.autograd.Function):
    """Its way back refuses what is not finite."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if not torch.isfinite(gradient).all():
            raise RuntimeError("bad gradient")
        return gradient


class Guarded(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.first(x)
        if self.kind == "function":
            hidden = Refusing.apply(hidden)
        if self.kind == "hook" and hidden.requires_grad:
            hidden.register_hook(refuse)
        return self.last(torch.cat([hidden, (hidden.square().sum(1, keepdim=True) + 1e-6).sqrt()], 1))


def refuse(gradient):
    assert torch.isfinite(gradient).all(), "bad gradient"


@pytest.mark.parametrize("kind", ["anomaly mode", "function", "hook"])
def test_a_record_that_fails_backwards_stops_nothing(kind):
    x, y = torch.randn(40, 4), torch.randint(0, 2, (40,))
    x[5] = 1e25
    model = Guarded(kind)
    trainer = sd.Trainer(model, nn.functional.cross_entropy, sd.Budget(8, 1e-5), batch_size=39, steps=6)
    with torch.autograd.set_detect_anomaly(kind == "anomaly mode"):
        run = trainer.fit((x, y))
    assert run.steps == 6
    assert all(torch.isfinite(each).all() for each in model.parameters())


def test_a_hook_on_a_parameter_is_refused_whenever_it_comes():
    x, y = torch.randn(40, 4), torch.randint(0, 2, (40,))
    model = nn.Linear(4, 2)
    model.weight.register_hook(lambda gradient: None)
    with pytest.raises(Unsupported, match="'weight' has a hook"):
        sd.Trainer(model, nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=20, steps=3).fit((x, y))
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    private = sd.make_private(model, optimizer, (x, y), budget=sd.Budget(3, 1e-5), batch_size=20, steps=3)
    batches = iter(private)
    a, b = next(batches)
    private.step(nn.functional.cross_entropy(model(a), b, reduction="none"))
    model.bias.register_hook(lambda gradient: None)
    with pytest.raises(Unsupported, match="'bias' has a hook"):
        next(batches)
    assert private.steps_taken == 1
