"""The plain fields of an entry: who, when, and one line of text."""

from __future__ import annotations

import getpass
import os
import re
import socket
import unicodedata
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


def name_of(dataset: str) -> str:
    """The name of a data set: one printable line whose letters are composed (NFC), so that one name has one spelling.

    >>> name_of("cafe\\u0301") == name_of("caf\\xe9")
    True
    """
    return line("the name of a data set", composed(dataset))


def composed(text: str) -> str:
    """``text`` with every letter and its accents as one character where there is one."""
    return unicodedata.normalize("NFC", text) if isinstance(text, str) else text


def without_secrets(text: str, *secrets: str | None) -> str:
    """``text`` with the password of a URL, and every one of ``secrets``, replaced by three stars.

    >>> without_secrets("postgresql:/ada:hunter2@db/books")
    'postgresql:/ada:***@db/books'
    """
    for secret in sorted({secret for secret in secrets if secret}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return re.sub(r"(\w:/{1,2}[^/@:\s]*):\S*@", r"\1:***@", text)


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
