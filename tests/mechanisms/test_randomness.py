"""The secure stream is AES, is nobody's copy, and is told apart from a seed."""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np
import pytest
from randomgen import AESCounter
from scipy import stats

from sordina.errors import InvalidInput
from sordina.randomness import fill_normal, generator, releasable, secure, seeded


def test_the_stream_is_aes_128():
    """FIPS-197, appendix C.1: the plaintext is the counter, the ciphertext the first block of the stream."""
    key, plain = bytes(range(16)), bytes.fromhex("00112233445566778899aabbccddeeff")
    for use_instructions in {False, bool(AESCounter().use_aesni)}:
        stream = AESCounter(key=int.from_bytes(key, "little"), counter=int.from_bytes(plain, "little"))
        stream.use_aesni = use_instructions
        stream.seed(key=int.from_bytes(key, "little"), counter=int.from_bytes(plain, "little"))
        block = b"".join(int(half).to_bytes(8, "little") for half in stream.random_raw(2))
        assert block.hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


def test_only_the_secure_stream_is_releasable():
    assert releasable(secure())
    assert releasable(generator())
    assert releasable(None)
    assert not releasable(seeded(0))
    assert not releasable(generator(3))
    assert not releasable(np.random.Generator(AESCounter(1234))), "a seeded AES is a seed all the same"


def test_no_two_secure_streams_agree():
    assert len({secure().integers(1 << 62) for _ in range(100)}) == 100


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
def test_a_secure_stream_cannot_be_copied(duplicate):
    with pytest.raises(InvalidInput, match="noise would repeat"):
        duplicate(secure())
    assert pickle.loads(pickle.dumps(seeded(1))).random() == seeded(1).random()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_another_key():
    rng = secure()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, rng.bytes(16))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 16) != rng.bytes(16)


@pytest.mark.parametrize("size", [1000, 600_001], ids=["one stream", "two streams"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rng", [seeded(10), secure()], ids=["seeded", "secure"])
def test_filling_draws_standard_normals(size, dtype, rng):
    draws = fill_normal(np.full(size, np.nan, dtype), rng)
    assert stats.kstest(draws, stats.norm.cdf).pvalue > 1e-8
    halves = draws[: size // 2], draws[size // 2 : size // 2 * 2]
    assert abs(np.corrcoef(*halves)[0, 1]) * (size // 2) ** 0.5 < 6


def test_filling_repeats_under_a_seed_and_moves_the_generator_on():
    rng = seeded(11)
    first, second = fill_normal(np.empty((300, 1000)), rng), fill_normal(np.empty((300, 1000)), rng)
    assert np.array_equal(first, fill_normal(np.empty((300, 1000)), seeded(11)))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("out", [np.empty((4, 4))[:, ::2], np.empty(3, int), np.empty(3, np.float16)])
def test_filling_refuses_what_it_cannot_fill(out):
    with pytest.raises(InvalidInput):
        fill_normal(out, seeded(0))
