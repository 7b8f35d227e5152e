"""The former name of `sordina.random`."""

from __future__ import annotations

from sordina.random import generator, releasable, secure, seeded

__all__ = ["generator", "releasable", "secure", "seeded"]
