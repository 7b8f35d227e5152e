"""Whether everything that shall learn can, found out before anything is spent.

Adapters that silently never train are the fault people lose most time to: noise moves every weight, so a run looks
alive. On made-up texts, with the weights moved a little at random (LoRA's second matrix starts at zero, and would hide
the first), every trainable parameter must get a gradient, and the engine must see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput, TrainingFailed, Unsupported
from sordina.gradients import Engine
from sordina.gradients._rehearsal import aside, moved
from sordina.queries import VectorQuery

Losses = Callable[[], Tensor]


def check_reached(model: nn.Module, optimizer: torch.optim.Optimizer, losses: Losses) -> None:
    """Refuse a trainable parameter that the loss does not depend on, or that nobody steps.

    Args:
        model: What is trained, in training mode, before an engine listens to it.
        optimizer: What is to move it.
        losses: Calls the model on made-up texts.
    """
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not trained:
        raise InvalidInput("no parameter of the model is trainable: requires_grad is false for all of them.")
    stepped = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if missing := [name for name, each in trained.items() if id(each) not in stepped]:
        raise InvalidInput(f"{_named(missing)} trainable, but the optimiser does not have it: it would never move.")
    with _moved_aside(model):
        each = losses()
        weighted = each @ torch.linspace(1, 2, len(each)).to(each)
        found = torch.autograd.grad(weighted, list(trained.values()), allow_unused=True)
    if dead := [name for name, gradient in zip(trained, found, strict=True) if not _alive(gradient)]:
        raise InvalidInput(
            f"{_named(dead)} trainable, but the loss does not depend on it: only noise would move it. Freeze it "
            "(requires_grad_(False)), or mend the model or the adapter's target_modules. Nothing was spent."
        )


def check_seen(model: nn.Module, engine: Engine, losses: Losses, rows: int) -> None:
    """Refuse a trainable parameter to which the engine gives no gradient.

    Args:
        model: What is trained; `check_reached` was done.
        engine: Listens to it.
        losses: Calls the model on made-up texts.
        rows: How many they are.
    """
    with _moved_aside(model):
        engine.expect(rows)
        tape = engine.record(losses())
        ones = VectorQuery(torch.ones(rows, dtype=tape.like.dtype, device=tape.like.device))
        sums = [engine.unflatten(tape.contract([ones], group=group)[0], group) for group in range(engine.groups)]
    seen = {name for part in sums for name, gradient in part.items() if _alive(gradient)}
    if unseen := [name for name, each in model.named_parameters() if each.requires_grad and name not in seen]:
        raise Unsupported(
            f"{_named(unseen)} trainable, but its use in the model is not seen by the engine: freeze it, or report the "
            "model. Nothing was spent."
        )


def check_saved(model: nn.Module) -> None:
    """Refuse a trainable parameter that an adapter's folder leaves out: it would be trained, paid for and lost.

    Args:
        model: What is trained; only one with an adapter of `peft` is looked at.
    """
    if not hasattr(model, "peft_config"):
        return
    from peft import get_peft_model_state_dict

    kept = {each.data_ptr() for each in get_peft_model_state_dict(model).values()}
    if lost := [name for name, each in model.named_parameters() if each.requires_grad and each.data_ptr() not in kept]:
        raise InvalidInput(
            f"{_named(lost)} trainable, but no part of the adapter, and save_model would leave it out: name its module "
            "in modules_to_save, or freeze it. Nothing was spent."
        )


@contextmanager
def _moved_aside(model: nn.Module) -> Iterator[None]:
    with aside(model), moved(model, torch.Generator().manual_seed(0)):
        yield


class MovedCheck:
    """After the first step whose learning rate is not zero, every trainable parameter has moved.

    Args:
        model: What is trained.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.before: dict[str, Tensor] | None = self._values()

    def _values(self) -> dict[str, Tensor]:
        # Some thousand values each, not a sum of them: the first step of Adam adds the same up and down, and sums stay.
        return {
            name: each.detach().flatten()[:: 1 + each.numel() // 4096].clone()
            for name, each in self.model.named_parameters()
            if each.requires_grad
        }

    def after_step(self, learning_rate: float) -> None:
        """Look, once; weights after a step are released, so this reveals nothing.

        Args:
            learning_rate: Of the step just taken.
        """
        if self.before is None or not learning_rate:
            return
        before, self.before = self.before, None
        if still := [name for name, now in self._values().items() if name in before and torch.equal(now, before[name])]:
            raise TrainingFailed(
                f"{_named(still)} trainable, but did not move in the first step: its learning rate is zero, or the "
                "optimiser leaves it out."
            )


def _alive(gradient: Tensor | None) -> bool:
    return gradient is not None and bool(torch.nan_to_num(gradient.detach(), nan=1.0).any())


def _named(names: list[str]) -> str:
    if len(names) == 1:
        return f"parameter {names[0]!r} is"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"parameters {', '.join(map(repr, names[:3]))}{more} are"
