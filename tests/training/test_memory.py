from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from sordina import _memory

FAULTS = """
import resource, sys
from sordina._memory import keep_freed
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

GROWTH = """
import sys
from sordina._memory import bound_cache
if sys.argv[1] == "bound":
    bound_cache()
import torch
torch.set_num_threads(1)
layers = [torch.nn.Conv2d(32, 32, 3) for _ in range(4)]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def steps(sizes):
    for size in sizes:
        torch.nn.Sequential(*layers)(torch.rand(size, 32, 20, 20)).mean().backward()

steps(range(90, 92))
before = resident()
steps(range(20, 90))
print(resident() - before)
"""

LEFT_OVER = """
import sys
from contextlib import nullcontext
from sordina._memory import apart_from_heap
import torch

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

torch.ones(30 << 18)  # from here on the allocator keeps blocks of up to 30 MB
before = resident()
with apart_from_heap() if sys.argv[1] == "apart" else nullcontext():
    blocks = [torch.ones(1 << 20) for _ in range(50)]
    small = bytes(1 << 16)
    del blocks
print(resident() - before)
"""


def measured(script: str, how: str) -> int:
    """What a fresh process prints, as nobody told its allocator or oneDNN anything before."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "ONEDNN_"))}
    done = subprocess.run([sys.executable, "-c", script, how], env=plain, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_a_block_that_was_freed_is_not_asked_for_again():
    """20 blocks of 32 MB are 160 000 pages of 4 kB, or 320 of 2 MB."""
    assert measured(FAULTS, "keep") < measured(FAULTS, "as it is") / 5


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_of_work_apart_from_the_heap_nothing_is_left():
    """50 blocks of 4 MB below a small object that stays."""
    assert measured(LEFT_OVER, "as it is") > 150 << 20
    assert measured(LEFT_OVER, "apart") < 20 << 20


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(_memory.ctypes, "CDLL", lambda name: object())
    assert _memory.keep_freed() is False


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_batches_of_many_sizes_do_not_pile_up():
    """70 sizes of 4 layers: about 250 MB in compiled operations if nothing is forgotten, 30 to 80 as it should be.

    What is resident is less where the system took pages away meanwhile, so there are three tries.
    """
    assert any(measured(GROWTH, "bound") < 0.7 * measured(GROWTH, "as it is") for _ in range(3))


def test_the_environment_has_the_last_word(monkeypatch):
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    _memory.bound_cache()
    assert _memory.os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
