"""Per-sample gradients without writing them down: norms, projections and weighted sums from one backward pass."""

from __future__ import annotations

from sordina.gradients import explicit
from sordina.gradients.checks import Problem, check, fix
from sordina.gradients.engine import Engine, check_losses
from sordina.gradients.layout import Layout
from sordina.gradients.tape import GhostTape

__all__ = ["Engine", "GhostTape", "Layout", "Problem", "check", "check_losses", "explicit", "fix"]
