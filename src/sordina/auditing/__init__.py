"""Attack what was trained, and say what the attack proves: scores, ROC, and a lower bound on epsilon.

`sordina.audit` attacks a model of anybody's, `audit_run` the model of a run's folder, `audit_training` private training
itself with canaries, `releases` what people publish of a table. Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordina._renamed import lazily

if TYPE_CHECKING:
    from sordina.auditing import releases
    from sordina.auditing.audit import ATTACKS, audit_scores
    from sordina.auditing.bounds import LowerBound, TwoRates
    from sordina.auditing.canaries import audit_training
    from sordina.auditing.extraction import Secrets, measure_continuations, measure_exposure
    from sordina.auditing.findings import AttackResult, Audit
    from sordina.auditing.foreign import audit_foreign
    from sordina.auditing.inference import infer_attribute, infer_label
    from sordina.auditing.language import audit_language_model
    from sordina.auditing.one_run import Membership, OneRun, PairedRun
    from sordina.auditing.runs import audit_run, write_audit

__all__ = [
    "ATTACKS",
    "AttackResult",
    "Audit",
    "LowerBound",
    "Membership",
    "OneRun",
    "PairedRun",
    "Secrets",
    "TwoRates",
    "audit_foreign",
    "audit_language_model",
    "audit_run",
    "audit_scores",
    "audit_training",
    "infer_attribute",
    "infer_label",
    "measure_continuations",
    "measure_exposure",
    "releases",
    "write_audit",
]

__getattr__ = lazily(
    __name__,
    {
        "ATTACKS": "sordina.auditing.audit",
        "releases": "sordina.auditing.releases",
        "AttackResult": "sordina.auditing.findings",
        "Audit": "sordina.auditing.findings",
        "LowerBound": "sordina.auditing.bounds",
        "Membership": "sordina.auditing.one_run",
        "OneRun": "sordina.auditing.one_run",
        "PairedRun": "sordina.auditing.one_run",
        "TwoRates": "sordina.auditing.bounds",
        "Secrets": "sordina.auditing.extraction",
        "audit_language_model": "sordina.auditing.language",
        "measure_continuations": "sordina.auditing.extraction",
        "measure_exposure": "sordina.auditing.extraction",
        "audit_foreign": "sordina.auditing.foreign",
        "infer_attribute": "sordina.auditing.inference",
        "infer_label": "sordina.auditing.inference",
        "audit_run": "sordina.auditing.runs",
        "audit_scores": "sordina.auditing.audit",
        "audit_training": "sordina.auditing.canaries",
        "write_audit": "sordina.auditing.runs",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
