"""What is refused before a run spends anything: arguments that would void its guarantee, weights that cannot learn.

Adapters that silently never train are the fault people lose most time to: noise moves every weight, so a run looks
alive. On made-up texts, with the weights moved a little at random (LoRA's second matrix starts at zero, and would hide
the first), every trainable parameter must get a gradient, and the engine must see it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput, TrainingFailed, Unsupported
from sordina.gradients import Engine
from sordina.gradients._rehearsal import aside, moved
from sordina.gradients.engine import refuse_watched
from sordina.queries import VectorQuery

DEFAULT_CLIPPING = 1.0
"""Of ``max_grad_norm``: taken for "not set", since nobody can tell the two apart."""
CHECKPOINTING = (
    "gradient_checkpointing runs layers a second time on the way back, where nobody listens to them: leave it out, and "
    "lower per_device_train_batch_size instead (gradient_accumulation_steps keeps the batch)."
)
Losses = Callable[[], Tensor]


# Arguments.


def refuse_arguments(args: Any) -> None:
    """Refuse the first of ``args`` that does not go with a private run; the message says why and what to do.

    Args:
        args: The `transformers.TrainingArguments`.
    """
    for reason in _reasons(args):
        raise Unsupported(reason)


def refuse_watching(callbacks: Iterable[Any], model: nn.Module) -> None:
    """Refuse what is known to log gradients of raw batches.

    Args:
        callbacks: Of the trainer.
        model: What is trained.
    """
    watched = os.environ.get("WANDB_WATCH", "false").lower()
    if watched in ("gradients", "all") and any(type(each).__name__ == "WandbCallback" for each in callbacks):
        raise Unsupported(
            f"WANDB_WATCH={watched} logs gradients before they are clipped and noised: unset it, or say parameters."
        )
    refuse_watched(model.named_parameters())


def _reasons(args: Any) -> Iterator[str]:
    if args.max_grad_norm not in (None, 0, DEFAULT_CLIPPING):
        yield (
            f"max_grad_norm={args.max_grad_norm:g} clips the mean of a batch, after samples were mixed: it bounds "
            "nobody. Every sample is clipped before; leave max_grad_norm out and give clipping=, for instance "
            "sordina.clipping.Fixed(1.0)."
        )
    if getattr(args, "fp16", False):
        yield (
            "fp16 scales the loss by what overflowed before, which depends on the batches: use bf16=True, which needs "
            "no scaling."
        )
    if getattr(args, "group_by_length", False) or getattr(args, "train_sampling_strategy", "random") != "random":
        yield (
            "batches grouped by length or in order are not drawn at random, and the guarantee rests on who is drawn: "
            "leave group_by_length and train_sampling_strategy out."
        )
    if args.auto_find_batch_size:
        yield (
            "auto_find_batch_size begins anew with smaller batches when memory is short, and would draw twice: set "
            "per_device_train_batch_size, and reach the batch size you want by gradient_accumulation_steps."
        )
    if args.deepspeed or args.fsdp:
        yield "deepspeed and fsdp add up gradients before they are clipped: train on one device."
    if args.n_gpu > 1 or args.world_size > 1:
        yield (
            "several devices would average gradients before they are clipped: use one, for instance by "
            "CUDA_VISIBLE_DEVICES=0."
        )
    if getattr(args, "packing", False):
        yield (
            "packing puts the texts of several people into one sequence, which is then clipped as one of them: set "
            "packing=False."
        )
    if args.gradient_checkpointing:
        yield CHECKPOINTING
    for name in ("torch_compile", "use_liger_kernel", "neftune_noise_alpha"):
        if getattr(args, name, None):
            yield f"{name} replaces parts of the model that are listened to: leave it out."
    if any(part in str(args.optim) for part in ("lomo", "layerwise")):
        yield f"the optimiser {args.optim} takes its steps inside the backward pass, before clipping: use adamw_torch."
    if str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)) in ("reduce_lr_on_plateau", "greedy"):
        yield "this schedule follows a loss that is not there in private training: use linear, cosine or constant."
    if str(getattr(args, "include_num_input_tokens_seen", "no")) not in ("no", "False"):
        yield "include_num_input_tokens_seen counts the tokens that were drawn, which no noise covers: leave it out."


def batch_size_of(args: Any) -> int:
    """The expected size of a logical batch.

    Args:
        args: The `transformers.TrainingArguments`.
    """
    return int(args.per_device_train_batch_size * args.gradient_accumulation_steps)


# Weights.


_TRIES = 12
"""How often a parameter may be left out by chance: there are models that drop whole layers."""


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
        try:
            each = losses()
        except ValueError as error:
            if "padding token" not in str(error):
                raise
            raise InvalidInput(
                "the model does not know which token is padding: model.config.pad_token_id = tokenizer.pad_token_id "
                "(with tokenizer.pad_token = tokenizer.eos_token, if it has none)."
            ) from error
        dead = list(trained)
        for tries in range(_TRIES):
            each = losses() if tries else each
            weighted = each @ torch.linspace(1, 2, len(each)).to(each)
            found = torch.autograd.grad(weighted, [trained[name] for name in dead], allow_unused=True)
            dead = [name for name, gradient in zip(dead, found, strict=True) if not _alive(gradient)]
            if not dead:
                break
    if dead:
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
    unseen = [name for name, each in model.named_parameters() if each.requires_grad]
    with _moved_aside(model):
        for _ in range(_TRIES):
            engine.expect(rows)
            tape = engine.record(losses())
            ones = VectorQuery(torch.ones(rows, dtype=tape.like.dtype, device=tape.like.device))
            sums = [engine.unflatten(tape.contract([ones], group=group)[0], group) for group in range(engine.groups)]
            seen = {name for part in sums for name, gradient in part.items() if _alive(gradient)}
            unseen = [name for name in unseen if name not in seen]
            if not unseen:
                break
    if unseen:
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
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    configurations: Any = model.peft_config
    if any(each.is_prompt_learning for each in configurations.values()):  # saved as the prompt that they make
        trained = {name: each for name, each in trained.items() if not name.startswith("prompt_encoder.")}
    if lost := [name for name, each in trained.items() if each.data_ptr() not in kept]:
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
