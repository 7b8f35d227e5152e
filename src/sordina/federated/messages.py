"""What passes between server and clients, as plain arrays: on a network, and in a checkpoint.

server --Arrays--> work of the client -> ClientResult -> clipping, noise --ClientUpdate--> server's half of the
    placement -> Release -> strategy

A `ClientResult` holds raw updates and never leaves the client. A `ClientUpdate` is what leaves it: sums that are
clipped and about to be noised by a trusted server, or vectors that were sanitised already. A `Release`
is all a strategy sees.

Where a federation stands, in one file: a line of JSON and arrays, with a check sum before both.

Only public state and released values go into it, and of a generator its state only if it is a seeded one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput

Arrays: TypeAlias = Mapping[str, Tensor]
"""Named arrays, the only thing a server sends."""


@dataclass(frozen=True)
class ClientResult:
    """What the clients of a cohort computed; one row per client. Stays on the clients' side."""

    vectors: Tensor
    """``(U, D)``: updates, gradients, or whole models."""
    sizes: Tensor
    """``(U,)``: how many rows each client trained on; a secret, like everything here."""
    anchors: Tensor | None = None
    """``(U, D)``: the public point each vector started from; None means zero."""
    record_bound: float | None = None
    """How far one *record* can move a client's vector, in L2 norm, where the work bounded it."""

    def moved_by(self) -> Tensor:
        """``xi``, how far each client's vector went from its anchor."""
        return self.vectors if self.anchors is None else self.vectors - self.anchors

    def steady(self) -> ClientResult:
        """The same, with a client that did not move in place of one whose vector is not finite, or has no length.

        Nobody can tell it from a client that learnt nothing: it is sanitised, sent and charged like every other.
        """
        sound = self.vectors.norm(dim=1, keepdim=True).isfinite()
        if bool(sound.all()):
            return self
        start = torch.zeros_like(self.vectors) if self.anchors is None else self.anchors.nan_to_num(0.0, 0.0, 0.0)
        anchors = None if self.anchors is None else torch.where(sound, self.anchors, start)
        return ClientResult(torch.where(sound, self.vectors, start), self.sizes, anchors, self.record_bound)

    def keep(self, rows: Tensor) -> ClientResult:
        """Only these clients."""
        anchors = None if self.anchors is None else self.anchors[rows]
        return ClientResult(self.vectors[rows], self.sizes[rows], anchors, self.record_bound)


def joined(results: Sequence[ClientResult]) -> ClientResult:
    """The results of several clients as one.

    Args:
        results: Of the same work, in the order of the clients.
    """
    anchors = [one.anchors for one in results if one.anchors is not None]
    vectors, counts = (torch.cat(each) for each in zip(*((one.vectors, one.sizes) for one in results), strict=True))
    return ClientResult(vectors, counts, torch.cat(anchors) if anchors else None, results[0].record_bound)


@dataclass(frozen=True)
class Refusal:
    """Who was turned away, and why; for the operator of the server."""

    sender: int
    reason: str


@dataclass(frozen=True)
class ClientUpdate:
    """What leaves the clients: sums over clients, sanitised vectors, or both. Updates add up in any grouping."""

    sums: tuple[Tensor, ...] = ()
    vectors: Tensor | None = None
    """``(clients, D)``, one sanitised (or, without privacy, raw) vector per client that answered."""
    answered: int = 0
    """How many clients are in the sums or vectors."""
    rejected: int = 0
    """How many updates were not finite and were dropped."""
    withheld: int = 0
    """How many clients kept their update because their account allows no more."""
    senders: tuple[int, ...] = ()
    """Whose vectors these are, row by row."""
    dropped: int = 0
    """How many clients were asked and never heard of."""
    refused: tuple[Refusal, ...] = ()
    """What arrived and was turned away."""

    def each(self) -> tuple[Tensor, ...]:
        """As many numbers as one client sent."""
        return self.sums if self.vectors is None else (*self.sums, self.vectors[:1])

    def __add__(self, other: ClientUpdate) -> ClientUpdate:
        sums = tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)) if self.sums and other.sums else ()
        stacks = [part for part in (self.vectors, other.vectors) if part is not None]
        return ClientUpdate(
            sums or self.sums or other.sums,
            torch.cat(stacks) if stacks else None,
            self.answered + other.answered,
            self.rejected + other.rejected,
            self.withheld + other.withheld,
            self.senders + other.senders,
            self.dropped + other.dropped,
            self.refused + other.refused,
        )


@dataclass(frozen=True)
class Release:
    """What the server may use: a mean and, unless only the mean is private, the vectors it was made of."""

    mean: Tensor
    vectors: Tensor | None = None
    senders: tuple[int, ...] | None = None
    """Whose vectors these are: whoever receives them knows."""


