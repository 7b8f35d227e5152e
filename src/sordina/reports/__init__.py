"""Reports: facts as frozen data, and their rendering, kept apart.

`facts` (what is known), `reading` (from run folders), `words` (what it means to a person), `charts` (what it looks
like), `html_pieces` and `rendering` (the one HTML file).

Public are `report` (one page from any runs), `privacy_card` and `as_markdown` (the card of a run), and the facts:
`Report`, `Claim`. Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordina._renamed import lazily

if TYPE_CHECKING:
    from sordina.reports.card import as_markdown, privacy_card
    from sordina.reports.facts import Claim, Report
    from sordina.reports.rendering import report

__all__ = ["Claim", "Report", "as_markdown", "privacy_card", "report"]

__getattr__ = lazily(
    __name__,
    {
        "Claim": "sordina.reports.facts",
        "Report": "sordina.reports.facts",
        "as_markdown": "sordina.reports.card",
        "privacy_card": "sordina.reports.card",
        "report": "sordina.reports.rendering",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
