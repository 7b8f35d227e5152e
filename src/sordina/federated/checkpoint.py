"""Where a federation stands, in one file: a line of JSON and arrays, with a check sum before both.

Only public state and released values go into it, and of a generator its state only if it is a seeded one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.federated.serialization import decode, encode

CHECKPOINT = "checkpoint.bin"
GRAPH = "graph.json"
"""The seed of a run's graph, where one is drawn: public, and the same for the whole life of the run."""


def packed(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """One line of JSON that says what follows, then the arrays' bytes end to end; a check sum before both.

    Args:
        facts: Plain data.
        arrays: Arrays by name.
    """
    parts = {name: encode(np.asarray(value)) for name, value in arrays.items()}
    index = {name: [dtype, shape, form, len(data)] for name, (dtype, shape, form, data) in parts.items()}
    content = (
        json.dumps({"facts": facts, "arrays": index}).encode() + b"\n" + b"".join(one[3] for one in parts.values())
    )
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def unpacked(content: bytes, path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What `packed` made; a damaged file is refused.

    Args:
        content: The file's bytes.
        path: Its name, for the message.
    """
    told, _, rest = content.partition(b"\n")
    if told != hashlib.sha256(rest).hexdigest().encode():
        raise InvalidInput(f"{path} is damaged: begin a new run in another folder.")
    first, _, data = rest.partition(b"\n")
    try:
        document = json.loads(first)
        arrays, place = {}, 0
        for name, (dtype, shape, form, length) in document["arrays"].items():
            arrays[name] = decode(dtype, shape, form, data[place : place + int(length)])
            place += int(length)
        return document["facts"], arrays
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"{path} is damaged: begin a new run in another folder.") from error


def generator_facts(rng: np.random.Generator) -> dict[str, Any]:
    """The state of a seeded generator, as plain data.

    Args:
        rng: The generator.
    """
    state: dict[str, Any] = dict(rng.bit_generator.state)
    return state
