"""Time and memory of one private step on large models: GPT-2, LoRA, MiniLM, ResNet-18, ViT-tiny, 50 000 tied words.

``python -m benchmarks large`` measures all; ``python -m benchmarks.large MODEL METHOD`` one, in this process. Every
method of a model runs in a process of its own, which gives its peak memory; methods take turns step by step, and each
ratio is the median over turns of (method / plain in the same turn), in processor time of one thread.

Ours are timed in *steady* steps, without a scheduled check, and then in steps with one check each: a removal test, or
the losses apart. A study of the structure takes what the first step takes above a steady one, at most. ``run`` is what
a step of a run of 1000 steps takes on average, with as many checks of each kind as the schedules have in one. Peaks of
memory: of steady steps, of steps with a removal test, of the first two steps with their study.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.step import NOISE, Step, everybody, peak
from sordina import random
from sordina.clipping import Fixed, Online, TypicalNorm
from sordina.gradients._calls import STUDY_EVERY, STUDY_FIRST
from sordina.gradients.removal import RemovalSchedule
from sordina.plan import Plan
from sordina.privacy import Budget
from sordina.sampling import Poisson
from sordina.training.loop import Private

Made = tuple[nn.Module, Tensor, Tensor, Callable[[Any, Tensor], Tensor]]
TURNS = 7
RUN = 1000
"""Over how many steps checks are shared out."""
CHECK_TURNS = {"removal": 2, "losses": 1}
"""How many steps with a check of each kind are timed: every second removal test also goes the way back."""


class OnDemand(RemovalSchedule):
    """A check that is due when somebody says so."""

    asked = ""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def due(self) -> bool:
        """Whether this kind was asked for."""
        return OnDemand.asked == self.kind


def checks_in_a_run(steps: int = RUN, runs: int = 200) -> dict[str, float]:
    """How many checks of each kind a run has on average after its first step, where all of them are done."""

    def counted(*options: int) -> float:
        schedules = [RemovalSchedule(*options) for _ in range(runs)]
        return sum(schedule.due() for schedule in schedules for _ in range(steps)) / runs

    seldom = counted(STUDY_EVERY, STUDY_FIRST)
    often = counted() - 1
    return {"removal": often, "losses": often, "study": seldom}


class Logits(nn.Module):
    """A language model of transformers, whose positions Opacus needs to see."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of every word at every place."""
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        logits: Tensor = self.inner(input_ids=tokens, position_ids=positions).logits
        return logits


