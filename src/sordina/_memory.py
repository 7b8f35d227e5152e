"""Memory of a process that trains: keep what was freed, and do not collect what is not needed again.

A step asks for the same large blocks again and again. The C library's allocator hands them back to the operating system
as soon as they are freed and has to ask for them again, page by page: hundreds of thousands of page faults, up to a
third of a step's time with convolutions. A process that trains is better off keeping them, at the price of a little
more peak memory.

Poisson sampling gives every batch another size, and for every new size oneDNN keeps a compiled copy of every
convolution, up to 1024 of them: several GB in a long run of a deep network, with plain PyTorch as well.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of settings in glibc's ``malloc.h``."""
_LARGEST = 1 << 30
_CACHE, _KEPT = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64"


def keep_freed() -> bool:
    """Tell the allocator of this process to keep freed blocks up to 1 GB each; false where it cannot be told.

    The command line does so for itself. A library should not decide that for its host: call it in scripts of your own.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, 2 * _LARGEST - 1))


def bound_cache() -> None:
    """Let oneDNN keep 64 compiled operations, unless the environment says otherwise: to be called before the first."""
    os.environ.setdefault(_CACHE, _KEPT)
