"""The parser of foreign arrays: what was encoded comes back, anything else is refused, whatever it is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordina.errors import InvalidInput
from sordina.federated.messages import DTYPES, FORMAT, decode, encode

anything = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers()), st.tuples(st.integers())
)
dtypes = st.one_of(st.sampled_from([*DTYPES, ">f8", "float128", "object", "U8", "", "complex128"]), anything)
shapes = st.one_of(
    st.lists(st.one_of(st.integers(-3, 5), st.sampled_from([2**31, 2**60, 2**63, True, 1.0])), max_size=10).map(tuple),
    st.recursive(st.integers(0, 3), lambda inner: st.lists(inner, max_size=3)),
    anything,
)


@given(dtypes, shapes, st.one_of(st.just(FORMAT), anything), st.one_of(st.binary(max_size=64), anything))
@settings(max_examples=500, deadline=None)
def test_foreign_fields_are_an_array_of_theirs_or_refused(dtype, shape, form, data):
    try:
        array = decode(dtype, shape, form, data)
    except InvalidInput:
        return
    assert (array.dtype.name, list(array.shape), form) == (dtype, list(shape), FORMAT)
    assert array.nbytes == len(data)


@pytest.mark.parametrize("name", DTYPES)
def test_what_was_encoded_comes_back(name):
    array = np.arange(6).reshape(2, 3, 1).astype(name)
    again = decode(*encode(array.astype(array.dtype.newbyteorder(">"))))
    assert again.dtype == array.dtype
    assert again.dtype.isnative
    assert np.array_equal(again, array)
    assert again.flags.writeable


def test_nothing_but_numbers_is_sent():
    for bad in (np.array(["text"]), np.array([None]), np.zeros(1, np.longdouble), np.zeros(1, complex)):
        with pytest.raises(InvalidInput, match="cannot send"):
            encode(bad)
