"""Local protocols: variance against the formula, the planner against measurement, a million answers, and two peers.

`SORDINA_LDP_PEERS` names a Python that has multi-freq-ldpy and pure-ldp (they need versions of their own); without it
the peers are left out. Peers answer person by person in Python, so they are timed on fewer answers, per answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sordina.random import secure, seeded
from sordina.statistics.local import MEANS, PROTOCOLS, CommonStrings, Frequency, Memoised, mean_protocol

ANSWERS, PEER_ANSWERS = 1_000_000, 5_000
CONSOLE = Console(width=130)


def held(values: int, people: int) -> tuple[np.ndarray, np.ndarray]:
    """Values by Zipf's law, and their shares."""
    weights = 1.0 / np.arange(1, values + 1)
    drawn = seeded(1).choice(values, size=people, p=weights / weights.sum())
    return drawn, np.bincount(drawn, minlength=values) / people


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    made = Table(title=title, title_justify="left")
    for column in columns:
        made.add_column(column, justify="right")
    for row in rows:
        made.add_row(*row)
    CONSOLE.print(made)


def errors() -> None:
    """Mean squared errors over all values, measured, stated, and which is the least."""
    rows = []
    for values in (2, 16, 256, 4096):
        for epsilon in (0.5, 1.0, 2.0, 4.0):
            people = 2000 if values < 4096 else 1000
            own, true = held(values, people)
            measured, spreads, ratios = {}, {}, []
            for name in PROTOCOLS:
                protocol, rng = Frequency(values, epsilon, name), seeded(2)
                repeats = max(6, 20_000 // values)
                squares = [
                    np.mean((protocol.estimate(protocol.randomize(own, rng)).values - true) ** 2)
                    for _ in range(repeats)
                ]
                measured[name] = float(np.mean(squares))
                spreads[name] = float(np.std(squares)) / np.sqrt(repeats)
                ratios.append(f"{measured[name] / protocol.variances(true, people).mean():.3f}")
            chosen, best = Frequency(values, epsilon).name, min(measured, key=measured.__getitem__)
            excess = measured[chosen] / measured[best] - 1
            doubt = np.hypot(spreads[chosen], spreads[best]) / measured[best] if chosen != best else 0.0
            rows.append([f"{values}", f"{epsilon:g}", *ratios, chosen, best, f"{excess:.1%} ± {doubt:.1%}"])
    columns = [
        "K",
        "epsilon",
        *(f"{name}: measured/formula" for name in PROTOCOLS),
        "planned",
        "best measured",
        "more ± 1 s.e.",
    ]
    table("Variance", columns, rows)
    rows = []
    for name in MEANS:
        for epsilon in (0.5, 1.0, 4.0):
            protocol = mean_protocol(0.0, 100.0, epsilon, name)
            found = [
                protocol.randomize(np.full(ANSWERS, x), seeded(3)).var() / protocol.variance(x) for x in (0, 50, 100)
            ]
            rows.append([name, f"{epsilon:g}", *(f"{ratio:.3f}" for ratio in found)])
    table("Variance of means: measured/formula", ["protocol", "epsilon", "low end", "middle", "high end"], rows)


def speed() -> None:
    """A million answers randomised on the secure stream, and estimated from."""
    rows, ours = [], {}
    for values in (128, 4096):
        own, _ = held(values, ANSWERS)
        for name in PROTOCOLS:
            protocol = Frequency(values, 1.0, name)
            start = time.process_time()
            answers = protocol.randomize(own, secure())
            between = time.process_time()
            protocol.estimate(answers)
            end = time.process_time()
            if values == 128:
                ours[name] = (end - start) / ANSWERS
            rows.append([name, f"{values}", f"{between - start:.2f}", f"{end - between:.2f}", f"{end - start:.2f}"])
    numbers = seeded(4).random(ANSWERS)
    for name in MEANS:
        mean = mean_protocol(0.0, 1.0, 1.0, name)
        start = time.process_time()
        told = mean.randomize(numbers, secure())
        between = time.process_time()
        mean.estimate(told)
        end = time.process_time()
        rows.append([name, "", f"{between - start:.2f}", f"{end - between:.2f}", f"{end - start:.2f}"])
    memo, (own, _) = Memoised(128, 2.0, 1.0), held(128, ANSWERS)
    start = time.process_time()
    reports = memo.randomize(memo.memoise(own, secure()), secure())
    between = time.process_time()
    memo.estimate(reports)
    end = time.process_time()
    rows.append(["memoised", "128", f"{between - start:.2f}", f"{end - between:.2f}", f"{end - start:.2f}"])
    question, strings = CommonStrings(8, 2.0), [f"drug{place}" for place in held(50, ANSWERS)[0]]
    start = time.process_time()
    words = question.randomize(strings, secure())
    between = time.process_time()
    question.estimate(words)
    end = time.process_time()
    rows.append(["pem", "any text", f"{between - start:.2f}", f"{end - between:.2f}", f"{end - start:.2f}"])
    table(f"Processor seconds for {ANSWERS:,} answers", ["protocol", "K", "randomise", "estimate", "both"], rows)
    peers(ours)


def peers(ours: dict[str, float]) -> None:
    python = os.environ.get("SORDINA_LDP_PEERS")
    if not python:
        CONSOLE.print("Peers left out: set SORDINA_LDP_PEERS to a Python that has multi-freq-ldpy and pure-ldp.")
        return
    script = Path(__file__).with_name("local_peers.py")
    told = subprocess.run([python, str(script), str(PEER_ANSWERS)], capture_output=True, text=True, check=True)
    rows = []
    for peer, found in json.loads(told.stdout).items():
        for name, seconds in found.items():
            if name == "failed":
                rows.append([peer, "failed", str(seconds), "", ""])
                continue
            rows.append([peer, name, f"{seconds * 1e6:.2f}", f"{ours[name] * 1e6:.3f}", f"{seconds / ours[name]:.0f}x"])
    table("Microseconds an answer, K = 128, epsilon 1", ["peer", "protocol", "peer", "ours", "ours is faster by"], rows)


def run() -> None:
    """Print all tables."""
    errors()
    speed()
