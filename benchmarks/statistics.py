"""Releases from a table: coverage of intervals, errors against OpenDP and diffprivlib at equal cost on three tables.

diffprivlib pins an old scikit-learn: name the interpreter of an environment that has it in ``DIFFPRIVLIB_PYTHON``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas

import sordina as sd
from sordina.statistics.release import ask

RUNS = int(os.environ.get("STATISTICS_RUNS", "300"))
SIMULATIONS = int(os.environ.get("STATISTICS_SIMULATIONS", "2000"))
ROWS = 10_000
SHARES = (0.25, 0.5, 0.75)
CANDIDATES = 10_001
"""Of OpenDP's quantiles, which choose among a list: spaced alike on the column's scale."""
KINDS = ("count", "sum", "mean", "variance", "median", "quantiles", "histogram")


def tables() -> dict[str, tuple[pandas.DataFrame, dict[str, Any]]]:
    """Frames with a column ``x`` and a category ``g``, and the public schema of each."""
    folder = Path(os.environ["SORDINA_DATA"])
    adult = pandas.read_csv(folder / "adult" / "train.csv.gz").iloc[:ROWS]
    hospitals = pandas.read_csv(folder / "cms-inpatient" / "inpatient_drg100_fy2011.csv.gz").sample(
        ROWS, random_state=0
    )
    rng = np.random.default_rng(0)
    found = {
        "Adult, age": (adult.age, adult.education, (17, 90, "linear")),
        "hospitals, charges": (hospitals["Average Covered Charges"], hospitals.State, (0, 1_000_000, "log")),
        "log-normal incomes": (
            pandas.Series(np.exp(rng.normal(10, 1.2, ROWS))), pandas.Series(rng.choice(list("abcdefgh"), ROWS)),
            (0, 10_000_000, "log"),
        ),
    }  # fmt: skip
    made = {}
    for name, (x, g, (low, high, scale)) in found.items():
        frame = pandas.DataFrame({"x": x.to_numpy(float), "g": g.to_numpy(object)})
        columns = {
            "x": {"kind": "number", "low": low, "high": high, "scale": scale},
            "g": {"kind": "category", "values": sorted(set(frame.g))},
        }
        made[name] = (frame, {"columns": columns})
    return made


def truths(frame: pandas.DataFrame, schema: dict[str, Any]) -> dict[str, Any]:
    x = frame.x.clip(schema["columns"]["x"]["low"], schema["columns"]["x"]["high"]).to_numpy()
    counts = frame.g.value_counts().reindex(schema["columns"]["g"]["values"])
    return {
        "count": counts.iloc[0], "sum": x.sum(), "mean": x.mean(), "variance": x.var(), "median": np.quantile(x, 0.5),
        "quantiles": np.quantile(x, SHARES), "histogram": counts.to_numpy(),
    }  # fmt: skip


def public_rows(frame: pandas.DataFrame, schema: dict[str, Any], kind: str, epsilon: float, runs: int) -> list[Any]:
    """Ours, told how many rows there are, as the others are (but for counts and sums of OpenDP)."""
    columns = {name: facts | {"optional": False} for name, facts in schema["columns"].items()}
    return ours(frame, {"rows": len(frame), "columns": columns}, kind, epsilon, runs)


def ours(frame: pandas.DataFrame, schema: dict[str, Any], kind: str, epsilon: float, runs: int) -> list[Any]:
    """Released values; medians and quantiles without intervals, which the others do not give either."""
    rng = np.random.default_rng(1)
    values = []
    for _ in range(runs):
        table = sd.statistics.Table(frame, schema=schema, budget=(epsilon, 0.0), seed=rng)
        if kind == "median":
            question = table.median("x", interval=False)
        elif kind == "quantiles":
            question = table.quantiles("x", SHARES, interval=False)
        else:
            text = {"count": f"count where g == '{column_values(schema)[0]}'", "histogram": "histogram(g)"}
            question = ask(table, text.get(kind, f"{kind}(x)"))
        value = question.release().value
        values.append(list(value.values()) if isinstance(value, dict) else value)
    return values


def opendp(frame: pandas.DataFrame, schema: dict[str, Any], kind: str, epsilon: float, runs: int) -> list[Any]:
    """OpenDP's constructors on the same rows, their scale searched for exactly this epsilon, add/remove one row."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "idealized-numerics")
    column = schema["columns"]["x"]
    low, high = float(column["low"]), float(column["high"])
    numbers = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    texts = dp.vector_domain(dp.atom_domain(T=str)), dp.symmetric_distance()
    clamped = numbers >> dp.t.then_clamp((low, high))
    sized = clamped >> dp.t.then_resize(len(frame), (low + high) / 2)
    values = frame.x.tolist()

    def calibrated(make: Any, share: float = 1.0) -> Any:
        target = epsilon * share
        return make(dp.binary_search(lambda scale: make(scale).map(1) <= target, bounds=(1e-9, 1e15), T=float))

    if kind in ("median", "quantiles"):
        shares = (0.5,) if kind == "median" else SHARES
        spaced = (
            np.geomspace(1, high - low + 1, CANDIDATES) - 1
            if column["scale"] == "log"
            else np.linspace(0, high - low, CANDIDATES)
        )
        candidates = (low + spaced).tolist()
        chosen = [
            calibrated(
                lambda scale, share=share: (
                    numbers
                    >> dp.t.then_quantile_score_candidates(candidates, share)
                    >> dp.m.then_noisy_max(dp.max_divergence(), scale, negate=True)
                ),
                1 / len(shares),
            )
            for share in shares
        ]
        found = [[candidates[one(values)] for one in chosen] for _ in range(runs)]
        return found if kind == "quantiles" else [one[0] for one in found]
    if kind == "histogram":
        categories = column_values(schema)
        counted = texts >> dp.t.then_count_by_categories(categories, null_category=False)
        release = calibrated(lambda scale: counted >> dp.m.then_laplace(scale))
        return [release(frame.g.tolist()) for _ in range(runs)]
    steps = {
        "count": lambda: texts >> dp.t.then_count(), "sum": lambda: clamped >> dp.t.then_sum(),
        "mean": lambda: sized >> dp.t.then_mean(), "variance": lambda: sized >> dp.t.then_variance(),
    }  # fmt: skip
    release = calibrated(lambda scale: steps[kind]() >> dp.m.then_laplace(scale))
    if kind == "count":
        values = frame.g[frame.g == column_values(schema)[0]].tolist()
    return [release(values) for _ in range(runs)]


