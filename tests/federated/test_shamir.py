"""Secret shares and agreed keys."""

import contextlib
import secrets

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordina.errors import InvalidInput
from sordina.federated.decentralized import key_agreement
from sordina.federated.decentralized.key_agreement import KeyPair, decrypt, encrypt, shared_key, words


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.integers(0, 8), st.randoms())
def test_any_threshold_of_shares_gives_the_secret(secret, threshold, more, random):
    points = random.sample(range(1, 1000), threshold + more)
    shares = key_agreement.split(secret, threshold, points)
    chosen = random.sample(points, threshold)
    assert key_agreement.combine({point: shares[point] for point in chosen}, threshold) == secret


def test_fewer_shares_fit_every_secret():
    """With threshold - 1 shares, every secret has exactly one polynomial through them: they say nothing."""
    shares = key_agreement.split(bytes(32), 3, [1, 2, 3])
    seen = {key_agreement.split(secrets.token_bytes(32), 3, [1, 2, 3])[1] for _ in range(20)}
    assert len(seen) == 20
    with pytest.raises(InvalidInput, match="3 shares are needed, 2 are there"):
        key_agreement.combine({1: shares[1], 2: shares[2]}, 3)


def test_shares_that_were_changed_do_not_give_the_secret():
    secret = secrets.token_bytes(32)
    shares = key_agreement.split(secret, 2, [1, 2])
    shares[1] = bytes([shares[1][0], *[byte ^ 1 for byte in shares[1][1:]]])
    with contextlib.suppress(InvalidInput):
        assert key_agreement.combine(shares, 2) != secret
    with pytest.raises(InvalidInput, match="not a valid share"):
        key_agreement.combine({1: b"\xff" * 33, 2: shares[2]}, 2)


@pytest.mark.parametrize(("secret", "threshold", "points"), [
    (b"short", 1, [1]), (bytes(32), 0, [1]), (bytes(32), 3, [1, 2]), (bytes(32), 2, [1, 1]), (bytes(32), 1, [0]),
])  # fmt: skip
def test_bad_arguments_are_refused(secret, threshold, points):
    with pytest.raises(InvalidInput):
        key_agreement.split(secret, threshold, points)


def test_letters_are_for_one_reader():
    one, other, third = KeyPair.fresh(), KeyPair.fresh(), KeyPair.fresh()
    letter = encrypt(shared_key(one, other.public, b"shares"), b"hello")
    assert decrypt(shared_key(other, one.public, b"shares"), letter) == b"hello"
    for key in (shared_key(third, one.public, b"shares"), shared_key(other, one.public, b"masks")):
        with pytest.raises(InvalidInput):
            decrypt(key, letter)
    with pytest.raises(InvalidInput):
        decrypt(shared_key(other, one.public, b"shares"), letter[:-1] + bytes([letter[-1] ^ 1]))
    with pytest.raises(InvalidInput, match="public key"):
        shared_key(one, bytes(32), b"shares")


def test_words_are_uniform_and_differ_by_key():
    from scipy.stats import chisquare

    drawn = words(secrets.token_bytes(32), 200_000)
    assert chisquare([int((drawn >> 28 == top).sum()) for top in range(16)]).pvalue > 1e-6
    assert chisquare([int((drawn & 15 == low).sum()) for low in range(16)]).pvalue > 1e-6
    assert (words(bytes(32), 8) != words(bytes(31) + b"x", 8)).any()


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 6), st.randoms(use_true_random=False))
def test_wrong_shares_are_found_up_to_half_of_those_beyond_the_threshold(secret, threshold, more, random):
    points = random.sample(range(1, 50), threshold + more)
    shares = key_agreement.split(secret, threshold, points)
    bad = random.sample(points, more // 2)
    spoiled = shares | {one: bytes(1) + random.randbytes(32) for one in bad}
    found, wrong = key_agreement.correct(spoiled, threshold)
    assert found == secret
    assert wrong == sorted(one for one in bad if spoiled[one] != shares[one])