def next_words(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none").mean(1)


def classes(logits: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(getattr(logits, "logits", logits), targets, reduction="none")


def gpt2(tied: bool = True, **options: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, n_positions=128, tie_word_embeddings=tied,
        **options,
    )  # fmt: skip
    return Logits(GPT2LMHeadModel(config))


class LoRA(nn.Module):
    """A frozen layer with a low-rank product beside it."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int, rank: int = 8) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """What the layer says, and what was added."""
        low: Tensor = self.up(self.down(x))
        return self.base(x) + low


class MiniLM(nn.Module):
    """An encoder of the size of MiniLM-L6, mean of the words, four classes."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.inner, self.head = BertModel(config, add_pooling_layer=False), nn.Linear(384, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the classes."""
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        kinds = torch.zeros_like(tokens)
        hidden = self.inner(input_ids=tokens, position_ids=positions, token_type_ids=kinds).last_hidden_state
        scores: Tensor = self.head(hidden.mean(1))
        return scores


def with_lora() -> nn.Module:
    """GPT-2 with adapters of rank 8 on every attention's projections."""
    model = gpt2().requires_grad_(False)
    for block in model.inner.transformer.h:  # type: ignore[union-attr]
        block.attn.c_attn = LoRA(block.attn.c_attn, 768, 3 * 768)
        block.attn.c_proj = LoRA(block.attn.c_proj, 768, 768)
    return model


class Residual(nn.Module):
    """A basic block of ResNet with group norm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(32, outputs))
        self.two = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.GroupNorm(32, outputs))
        same = stride == 1 and inputs == outputs
        self.short = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(32, outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions and a shortcut."""
        return F.relu(self.two(F.relu(self.one(x))) + self.short(x))


def resnet18() -> nn.Module:
    """ResNet-18 with group norm, on images of 64 x 64."""
    widths = (64, 64, 128, 256, 512)
    blocks = [
        block
        for stage in range(4)
        for block in (
            Residual(widths[stage], widths[stage + 1], 1 if stage == 0 else 2),
            Residual(widths[stage + 1], widths[stage + 1], 1),
        )
    ]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.GroupNorm(32, 64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def vit_tiny() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768, image_size=64,
        patch_size=8, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return ViTForImageClassification(config)


def make(name: str) -> Made:
    """Model, inputs, targets and loss."""
    torch.manual_seed(0)
    words = torch.randint(0, 50257, (4, 128))
    images, targets = torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))
    if name == "GPT-2 124M":
        return gpt2(), words, words, next_words
    if name == "GPT-2 124M, untied":
        return gpt2(tied=False), words, words, next_words
    if name == "LoRA on GPT-2":
        return with_lora(), words, words, next_words
    if name == "tied head, 50 000 words":
        return gpt2(n_layer=1, n_embd=128, n_head=2), words, words, next_words
    if name == "MiniLM, 32 x 64":
        return MiniLM(), torch.randint(0, 30522, (32, 64)), torch.randint(0, 4, (32,)), classes
    if name == "ResNet-18, group norm":
        return resnet18(), images, targets, classes
    return vit_tiny(), images, targets, classes


MODELS = (
    "GPT-2 124M", "GPT-2 124M, untied", "LoRA on GPT-2", "MiniLM, 32 x 64", "tied head, 50 000 words",
    "ResNet-18, group norm", "ViT-tiny",
)  # fmt: skip


def plain(name: str) -> Step:
    model, x, y, loss = make(name)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=1e-3)

    def step() -> None:
        inputs, targets = everybody(x, y)
        optimizer.zero_grad()
        loss(model(inputs), targets).mean().backward()
        optimizer.step()

    return step


def ours(name: str, policy: Fixed | Online | TypicalNorm) -> Step:
    model, x, y, loss = make(name)
    plan = Plan(Poisson(len(x), len(x)), 10**6, Budget(1.0, 1e-5), NOISE)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    private = Private(model, optimizer, (x, y), plan, policy, rng=random.secure())
    batches = iter(private)
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        if taken == 3 and private.engine is not None:
            calls = private.engine._calls
            calls.removal, calls.study, private.engine._loss_checks = map(OnDemand, ("removal", "study", "losses"))
        inputs, targets = next(batches)
        private.step(loss(model(inputs), targets))

    return step


def opacus(name: str, ghost: bool) -> Step:
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

    model, x, y, loss = make(name)
    inner = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    options = {"noise_multiplier": NOISE, "max_grad_norm": 1.0, "expected_batch_size": len(x)}
    if ghost:
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        class Criterion:
            reduction = "mean"

            def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
                return loss(outputs, targets)

        fast = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
        optimizer: Any = DPOptimizerFastGradientClipping(inner, **options)
        criterion = DPLossFastGradientClipping(fast, optimizer, Criterion(), loss_reduction="mean")

        def ghost_step() -> None:
            inputs, targets = everybody(x, y)
            optimizer.zero_grad()
            criterion(fast(inputs), targets).backward()
            optimizer.step()

        return ghost_step
    wrapped = GradSampleModule(model)
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
    "default": lambda name: ours(name, TypicalNorm()),
    "Opacus hooks": lambda name: opacus(name, ghost=False),
    "Opacus ghost": lambda name: opacus(name, ghost=True),
}


