"""What of `transformers.TrainingArguments` would void a guarantee, refused with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from sordina.errors import Unsupported

DEFAULT_CLIPPING = 1.0
"""Of ``max_grad_norm``: taken for "not set", since nobody can tell the two apart."""


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
    if hooked := [name for name, each in model.named_parameters() if each._backward_hooks]:
        raise Unsupported(
            f"parameter {hooked[0]!r} has a hook (wandb.watch, or one of your own) that is shown its gradient before "
            "it is clipped and noised: remove it."
        )


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
        yield (
            "gradient_checkpointing runs layers a second time on the way back, where nobody listens to them: leave it "
            "out, and lower per_device_train_batch_size instead (gradient_accumulation_steps keeps the batch)."
        )
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
