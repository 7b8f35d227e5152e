"""Keep what was freed: a training step asks for the same large blocks again and again.

The C library's allocator hands large blocks back to the operating system as soon as they are freed and has to ask for
them again, page by page, in the next step: hundreds of thousands of page faults, up to a third of a step's time with
convolutions. A process that trains is better off keeping them, at the price of a little more peak memory.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of settings in glibc's ``malloc.h``."""
_LARGEST = 1 << 30


def keep_freed() -> bool:
    """Tell the allocator of this process to keep freed blocks up to 1 GB each; false where it cannot be told.

    The command line does so for itself. A library should not decide that for its host: call it in scripts of your own.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, 2 * _LARGEST - 1))
