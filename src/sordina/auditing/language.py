"""Audit a fine-tuned language model: all attacks on texts, beside the base model it started from.

    found = audit_language_model(model, base, members, non_members, decode=tokenizer.decode)
    print(found.verdict)

Members and non-members are token ids, or texts in files; the model is a folder that `transformers` (or `peft`) opens.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina.auditing.audit import SHADOWED, audit
from sordina.auditing.findings import Audit
from sordina.auditing.membership.attacks import MembershipAttack, NoisyNeighbours
from sordina.auditing.membership.shadows import PlainTraining
from sordina.auditing.membership.target import LanguageModel, Samples, as_samples
from sordina.auditing.membership.text_attacks import TEXT_ATTACKS, TextAttack, TokenView, Zlib
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import check_seed
from sordina.progress import Progress, silent
from sordina.run_folder import RECIPE

FORWARD_ATTACKS = (*TEXT_ATTACKS, "zlib", "noisy", "noisy-referenced")
"""Attacks that train nothing."""
NEED_BASE = ("noisy-referenced", *(name for name, (_, base) in TEXT_ATTACKS.items() if base))


def language_attacks() -> tuple[str, ...]:
    """The names of all attacks on a language model; the last ones train shadow models."""
    return (*FORWARD_ATTACKS, *(name for name in SHADOWED if name not in ("attack-model", "lira-augmented")))


def audit_language_model(
    model: nn.Module,
    base: nn.Module | None,
    members: Any,
    non_members: Any,
    attacks: Sequence[str] | None = None,
    *,
    decode: Callable[[list[int]], str] | None = None,
    neighbours: int = 10,
    batch_size: int = 16,
    recipe: PlainTraining | None = None,
    seed: int | None = None,
    progress: Progress = silent,
    **options: Any,
) -> Audit:
    """Attack ``model`` with every attack on texts that can be run, and bound its epsilon from below.

    Args:
        model: The fine-tuned causal model.
        base: The model it started from; without it the attacks that need it are left out.
        members: Token ids (N, T) of texts that were trained on; negative ids are padding on the right.
        non_members: Those of texts that were not.
        attacks: Names of `language_attacks`; all that train nothing if left out.
        decode: From token ids to text, for zlib.
        neighbours: Noisy copies of each text.
        batch_size: Texts in one forward pass.
        recipe: How shadow models are fine-tuned from the base; should be the target's own way.
        seed: Makes the audit repeatable.
        progress: Told of every shadow model.
        **options: As for `sordina.audit`: claim, confidence, shadows, tuning, and how membership was drawn.
    """
    names = tuple(attacks) if attacks is not None else _possible(base, decode)
    _check(names, base, decode)
    rng = np.random.default_rng(None if seed is None else check_seed(seed))
    view = TokenView(model, batch_size)
    base_view = None if base is None else TokenView(base, batch_size)
    ready: list[str | MembershipAttack] = []
    for name in names:
        if name in TEXT_ATTACKS:
            score, needs_base = TEXT_ATTACKS[name]
            ready.append(TextAttack(name, score, view, base_view if needs_base else None))
        elif name == "zlib" and decode is not None:
            ready.append(Zlib(view, decode))
        elif name in ("noisy", "noisy-referenced"):
            before = LanguageModel(base, batch_size=batch_size) if base is not None and name != "noisy" else None
            knows = "the model's inside (to add noise)" + (", its base's" if before else "") + " and the text"
            ready.append(NoisyNeighbours(rng, neighbours=neighbours, name=name, base=before, knows=knows))
        else:
            ready.append(name)
    inside, outside = same_length(as_samples(members), as_samples(non_members))
    return audit(
        model, inside, outside, ready, recipe=recipe, base=base, seed=None if seed is None else seed + 1,
        progress=progress, **options,
    )  # fmt: skip


def _possible(base: nn.Module | None, decode: Callable[[list[int]], str] | None) -> tuple[str, ...]:
    left_out = (NEED_BASE if base is None else ()) + (("zlib",) if decode is None else ())
    return tuple(name for name in FORWARD_ATTACKS if name not in left_out)


def _check(names: Sequence[str], base: nn.Module | None, decode: Callable[[list[int]], str] | None) -> None:
    unknown = [name for name in names if name not in language_attacks()]
    if unknown or not names:
        named = f"no attack on texts is called {unknown[0]!r}" if unknown else "an audit needs at least one attack"
        raise InvalidInput(f"{named}. Choose from {', '.join(language_attacks())}.")
    needing = [name for name in names if name in NEED_BASE or name in SHADOWED]
    if base is None and needing:
        raise InvalidInput(f"{needing[0]} compares with the base model: give it (--base), or leave the attack out.")
    if decode is None and "zlib" in names:
        raise InvalidInput("zlib compresses the text itself: give decode, from token ids to text.")


def same_length(first: Samples, second: Samples) -> tuple[Samples, Samples]:
    """Both padded on the right, with -1, to the longer of the two."""
    longest = max(first.inputs.shape[1], second.inputs.shape[1])
    padded = [
        torch.nn.functional.pad(part.inputs, (0, longest - part.inputs.shape[1]), value=-1) for part in (first, second)
    ]
    return Samples(padded[0]), Samples(padded[1])


# Models and texts from files.


@dataclass(frozen=True)
class OpenedModel:
    """A causal model and its tokenizer.

    Args:
        model: The model, in evaluation mode.
        tokenizer: What `transformers` found beside it.
    """

    model: Any
    tokenizer: Any

    def tokens(self, texts: Sequence[str], length: int) -> Tensor:
        """(N, T) token ids, at most ``length`` a text, padded on the right with -1; texts of one token are left out."""
        rows = [self.tokenizer(text, truncation=True, max_length=length)["input_ids"] for text in texts]
        rows = [row for row in rows if len(row) > 1]
        if not rows:
            raise InvalidInput("no text has two tokens: there is nothing to predict.")
        longest = max(len(row) for row in rows)
        return torch.tensor([row + [-1] * (longest - len(row)) for row in rows])

    def decode(self, tokens: list[int]) -> str:
        """The text of ``tokens``."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text


