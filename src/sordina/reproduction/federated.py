"""The federated experiments: chapter 2 of 000 (metric privacy, fairness), figure 5.4, and 003's federated SVM."""

from __future__ import annotations

from typing import Any

import numpy as np

from sordina.federated.experiments import bounded, fairness, hospital, svm, synthetic, writers
from sordina.reproduction.experiment import Job
from sordina.reproduction.findings import Curve, Findings, Panel, Value

SERVERS: dict[str, dict[str, Any]] = {"as printed": synthetic.PAPER, "steady server": synthetic.STEADY}


def _smoke(job: Job) -> list[str]:
    return ["Smoke: shows that everything runs; these numbers mean nothing."] if job.scale == "smoke" else []


def figure_2_1(job: Job) -> Findings:
    """Figures 2.1 and 2.2: do the hypotheses reach the two optima, and what does it leak?"""
    given = job.settings
    values = []
    for row, facts in synthetic.figure_2_1(job.folder, given["seed"], given["noise"], **synthetic.PAPER).items():
        leakage = facts.get("leakage", {}).get("max")
        note = "" if leakage is None else f"largest leakage {leakage:g}"
        what = {"server": "as printed", "row": row, "quantity": "validation loss"}
        values.append(Value(what, facts["validation_loss"], note=note))
    for name, server in SERVERS.items():
        found = synthetic.recovery(range(given["seeds"]), noise=given["noise"], **{**server, **given.get(name, {})})
        what = {"server": name, "row": f"two hypotheses, nu = {given['noise']:g}, {found['runs']} seeds"}
        note = f"median distance {found['median_distance']:.3f}, {found['mean_rounds']:.0f} rounds"
        values += [
            Value(what | {"quantity": "share that finds both optima"}, found["found"] / found["runs"], note=note),
            Value(what | {"quantity": "largest leakage"}, found["largest_leakage"], reference=given["largest_leakage"]),
        ]
    pictures = sorted(path.relative_to(job.folder).as_posix() for path in job.folder.glob("row*/*.png"))
    remarks = [
        "The thesis reports that two hypotheses, with or without noise, end close to the two optima.",
        "The steady server sees the same clients and the same noise, averages over rounds, and asks clients in turn.",
    ]
    return Findings("synthetic, 000 section 2.5.1", values, (), [*remarks, *_smoke(job)], pictures)


def table_2_3(job: Job) -> Findings:
    """Table 2.3 and figure 2.4: leakage and error by noise and number of hypotheses."""
    given = job.settings
    rows = hospital.table_2_3(given["noises"], given["hypotheses"], range(given["seeds"]), **given.get("recipe", {}))
    known = {(row["nu"], row["hypotheses"]): row for row in job.reference}
    values = []
    for row in rows:
        theirs = known.get((row["nu"], row["hypotheses"]), {})
        what = {"nu": f"{row['nu']:g}", "hypotheses": str(row["hypotheses"])}
        note = f"{row['rounds']:.0f} rounds"
        values += [
            Value(what | {"quantity": "median leakage"}, row["median_leakage"], None, theirs.get("median"), note=note),
            Value(
                what | {"quantity": "largest leakage"}, row["largest_leakage"], None, theirs.get("largest"), note=note
            ),
            Value(what | {"quantity": "RMSE"}, row["rmse"], row["rmse_std"]),
        ]
    curves = []
    for count in given["hypotheses"]:
        mine = sorted((row["nu"], row["rmse"], row["rmse_std"]) for row in rows if row["hypotheses"] == count)
        x, y, spread = zip(*mine, strict=True)
        curves.append(Curve(f"{count} hypotheses", x, y, spread))
    panel = Panel("Figure 2.4: hospital charges", "nu", "RMSE", curves, log_x=True)
    remarks = [
        "Leakage adds n/nu = 11/nu per participation: it depends on how many rounds pass before stopping.",
        "The thesis finds that more hypotheses lower the RMSE at every nu, most of all from 1 to 3.",
    ]
    return Findings("hospital charges, complete", values, [panel], [*remarks, *_smoke(job)])


