from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from sordina import memory

FAULTS = """
import resource, sys
from sordina.memory import keep_freed
if sys.argv[1] == "keep":
    assert keep_freed()
import torch

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(1 << 23)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


def faults(how: str) -> int:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", FAULTS, how], env=plain, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_a_block_that_was_freed_is_not_asked_for_again():
    """20 blocks of 32 MB are 160 000 pages of 4 kB, or 320 of 2 MB."""
    assert faults("keep") < faults("as it is") / 5


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert memory.keep_freed() is False
