"""Fetch a public file: verified before it is believed, and in place only when complete."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
import zlib
from pathlib import Path

from sordina.datasets.files import File, Progress, missing
from sordina.errors import DataNotFound

CHUNK = 1 << 16
TIMEOUT_SECONDS = 30


def download(file: File, folder: Path, *, progress: Progress | None = None) -> Path:
    """Try the addresses of ``file`` in turn; return its place under ``folder``, or raise `DataNotFound`.

    The bytes go to a temporary file beside the target, are checked there, and are renamed into place, so that a
    killed download, a full disk or a second process never leaves half a file under the real name.
    """
    target = folder / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for url in file.urls:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        partial = Path(name)
        try:
            _fetch(url, partial, target.name, progress)
            _verify(partial, file)
            partial.replace(target)
            return target
        except (OSError, http.client.HTTPException, DataNotFound) as error:
            reasons.append(f"{url}: {error}")
        finally:
            partial.unlink(missing_ok=True)
    raise missing(file.path, f"the download failed ({'; '.join(reasons)})")


def _fetch(url: str, partial: Path, name: str, progress: Progress | None) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "sordina"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response, partial.open("wb") as out:
        stated = response.headers.get("Content-Length")
        total = int(stated) if stated and stated.isdigit() else None
        done = 0
        while chunk := response.read(CHUNK):
            out.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(name, done, total)
        if total is not None and done != total:
            raise DataNotFound(f"the connection ended after {done} of {total} bytes")


def _verify(path: Path, file: File) -> None:
    algorithm, expected = file.digest.split(":")
    found = hashlib.new(algorithm)
    try:
        with gzip.open(path) if file.decompressed else path.open("rb") as content:
            while chunk := content.read(CHUNK):
                found.update(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataNotFound(f"not a whole gzip file ({error})") from error
    if found.hexdigest() != expected:
        raise DataNotFound(f"its {algorithm} is {found.hexdigest()} instead of {expected}, so it was discarded")
