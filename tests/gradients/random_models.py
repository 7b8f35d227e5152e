"""Random small models from a grammar, each held against brute force.

A `Program` is data: how samples enter, which blocks follow (with a seed each), which loss, which inputs, how the engine
is driven. It is drawn from one seed, built from itself alone, and stays buildable when blocks are taken away, so a
failure can be made small. The long form is ``make random-models``:

    python -m tests.gradients.random_models --models 10000          # from a fresh seed; goes on where it stopped
    python -m tests.gradients.random_models --start 0               # from a seed of one's own
    python -m tests.gradients.random_models --seed 123              # one program, made small if it fails
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import torch
import torch.nn.functional as F
from tests.gradients import brute_force, mixing_blocks, random_blocks, shape_blocks
from tests.gradients.brute_force import Outcome, Verdict, judge
from tests.gradients.mixing_blocks import MIXING
from tests.gradients.random_blocks import Shape
from tests.gradients.shape_blocks import SOUND
from torch import Tensor, nn

import sordina.gradients
from sordina.clipping import Automatic, Fixed, PerLayer, Quantile
from sordina.training.losses import per_sample

ENTRIES: dict[str, Shape] = {
    "vector": (4,),
    "wide vector": (5,),
    "sequence": (3, 4),
    "square sequence": (5, 5),
    "image": (2, 4, 3),
    "bytes": (1, 3, 3),
    "volume": (2, 2, 3, 2),
    "tokens": (4,),
    "tied tokens": (3,),
    "bag": (4,),
}
WORDS = 7
LOSSES = ("squares", "cross entropy", "ignored", "hinge", "weighted", "own scale")
OUTSIDE = "penalty"
"""A loss that uses a parameter outside of the model, which the engine may refuse."""
MIXING_LOSSES = ("over the mean", "contrastive", "class weights", "mean of all", "later")
SCALES = ("one", "one", "one", "large", "apart", "cancelling", "huge", "tiny")
"""How large records are; all but the first only in float32."""
GRAMMAR = (brute_force, random_blocks, shape_blocks, mixing_blocks)
LARGEST = 300
"""Values of one sample after a block."""


@dataclass(frozen=True)
class Program:
    """A model, its data and how the engine is asked, as data."""

    seed: int
    entry: str
    steps: tuple[tuple[str, int], ...]
    loss: str
    packed: str
    double: bool
    scale: str
    zero_head: bool
    opening: bool
    """Whether gates and head are shut for a first batch."""
    rows_per_unit: int
    microbatch: int | None
    clipping: str
    sizes: tuple[int, ...]

    @property
    def planted(self) -> bool:
        """Whether something in it was made to mix."""
        return self.loss in MIXING_LOSSES or any(name in MIXING for name, _ in self.steps)


def draw(seed: int) -> Program:
    """The program of a seed."""
    r = Random(seed)
    entry = r.choice(list(ENTRIES))
    steps = [(r.choice(list(SOUND)), r.randrange(10**6)) for _ in range(r.randint(1, 5))]
    loss, planted = r.choice(LOSSES), r.random() < 0.2
    if planted and r.random() < 0.25:
        loss = r.choice(MIXING_LOSSES)
    elif r.random() < 0.02:
        loss = OUTSIDE
    elif planted:
        steps.insert(r.randint(0, len(steps)), (r.choice(list(MIXING)), r.randrange(10**6)))
    double = planted or r.random() < 0.5
    rows = r.choice([1, 1, 1, 1, 1, 2, 3])
    return Program(
        seed=seed,
        entry=entry,
        steps=tuple(steps),
        loss=loss,
        packed=r.choice(["tensor", "tensor", "tensor", "keyword", "dict", "list"]),
        double=double,
        scale="one" if double else r.choice(SCALES),
        zero_head=r.random() < 0.15,
        opening=r.random() < 0.2,
        rows_per_unit=rows,
        microbatch=r.choice([None, None, None, 1, 2]) if not planted else None,
        clipping=r.choice(["fixed", "fixed", "fixed", "fixed", "automatic", "per layer", "quantile"]),
        sizes=tuple(r.sample((2, 5, 4, 3) if planted else (1, 2, 5, 4, 3), r.choice((1, 1, 2)))),
    )


class Enter(nn.Module):
    """Samples as the blocks take them, from whatever they come in."""

    def __init__(self, entry: str, table: nn.Module | None) -> None:
        super().__init__()
        self.entry, self.table = entry, table

    def forward(self, x: Tensor) -> Tensor:
        if self.table is not None:
            return self.table(x)
        return x.to(torch.get_default_dtype()) / 128 if self.entry == "bytes" else x


class RandomModel(nn.Module):
    """Enter, blocks, head."""

    def __init__(self, enter: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.enter, self.blocks, self.head = enter, nn.ModuleList(blocks), head

    def forward(self, x: Any) -> Tensor:
        if isinstance(x, dict):
            x = x["x"]
        elif isinstance(x, list):
            x = x[0]
        x = self.enter(x)
        if not x.is_floating_point() or x.dtype != self.head.weight.dtype:
            x = x.to(self.head.weight.dtype)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(program: Program) -> RandomModel:
    """The model; a block that does not fit where it stands is left out."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(program.seed % 2**31)
        shape, table = ENTRIES[program.entry], None
        if "tokens" in program.entry:
            table = nn.Embedding(WORDS, 4, padding_idx=0 if program.seed % 2 else None)
            shape = (*shape, 4)
        elif program.entry == "bag":
            table, shape = nn.EmbeddingBag(WORDS, 4, mode=("sum", "mean")[program.seed % 2]), (4,)
        blocks = []
        for name, seed in program.steps:
            block, after = fitting(name, seed, shape)
            if block is not None:
                blocks.append(block)
                shape = after
        head = nn.Linear(shape[-1], WORDS if program.entry == "tied tokens" else 3)
        if program.entry == "tied tokens" and shape[-1] == 4 and table is not None:
            head.weight = table.weight
        elif program.zero_head:
            nn.init.zeros_(head.weight)
        model = RandomModel(Enter(program.entry, table), blocks, head).train()
    return model.double() if program.double else model


