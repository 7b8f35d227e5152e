"""The secure stream is AES, is nobody's copy, and is told apart from a seed."""

from __future__ import annotations

import copy
import ctypes
import os
import pickle
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from randomgen import AESCounter

from sordina.errors import InvalidInput
from sordina.random import add_gaussian, generator, generators, releasable, secure, seeded
from sordina.random.generators import BitStream, SecureStream, bit_stream


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


def by_os():
    return os.fork()


def by_libc():
    """A fork that Python knows nothing of: its handlers do not run."""
    return ctypes.CDLL(None).fork()


def in_child(fork, draw):
    """What a forked child draws, and what its parent draws."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        try:
            os.write(writer, draw())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        return file.read(), draw()


def bulk(rng):
    values = np.zeros(1000, np.float32)
    add_gaussian(values, 1.0, rng)
    return values.tobytes()


DRAWS = {
    "bytes": lambda rng: rng.bytes(16),
    "integers": lambda rng: rng.integers(1 << 62, size=8).tobytes(),
    "bulk noise": bulk,
    "the stream itself": lambda rng: rng.bit_generator.random_raw(4).tobytes(),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
@pytest.mark.parametrize("fork", [by_os, by_libc], ids=["os.fork", "libc"])
def test_a_forked_child_draws_something_else(fork, draw):
    rng = secure()
    draw(rng)
    theirs, ours = in_child(fork, lambda: draw(rng))
    assert len(theirs) == len(ours) > 0
    assert theirs != ours


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_with_its_parents_number_draws_something_else(monkeypatch):
    """As in another namespace of process numbers: only the wiped page tells."""
    if generators._FORK_SIGN._page is None:
        pytest.skip("this system has no page that is wiped in a child")
    rng = secure()
    rng.bytes(1)
    monkeypatch.setattr(generators.os, "getpid", lambda: 1)
    rng.bytes(1)
    theirs, ours = in_child(by_libc, lambda: rng.bytes(16))
    assert theirs != ours


def test_the_check_is_what_finds_it():
    """A plain numpy generator over the same stream repeats itself in a child: it does not count as releasable."""
    plain = np.random.Generator(SecureStream())
    assert not releasable(plain)
    theirs, ours = in_child(by_libc, lambda: plain.bytes(16))
    assert theirs == ours


def test_a_restored_snapshot_goes_on_under_another_key(monkeypatch):
    """The clock jumps, forwards or back: the stream that would have gone on is not the one that does."""
    for jump in (3600.0, -3600.0):
        rng = secure()
        stream = object.__getattribute__(rng, "bit_generator")
        rng.bytes(1)
        before = stream.state
        now = generators.time.time()
        monkeypatch.setattr(generators.time, "time", lambda now=now, jump=jump: now + jump)
        first = rng.bytes(16)
        monkeypatch.undo()
        stream.state = before
        assert first != np.random.Generator(stream).bytes(16)


def test_bulk_noise_of_copied_ciphers_differs(monkeypatch):
    """Two copies of a process have the same cipher; each call begins at a point of its own."""
    rng = secure()
    assert bulk(rng) != bulk(rng)
    starts = set()
    genuine = generators.os.urandom
    monkeypatch.setattr(generators.os, "urandom", lambda n: starts.add(drawn := genuine(n)) or drawn)
    for _ in range(20):
        bit_stream(rng)
    assert len(starts) >= 20


def test_threads_do_not_share_bulk_noise():
    rng, found = secure(), []
    threads = [threading.Thread(target=lambda: found.extend(bulk(rng) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 80


def test_the_bit_stream_is_aes_128():
    """Its blocks are the encrypted counters 0, 1, ... under the key that the generator gave."""
    key = seeded(4).bytes(16)
    memory = bytearray(32)
    bit_stream(seeded(4)).fill(memoryview(memory))
    assert memory == Cipher(AES(key), ECB()).encryptor().update(bytes(15) + b"\0" + bytes(15) + b"\1")


def test_the_bit_stream_goes_on_over_long_memory():
    whole, parts = bytearray(700_000), bytearray(700_000)
    bit_stream(seeded(4)).fill(memoryview(whole))
    stream: BitStream = bit_stream(seeded(4))
    for start in range(0, 700_000, 1000):
        stream.fill(memoryview(parts)[start : start + 1000])
    assert whole == parts
    assert len({bytes(whole[i : i + 16]) for i in range(0, 700_000, 16)}) == 43_750
