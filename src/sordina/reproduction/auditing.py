"""The attacks: chapter 4 of 000 (membership of text), figure 2.5 (reconstruction), and 003's shadow attack."""

from __future__ import annotations

import numpy as np

from sordina.auditing import figures
from sordina.auditing.studies.language import language_study
from sordina.auditing.studies.reconstruction import reconstruction_study
from sordina.auditing.studies.tabular import Trained, membership_study
from sordina.reproduction.experiment import Job
from sordina.reproduction.findings import Findings, Value


def language(job: Job) -> Findings:
    """Figures 4.2 to 4.4: noisy neighbours against shadow models on a small language model."""
    given = job.settings
    studies = [language_study(seed=seed, **given.get("options", {})) for seed in range(given["seeds"])]
    values = []
    for attack in ("loss", "shadow", "noisy", "lower-case", "word-swap"):
        areas = [study.audit[attack].auc.value for study in studies]
        spread = float(np.std(areas, ddof=1)) if len(areas) > 1 else None
        note = f"{np.mean([study.audit[attack].seconds for study in studies]):.1f} processor seconds"
        what = {"attack": attack, "quantity": "AUC"}
        values.append(Value(what, float(np.mean(areas)), spread, given.get(attack), note=note))
    ratio = float(np.mean([study.cost_ratio for study in studies]))
    values.append(Value({"attack": "noisy", "quantity": "cost relative to shadow"}, ratio))
    first = studies[0].audit
    shown = [first[name] for name in ("loss", "shadow", "noisy")]
    figures.sigma_figure(first["noisy"].details["auc_by_sigma"], job.folder / "figure-4.2.png")
    figures.roc_figure(shown, job.folder / "figure-4.3.png")
    figures.epsilon_figure(shown, job.folder / "figure-4.4.png")
    remarks = [
        f"A GPT-2 of {studies[0].parameters} parameters trained from scratch stands in for the fine-tuned GPT-2.",
        "Empirical epsilons are lower confidence bounds, not ratios of point estimates (errata 6).",
    ]
    pictures = ["figure-4.2.png", "figure-4.3.png", "figure-4.4.png"]
    return Findings("WikiText-2", values, (), [*remarks, *job.caveats], pictures)


def reconstruction(job: Job) -> Findings:
    """Figure 2.5: gradient inversion of single images under per-layer noise."""
    given = job.settings
    study = reconstruction_study(given["dataset"], **given["options"])
    values = []
    for one in study.defences:
        qualities = [quality.psnr for quality in one.qualities]
        note = f"{one.reconstructed} of {len(qualities)} above 25 dB, {one.failed} below 12 dB"
        what = {"defence": one.defence, "quantity": "median PSNR, dB"}
        values.append(Value(what, float(np.median(qualities)), note=note))
    rows = [(one.defence, one.images) for one in study.defences]
    captions = [[f"{quality.psnr:.1f} dB" for quality in one.qualities] for one in study.defences]
    figures.reconstruction_figure(study.originals, rows, job.folder / "figure-2.5.png", captions)
    remarks = ["The thesis shows full reconstruction at nu = 1e-3, partial up to 1e-1, and failure from nu = 1."]
    return Findings(given["dataset"], values, (), [*remarks, *job.caveats], ["figure-2.5.png"])


def attack_003(job: Job) -> Findings:
    """003 section VI-E: shadow attacks on Adult; theirs did not learn."""
    given = job.settings
    study = membership_study(given["dataset"], balanced=True, **given["options"])
    values = _areas("overfitted", study.overfitted)
    if study.private is not None:
        values += _areas("private", study.private)
    remarks = ["003's attack model did not learn, because its target hardly overfitted; ours attacks one that has."]
    return Findings(f"{given['dataset']}, as many rows of each class", values, (), [*remarks, *job.caveats])


def _areas(model: str, trained: Trained) -> list[Value]:
    note = f"accuracy {trained.train_accuracy:.3f} on members, {trained.test_accuracy:.3f} on others"
    return [
        Value({"model": model, "attack": result.name, "quantity": "AUC"}, result.auc.value, note=note)
        for result in trained.audit.results
    ]
