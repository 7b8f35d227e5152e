"""Attacks on what people release today, each on the naive release and on a private one: why all this is needed."""

from sordina.auditing.releases.attacks import (
    aggregates_study,
    averaging_study,
    differencing_study,
    linkage_study,
    reconstruct_bits_study,
)
from sordina.auditing.releases.release_study import ReleaseStudy, StudyCurve, StudyLine, draw_study, write_study

__all__ = [
    "ReleaseStudy",
    "StudyCurve",
    "StudyLine",
    "aggregates_study",
    "averaging_study",
    "differencing_study",
    "draw_study",
    "linkage_study",
    "reconstruct_bits_study",
    "write_study",
]
