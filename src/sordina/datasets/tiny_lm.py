"""A language model of 260 032 weights that speaks: TinyStories, by Karpathy, with its tokenizer of 512 pieces.

The file's layout is llama2.c's: seven int32 sizes, then float32 matrices, (out, in) and row-major. Its rotary embedding
turns neighbouring dimensions (0, 1), (2, 3), ...; transformers turns (0, half), (1, half + 1), ..., so the rows of the
query and key matrices are put in that order.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordina.datasets.data import File, obtain
from sordina.errors import InvalidInput, Unsupported
from sordina.progress import StagedProgress

_URL = "https://huggingface.co/karpathy/tinyllamas/resolve/main/stories260K/"
WEIGHTS = File(
    "tiny-lm/stories260K.bin",
    "sha256:b0a507e7ad0f626624f17112325e66691f9076d622e1d3274d103d00299f2696",
    (f"{_URL}stories260K.bin",),
)
PIECES = File(
    "tiny-lm/tok512.bin",
    "sha256:037cb335abb25d1fa9e8ecae30ed2a3a8ace9302862ebcdc05d51a6bbb10c312",
    (f"{_URL}tok512.bin",),
)
BEGIN = 1
_FIRST_BYTE = 3


@dataclass(frozen=True)
class Tokenizer:
    """Byte-pair encoding: the pair of neighbours whose union scores highest is merged, until none has a union."""

    pieces: tuple[bytes, ...]
    scores: tuple[float, ...]

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {piece: index for index, piece in enumerate(self.pieces)}

    def encode(self, text: str, *, begin: bool = False) -> list[int]:
        """Token ids of ``text``; a text that begins a document takes `BEGIN` first, and a space."""
        tokens: list[int] = []
        for character in f" {text}" if begin else text:
            encoded = character.encode()
            tokens += [self._ids[encoded]] if encoded in self._ids else [byte + _FIRST_BYTE for byte in encoded]
        while (best := self._best_union(tokens)) is not None:
            place, union = best
            tokens[place : place + 2] = [union]
        return [BEGIN, *tokens] if begin else tokens

    def _best_union(self, tokens: list[int]) -> tuple[int, int] | None:
        unions = [self._ids.get(self.pieces[a] + self.pieces[b]) for a, b in pairwise(tokens)]
        found = [(place, union) for place, union in enumerate(unions) if union is not None]
        return max(found, key=lambda pair: self.scores[pair[1]], default=None)

    def decode(self, tokens: list[int]) -> str:
        """The text that ``tokens`` spell."""
        spelled = b"".join(self._piece(token) for token in tokens if token != BEGIN)
        return spelled.decode(errors="replace")

    def _piece(self, token: int) -> bytes:
        if _FIRST_BYTE <= token < _FIRST_BYTE + 256:
            return bytes([token - _FIRST_BYTE])
        return self.pieces[token]


def load_tokenizer(*, progress: StagedProgress | None = None) -> Tokenizer:
    """The 512 pieces."""
    content = obtain(PIECES, progress=progress).read_bytes()
    place, pieces, scores = 4, [], []
    while place < len(content):
        score, length = struct.unpack_from("<fi", content, place)
        place += 8
        pieces.append(content[place : place + length])
        scores.append(score)
        place += length
    return Tokenizer(tuple(pieces), tuple(scores))


def _halves(weight: Tensor, heads: int) -> Tensor:
    size = weight.shape[0] // heads
    return weight.reshape(heads, size // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


def _matrices(content: bytes, sizes: tuple[int, ...]) -> dict[str, Tensor]:
    dim, hidden, layers, heads, kv_heads, words, _ = sizes
    narrow = dim * kv_heads // heads
    shapes = {
        "embed_tokens": (words, dim),
        "input_layernorm": (layers, dim),
        "self_attn.q_proj": (layers, dim, dim),
        "self_attn.k_proj": (layers, narrow, dim),
        "self_attn.v_proj": (layers, narrow, dim),
        "self_attn.o_proj": (layers, dim, dim),
        "post_attention_layernorm": (layers, dim),
        "mlp.gate_proj": (layers, hidden, dim),
        "mlp.down_proj": (layers, dim, hidden),
        "mlp.up_proj": (layers, hidden, dim),
        "norm": (dim,),
    }
    values, place, matrices = np.frombuffer(content, "<f4", offset=28), 0, {}
    if sum(math.prod(shape) for shape in shapes.values()) > values.size:
        raise InvalidInput(f"{WEIGHTS.path} is cut short: {values.size} numbers for sizes {sizes}.")
    for name, shape in shapes.items():
        count = math.prod(shape)
        matrices[name] = torch.from_numpy(values[place : place + count].reshape(shape).copy())
        place += count
    return matrices


def load_model(*, progress: StagedProgress | None = None) -> Any:
    """The weights as a ``transformers.LlamaForCausalLM``, in float32."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise Unsupported("the tiny language model needs transformers: pip install 'sordina[llm]'.") from error
    content = obtain(WEIGHTS, progress=progress).read_bytes()
    sizes = struct.unpack_from("<7i", content)
    dim, hidden, layers, heads, kv_heads, words, positions = sizes
    matrices = _matrices(content, sizes)
    state = {"model.embed_tokens.weight": matrices.pop("embed_tokens"), "model.norm.weight": matrices.pop("norm")}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    for name, stacked in matrices.items():
        for layer, weight in enumerate(stacked):
            order = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}.get(name)
            state[f"model.layers.{layer}.{name}.weight"] = weight if order is None else _halves(weight, order)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=dim,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=positions,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=BEGIN,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.eval()


def load_transformers_tokenizer(*, progress: StagedProgress | None = None) -> Any:
    """The same pieces as a ``transformers.PreTrainedTokenizerFast``: a text begins with `BEGIN`.

    Every way to split a piece into two others is a merge, and the piece with the highest score is merged first.
    """
    try:
        from tokenizers import Tokenizer as Fast
        from tokenizers import decoders, models, normalizers, processors
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise Unsupported("the tiny language model needs transformers: pip install 'sordina[llm]'.") from error
    known = load_tokenizer(progress=progress)
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [piece.decode() for piece in known.pieces[len(names) :]]
    code = {name: index for index, name in enumerate(names)}
    merges = [
        (-known.scores[code[name]], code[name], name[:place], name[place:])
        for name in names[_FIRST_BYTE + 256 :]
        for place in range(1, len(name))
        if name[:place] in code and name[place:] in code
    ]
    pairs = [(left, right) for _, _, left, right in sorted(merges)]
    fast = Fast(models.BPE(vocab=code, merges=pairs, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    fast.normalizer = normalizers.Prepend(" ")
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BEGIN)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )


def save_pretrained(folder: str | Path, *, progress: StagedProgress | None = None) -> Path:
    """Write model and tokenizer as `transformers` reads them; returns the folder.

    Args:
        folder: Where to.
        progress: Told of downloads.
    """
    load_model(progress=progress).save_pretrained(folder)
    load_transformers_tokenizer(progress=progress).save_pretrained(folder)
    return Path(folder)
