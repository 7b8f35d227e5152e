"""Memory of a process that trains: keep what a step will ask for again, and nothing else.

A step asks for the same large blocks again and again. The C library's allocator hands them back to the operating system
as soon as they are freed and has to ask for them again, page by page: hundreds of thousands of page faults, up to a
third of a step's time with convolutions. A process that trains is better off keeping them, at the price of a little
more peak memory.

A study of a model takes much more memory than a step, and in its middle small objects are made that stay. They sit in
the allocator's heap above what the study frees, which can then never be handed back: steps spread over it until all of
it is theirs. So a study's blocks are taken apart from the heap.

Poisson sampling gives every batch another size, and for every new size oneDNN keeps a compiled copy of every
convolution, up to 1024 of them: several GB in a long run of a deep network, with plain PyTorch as well.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of settings in glibc's ``malloc.h``."""
_LARGEST = 1 << 30
_USUAL = {_MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}
"""Where glibc's own rule takes these settings in a process that frees large blocks."""
_KEEPING = {_MMAP_THRESHOLD: _LARGEST, _TRIM_THRESHOLD: 2 * _LARGEST - 1}
_APART = 1 << 18
"""Smaller blocks stay in the heap."""
_CACHE, _KEPT = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64"


def keep_freed() -> bool:
    """Tell the allocator of this process to keep freed blocks up to 1 GB each; false where it cannot be told.

    The command line does so for itself. A library should not decide that for its host: call it in scripts of your own.
    """
    told = _tell(_KEEPING)
    if told:
        _Heap.settings = _KEEPING
    return told


class _Heap:
    settings = _USUAL
    """What holds again after the last of those that work apart."""
    apart = 0
    """How many work apart."""


def _tell(settings: dict[int, int]) -> bool:
    """Tell the allocator; false where it cannot be told."""
    try:
        mallopt: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return all(mallopt(name, value) for name, value in settings.items())


@contextmanager
def apart_from_heap() -> Iterator[None]:
    """Work that takes much more memory than a step: its blocks go back to the operating system when they are freed.

    Nothing is changed where the environment tells the allocator something.
    """
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        yield
        return
    if not _Heap.apart:
        _tell({_MMAP_THRESHOLD: _APART})
    _Heap.apart += 1
    try:
        yield
    finally:
        _Heap.apart -= 1
        if not _Heap.apart:
            _tell(_Heap.settings)


def bound_cache() -> None:
    """Let oneDNN keep 64 compiled operations, unless the environment says otherwise: to be called before the first."""
    os.environ.setdefault(_CACHE, _KEPT)
