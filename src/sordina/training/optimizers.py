"""AdamWOSM (Mohapatra et al. 2022): Adam without its second moment, which under DP noise is known beforehand.

Adam's second moment settles at the variance of the noise, ``(nu C / B)^2``, so it need not be estimated. The step is
``alpha m / (nu C / B + 1e-8)`` with m the bias-corrected first moment; alpha = 1e-3 and beta1 = 0.9 stay fixed, and
the threshold alone is left to tune.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer


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
