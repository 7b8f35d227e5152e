"""Your own table: a schema that says what is public, readers, and preparation that costs no budget.

`PreparedTable` and `read_table`, which need torch, are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordina._renamed import lazily
from sordina.tables.discover import Discovery, complete_privately, draft_schema, plan_discovery
from sordina.tables.prepare import Prepare, feature_names
from sordina.tables.readers import Piece, header, pieces
from sordina.tables.schema import ColumnKind, ColumnSchema, Schema

if TYPE_CHECKING:
    from sordina.tables.table import PreparedTable, read_table

__all__ = [
    "ColumnKind",
    "ColumnSchema",
    "Discovery",
    "Piece",
    "Prepare",
    "PreparedTable",
    "Schema",
    "complete_privately",
    "draft_schema",
    "feature_names",
    "header",
    "pieces",
    "plan_discovery",
    "read_table",
]

__getattr__ = lazily(__name__, dict.fromkeys(("PreparedTable", "read_table"), "sordina.tables.table"))
