"""Per-sample gradients without writing them down: norms, projections and weighted sums from one backward pass."""

from __future__ import annotations

from sordina.gradients import explicit
from sordina.gradients.checks import Problem, check, check_losses, fix
from sordina.gradients.engine import Engine
from sordina.gradients.layout import Layout
from sordina.gradients.tape import GhostTape

__all__ = ["Engine", "GhostTape", "Layout", "Problem", "check", "check_losses", "explicit", "fix"]
