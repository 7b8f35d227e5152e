"""Writes docs/reference/supported-models.md: every case against brute force (``make supported-models``)."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from tests.gradients.attack_cases import ATTACKS, LIVES
from tests.gradients.brute_force import Outcome, Verdict, judge
from tests.gradients.life_cases import B
from tests.gradients.model_cases import ADAPTED, A, C, Case, D
from tests.gradients.transformers_cases import ARCHITECTURES, architecture

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "supported-models.md"
INTRODUCTION = """# Supported models

What the engine does with models people bring, and with models for which no per-sample bound exists. Every row is
measured: `make supported-models` builds each (tiny) model and compares the engine with float64 autograd, one record at
a time, for every parameter, at batches of 1, 2, 5 and of the feature width where that could confuse it. *Sensitivity*
is the largest change of the clipped sum that was found when one record is removed or replaced, in units of the bound
that the noise is scaled to: above 1 the guarantee would be false.

- **supported**: norms, sums and sensitivity are right.
- **one sample at a time**: right too, by one backward pass per sample for some or all parameters, so slower.
- **refused**: an error before the batch is used; the message says why.

A loss function given to `Trainer` is tried on made-up rows, and refused if the loss of one sample depends on another.
In a loop of your own nobody sees where a number comes from that has no gradient: samples mixed before they reach the
model (mixup, a standardised batch), and losses divided by a detached statistic of the batch, break the bound, and no
check can tell. Nor can a check tell that a model keeps a number from its first batches in an attribute and uses it
later without changing it again.
"""


def _case(case: Case) -> Callable[[], Verdict]:
    def run() -> Verdict:
        model, losses, batch = case.make()
        return judge(
            model, losses, batch, sizes=case.sizes, rows_per_unit=case.rows_per_unit, planted=case.mixes
        )  # fmt: skip

    return run


def _architecture(name: str) -> Callable[[], Verdict]:
    def run() -> Verdict:
        model, losses, (x, y) = architecture(name)
        x = x.double() if x.is_floating_point() else x
        return judge(model.double(), losses, (x, y), sizes=(1, 2, 4), all_records=False)

    return run


SECTIONS: dict[str, tuple[str, dict[str, Callable[[], Verdict]]]] = {
    "Architectures of transformers": (
        "Built from a tiny configuration, in training mode, without dropout.",
        {name: _architecture(name) for name in ARCHITECTURES},
    ),
    "Adapters": (
        "Written by hand on a frozen layer; only what is added is trained.",
        {name: _case(case) for name, case in ADAPTED.items()},
    ),
    "Ways to write a model": (
        "Layers, operations and inputs that engines stumble over.",
        {name: _case(case) for name, case in {**D, **C}.items()},
    ),
    "Attempts to break the bound": (
        "Records made to cancel, and samples that look at one another.",
        {name: _case(case) for name, case in {**A, **ATTACKS}.items()},
    ),
    "Changes while an engine listens": (
        "Each between two batches; afterwards the answer is right for the model as it is then, or an error.",
        {**B, **LIVES},
    ),
}
MUST_ANSWER = ("Architectures of transformers", "Adapters", "Ways to write a model")
MAY_REFUSE = {"ResNet (batch norm)", "LazyLinear before a first forward", "torch.compile of a Sequential"}
"""Rows of those sections for which a refusal with a cure is right."""
ORDINARY = {
    "a thousand batches and more", "one engine after another", "forwards that are not recorded",
    "F.embedding(sparse=True)", "samples sorted by a number of theirs", "tokens of all samples in chunks",
    "forces from an energy",
    "distributions that check their arguments", "tied weights, transposed", "another algorithm for longer sequences",
}  # fmt: skip
"""Rows of the other sections that may not be refused."""
SLOW = ("one backward", "sample by sample", "one sample at a time", "one at a time")


def verdict(section: str, name: str) -> Verdict:
    """The verdict of one row."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SECTIONS[section][1][name]()


def status(found: Verdict) -> str:
    """The word in the second column."""
    if found.outcome is Outcome.REFUSED:
        return "refused"
    if not found.answered:
        return f"**{found.outcome.value}**"
    if found.mixes:
        return "bounded"
    if any(word in line for line in found.told for word in SLOW):
        return "supported, one sample at a time"
    return "supported"


def row(name: str, found: Verdict) -> str:
    """A line of the table."""
    measured = f"{found.sensitivity:.2f}" if found.answered and found.sensitivity else ""
    return f"| {name} | {status(found)} | {measured} | {_why(found)} |"


def _why(found: Verdict) -> str:
    if not found.why or found.outcome is Outcome.EXACT:
        return ""
    words = re.sub(r"\s+", " ", found.why).replace("|", "\\|").replace("<", "&lt;")
    words = re.sub(r"'[\w .,]*'", "…", words)
    sentence = re.split(r"(?<=[.:;]) ", words)
    text = sentence[0]
    for part in sentence[1:]:
        if len(text) + len(part) > 150:
            break
        text += " " + part
    return text.rstrip(":;")


def page(rows: dict[str, list[str]]) -> str:
    """The whole page."""
    text = INTRODUCTION
    for section, lines in rows.items():
        text += f"\n## {section}\n\n{SECTIONS[section][0]}\n\n"
        text += "| what | answer | sensitivity | why |\n|---|---|---|---|\n" + "\n".join(lines) + "\n"
    return text


def written() -> dict[str, str]:
    """By name the second column of the page as it stands."""
    cells = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {cell[1].strip(): cell[2].strip() for cell in cells}


def wrong(section: str, name: str, found: Verdict) -> bool:
    """Whether a row says that something must be mended."""
    must = name in ORDINARY or (section in MUST_ANSWER and name not in MAY_REFUSE)
    return not found.sound or (must and not found.answered)


def main(arguments: list[str] | None = None) -> int:
    """Try everything, write the page, and fail if a row is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="print rows whose name contains this, write nothing")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    bad, rows = 0, {}
    for section, (_, cases) in SECTIONS.items():
        rows[section] = []
        for name in cases:
            if chosen.only not in name:
                continue
            found = verdict(section, name)
            rows[section].append(row(name, found))
            if wrong(section, name, found) or chosen.only:
                print(rows[section][-1], flush=True)
            bad += wrong(section, name, found)
    if not chosen.only:
        PAGE.write_text(page(rows))
        print(f"{sum(map(len, rows.values()))} rows in {PAGE.name}, {bad} to be mended")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
