"""Per-sample gradients without writing them down: norms, projections and weighted sums from one backward pass."""

from __future__ import annotations

from sordina.gradients import explicit
from sordina.gradients.check import Problem, check, check_losses
from sordina.gradients.engine import Engine
from sordina.gradients.fix import fix
from sordina.gradients.layout import Layout
from sordina.gradients.tape import GhostTape

__all__ = ["Engine", "GhostTape", "Layout", "Problem", "check", "check_losses", "explicit", "fix"]