def open_causal_model(folder: str | Path, tokenizer: str | Path | None = None) -> OpenedModel:
    """The causal model in ``folder``, a model or a `peft` adapter, without asking the network.

    Args:
        folder: A folder as `save_pretrained` leaves it, or a run that holds one as ``model``.
        tokenizer: The folder of the tokenizer, if it is not beside the model.
    """
    place = Path(folder)
    if not (place / "config.json").exists() and not (place / "adapter_config.json").exists():
        place = place / "model" if (place / "model").is_dir() else place
    if not (place / "config.json").exists() and not (place / "adapter_config.json").exists():
        there = "has no config.json or adapter_config.json" if place.is_dir() else "is not there"
        raise InvalidInput(f"{folder} {there}: give a folder as save_pretrained leaves it. Nothing is downloaded.")
    try:
        import transformers
    except ImportError as error:
        raise Unsupported("language models need transformers: pip install 'sordina[llm]'.") from error
    try:
        if (place / "adapter_config.json").exists():
            from peft import AutoPeftModelForCausalLM

            model = AutoPeftModelForCausalLM.from_pretrained(place, local_files_only=True)
        else:
            model = transformers.AutoModelForCausalLM.from_pretrained(place, local_files_only=True)
        words = transformers.AutoTokenizer.from_pretrained(tokenizer or place, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidInput(f"{folder} does not hold a causal language model with its tokenizer: {reason}") from error
    return OpenedModel(model.eval(), words)


def base_of_folder(folder: str | Path) -> Path | None:
    """The folder of the model that a fine-tune began as, if what lies in ``folder`` names one that is there.

    Args:
        folder: What `sordina train` or `peft` left.
    """
    for name, key in ((RECIPE, "model"), ("adapter_config.json", "base_model_name_or_path")):
        try:
            named = json.loads((Path(folder) / name).read_text(encoding="utf-8")).get(key)
        except (OSError, ValueError, AttributeError):
            continue
        if named and (Path(named) / "config.json").is_file():
            return Path(named)
    return None


def read_texts(path: str | Path, column: str = "text") -> list[str]:
    """The texts of a file: a line each (.txt), a row each (.csv), or a JSON object each (.jsonl).

    Args:
        path: The file.
        column: Column or key that holds the text.
    """
    place = Path(path)
    try:
        with place.open(encoding="utf-8", newline="") as file:
            if place.suffix == ".csv":
                rows = csv.DictReader(file)
                if column not in (rows.fieldnames or ()):
                    raise InvalidInput(
                        f"{place} has no column {column!r}: name the one that holds the text (--column)."
                    )
                found = [row[column] or "" for row in rows]
            elif place.suffix == ".jsonl":
                found = [str(json.loads(line)[column]) for line in file if line.strip()]
            else:
                found = [line.strip() for line in file]
    except FileNotFoundError as error:
        raise InvalidInput(f"there is no file {place}.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{place} is not a text file in UTF-8.") from error
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidInput(f"{place} does not hold one JSON object with a key {column!r} a line.") from error
    texts = [text for text in found if text.strip()]
    if not texts:
        raise InvalidInput(f"{place} holds no text.")
    return texts
