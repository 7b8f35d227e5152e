"""Randomness: secure and seeded generators, and Gaussian noise whose law is proved."""

from __future__ import annotations

from sordina.random.generators import generator, releasable, reseed_globally, secure, seeded
from sordina.random.noise import add_gaussian

__all__ = ["add_gaussian", "generator", "releasable", "reseed_globally", "secure", "seeded"]
