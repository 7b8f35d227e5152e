"""The model card of a folder that goes to a hub: what was trained, and what it guarantees to whom."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordina import private_files
from sordina.privacy import format_up
from sordina.privacy_claim import PrivacyClaim
from sordina.run_folder import ADAPTER_MODEL, MODEL_FILE, MODEL_HASH, PRIVACY, TABLE_MODEL, write_claim

CARD = "README.md"
_TEMPLATE = """---
{head}---

# {name}

{about}

## Privacy

> {statement}

| | |
|---|---|
{rows}

What the guarantee does not cover:

{caveats}

`{privacy}` beside this card holds the same as data, with the events that ran; `sordina account --help` says how to
compute epsilon from them again.

## Use

```python
{use}
```
"""


def write_card(
    folder: Path, claim: PrivacyClaim, *, base: str, architecture: str, task: str, tags: Sequence[str] = ()
) -> None:
    """Write ``README.md`` and ``privacy.json`` beside the weights in ``folder``.

    Args:
        folder: Where the model was saved.
        claim: What the run claims.
        base: The name or path of the model it began as, if known.
        architecture: The class of the model.
        task: The pipeline's name, such as "text-classification".
        tags: Further words for a hub.
    """
    weights = weights_file(folder).name
    bound = {MODEL_FILE: weights, MODEL_HASH: private_files.sha256(folder / weights)}
    write_claim(folder, replace(claim, more={**claim.more, **bound}))
    card = _card(folder.name, claim, weights == ADAPTER_MODEL, base, architecture, task, tags)
    private_files.write(folder / CARD, card.encode())


def weights_file(folder: Path) -> Path:
    """The file of weights in ``folder``: an adapter's, or a whole model's.

    Args:
        folder: Where the model was saved.
    """
    return folder / (ADAPTER_MODEL if (folder / ADAPTER_MODEL).is_file() else TABLE_MODEL)


def remove_card(folder: Path) -> None:
    """Take an earlier claim and its card out of ``folder``, whose weights were replaced.

    Args:
        folder: Where the model was saved.
    """
    if (folder / PRIVACY).is_file():
        for name in (PRIVACY, CARD):
            private_files.remove(folder / name)


def _card(
    name: str, claim: PrivacyClaim, adapter: bool, base: str, architecture: str, task: str, tags: Sequence[str]
) -> str:
    head = [f"library_name: {'peft' if adapter else 'transformers'}"]
    known = base and not Path(base).is_absolute()
    head += [f"base_model: {json.dumps(base)}"] if known else []
    head += [f"pipeline_tag: {task}"] if task else []
    private = ["differential-privacy"] if claim.private else []
    head += ["tags:", *(f"- {tag}" for tag in ["sordina", *private, *tags])]
    kind = f"`{architecture}`" + (f", fine-tuned from `{base}`" if known else "")
    sampler: dict[str, Any] = claim.more.get("sampler", {})
    rows = [
        ("protected", f"one {claim.unit} ({claim.adjacency} neighbours)"),
        ("epsilon, delta", "none" if claim.epsilon is None else f"{format_up(claim.epsilon)}, {claim.delta:g}"),
        ("accountant", claim.accountant),
        ("steps, noise multiplier", f"{claim.more.get('steps')}, {claim.noise_multiplier or 0:.4g}"),
        ("sampling", ", ".join(f"{key} {value}" for key, value in sampler.items())),
        ("clipping", f"`{json.dumps(dict(claim.clipping or {}))}`"),
        ("may be released", "yes" if claim.releasable and claim.private else "no"),
    ]
    return _TEMPLATE.format(
        head="\n".join(head) + "\n",
        name=name,
        about=f"A {kind}, trained {'under differential privacy ' if claim.private else ''}with Sordina.",
        statement=claim.statement,
        rows="\n".join(f"| {key} | {value} |" for key, value in rows),
        caveats="\n".join(f"- {each}" for each in claim.caveats),
        privacy=PRIVACY,
        use=_use(adapter, architecture),
    )


def _use(adapter: bool, architecture: str) -> str:
    """How stock libraries open the folder."""
    endings = {
        "ForSequenceClassification": "ForSequenceClassification", "ForTokenClassification": "ForTokenClassification",
        "ForCausalLM": "ForCausalLM", "LMHeadModel": "ForCausalLM", "ForConditionalGeneration": "ForSeq2SeqLM",
        "ForMaskedLM": "" if adapter else "ForMaskedLM",
    }  # fmt: skip
    ending = next((head for end, head in endings.items() if architecture.endswith(end)), "")
    library, kind = ("peft", "AutoPeftModel") if adapter else ("transformers", "AutoModel")
    return f'from {library} import {kind}{ending}\n\nmodel = {kind}{ending}.from_pretrained("path/to/this/folder")'
