"""The write-ahead journal under its former name: see `sordina.journal`."""

from sordina.journal import BLOCK, Journal

__all__ = ["BLOCK", "Journal"]