def column_values(schema: dict[str, Any]) -> list[str]:
    values: list[str] = schema["columns"]["g"]["values"]
    return values


_DIFFPRIVLIB = """
import json, sys, warnings
import numpy as np
import diffprivlib.tools as tools
warnings.simplefilter("ignore")
job = json.load(open(sys.argv[1]))
x, codes = np.array(job["x"]), np.array(job["codes"])
bounds, epsilon, shares = tuple(job["bounds"]), job["epsilon"], job["shares"]
ask = {
    "count": lambda: tools.count_nonzero(codes == 0, epsilon=epsilon),
    "sum": lambda: tools.sum(x, epsilon=epsilon, bounds=bounds),
    "mean": lambda: tools.mean(x, epsilon=epsilon, bounds=bounds),
    "variance": lambda: tools.var(x, epsilon=epsilon, bounds=bounds),
    "median": lambda: tools.median(x, epsilon=epsilon, bounds=bounds),
    "quantiles": lambda: tools.quantile(x, shares, epsilon=epsilon, bounds=bounds).tolist(),
    "histogram": lambda: tools.histogram(
        codes, epsilon=epsilon, bins=job["cells"], range=(-0.5, job["cells"] - 0.5)
    )[0].tolist(),
}[job["kind"]]
answers = [ask() for _ in range(job["runs"])]
json.dump([one if isinstance(one, list) else float(one) for one in answers], sys.stdout)
"""


def diffprivlib(frame: pandas.DataFrame, schema: dict[str, Any], kind: str, epsilon: float, runs: int) -> list[Any]:
    """diffprivlib's functions in an interpreter of their own (neighbours replace a row; the count is public there)."""
    column, values = schema["columns"]["x"], column_values(schema)
    job = {
        "x": frame.x.tolist(), "codes": [values.index(one) for one in frame.g],
        "bounds": [column["low"], column["high"]],
        "epsilon": epsilon, "shares": SHARES, "kind": kind, "cells": len(values), "runs": runs,
    }  # fmt: skip
    python = os.environ.get("DIFFPRIVLIB_PYTHON", sys.executable)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [python, "-c", _DIFFPRIVLIB, file.name], capture_output=True, text=True, check=True, env=clean
        )
    answer: list[Any] = json.loads(done.stdout)
    return answer


def errors() -> None:
    """Root of the mean squared error for totals, mean absolute error for quantiles; lower is better."""
    for epsilon in (0.1, 1.0):
        print(f"epsilon {epsilon:g}, delta 0, {RUNS} releases: table, query, ours, rows public, OpenDP, diffprivlib")
        for name, (frame, schema) in tables().items():
            truth = truths(frame, schema)
            for kind in KINDS:
                cells = []
                for release in (ours, public_rows, opendp, diffprivlib):
                    off = np.abs(np.array(release(frame, schema, kind, epsilon, RUNS), float) - truth[kind])
                    quantile = kind in ("median", "quantiles")
                    cells.append(off.mean() if quantile else np.sqrt((off**2).mean()))
                print(f"{name:20} {kind:10}", *(f"{cell:11.4g}" for cell in cells), flush=True)


