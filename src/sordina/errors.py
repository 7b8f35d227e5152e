"""Every error a user can meet.

    SordinaError            exit code 1
    ├── InvalidInput        2   a value, file or combination that cannot work (also a ValueError)
    │   ├── Unsupported     2   understood, but no sound answer exists; says what to use instead
    │   └── DataNotFound    2   a data set is neither in SORDINA_DATA nor downloadable
    ├── BudgetRefused       3   the spend would pass the budget; nothing was read or written
    ├── TrainingFailed      1   a run that had to stop; what it spent stays on record
    └── LedgerCorrupt       1   the history does not match its hash chain

A message says what was wrong, where, and what to do, in one line.
"""

from __future__ import annotations


class SordinaError(Exception):
    """The root: anything Sordina raises on purpose."""

    exit_code = 1


class InvalidInput(SordinaError, ValueError):
    """A value, file or combination of options that cannot work."""

    exit_code = 2


class Unsupported(InvalidInput):
    """Well formed, but Sordina has no sound answer for it."""


class DataNotFound(InvalidInput):
    """A data set that is not at hand."""


class BudgetRefused(SordinaError):
    """A spend that would pass the budget."""

    exit_code = 3


class TrainingFailed(SordinaError):
    """A run that had to stop before its end."""


class LedgerCorrupt(SordinaError):
    """A ledger whose history was altered."""
