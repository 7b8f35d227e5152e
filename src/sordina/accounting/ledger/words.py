"""The plain fields of an entry: who, when, and one line of text."""

from __future__ import annotations

import getpass
import os
import re
import socket
from datetime import datetime, timezone

from sordina.errors import InvalidInput

_LONGEST = 200


def line(field: str, text: str) -> str:
    """``text`` without surrounding blanks, if it is one printable line; refused otherwise.

    >>> line("what", " count visits ")
    'count visits'
    """
    stripped = text.strip() if isinstance(text, str) else ""
    if not stripped:
        raise InvalidInput(f"{field} must be said in a few words, got {text!r}.")
    if not stripped.isprintable() or len(stripped) > _LONGEST:
        raise InvalidInput(f"{field} must be one printable line of at most {_LONGEST} characters, got {text[:40]!r}...")
    return stripped


def myself() -> str:
    """user@host, and nothing more about either."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"uid{os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def whole_hash(text: str) -> str:
    """``text`` if it is a SHA-256 in hexadecimal; refused otherwise."""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise InvalidInput(
            f"a head is 64 hexadecimal digits as `sordina ledger verify` prints them, got {text[:80]!r}."
        )
    return text
