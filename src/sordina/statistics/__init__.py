"""Numbers under a budget: counts, means, quantiles and tables of a file's persons, and randomised answers."""

from sordina.statistics import local, shuffle
from sordina.statistics.statistic import Answer
from sordina.statistics.table import Table, TableQuery

__all__ = ["Answer", "Table", "TableQuery", "local", "shuffle"]
