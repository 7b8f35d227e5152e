"""The secure stream is AES, is nobody's copy, and is told apart from a seed."""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from randomgen import AESCounter
from scipy import stats

from sordina import normals
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


def test_the_stream_behind_large_draws_is_aes_128(monkeypatch):
    """Its blocks are the encrypted counters 0, 1, ..."""
    key, seen = bytes(range(16)), []
    monkeypatch.setattr(normals, "_box_muller", lambda *parts: seen.append(np.concatenate(parts[:3])))
    normals.expand(key, np.empty(10, np.float32))
    first = Cipher(AES(key), ECB()).encryptor().update(bytes(15) + b"\0" + bytes(15) + b"\1")
    assert np.array_equal(seen[0][:8], np.frombuffer(first, np.int32).astype(np.float32))


def test_the_radius_reaches_the_tails_and_every_angle():
    """The extreme integers: radii from 0 to beyond 8 standard deviations, never infinite here, and a full circle."""
    coarse = np.array([0, -1, 2**31 - 1, -(2**31), 0, 0], np.int32).astype(np.float32)
    fine = np.array([-(2**31) + 4096, 2**31 - 4096, 2**31 - 1, -(2**31), 0, 0], np.int32).astype(np.float32)
    angle = np.array([0, 0, 0, 0, 2**30, -(2**31)], np.int32).astype(np.float32)
    out = np.empty(12, np.float32)
    normals._box_muller(coarse, fine, angle, out)
    assert (out[:2] > 8).all()
    assert (np.abs(out[2:4]) < 1e-3).all()
    middle = (2 * 32 * np.log(2)) ** 0.5
    np.testing.assert_allclose(out[[4, 10, 5, 11]], [0, middle, -middle, 0], atol=1e-5)


def test_an_odd_number_of_draws_and_several_pieces():
    key = bytes(16)
    odd, even = np.empty(2 * normals.PAIRS + 5, np.float32), np.empty(2 * normals.PAIRS + 6, np.float32)
    normals.expand(key, odd)
    normals.expand(key, even)
    assert np.array_equal(odd, even[:-1])
    assert len(np.unique(even)) > 0.99 * len(even)


def test_wrong_scales_and_shifts_of_large_draws_would_be_seen():
    draws = fill_normal(np.empty(1_000_000, np.float32), seeded(12))
    assert abs(draws.mean(dtype=float)) < 6e-3
    assert abs(draws.std(dtype=float) - 1) < 6 / 2**0.5 * 1e-3
    for level in (1, 2, 3, 4):
        expected = 2 * stats.norm.sf(level)
        assert abs((np.abs(draws) > level).mean() - expected) < 6 * (expected / len(draws)) ** 0.5


@pytest.mark.parametrize("size", [1000, 600_001], ids=["one stream", "two streams"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rng", [seeded(10), secure()], ids=["seeded", "secure"])
def test_filling_draws_standard_normals(size, dtype, rng):
    draws = fill_normal(np.full(size, np.nan, dtype), rng)
    assert stats.kstest(draws, stats.norm.cdf).pvalue > 1e-8
    halves = draws[: size // 2], draws[size // 2 : size // 2 * 2]
    assert abs(np.corrcoef(*halves)[0, 1]) * (size // 2) ** 0.5 < 6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_filling_repeats_under_a_seed_and_moves_the_generator_on(dtype):
    def empty():
        return np.empty((300, 1000), dtype)

    rng = seeded(11)
    first = fill_normal(empty(), rng)
    saved = rng.bit_generator.state
    second = fill_normal(empty(), rng)
    assert np.array_equal(first, fill_normal(empty(), seeded(11)))
    assert not np.array_equal(first, second)
    resumed = seeded(0)
    resumed.bit_generator.state = saved
    assert np.array_equal(second, fill_normal(empty(), resumed))


@pytest.mark.parametrize("out", [np.empty((4, 4))[:, ::2], np.empty(3, int), np.empty(3, np.float16)])
def test_filling_refuses_what_it_cannot_fill(out):
    with pytest.raises(InvalidInput):
        fill_normal(out, seeded(0))
