"""Time of one private step against plain PyTorch and Opacus, on the five models.

Methods alternate step by step in one process and each ratio is the median over steps of (method / plain in the same
turn), so that a busy machine slows all alike. A step takes its batch from the data by index, as every training does,
then come forward, backward, clipping, noise and the optimiser's update.
Peak memory is that of a process of its own per method (``python -m benchmarks.step MODEL METHOD``).
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from sordina import models, random
from sordina.clipping import Fixed, Online
from sordina.plan import Plan
from sordina.privacy import Budget
from sordina.sampling import Poisson
from sordina.training.loop import Private

Step = Callable[[], None]
NOISE = 1.0


class Words(nn.Module):
    """A 4-layer GPT-2 of width 256 on 64 tokens, from a config; untied, explicit positions: Opacus needs both."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            n_layer=4, n_embd=256, n_head=4, n_positions=64, vocab_size=5000,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
            tie_word_embeddings=False,
        )  # fmt: skip
        self.inner = GPT2LMHeadModel(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, classes second."""
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        logits: Tensor = self.inner(input_ids=tokens, position_ids=positions).logits
        return logits.transpose(1, 2)


def classes(outputs: Tensor, targets: Tensor) -> Tensor:
    return (
        F.cross_entropy(outputs, targets, reduction="none").flatten(1).mean(1)
        if outputs.ndim > 2
        else (F.cross_entropy(outputs, targets, reduction="none"))
    )


def pixels(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().flatten(1).mean(1)


def make(name: str) -> tuple[nn.Module, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor], int]:
    """Model, inputs, targets, per-sample loss and how many steps to time."""
    torch.manual_seed(0)
    images = torch.rand(512, 1, 28, 28)
    if name == "Adult MLP":
        return models.build("adult-mlp", inputs=131), torch.randn(512, 131), torch.randint(0, 2, (512,)), classes, 200
    if name == "MNIST CNN":
        return models.build("mnist-cnn"), images, torch.randint(0, 10, (512,)), classes, 6
    if name == "autoencoder":
        return models.build("autoencoder"), images, images, pixels, 6
    if name == "AG News":
        return models.build("ag-news", inputs=750), torch.randn(512, 750), torch.randint(0, 4, (512,)), classes, 100
    tokens = torch.randint(0, 5000, (16, 64))
    return Words(), tokens, tokens, classes, 8


MODELS = ("Adult MLP", "MNIST CNN", "autoencoder", "AG News", "GPT-2")


def everybody(*tensors: Tensor) -> tuple[Tensor, ...]:
    """A batch of all rows, taken by index."""
    index = torch.arange(len(tensors[0]))
    return tuple(tensor.index_select(0, index) for tensor in tensors)


def plain(name: str) -> Step:
    model, x, y, loss, _ = make(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        inputs, targets = everybody(x, y)
        optimizer.zero_grad()
        loss(model(inputs), targets).mean().backward()
        optimizer.step()

    return step


def ours(name: str, policy: Fixed | Online) -> Step:
    """At sample rate 1 every batch is everybody, as for the other methods."""
    model, x, y, loss, _ = make(name)
    plan = Plan(Poisson(len(x), len(x)), 10**6, Budget(1.0, 1e-5), NOISE)
    private = Private(model, torch.optim.SGD(model.parameters(), lr=1e-3), (x, y), plan, policy, rng=random.secure())
    batches = iter(private)

    def step() -> None:
        inputs, targets = next(batches)
        private.step(loss(model(inputs), targets))

    return step


def opacus(name: str, mode: str) -> Step:
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

    model, x, y, loss, _ = make(name)
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    options = {"noise_multiplier": NOISE, "max_grad_norm": 1.0, "expected_batch_size": len(x)}
    if mode == "ghost":
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
        fast = DPOptimizerFastGradientClipping(inner, **options)

        class Criterion:
            reduction = "mean"

            def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
                return loss(outputs, targets)

        criterion = DPLossFastGradientClipping(wrapped, fast, Criterion(), loss_reduction="mean")

        def ghost_step() -> None:
            inputs, targets = everybody(x, y)
            fast.zero_grad()
            criterion(wrapped(inputs), targets).backward()
            fast.step()

        return ghost_step
    wrapped = GradSampleModule(model, force_functorch=mode == "functorch")
    optimizer = DPOptimizer(inner, **options)

    def step() -> None:
        inputs, targets = everybody(x, y)
        optimizer.zero_grad()
        loss(wrapped(inputs), targets).mean().backward()
        optimizer.step()

    return step


METHODS: dict[str, Callable[[str], Step]] = {
    "plain": plain,
    "Fixed": lambda name: ours(name, Fixed(1.0)),
    "Online": lambda name: ours(name, Online()),
    "Opacus hooks": lambda name: opacus(name, "hooks"),
    "Opacus functorch": lambda name: opacus(name, "functorch"),
    "Opacus ghost": lambda name: opacus(name, "ghost"),
}


def warm(method: str, name: str) -> Step | str:
    """A step that has run twice, or the name of the error that keeps it from running."""
    try:
        step = METHODS[method](name)
        step()
        step()
    except Exception as error:
        return type(error).__name__
    return step


def measure(name: str) -> dict[str, float | str]:
    """Median ratio of every method to plain, or why it could not run."""
    steps: dict[str, Step] = {}
    answers: dict[str, float | str] = {}
    for method in METHODS:
        ready = warm(method, name)
        if isinstance(ready, str):
            answers[method] = ready
        else:
            steps[method] = ready
    times: dict[str, list[float]] = {method: [] for method in steps}
    for _ in range(make(name)[4]):
        for method, step in steps.items():
            start = time.perf_counter()
            step()
            times[method].append(time.perf_counter() - start)
    for method, taken in times.items():
        answers[method] = statistics.median(np.array(taken) / np.array(times["plain"]))
    answers["plain ms"] = 1e3 * statistics.median(times["plain"])
    return answers


def peak() -> float:
    """Peak memory of this process in MB. On Linux ``getrusage`` would also count its parent's, from before exec."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory(name: str, method: str) -> float:
    """Peak memory of a few steps in a process of its own, in MB; nan where the method does not run."""
    command = [sys.executable, "-m", "benchmarks.step", name, method]
    done = subprocess.run(command, capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else float("nan")


def run() -> None:
    """Print the tables."""
    warnings.simplefilter("ignore")
    speed = Table(title="one step, as multiples of plain PyTorch (batch 512; GPT-2: 16 x 64 tokens)")
    space = Table(title="peak memory of the process, MB")
    for table in (speed, space):
        for heading in ("model", *(["plain ms"] if table is speed else []), *METHODS):
            table.add_column(heading, justify="right")
    for name in MODELS:
        answers = measure(name)
        cells = [answers["plain ms"], *(answers[method] for method in METHODS)]
        speed.add_row(name, *(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells))
        space.add_row(name, *(f"{memory(name, method):.0f}" for method in METHODS))
    console = Console(width=140)
    console.print(speed)
    console.print(space)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    job = METHODS[sys.argv[2]](sys.argv[1])
    for _ in range(3):
        job()
    print(peak())