def fitting(name: str, seed: int, shape: Shape) -> tuple[nn.Module | None, Shape]:
    """A block and the shape after it; None if it does not fit."""
    dims, make = (SOUND | MIXING)[name]
    if len(shape) not in dims:
        return None, shape
    torch.manual_seed(seed)
    try:
        block = make(Random(seed), shape).train()
        with torch.no_grad():
            after = tuple(block(torch.randn(3, *shape)).shape[1:])
    except (RuntimeError, ValueError, TypeError):
        return None, shape
    if not after or math.prod(after) > LARGEST or 0 in after:
        return None, shape
    return block, after


def data(program: Program, units: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (a class per row), with records of extreme sizes if the program says so."""
    g = torch.Generator().manual_seed(program.seed % 2**31)
    rows, shape = units * program.rows_per_unit, ENTRIES[program.entry]
    y = torch.randint(0, 3, (rows,), generator=g)
    if "tokens" in program.entry or program.entry == "bag":
        x = torch.randint(0, WORDS, (rows, *shape), generator=g)
        lengths = torch.randint(1, shape[0] + 1, (rows, 1), generator=g)
        return torch.where(torch.arange(shape[0]) < lengths, x, 0), y
    if program.entry == "bytes":
        return torch.randint(0, 256, (rows, *shape), generator=g).to(torch.uint8), y
    x = torch.randn(rows, *shape, generator=g, dtype=torch.float64)
    return scaled(x, program.scale, g).to(torch.float64 if program.double else torch.float32), y


def scaled(x: Tensor, scale: str, g: torch.Generator) -> Tensor:
    """Records as hard as they come."""
    each = (-1,) + (1,) * (x.dim() - 1)
    if scale == "large":
        return x * 1e4
    if scale == "tiny":
        return x * 1e-20
    if scale == "huge":
        return x * 10.0 ** torch.randint(0, 38, (len(x),), generator=g).view(each)
    if scale == "apart":
        return x * 10.0 ** torch.randint(-6, 7, (len(x),), generator=g).view(each)
    if scale == "cancelling" and x.dim() > 2:
        return torch.cat([x[:, :1] * 1e5, -x[:, :1] * 1e5 + x[:, 1:2], x[:, 2:]], 1)
    if scale == "cancelling":
        return torch.where(torch.arange(len(x)).view(each) % 2 == 0, x * 1e5, -x.roll(1, 0) * 1e5 + x)
    return x


def losses(program: Program, tried: bool = True) -> brute_force.Losses:
    """One loss per row, from the model and a batch (x, y), by way of the function that a Trainer gives its loss to."""

    def plain(out: Tensor, y: Tensor) -> Tensor:
        return _mixed(program.loss, _each(program.loss, out, y), out, y)

    loss: Any = per_sample(plain) if tried else plain

    def of(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        each = loss(_called(model, x, program.packed), y)
        return each + 0.1 * model.head.weight.square().sum() if program.loss == OUTSIDE else each

    return of


def _called(model: nn.Module, x: Tensor, packed: str) -> Tensor:
    if packed == "keyword":
        return model(x=x)
    return model({"tensor": x, "dict": {"x": x}, "list": [x]}[packed])


def _each(loss: str, out: Tensor, y: Tensor) -> Tensor:
    y = y.view(-1, *[1] * (out.dim() - 2)).expand(out.shape[:-1])
    if loss in ("cross entropy", "ignored", "class weights"):
        target = torch.where(y == 2, -100, y) if loss == "ignored" else y
        each = F.cross_entropy(out.movedim(-1, 1), target, reduction="none", ignore_index=-100)
        return each.reshape(len(each), -1).sum(1)
    sign = (y.unsqueeze(-1) - 1).to(out)
    if loss == "hinge":
        return F.relu(0.5 - sign * out).flatten(1).sum(1)
    each = (out - sign).square().flatten(1).sum(1)
    if loss == "weighted":
        return each * (y.flatten(1)[:, 0] != 1).to(each) if y.dim() > 1 else each * (y != 1).to(each)
    if loss == "own scale":
        return each / (1 + each.detach())
    return each


def _mixed(loss: str, each: Tensor, out: Tensor, y: Tensor) -> Tensor:
    if loss == "over the mean":
        return each / (each.detach().mean() + 0.1)
    if loss == "contrastive":
        flat = F.normalize(out.flatten(1), dim=1, eps=0.1)
        return F.cross_entropy(flat @ flat.T, torch.arange(len(flat)), reduction="none")
    if loss == "class weights":
        counts = torch.bincount(y, minlength=3).to(each)
        return each / counts[y]
    if loss == "mean of all":
        return each.mean().expand(len(each)) + 0.1 * each
    if loss == "later":
        return each + 10 * F.relu(each.mean() - each.detach().mean() + 1e-3 * each.sum())
    return each


POLICIES: dict[str, Any] = {
    "fixed": None,
    "automatic": Automatic(0.5),
    "per layer": PerLayer(Fixed(0.5)),
    "quantile": Quantile(),
}


def shut(model: Any) -> None:
    """Gates and head at zero."""
    for parameter in model.parameters():
        if parameter.dim() == 0:
            parameter.zero_()
    model.head.weight.zero_()


def tried(program: Program) -> Verdict:
    """Build it and hold it against brute force.

    Where a model that has nothing planted is right with ordinary inputs, and with others either PyTorch's own losses
    depend on who else is there, or double precision is right (to six digits: it rounds, too), it is rounding that
    decides (attention scores of 1e10 and more): that is told, and not counted as a mistake.
    """
    verdict = _tried(program)
    if verdict.outcome is Outcome.WRONG and not program.planted and program.scale != "one" and not program.double:
        ordinary = _tried(replace(program, scale="one"))
        rounded = verdict.mixes or _tried(replace(program, double=True), rounding=1e-6).answered
        if ordinary.answered and not ordinary.mixes and rounded:
            return replace(verdict, outcome=Outcome.ROUNDED)
    return verdict


def _tried(program: Program, rounding: float = 1e-8) -> Verdict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return judge(
            build(program),
            losses(program),
            data(program, max(program.sizes) + 1),
            clipping=POLICIES[program.clipping],
            rows_per_unit=program.rows_per_unit,
            microbatch=program.microbatch,
            sizes=program.sizes,
            all_records=program.planted,
            planted=program.planted,
            before=shut if program.opening else None,
            rounding=rounding,
            untried=losses(program, tried=False),
        )


def failed(verdict: Verdict) -> bool:
    """A silent error, or an error that is not Sordina's."""
    return not verdict.sound


def simpler(program: Program) -> Iterator[Program]:
    """Programs with something less."""
    for place in range(len(program.steps)):
        yield replace(program, steps=program.steps[:place] + program.steps[place + 1 :])
    if len(program.sizes) > 1:
        for size in program.sizes:
            yield replace(program, sizes=(size,))
    plain = {
        "loss": "squares", "packed": "tensor", "scale": "one", "zero_head": False, "opening": False, "rows_per_unit": 1,
        "microbatch": None, "clipping": "fixed", "entry": "vector", "double": True,
    }  # fmt: skip
    for name, value in plain.items():
        if getattr(program, name) != value and not (name == "double" and program.scale != "one"):
            yield replace(program, **{name: value})


def minimised(program: Program, verdict: Verdict) -> tuple[Program, Verdict]:
    """The smallest program found that fails in the same way."""
    for candidate in simpler(program):
        found = tried(candidate)
        if found.outcome is verdict.outcome and found.mixes == verdict.mixes:
            return minimised(candidate, found)
    return program, verdict


# The long form ------------------------------------------------------------------------------------------------------


def code() -> str:
    """A digest of the engine and of the grammar: counts of other code do not count."""
    digest = hashlib.sha256()
    folder = Path(sordina.gradients.__file__).parent
    grammar = [
        Path(__file__),
        *(Path(str(m.__file__)) for m in (brute_force, random_blocks, shape_blocks, mixing_blocks)),
    ]
    for path in sorted([*folder.rglob("*.py"), *grammar]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass
class Run:
    """Counts that survive being stopped."""

    file: Path
    start: int | None = None
    """The first seed; None goes on from the state, if it is of this code, and else starts from a fresh one."""

    def __post_init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.refusals: list[str] = []
        self.rounded: list[str] = []
        if self.file.exists():
            kept = json.loads(self.file.read_text())
            if kept["code"] == code() and self.start in (None, kept["start"]):
                self.start, self.counts = kept["start"], Counter(kept["counts"])
                self.failures, self.refusals = kept["failures"], kept["refusals"]
                self.rounded = kept["rounded"]
        if self.start is None:
            self.start = SystemRandom().randrange(10**12)

    @property
    def done(self) -> int:
        return sum(number for key, number in self.counts.items() if not key.startswith("-"))

    def one(self) -> None:
        assert self.start is not None
        program = draw(self.start + self.done)
        verdict = tried(program)
        kind = "mixing" if verdict.mixes or program.planted else "outside" if program.loss == OUTSIDE else "sound"
        self.counts[f"{kind} {verdict.outcome.value}"] += 1
        if kind == "sound" and verdict.outcome is Outcome.REFUSED:
            self.refusals.append(f"seed {program.seed}: {verdict.why}")
        if verdict.outcome is Outcome.ROUNDED:
            self.rounded.append(f"seed {program.seed}: {verdict.why}")
        if failed(verdict):
            small, found = minimised(program, verdict)
            text = f"seed {program.seed}: {found.outcome.value}: {found.why}\n    {small}"
            self.failures.append(text)
            print(text, flush=True)

    def save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        kept = {"code": code(), "start": self.start, "counts": dict(self.counts)}
        self.file.write_text(json.dumps({**kept, **self._told()}, indent=1))

    def _told(self) -> dict[str, list[str]]:
        return {"failures": self.failures, "refusals": self.refusals, "rounded": self.rounded}

    def summary(self) -> str:
        counts = ", ".join(f"{number} {key}" for key, number in sorted(self.counts.items()))
        return f"{self.done} models from seed {self.start}, {len(self.failures)} failures: {counts}"


def main(arguments: list[str] | None = None) -> int:
    """Run the long form, or one seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--start", type=int, help="the first seed; else that of the state, or a fresh one")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long; run again to go on")
    parser.add_argument("--state", type=Path, default=Path("build/random-models.json"))
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.seed is not None:
        program = draw(chosen.seed)
        verdict = tried(program)
        print(program, verdict, sep="\n")
        if failed(verdict):
            print(*minimised(program, verdict), sep="\n")
        return failed(verdict)
    run, end = Run(chosen.state, chosen.start), time.monotonic() + chosen.seconds
    print(f"from seed {run.start} on, {run.done} done", flush=True)
    while run.done < chosen.models and time.monotonic() < end:
        run.one()
        if run.done % 50 == 0:
            run.save()
    run.save()
    print(run.summary())
    return bool(run.failures)


if __name__ == "__main__":
    sys.exit(main())