# Updates and public state as named plain arrays: the one form that crosses a network, and its parser.

# The one form in which arrays cross a network, and its parser, which believes nothing it reads.
#
# An array travels as four fields: the name of its dtype, its shape, the name of this format, and its values as raw
# little-endian bytes in C order. There is no header to interpret, nothing is unpickled or unzipped, and a parser never
# allocates more than the bytes that came.
#
# =======================  ======================================================================
# field                    what is refused
# =======================  ======================================================================
# format                   anything but `FORMAT` (an .npy, an .npz, a tensor of another library)
# dtype                    any name not in `DTYPES`: other byte orders, float128, objects, text
# shape                    more than 8 dimensions, entries that are no integers or negative
# data                     no bytes, or not exactly as many as dtype and shape say
# =======================  ======================================================================

FORMAT = "sordina.little-endian"
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("bool", "uint8", "int32", "int64", "float32", "float64")}
_DIMENSIONS = 8


def encode(array: NDArray[Any]) -> tuple[str, tuple[int, ...], str, bytes]:
    """dtype, shape, format and data of an array.

    Args:
        array: Numbers of one of the kinds in `DTYPES`.

    >>> encode(np.array([[1, 2]], dtype=np.uint8))
    ('uint8', (1, 2), 'sordina.little-endian', b'\\x01\\x02')
    """
    name = array.dtype.newbyteorder("=").name
    if name not in DTYPES:
        raise InvalidInput(f"cannot send an array of {array.dtype}: use one of {', '.join(DTYPES)}.")
    return name, tuple(int(one) for one in array.shape), FORMAT, array.astype(DTYPES[name], copy=False).tobytes()


def decode(dtype: object, shape: object, form: object, data: object) -> NDArray[Any]:
    """The array in four foreign fields, or an `InvalidInput` that quotes none of them.

    Args:
        dtype: What should be a name in `DTYPES`.
        shape: What should be a sequence of integers.
        form: What should be `FORMAT`.
        data: What should be the values.

    >>> decode(*encode(np.array([[0.5, 2.0]]))).tolist()
    [[0.5, 2.0]]
    """
    if type(form) is not str or form != FORMAT:
        raise InvalidInput("malformed: an array in a format that is not ours")
    if type(dtype) is not str or dtype not in DTYPES:
        raise InvalidInput("malformed: an array of a dtype that is never sent")
    if not isinstance(shape, Sequence) or isinstance(shape, str | bytes) or len(shape) > _DIMENSIONS:
        raise InvalidInput("malformed: an array without a proper shape")
    if any(type(one) is not int or one < 0 for one in shape):
        raise InvalidInput("malformed: an array without a proper shape")
    if type(data) is not bytes or math.prod(shape) * DTYPES[dtype].itemsize != len(data):
        raise InvalidInput("malformed: an array whose bytes do not fit its shape")
    if dtype == "bool" and data.strip(b"\x00\x01"):
        raise InvalidInput("malformed: truth values other than 0 and 1")
    return np.frombuffer(data, dtype=DTYPES[dtype]).reshape(tuple(shape)).astype(dtype)


# Public state as named plain arrays, for engines whose clients are elsewhere.
#
# `pack` turns nested frozen dataclasses, tuples, numbers and tensors into ``{path: array}``; `unpack` rebuilds them
# from the arrays and a template, which tells the classes (a client makes one with ``placement.start(size)``). Nothing
# is pickled, so nothing that arrives can run. The end of a path says what was there: t tensor, f float, i integer, b
# boolean, # the length of a tuple; None leaves no trace.

Packed = Mapping[str, NDArray[Any]]
_LONGEST = 4096
"""No public state holds a longer tuple: a larger number in a message is a mistake or an attack."""


def pack(value: Any, path: str = "") -> dict[str, NDArray[Any]]:
    """``value`` as arrays.

    >>> sorted(pack((1.5, None, torch.zeros(2))))
    ['/0:f', '/2:t', ':#']
    """
    if value is None:
        return {}
    if is_dataclass(value):
        inner = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, tuple):
        inner = {str(place): part for place, part in enumerate(value)}
    elif isinstance(value, torch.Tensor):
        return {f"{path}:t": value.detach().cpu().numpy()}
    elif isinstance(value, bool | int | float):
        return {f"{path}:{type(value).__name__[0]}": np.asarray(value)}
    else:
        raise InvalidInput(f"cannot send a {type(value).__name__} at {path or 'the top'} as arrays.")
    arrays: dict[str, NDArray[Any]] = {f"{path}:#": np.asarray(len(value))} if isinstance(value, tuple) else {}
    for name, part in inner.items():
        arrays |= pack(part, f"{path}/{name}")
    return arrays