def coverage() -> None:
    """How often 95 % intervals hold the truth of the table."""
    rng = np.random.default_rng(0)
    rows = 4000
    frame = pandas.DataFrame({
        "age": rng.normal(50, 15, rows).clip(0, 110), "charge": np.exp(rng.normal(7, 1, rows)),
        "ward": rng.choice(list("ABC"), rows, p=[0.6, 0.3, 0.1]), "sex": rng.choice(["F", "M"], rows),
        "drug": rng.choice([f"drug {number}" for number in range(8)], rows),
    })  # fmt: skip
    schema = {"columns": {
        "age": {"kind": "number", "low": 0, "high": 110},
        "charge": {"kind": "number", "low": 0, "high": 100_000, "scale": "log"},
        "ward": {"kind": "category", "values": ["A", "B", "C"]}, "sex": {"kind": "category", "values": ["F", "M"]},
        "drug": {"kind": "text"},
    }}  # fmt: skip
    by_ward, by_drug = frame.groupby("ward"), frame.groupby("drug")
    bins = np.histogram(frame.age, bins=10, range=(0, 110))[0]
    truth = {
        "count": rows,
        "count where ward == 'A' and age >= 65": ((frame.ward == "A") & (frame.age >= 65)).sum(),
        "sum(age)": frame.age.sum(),
        "mean(age)": frame.age.mean(),
        "mean(age) by ward": by_ward.age.mean().to_dict(),
        "variance(age)": frame.age.var(ddof=0),
        "variance(charge) by ward": by_ward.charge.var(ddof=0).to_dict(),
        "histogram(age)": dict(enumerate(bins)),
        "crosstab(sex, ward)": frame.groupby(["sex", "ward"]).size().to_dict(),
        "most_common(ward, 2)": frame.ward.value_counts().to_dict(),
        "count by drug": frame.drug.value_counts().to_dict(),
        "mean(age) by drug": by_drug.age.mean().to_dict(),
    }
    print(f"coverage of 95 % intervals at (0.5, 1e-6), {SIMULATIONS} releases each")
    for text, true in truth.items():
        print(f"{100 * _covered(frame, schema, text, true, 0.5):6.2f} %  {text}", flush=True)
    for shares in ((0.5,), SHARES, (0.9,)):
        covered = _quantiles_covered(schema, shares, 0.5)
        print(f"{100 * covered:6.2f} %  quantiles(charge) {shares}, every release of other rows", flush=True)
    print(f"{100 * _sampled(schema, 0.5):6.2f} %  mean(age, sampling), of the population", flush=True)


def _covered(frame: pandas.DataFrame, schema: dict[str, Any], text: str, true: Any, epsilon: float) -> float:
    rng = np.random.default_rng(1)
    hits, asked = 0, 0
    reader = None
    for _ in range(SIMULATIONS):
        table = sd.statistics.Table(frame, schema=schema, budget=(epsilon, 1e-6), seed=rng)
        reader = table._reader = reader or table._reader  # the same rows, read once
        answer = ask(table, text).release()
        pairs = answer.findings.intervals
        known = true if isinstance(true, dict) else {0: true}
        keys = answer.groups if answer.groups and not text.startswith("histogram") else range(len(pairs))
        for key, (low, high) in zip(keys, pairs, strict=True):
            hits += bool(low <= known[key] <= high)
            asked += 1
    return hits / max(asked, 1)


def _quantiles_covered(schema: dict[str, Any], shares: tuple[float, ...], epsilon: float) -> float:
    """Intervals of quantiles rest on how densely values lie: every release is of other rows, held against these."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(SIMULATIONS):
        frame = pandas.DataFrame({"charge": np.exp(rng.normal(7, 1, 2000))})
        table = sd.statistics.Table(frame, schema=schema, budget=(epsilon, 1e-6), seed=rng)
        answer = table.quantiles("charge", shares).release()
        hits += sum(low <= frame.charge.quantile(share) <= high for share, (low, high) in answer.interval.items())
    return hits / SIMULATIONS / len(shares)


def _sampled(schema: dict[str, Any], epsilon: float) -> float:
    """With sampling error: every release is of other rows, drawn from a population whose mean is 50."""
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(SIMULATIONS):
        frame = pandas.DataFrame({"age": rng.uniform(20, 80, 400)})
        table = sd.statistics.Table(frame, schema=schema, budget=(epsilon, 1e-6), seed=rng)
        low, high = table.mean("age", sampling=True).release().interval
        hits += bool(low <= 50 <= high)
    return hits / SIMULATIONS


def first_names() -> None:
    """002, errata 11: 10 000 names at (1, 1e-9); the largest error of all names, over releases."""
    names = [f"name{number}" for number in range(10_000)]
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"name": np.array(names, object)[rng.zipf(1.3, 50_000) % 10_000]})
    schema = {"columns": {"name": {"kind": "category", "values": names}}}
    truth = frame.name.value_counts().reindex(names, fill_value=0).to_numpy()
    runs = min(RUNS, 300)
    worst = []
    reader = None
    for _ in range(runs):
        table = sd.statistics.Table(frame, schema=schema, budget=(1, 1e-9), seed=rng)
        reader = table._reader = reader or table._reader
        answer = table.histogram("name").release()
        worst.append(np.abs(np.array(answer.findings.values) - truth).max())
    print(
        f"10 000 first names at (1, 1e-9), {runs} releases: largest error in the median {np.median(worst):.0f}, "
        f"0.99 quantile {np.quantile(worst, 0.99):.0f}, largest {max(worst):.0f} (bound 34)"
    )


def run() -> None:
    first_names()
    errors()
    coverage()


if __name__ == "__main__":
    run()
