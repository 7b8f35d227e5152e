"""A client may send anything: what does not parse is a refused update, and the federation goes on."""

import importlib.util
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'sordina[federated]'")

from flwr.app import Array, ArrayRecord, RecordDict

_spec = importlib.util.spec_from_file_location("engine_tests", Path(__file__).with_name("test_engine.py"))
engine_tests = importlib.util.module_from_spec(_spec)
sys.modules["engine_tests"] = engine_tests
_spec.loader.exec_module(engine_tests)

HOSTILE = 102
STYPE = "numpy.ndarray"


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def header(text):
    """An .npy file with a header of the sender's choice and no values."""
    words = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words


def npz():
    file = io.BytesIO()
    np.savez(file, a=np.zeros((1, 2)))
    return file.getvalue()


def zipped():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", npy(np.zeros((1, 2))))
    return file.getvalue()[:-10]


def ours(dtype, shape, data):
    """An array in our format, with fields that Flower's constructor would not take but its network does."""
    array = Array("float64", (1, 2), "sordina.little-endian", data)
    array.dtype, array.shape = dtype, shape
    return array


KINDS = {
    "big-endian": lambda: Array(">f8", (1, 2), STYPE, npy(np.ones((1, 2), ">f8"))),
    "float128": lambda: Array("float128", (1, 2), STYPE, npy(np.ones((1, 2), np.longdouble))),
    "npz": lambda: Array("float64", (1, 2), STYPE, npz()),
    "broken zip": lambda: Array("float64", (1, 2), STYPE, zipped()),
    "2**60 numbers": lambda: Array(
        "uint8", (2**60,), STYPE, header("{'descr': '|u1', 'fortran_order': False, 'shape': (1152921504606846976,)}")
    ),
    "nested": lambda: Array("float64", (1, 2), STYPE, header("(" * 4000 + ")" * 4000)),
    "ours, 2**60 numbers": lambda: ours("float64", (2**60,), b"\0" * 16),
    "ours, nested shape": lambda: ours("float64", ((1,), 2), b"\0" * 16),
    "ours, no shape": lambda: ours("float64", "12", b"\0" * 16),
    "ours, bytes missing": lambda: ours("float64", (1, 2), b"\0" * 15),
    "ours, objects": lambda: ours("object", (1, 2), b"\0" * 16),
}


@pytest.mark.parametrize("name", ["fedavg", "central", "metric"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_parse_is_a_refused_update(kind, name, tmp_path):
    method = engine_tests.methods()[name]
    word = "vectors" if name == "metric" else "sum-0"

    def tamper(node, reply):
        if node == HOSTILE:
            record = ArrayRecord()
            record[word] = KINDS[kind]()
            reply.content = RecordDict({"letter": record})
        return reply

    engine = engine_tests.on_flower(method, tmp_path, tamper=tamper)
    result = engine_tests.go(method, engine, rounds=3)
    assert len(result.history) == 3
    assert torch.isfinite(result.models).all()
    asked = sum(message.metadata.dst_node_id == HOSTILE for message in engine.grid.instructions)
    refused = [one for each in result.history for one in each.refused]
    assert asked == len(refused)
    assert {one.sender for one in refused} == ({2} if asked else set())
    assert all("malformed" in one.reason for one in refused)


def test_a_reply_that_breaks_flowers_own_reader_takes_no_other_with_it(tmp_path):
    """A pull of several confirms some before it fails at one, so that they would be lost: one pull per reply."""
    method = engine_tests.methods()["fedavg"]
    engine = engine_tests.on_flower(method, tmp_path)
    honest = engine.grid.pull_messages
    node_of = {}

    def pull(ids):
        found = honest(ids)
        for one in found:
            if one.metadata.src_node_id == HOSTILE or node_of.get(one.metadata.reply_to_message_id) == HOSTILE:
                raise json.JSONDecodeError("broken", "", 0)
        return found

    push = engine.grid.push_messages

    def pushed(messages):
        messages = list(messages)
        ids = push(messages)
        node_of.update(zip(ids, (one.metadata.dst_node_id for one in messages), strict=True))
        return ids

    engine.grid.pull_messages, engine.grid.push_messages = pull, pushed
    result = engine_tests.go(method, engine, rounds=3)
    assert sum(one.answered for one in result.history) + sum(len(one.refused) for one in result.history) == 12
    assert {one.sender for each in result.history for one in each.refused} == {2}


def test_a_lost_connection_is_not_blamed_on_a_client(tmp_path):
    method = engine_tests.methods()["fedavg"]
    engine = engine_tests.on_flower(method, tmp_path)

    def pull(ids):
        raise ConnectionError("the SuperLink is gone")

    engine.grid.pull_messages = pull
    with pytest.raises(ConnectionError):
        engine_tests.go(method, engine, rounds=1)
