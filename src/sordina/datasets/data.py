"""What a data set is to the rest of the house, and where its files are."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import sys
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO

from torch import Tensor
from torch.utils.data import TensorDataset

from sordina.errors import DataNotFound
from sordina.progress import StagedProgress, silent


class Task(str, Enum):
    """What is asked of a model, and so which loss and metric fit."""

    CLASSIFICATION = "classification"
    RECONSTRUCTION = "reconstruction"
    REGRESSION = "regression"
    LANGUAGE = "language"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Column:
    """An attribute of every row that is not an input: one code per row, and what the codes mean.

    Args:
        train: One value per training row.
        test: One value per test row.
        names: What the values stand for.
    """

    train: Tensor
    test: Tensor
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """``(inputs, targets)`` to train on and to test on. Nothing in it was normalised with statistics of the rows.

    Args:
        name: The data set's name.
        task: What is to be learned.
        source: Where it comes from.
    """

    name: str
    train: TensorDataset
    test: TensorDataset
    task: Task
    classes: int = 0
    """Number of classes, or of words in the vocabulary; 0 for reconstruction and regression."""
    groups: Mapping[str, Column] = field(default_factory=dict)
    """Protected attributes by name, for fairness."""
    users: Column | None = None
    """Whose row it is, where the data say so (writer, hospital): the unit of user-level privacy."""
    vocabulary: tuple[str, ...] = ()
    """For text as token ids: what each id stands for."""
    source: str = ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.tensors[0].shape[1:])


# Where data files are: in the folder SORDINA_DATA, else in the user's cache, else downloaded and verified.

# Where data files are: in the folder SORDINA_DATA, else in the user's cache, else on the net.
#
# SORDINA_DATA is the user's own folder: what lies there is taken as it is. What is downloaded lands in the cache, and
# only after its checksum agrees.

ENVIRONMENT = "SORDINA_DATA"


@dataclass(frozen=True)
class File:
    """A public file: its place under a data folder, its checksum and where it can be had."""

    path: str
    digest: str
    """``algorithm:hexadecimal``, for example ``sha256:ba89...``."""
    urls: tuple[str, ...] = ()
    decompressed: bool = False
    """Whether the digest is of the content after gunzip, for files that mirrors compress differently."""


def cache_folder() -> Path:
    """The user's cache for downloaded data, by the custom of the operating system."""
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return root / "sordina" / "data"


def _folders() -> Iterator[Path]:
    if os.environ.get(ENVIRONMENT):
        yield Path(os.environ[ENVIRONMENT]).expanduser()
    yield cache_folder()


def find(*paths: str) -> Path | None:
    """The first of ``paths`` that exists, each tried in SORDINA_DATA and in the cache; with or without ``.gz``."""
    for path in paths:
        for folder in _folders():
            for name in (path, path.removesuffix(".gz") if path.endswith(".gz") else f"{path}.gz"):
                if (folder / name).exists():
                    return folder / name
    return None


def obtain(file: File, *alternatives: str, progress: StagedProgress | None = None) -> Path:
    """``file``, or the first of ``alternatives`` that is already at hand; downloaded to the cache if none is."""
    found = find(*alternatives, file.path)
    if found is not None:
        return found
    if not file.urls:
        raise missing(file.path)
    return download(file, cache_folder(), progress=progress)


def missing(path: str, why: str = "it has no public address to download it from") -> DataNotFound:
    """The one sentence about a file that is not there."""
    folder = os.environ.get(ENVIRONMENT)
    looked = f"it is not in {ENVIRONMENT} ({folder})" if folder else f"{ENVIRONMENT} is not set"
    return DataNotFound(
        f"no {path}: {looked}, it is not in the cache ({cache_folder()}), and {why}; "
        f"set {ENVIRONMENT} to a folder that holds {path}."
    )


def read_bytes(path: Path) -> bytes:
    """The whole content, gunzipped if it is gzip, whatever its name."""
    content = path.read_bytes()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def open_text(path: Path) -> IO[str]:
    """The content as UTF-8 text, gunzipped if need be."""
    return io.StringIO(read_bytes(path).decode("utf-8"), newline="")


# Fetch a public file: verified before it is believed, and in place only when complete.

CHUNK = 1 << 16
TIMEOUT_SECONDS = 30


def download(file: File, folder: Path, *, progress: StagedProgress | None = None) -> Path:
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


def _fetch(url: str, partial: Path, name: str, progress: StagedProgress | None) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "sordina"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response, partial.open("wb") as out:
        stated = response.headers.get("Content-Length")
        total = int(stated) if stated and stated.isdigit() else None
        done, tell = 0, silent if progress is None else progress(name)
        while chunk := response.read(CHUNK):
            out.write(chunk)
            done += len(chunk)
            tell(done, total)
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
