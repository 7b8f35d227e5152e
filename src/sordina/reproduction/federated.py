"""The federated experiments: chapter 2 of 000 (metric privacy, fairness), and 003's federated SVM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sordina.federated import record
from sordina.reproduction import federated_studies
from sordina.reproduction.experiment import ExperimentFindings, Job, Panel, PlottedCurve, Value

SERVERS: dict[str, dict[str, Any]] = {"as printed": federated_studies.PAPER, "steady server": federated_studies.STEADY}


def _over(given: dict[str, Any], spread: float) -> float | None:
    """A spread over seeds, if there are several."""
    return spread if given["seeds"] > 1 else None


def figure_2_1(job: Job) -> ExperimentFindings:
    """Figure 2.1: do the hypotheses reach the two optima? One run as in the thesis, then how often over many seeds."""
    given = job.settings
    values = []
    for row, facts in federated_studies.rows_of_figure_2_1(job.folder, given["seed"], given["noise"]).items():
        leakage = facts.get("leakage", {}).get("max")
        note = "" if leakage is None else f"largest leakage {leakage:g}"
        whose = "steady server" if row.endswith("steady server") else "as printed"
        what = {"server": whose, "run": f"{row}, seed {given['seed']}", "quantity": "validation loss"}
        values.append(Value(what, facts["validation_loss"], note=note))
    seeds = range(given["seeds"])
    for row, arm in {"one hypothesis, no noise": {"hypotheses": 1}, "two hypotheses, no noise": {}}.items():
        values += _recovery(
            "as printed", row, federated_studies.recovery(seeds, privacy="none", **federated_studies.PAPER, **arm)
        )
    for noise in given["noises"]:
        limit = given["participations"] * federated_studies.SYNTHETIC_PARAMETERS / noise
        for name, server in SERVERS.items():
            limited = {"leakage_limit": limit} if name == "steady server" else {}
            found = federated_studies.recovery(seeds, noise_multiplier=noise, **server, **limited)
            values += _recovery(name, f"two hypotheses, nu = {noise:g}", found, given["leakage"].get(f"{noise:g}"))
    pictures = sorted(path.relative_to(job.folder).as_posix() for path in job.folder.glob("row*/*.png"))
    remarks = [
        "The thesis shows one run: two hypotheses, with or without noise, end close to the two optima.",
        "Found means that both optima have a hypothesis of their own within 0.5 of them.",
        f"The steady server sees the same clients and noise, asks clients in turn, and stops after "
        f"{given['participations']} participations of each.",
    ]
    return ExperimentFindings("synthetic, 000 section 2.5.1", values, (), [*remarks, *job.caveats], pictures)


def _recovery(server: str, row: str, found: dict[str, Any], leakage: float | None = None) -> list[Value]:
    what = {"server": server, "run": f"{row}, {found['runs']} seeds"}
    note = f"median distance {found['median_distance']:.3f}, {found['mean_rounds']:.0f} rounds"
    values = [Value(what | {"quantity": "runs that find both optima"}, found["found"], note=note)]
    if found["largest_leakage"]:
        note = (
            f"mean over seeds {found['mean_largest_leakage']:.3g}, of the median client {found['median_leakage']:.3g}"
        )
        values.append(Value(what | {"quantity": "largest leakage"}, found["largest_leakage"], None, leakage, note=note))
    return values


def figure_2_2(job: Job) -> ExperimentFindings:
    """Figure 2.2: the largest leakage in each cluster, round by round."""
    given = job.settings
    curves, values = [], []
    for name, server in SERVERS.items():
        for cluster, largest in enumerate(
            federated_studies.leakage_by_cluster(**given["run"], **{**server, **given.get(name, {})})
        ):
            label = f"{name}, cluster {cluster + 1}"
            curves.append(PlottedCurve(label, list(range(1, len(largest) + 1)), largest))
            what = {"server": name, "cluster": str(cluster + 1), "quantity": "largest leakage at the end"}
            values.append(Value(what, largest[-1], None, given["leakage"], note=f"{len(largest)} rounds"))
    panel = Panel("Figure 2.2: synthetic clients", "round", "largest leakage in the cluster", curves)
    remarks = ["Each participation leaks n/nu = 2/5 within the radius; the thesis reports 2.4 as the largest sum."]
    return ExperimentFindings("synthetic, 000 section 2.5.1", values, [panel], [*remarks, *job.caveats])


def table_2_3(job: Job) -> ExperimentFindings:
    """Table 2.3 and figure 2.4: leakage and error by noise and number of hypotheses."""
    given = job.settings
    rows = federated_studies.rows_of_table_2_3(
        given["noises"], given["hypotheses"], range(given["seeds"]), **given.get("recipe", {})
    )
    known = {(row["nu"], row["hypotheses"]): row for row in job.reference}
    values = []
    for row in rows:
        theirs = known.get((row["nu"], row["hypotheses"]))
        what = {"nu": f"{row['nu']:g}", "hypotheses": str(row["hypotheses"])}
        values.append(
            Value(
                what | {"quantity": "RMSE"},
                row["rmse"],
                _over(given, row["rmse_std"]),
                note=f"{row['rounds']:.0f} rounds",
            )
        )
        if theirs is not None:
            values += _leakages(what, row, theirs)
    remarks = [
        "Leakage adds n/nu = 11/nu per participation: it depends on how many rounds pass before stopping.",
        "'at equal rounds' is what chance alone gives after the number of rounds that fits both printed figures best.",
        "The thesis finds that more hypotheses lower the RMSE at every nu, most of all from 1 to 3.",
    ]
    return ExperimentFindings("hospital charges, complete", values, [_errors(rows)], [*remarks, *job.caveats])


def _leakages(what: dict[str, str], row: dict[str, Any], theirs: dict[str, Any]) -> list[Value]:
    """Ours when we stopped, and at the number of rounds that the printed values imply."""
    median, largest = theirs["median"], theirs["largest"]
    rounds, equal_median, equal_largest = federated_studies.closest_rounds(row["nu"], median, largest, range(10))
    stopped, equal = f"{row['rounds']:.0f} rounds", f"{rounds} rounds"
    return [
        Value(what | {"quantity": "median leakage"}, row["median_leakage"], None, median, note=stopped),
        Value(what | {"quantity": "largest leakage"}, row["largest_leakage"], None, largest, note=stopped),
        Value(what | {"quantity": "median leakage at equal rounds"}, equal_median, None, median, note=equal),
        Value(what | {"quantity": "largest leakage at equal rounds"}, equal_largest, None, largest, note=equal),
    ]


def _errors(rows: list[dict[str, Any]]) -> Panel:
    curves = []
    for count in dict.fromkeys(row["hypotheses"] for row in rows):
        mine = sorted((row["nu"], row["rmse"], row["rmse_std"]) for row in rows if row["hypotheses"] == count)
        x, y, spread = zip(*mine, strict=True)
        curves.append(PlottedCurve(f"{count} hypotheses", x, y, spread))
    return Panel("Figure 2.4: hospital charges", "nu", "RMSE", curves)


def figure_2_3(job: Job) -> ExperimentFindings:
    """Figure 2.3: how the leakage is distributed over hospitals, in one run."""
    given = job.settings
    finished = federated_studies.hospital_trial(**given["run"], **given.get("recipe", {}))
    leakage = finished.result.leakage
    note = f"{len(finished.result.history)} rounds"
    values = [
        Value({"quantity": "training clients"}, len(leakage), None, given["clients"]),
        Value({"quantity": "median leakage"}, float(np.median(leakage)), None, given["median"], note=note),
        Value({"quantity": "largest leakage"}, float(leakage.max()), None, given["largest"], note=note),
    ]
    record.histogram(finished, job.folder / "histogram.png")
    remarks = ["References are the means over 10 seeds of table 2.3; the figure itself prints no numbers."]
    return ExperimentFindings("hospital charges, complete", values, (), [*remarks, *job.caveats], ["histogram.png"])


def figure_2_4(job: Job) -> ExperimentFindings:
    """Figure 2.4: the error on hospital charges by noise and number of hypotheses, as printed and steady."""
    given = job.settings
    values, panels = [], []
    for name, server in {"as printed": "metric-pfl", "steady server": "metric-pfl-steady"}.items():
        options = {"strategy": server, **given.get("recipe", {})}
        rows = federated_studies.rows_of_table_2_3(
            given["noises"], given["hypotheses"], range(given["seeds"]), **options
        )
        for row in rows:
            what = {"server": name, "nu": f"{row['nu']:g}", "hypotheses": str(row["hypotheses"]), "quantity": "RMSE"}
            values.append(Value(what, row["rmse"], _over(given, row["rmse_std"]), note=f"{row['rounds']:.0f} rounds"))
        panels.append(replace(_errors(rows), title=f"Figure 2.4, {name}"))
    remarks = ["The thesis prints no numbers: more hypotheses lower the RMSE at every nu, most of all from 1 to 3."]
    return ExperimentFindings("hospital charges, complete", values, panels, [*remarks, *job.caveats])


def table_2_4(job: Job) -> ExperimentFindings:
    """Table 2.4 on MNIST by its writers, in place of FEMNIST."""
    given = job.settings
    values, curves = [], []
    for loss in given["losses"]:
        rows = federated_studies.rows_of_table_2_4(
            given["noises"], range(given["seeds"]), loss=loss, **given.get("recipe", {})
        )
        theirs = {row["nu"]: row["accuracy"] for row in job.reference if row["loss"] == loss}
        values += [
            Value(
                {"loss": loss, "nu": f"{row['nu']:g}"}, row["accuracy"], _over(given, row["std"]),
                theirs.get(row["nu"]), note=f"{row['rounds']:.0f} rounds",
            )
            for row in rows
        ]  # fmt: skip
        curves.append(PlottedCurve(loss, [row["nu"] for row in rows], [row["accuracy"] for row in rows]))
        curves.append(PlottedCurve(loss, list(theirs), list(theirs.values()), reference=True))
    panel = Panel("Table 2.4", "nu", "accuracy", curves)
    remarks = ["The references are for FEMNIST with 62 classes: compare how accuracy falls with nu, not levels."]
    source = f"MNIST by its real writers, half of them turned, in place of FEMNIST; model {given['recipe']['model']}"
    return ExperimentFindings(source, values, [panel], [*remarks, *job.caveats])


def fairness_differences(job: Job) -> ExperimentFindings:
    """Figures 2.7 and 2.8: the single against the personalised model, group by group."""
    given = job.settings
    rows = federated_studies.compare_fairness(
        given["noises"], range(given["seeds"]), data=given["data"], folder=job.folder,
        options=given.get("options"), **given.get("recipe", {}),
    )  # fmt: skip
    values = []
    for single, personal in zip(rows[::2], rows[1::2], strict=True):
        for metric in federated_studies.METRICS:
            smaller = "smaller" if personal[metric] < single[metric] else "NOT smaller"
            what = {"nu": f"{single['nu']:g}", "quantity": metric.replace("_", " ")}
            note = f"personalised; single {single[metric]:.4f}: {smaller}"
            values.append(Value(what, personal[metric], note=note))
    remarks = ["The thesis finds all three differences smaller for the personalised model at every nu."]
    return ExperimentFindings(given["data"], values, (), [*remarks, *job.caveats], ["fairness.png"])


def svm_003(job: Job) -> ExperimentFindings:
    """003 section VI-D: 50 clients, a linear support vector machine, a guarantee per record."""
    given = job.settings
    runs = [federated_studies.federated_svm(seed, **given.get("options", {})) for seed in range(given["seeds"])]
    accuracies = [run["accuracy"] for run in runs]
    spread = float(np.std(accuracies, ddof=1)) if len(runs) > 1 else None
    value = Value(
        {"model": "federated SVM, 50 clients", "quantity": "accuracy"}, float(np.mean(accuracies)), spread,
        given["accuracy"], note=f"epsilon {runs[0]['epsilon']:.3g} per record",
    )  # fmt: skip
    remarks = [runs[0]["guarantee"], "003's own figure comes without a sound guarantee (errata 10)."]
    return ExperimentFindings("Adult, complete", [value], (), [*remarks, *job.caveats])