def table_2_4(job: Job) -> Findings:
    """Table 2.4 on MNIST by its writers, in place of FEMNIST."""
    given = job.settings
    values, curves = [], []
    for loss in given["losses"]:
        rows = writers.table_2_4(given["noises"], range(given["seeds"]), loss=loss, **given.get("recipe", {}))
        theirs = {row["nu"]: row["accuracy"] for row in job.reference if row["loss"] == loss}
        values += [
            Value(
                {"loss": loss, "nu": f"{row['nu']:g}"}, row["accuracy"], row["std"], theirs.get(row["nu"]),
                note=f"{row['rounds']:.0f} rounds",
            )
            for row in rows
        ]  # fmt: skip
        curves.append(Curve(loss, [row["nu"] for row in rows], [row["accuracy"] for row in rows]))
        curves.append(Curve(loss, list(theirs), list(theirs.values()), reference=True))
    panel = Panel("Table 2.4", "nu", "accuracy", curves)
    remarks = ["The references are for FEMNIST with 62 classes: compare how accuracy falls with nu, not levels."]
    source = "MNIST by its real writers, half of them turned, in place of FEMNIST"
    return Findings(source, values, [panel], [*remarks, *_smoke(job)])


def fairness_differences(job: Job) -> Findings:
    """Figures 2.7 and 2.8: the single against the personalised model, group by group."""
    given = job.settings
    rows = fairness.compare(
        given["noises"], range(given["seeds"]), data=given["data"], folder=job.folder,
        options=given.get("options"), **given.get("recipe", {}),
    )  # fmt: skip
    values = []
    for single, personal in zip(rows[::2], rows[1::2], strict=True):
        for metric in fairness.METRICS:
            smaller = "smaller" if personal[metric] < single[metric] else "NOT smaller"
            what = {"nu": f"{single['nu']:g}", "quantity": metric.replace("_", " ")}
            note = f"personalised; single {single[metric]:.4f}: {smaller}"
            values.append(Value(what, personal[metric], note=note))
    remarks = ["The thesis finds all three differences smaller for the personalised model at every nu."]
    return Findings(given["data"], values, (), [*remarks, *_smoke(job)], ["fairness.png"])


def figure_5_4(job: Job) -> Findings:
    """Figure 5.4: clients' updates agree more than samples' gradients."""
    given = job.settings
    found = bounded.figure_5_4(**given["options"])
    steps = given["options"].get("steps", 5)
    curves = [
        Curve(
            "updates of 20 clients", [steps * (place + 1) for place in range(len(found["updates"]))], found["updates"]
        ),
        Curve("gradients of 20 samples", list(range(1, len(found["gradients"]) + 1)), found["gradients"]),
    ]
    values = []
    for name, cosines in found.items():
        parts = np.array_split(np.array(cosines), 3)
        for part, mean in zip(("first", "middle", "last"), map(np.mean, parts), strict=True):
            values.append(Value({"vectors": name, "third of training": part}, float(mean)))
    panel = Panel("Figure 5.4", "local steps", "mean cosine", curves)
    remarks = ["The thesis finds updates well above gradients, and falling late in training."]
    return Findings("MNIST", values, [panel], [*remarks, *_smoke(job)])


def svm_003(job: Job) -> Findings:
    """003 section VI-D: 50 clients, a linear support vector machine, a guarantee per record."""
    given = job.settings
    runs = [svm.federated_svm(seed, **given.get("options", {})) for seed in range(given["seeds"])]
    accuracies = [run["accuracy"] for run in runs]
    spread = float(np.std(accuracies, ddof=1)) if len(runs) > 1 else None
    value = Value(
        {"model": "federated SVM, 50 clients", "quantity": "accuracy"}, float(np.mean(accuracies)), spread,
        given["accuracy"], note=f"epsilon {runs[0]['epsilon']:.3g} per record",
    )  # fmt: skip
    remarks = [runs[0]["guarantee"], "003's own figure comes without a sound guarantee (errata 10)."]
    return Findings("Adult, complete", [value], (), [*remarks, *_smoke(job)])
