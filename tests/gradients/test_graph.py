"""What hides parameters from the graph of a result, or cuts them off from it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sordina.errors import Unsupported
from sordina.gradients import Engine
from sordina.gradients._hooks import leaf_edges
from sordina.gradients._rehearsal import moved

ROWS = 8


class Checkpointed(nn.Module):
    """A block in a checkpoint, on an input that has a gradient, as `enable_input_require_grads` makes one."""

    def __init__(self, reentrant: bool = True) -> None:
        super().__init__()
        self.block, self.out = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 2)
        self.first = nn.Linear(6, 6)
        self.reentrant = reentrant

    def begin(self, x: Tensor) -> Tensor:
        return x.clone().requires_grad_(True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(checkpoint(self.block, self.begin(x), use_reentrant=self.reentrant))


class Later(Checkpointed):
    def begin(self, x: Tensor) -> Tensor:
        return self.first(x)


class Alone(Checkpointed):
    """Runs one sample at a time."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return super().forward(x)
        except IndexError:
            return torch.zeros(len(x), 2)


@pytest.mark.parametrize("kind", [Checkpointed, Later, Alone])
def test_a_checkpoint_that_hides_parameters_is_refused(kind: type[Checkpointed]) -> None:
    """Everything inside had a gradient of zero, without a word."""
    model = kind()
    with Engine(model), pytest.raises(Unsupported, match="use_reentrant=False"):
        model(torch.randn(ROWS, 6))


@pytest.mark.parametrize("kind", [Checkpointed, Alone])
@pytest.mark.parametrize("rows", [1, ROWS])
def test_so_is_one_that_is_switched_on_later(kind: type[Checkpointed], rows: int) -> None:
    model, x = kind(reentrant=False), torch.randn(ROWS, 6)
    with Engine(model) as engine:
        assert engine.record(model(x).square().sum(1)).scalars().norms.all()
        model.reentrant = True
        engine._calls.removal.left = engine._calls.study.left = 10**9
        with pytest.raises(Unsupported, match="use_reentrant=False"):
            engine.record(model(x[:rows]).square().sum(1)).scalars()


def test_a_parameter_is_found_by_a_graph_from_before_its_precision_changed() -> None:
    layer = nn.Linear(3, 1)
    before = layer(torch.ones(1, 3))
    with moved(layer, None, double=True):
        pass
    both = before + layer(torch.ones(1, 3))
    edges = leaf_edges([both])[id(layer.weight)]
    assert len(edges) == 2
    found = torch.autograd.grad(both.sum(), edges)
    assert torch.equal(found[0] + found[1], torch.full((1, 3), 2.0))
