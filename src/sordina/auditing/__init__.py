"""Attack what was trained, and say what the attack proves: scores, ROC, and a lower bound on epsilon.

`sordina.audit` attacks a model of anybody's, `audit_run` the model of a run's folder, `audit_training` private training
itself with canaries, `releases` what people publish of a table. Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordina._lazy import lazily

if TYPE_CHECKING:
    from sordina.auditing import releases
    from sordina.auditing.audit import ATTACKS, AttackResult, Audit
    from sordina.auditing.bounds import LowerBound, OneRun, PairedRun, TwoRates
    from sordina.auditing.canaries import audit_training
    from sordina.auditing.runs import audit_run, write_audit

__all__ = [
    "ATTACKS",
    "AttackResult",
    "Audit",
    "LowerBound",
    "OneRun",
    "PairedRun",
    "TwoRates",
    "audit_run",
    "audit_training",
    "releases",
    "write_audit",
]

__getattr__ = lazily(
    __name__,
    {
        "ATTACKS": "sordina.auditing.audit",
        "releases": "sordina.auditing.releases",
        "AttackResult": "sordina.auditing.audit",
        "Audit": "sordina.auditing.audit",
        "LowerBound": "sordina.auditing.bounds",
        "OneRun": "sordina.auditing.bounds",
        "PairedRun": "sordina.auditing.bounds",
        "TwoRates": "sordina.auditing.bounds",
        "audit_run": "sordina.auditing.runs",
        "audit_training": "sordina.auditing.canaries",
        "write_audit": "sordina.auditing.runs",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