def unpack(arrays: Packed, like: Any, path: str = "") -> Any:
    """What was packed, with the classes of ``like``."""
    for kind in "tfib":
        if f"{path}:{kind}" in arrays:
            return _leaf(arrays[f"{path}:{kind}"], kind)
    if f"{path}:#" in arrays:
        count = int(_leaf(arrays[f"{path}:#"], "i"))
        if not 0 <= count <= _LONGEST:
            raise InvalidInput(f"a tuple of {count} parts at {path or 'the top'} is not what the other side sends.")
        templates = [*(like if isinstance(like, tuple) else ()), *[None] * count]
        return tuple(unpack(arrays, templates[place], f"{path}/{place}") for place in range(count))
    names = {re.split("[/:]", key[len(path) + 1 :])[0] for key in arrays if key.startswith(f"{path}/")}
    if is_dataclass(like) and not isinstance(like, type):
        known = [field.name for field in fields(like)]
        if unknown := names - set(known):
            raise InvalidInput(f"{type(like).__name__} has no field {min(unknown)!r}: the two sides do not match.")
        return type(like)(**{name: unpack(arrays, getattr(like, name), f"{path}/{name}") for name in known})
    if names or any(key.startswith(f"{path}:") for key in arrays):
        raise InvalidInput(f"unexpected structure at {path or 'the top'}: the two sides do not match.")
    return None


def _leaf(array: NDArray[Any], kind: str) -> Any:
    if array.dtype.kind not in "fiub" or not array.dtype.isnative or array.dtype.itemsize > 8:
        raise InvalidInput(f"numbers were expected, an array of {array.dtype} came: the two sides do not match.")
    if kind == "t":
        return torch.from_numpy(np.array(array))
    if array.ndim:
        raise InvalidInput(f"a number was expected, an array of shape {array.shape} came: the two sides do not match.")
    return {"f": float, "i": int, "b": bool}[kind](array)


# What a client writes back, as named arrays: its numbers and nothing else, or the one word that it sends none.

VECTORS, SUM, WITHHELD, REJECTED = "vectors", "sum-", "withheld", "rejected"


def arrays_of_update(update: ClientUpdate) -> dict[str, NDArray[Any]]:
    """One client's update. Counts stay at home: a message is from one client, so they say nothing.

    >>> import torch
    >>> update = ClientUpdate((torch.zeros(2), torch.tensor(1.0)), answered=1)
    >>> sorted(arrays_of_update(update)), sorted(arrays_of_update(ClientUpdate(withheld=1)))
    (['sum-0', 'sum-1'], ['withheld'])
    """
    for count, word in ((update.withheld, WITHHELD), (update.rejected, REJECTED)):
        if count:
            return {word: np.zeros(0, dtype=np.uint8)}
    arrays = {f"{SUM}{place}": one.detach().cpu().numpy() for place, one in enumerate(update.sums)}
    if update.vectors is not None:
        arrays[VECTORS] = update.vectors.detach().cpu().numpy()
    return arrays


def update_of_arrays(arrays: Mapping[str, NDArray[Any]]) -> ClientUpdate:
    """The update in a message; a message of any other form is refused."""
    words = set(arrays)
    if words == {WITHHELD}:
        return ClientUpdate(withheld=1)
    if words == {REJECTED}:
        return ClientUpdate(rejected=1)
    sums = [f"{SUM}{place}" for place in range(len(words - {VECTORS}))]
    if not words or words != {*sums, *(words & {VECTORS})}:
        raise InvalidInput(f"malformed: a message of {len(words)} arrays, named as no client of ours names them")
    numbers: dict[str, Tensor] = {name: unpack({":t": arrays[name]}, None) for name in words}
    rows = numbers.get(VECTORS)
    if rows is not None and (rows.dim() != 2 or len(rows) != 1):
        raise InvalidInput("malformed: one client sends one vector")
    return ClientUpdate(tuple(numbers[name] for name in sums), rows)


# How many bytes a message has: its numbers, without the transport's own.


def weight(message: Any) -> int:
    """The bytes of named arrays, or of anything that can be packed.

    >>> import torch
    >>> weight({"model": torch.zeros(10)}), weight((torch.zeros(3, dtype=torch.uint8),)), weight(None)
    (40, 3, 0)
    """
    parts = message.values() if isinstance(message, Mapping) else [message]
    packed = [pack(part) for part in parts]
    return sum(array.nbytes for part in packed for path, array in part.items() if not path.endswith("#"))


# Where a federation stands, in one file: a line of JSON and arrays, with a check sum before both.

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
