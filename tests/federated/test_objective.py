"""Slopes and stacked gradients against autograd."""

import pytest
import torch
from torch import nn

from sordina.errors import InvalidInput
from sordina.federated import losses
from sordina.federated.objective import Batch, flat_parameters, of_module


@pytest.mark.parametrize("name", ["mse", "class-mse", "cross-entropy", "hinge"])
def test_a_slope_is_the_derivative_of_its_loss(name):
    torch.manual_seed(0)
    loss = losses.named(name)
    outputs = torch.randn(9, 1 if name in ("mse", "hinge") else 4, dtype=torch.float64)
    targets = torch.randn(9, 1, dtype=torch.float64) if name == "mse" else torch.randint(0, 2, (9,))
    by_autograd = losses.differentiated("same", loss.value).slope(outputs, targets)
    assert torch.allclose(loss.slope(outputs, targets), by_autograd, atol=1e-12)


def test_any_other_loss_is_differentiated():
    loss = losses.named("next-token")
    outputs, targets = torch.randn(3, 5, 7, dtype=torch.float64), torch.randint(0, 7, (3, 5))
    assert loss.slope(outputs, targets).shape == outputs.shape
    with pytest.raises(InvalidInput):
        losses.named("nonsense")


CHAINS = {
    "relu": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
    "leaky": lambda: nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.2), nn.Linear(4, 2, bias=False)),
    "sigmoid": lambda: nn.Sequential(nn.Sigmoid(), nn.Linear(3, 4, bias=False), nn.Sigmoid(), nn.Linear(4, 2)),
    "ends pointwise": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3, 2), nn.Tanh()),
    "mapped": lambda: nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2)),
}


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("name", CHAINS)
def test_stacked_gradients_equal_autograd_and_padding_changes_nothing(name, root):
    torch.manual_seed(0)
    module = CHAINS[name]().double()
    objective = of_module(module, losses.cross_entropy, root=root)
    flat = torch.stack([flat_parameters(CHAINS[name]().double()) for _ in range(3)])
    x, y = torch.randn(3, 5, 3, dtype=torch.float64), torch.randint(0, 2, (3, 5))
    mask = torch.ones(3, 5, dtype=torch.float64)
    mask[1, 2:] = 0
    x[1, 2:] = 1e6
    gradients = objective.gradient(flat, Batch(x, y, mask))
    for client, count in enumerate((5, 2, 5)):
        nn.utils.vector_to_parameters(flat[client].clone(), module.parameters())
        module.zero_grad()
        mean = nn.functional.cross_entropy(module(x[client, :count]), y[client, :count])
        (mean.sqrt() if root else mean).backward()
        expected = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
        assert torch.allclose(gradients[client], expected, atol=1e-10)


def test_a_perfect_fit_has_no_slope_under_the_root():
    objective = of_module(nn.Linear(2, 1, bias=False), losses.mse, root=True)
    batch = Batch(torch.ones(1, 4, 2), torch.full((1, 4, 1), 3.0), torch.ones(1, 4))
    assert torch.equal(objective.gradient(torch.tensor([[1.0, 2.0]]), batch), torch.zeros(1, 2))


def test_a_module_without_parameters_is_refused():
    with pytest.raises(InvalidInput, match="no parameters"):
        of_module(nn.ReLU(), losses.mse)