def serve(name: str, method: str) -> None:
    """Two steps, then one for every line, which names a check or none; says its seconds. ``peak`` asks for memory."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    start = time.process_time()
    step = METHODS[method](name)
    step()
    begun = time.process_time() - start
    step()
    print(begun, flush=True)
    for line in sys.stdin:
        if line.strip() == "peak":
            print(peak(), flush=True)
            Path("/proc/self/clear_refs").write_text("5")
            continue
        OnDemand.asked = line.strip()
        start = time.process_time()
        step()
        print(time.process_time() - start, flush=True)


class Stepper:
    """A process that steps when it is asked to."""

    def __init__(self, name: str, method: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.large", name, method],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.write, self.answer = self.process.stdin, self.process.stdout
        self.begun = self.answer.readline().strip()
        self.first = self.ask("peak") if self.begun else 0.0

    def ask(self, what: str = "") -> float:
        """Processor time of one more step, with a check of a kind or none; or the peak of memory since the last."""
        self.write.write(f"{what}\n")
        self.write.flush()
        return float(self.answer.readline())

    def end(self) -> None:
        """End the process."""
        self.write.close()
        self.process.wait()


class Measured(NamedTuple):
    """Seconds, or multiples of plain's seconds, and MB."""

    steady: float
    run: float
    peak: float
    check_peak: float
    first_peak: float
    checks: dict[str, float]
    """By kind how many steady steps of the same method a step with such a check takes."""


def measure(name: str, methods: list[str], turns: int) -> dict[str, Measured]:
    """By method what a step takes.

    One method at a time runs beside plain: several large models would not fit into memory together.
    """
    answers, base, all_times = {}, Stepper(name, "plain"), list[float]()
    counts = checks_in_a_run()
    for method in methods:
        stepper = Stepper(name, method)
        if stepper.begun:
            times = [(base.ask(), stepper.ask()) for _ in range(turns)]
            all_times += [one for one, _ in times]
            ratio, own = _median(two / one for one, two in times), _median(two for _, two in times)
            peak = check_peak = stepper.ask("peak")
            checks = {}
            if not method.startswith("Opacus"):
                checks["study"] = float(stepper.begun) / own
                for kind, count in CHECK_TURNS.items():
                    checks[kind] = statistics.mean(stepper.ask(kind) for _ in range(count)) / own
                    check_peak = stepper.ask("peak") if kind == "removal" else check_peak
            more = sum(counts[kind] * (cost - 1) for kind, cost in checks.items())
            more += float(stepper.begun) / own - 1 if checks else 0.0
            found = Measured(ratio, ratio * (1 + more / RUN), peak, check_peak, stepper.first, checks)
            costs = ", ".join(f"{kind} {cost:.1f}" for kind, cost in checks.items())
            print(f"{name} | {method} | {_cell(found)} | steady steps that one with a check takes: {costs}", flush=True)
            answers[method] = found
        stepper.end()
    seconds, peak = _median(all_times), base.ask("peak")
    base.end()
    return {"plain": Measured(seconds, seconds, peak, peak, base.first, {}), **answers}


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def run(names: list[str] | None = None, turns: int = TURNS, methods: list[str] | None = None) -> None:
    """Print the tables."""
    table = Table(title="one step on one thread, multiples of plain PyTorch: steady / over a run of 1000 (peaks, MB)")
    for heading in ("model", "plain, s (MB)", *list(METHODS)[1:]):
        table.add_column(heading, justify="right")
    for name in names or MODELS:
        answers = measure(name, methods or list(METHODS)[1:], turns)
        cells = ["-" if m not in answers else _cell(answers[m]) for m in METHODS]
        table.add_row(name, *cells)
        print(f"{name} | plain | {_cell(answers['plain'])}", flush=True)
    Console(width=120).print(table)


def _cell(found: Measured) -> str:
    peaks = f"{found.peak:.0f}, {found.check_peak:.0f}, {found.first_peak:.0f}"
    return f"{found.steady:.2f} / {found.run:.2f} ({peaks})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", choices=MODELS)
    parser.add_argument("method", nargs="?", choices=list(METHODS))
    parser.add_argument("--methods", nargs="*", choices=list(METHODS)[1:])
    parser.add_argument("--turns", type=int, default=TURNS)
    chosen = parser.parse_args()
    if chosen.method:
        serve(chosen.model, chosen.method)
    else:
        run([chosen.model] if chosen.model else None, chosen.turns, chosen.methods)
