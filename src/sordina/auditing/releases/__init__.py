"""Attacks on what people release today, each on the naive release and on a private one: why all this is needed."""

from sordina.auditing.releases.aggregates import aggregates_study
from sordina.auditing.releases.averaging import averaging_study
from sordina.auditing.releases.differencing import differencing_study
from sordina.auditing.releases.linkage import linkage_study
from sordina.auditing.releases.reconstruction import reconstruct_bits_study
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
