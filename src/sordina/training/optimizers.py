"""Optimisers by name, and Adam under known noise: `AdamWOSM` and `AdamBC`.

AdamWOSM (Mohapatra et al. 2022): Adam without its second moment, which under DP noise is known beforehand.

Adam's second moment settles at the variance of the noise, ``(nu C / B)^2``, so it need not be estimated. The step is
``alpha m / (nu C / B + 1e-8)`` with m the bias-corrected first moment; alpha = 1e-3 and beta1 = 0.9 stay fixed, and
the threshold alone is left to tune.

AdamBC (Tang, Shpilevskiy and Lecuyer 2024) takes the noise's variance, which is known, off the second moment: the step
is ``alpha m / sqrt(max(v - sigma^2, floor^2))``, so that a coordinate whose gradient is small against the noise is
scaled by its gradient and not by the noise, as far as ``floor``, a fraction of sigma, allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from sordina.errors import InvalidInput, Unsupported

OptimizerMaker = Callable[[Iterable[Any]], Optimizer]
"""From parameters to an optimiser of them."""


class AdamWOSM(Optimizer):
    """A ``torch.optim`` optimiser; the private step tells it the noise on the mean gradient (group key ``noise``).

    Args:
        params: The parameters.
        lr: The learning rate, called as torch calls it.
        beta: How slowly the mean forgets.
        tiny: Keeps the divisor from zero.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, beta: float = 0.9, tiny: float = 1e-8) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "tiny": tiny, "noise": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step with the gradients that stand in ``.grad``."""
        for group in self.param_groups:
            scale = group["noise"] + group["tiny"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["moment"], state["steps"] = torch.zeros_like(parameter), 0
                state["steps"] += 1
                state["moment"].lerp_(parameter.grad, 1 - group["beta"])
                correction = 1 - group["beta"] ** state["steps"]
                parameter.sub_(state["moment"], alpha=group["lr"] / (scale * correction))


class AdamBC(Optimizer):
    """Adam with the noise's variance taken off its second moment (group key ``noise``, as for `AdamWOSM`).

    Args:
        params: The parameters.
        lr: The learning rate, called as torch calls it.
        betas: How slowly the means of gradients and of their squares forget.
        floor: The least divisor, in units of the noise.
        tiny: Keeps the divisor from zero without noise.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = 0.3,
        tiny: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "floor": floor, "tiny": tiny, "noise": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step with the gradients that stand in ``.grad``."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                    state["steps"] = 0
                state["steps"] += 1
                state["mean"].lerp_(parameter.grad, 1 - first)
                state["square"].lerp_(parameter.grad.square(), 1 - second)
                square = state["square"] / (1 - second ** state["steps"])
                least = (group["floor"] * group["noise"]) ** 2
                divisor = (square - group["noise"] ** 2).clamp_(min=least).sqrt_().add_(group["tiny"])
                mean = state["mean"] / (1 - first ** state["steps"])
                parameter.addcdiv_(mean, divisor, value=-group["lr"])


MOMENTUM = 0.9
_MAKERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "momentum": partial(SGD, momentum=MOMENTUM, dampening=MOMENTUM),
    "adam": torch.optim.Adam,
    "adam-bc": AdamBC,
    "adam-wosm": AdamWOSM,
}
NAMES = tuple(_MAKERS)
_RATES = {"sgd": 0.1, "momentum": 0.1}


def optimizer_named(name: str, learning_rate: float | None = None) -> OptimizerMaker:
    """What makes the optimiser called ``name``.

    "momentum" averages gradients (it is dampened), so that its steps are as long as those of plain SGD at that rate.

    >>> optimizer_named("momentum")([torch.nn.Parameter(torch.zeros(2))]).defaults["dampening"]
    0.9

    Args:
        name: sgd, momentum, adam, adam-bc or adam-wosm.
        learning_rate: None takes the optimiser's own (0.1 for sgd and momentum, 1e-3 for the others).
    """
    if name not in _MAKERS:
        raise InvalidInput(f"unknown optimiser {name!r}: choose one of {', '.join(NAMES)}.")
    rate = _RATES.get(name, 1e-3) if learning_rate is None else learning_rate
    return partial(_MAKERS[name], lr=rate)


def known(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimiser is of those that take gradients and nothing else.

    Args:
        optimizer: Any.
    """
    return type(optimizer).__module__.startswith(("torch.optim.", "sordina.", "transformers.", "bitsandbytes."))


def refuse_listeners(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """An optimiser whose hooks see activations, or gradients of a batch, depends on more than noised gradients.

    Args:
        optimizer: Refused if a hook of the model is its own.
        model: What it trains.
    """
    for name, module in model.named_modules():
        for hooks in (
            module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
        ):  # fmt: skip
            for hook in hooks.values():
                cells = getattr(getattr(hook, "func", hook), "__closure__", None) or ()
                held = [getattr(hook, "__self__", None), *(getattr(cell, "cell_contents", None) for cell in cells)]
                if any(each is optimizer for each in held):
                    raise Unsupported(
                        f"the optimiser {type(optimizer).__name__} listens to {name or 'the model'} by a hook: its "
                        "updates would depend on the data themselves, not on noised gradients alone. Take one that "
                        "does not look at activations."
                    )
