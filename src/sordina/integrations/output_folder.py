"""What a trainer leaves in its ``output_dir``: the model card of a folder that goes to a hub, and its checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordina import private_files
from sordina.errors import InvalidInput
from sordina.privacy import format_up
from sordina.privacy_claim import PrivacyClaim
from sordina.run_folder import ADAPTER_MODEL, MODEL_FILE, MODEL_HASH, PRIVACY, TABLE_MODEL, read_json, write_claim

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
    folder: Path,
    claim: PrivacyClaim,
    *,
    base: str,
    architecture: str,
    task: str,
    tags: Sequence[str] = (),
    classes: int | None = None,
) -> None:
    """Write ``README.md`` and ``privacy.json`` beside the weights in ``folder``.

    Args:
        folder: Where the model was saved.
        claim: What the run claims.
        base: The name or path of the model it began as, if known.
        architecture: The class of the model.
        task: The pipeline's name, such as "text-classification".
        tags: Further words for a hub.
        classes: Of a classifier: an adapter's folder does not know how many there are.
    """
    weights = weights_file(folder).name
    bound = {MODEL_FILE: weights, MODEL_HASH: private_files.sha256(folder / weights)}
    write_claim(folder, replace(claim, more={**claim.more, **bound}))
    adapter = weights == ADAPTER_MODEL
    card = _card(folder.name, claim, adapter, base, architecture, task, tags, _use(adapter, architecture, classes))
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
    name: str, claim: PrivacyClaim, adapter: bool, base: str, architecture: str, task: str, tags: Sequence[str],
    use: str,
) -> str:  # fmt: skip
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
        use=use,
    )


def _use(adapter: bool, architecture: str, classes: int | None) -> str:
    """How stock libraries open the folder."""
    endings = {
        "ForSequenceClassification": "ForSequenceClassification", "ForTokenClassification": "ForTokenClassification",
        "ForCausalLM": "ForCausalLM", "LMHeadModel": "ForCausalLM", "ForConditionalGeneration": "ForSeq2SeqLM",
        "ForMaskedLM": "" if adapter else "ForMaskedLM",
    }  # fmt: skip
    ending = next((head for end, head in endings.items() if architecture.endswith(end)), "")
    library, kind = ("peft", "AutoPeftModel") if adapter else ("transformers", "AutoModel")
    more = f", num_labels={classes}" if adapter and classes and ending.endswith("Classification") else ""
    return (
        f'from {library} import {kind}{ending}\n\nmodel = {kind}{ending}.from_pretrained("path/to/this/folder"{more})'
    )


# Which ``checkpoint-N`` folders a run wrote itself, and what was in them.
#
# `transformers` takes whatever lies in ``output_dir`` under such a name for its own. One that a plain training left
# there holds weights that no noise protects: resumed from, or loaded as the best, they would be saved under this run's
# claim.
# So a run keeps a list of what it wrote, with hashes, in its own folder, and uses nothing else.

LISTED = "checkpoints.json"
_NAME = re.compile(r"checkpoint-(\d+)")
_NOT_LOADED = ("optimizer", "scheduler", "scaler")
"""Files of a checkpoint that nobody reads here, some of them large."""


class OwnCheckpoints:
    """The checkpoints of one run.

    Args:
        output: Where `transformers` puts them.
        folder: The run's own folder, where the list is kept.
    """

    def __init__(self, output: Path, folder: Path) -> None:
        self.output, self.path = output, folder / LISTED
        self.listed: dict[str, dict[str, str] | None] = {}
        """By name the hashes of the files; None while a checkpoint is being written."""

    def refuse_any(self) -> None:
        """Refuse to begin a run among the checkpoints of another."""
        if found := self._there():
            raise InvalidInput(
                f"{self.output} holds {found[-1]} of another training: its weights could end up under this run's "
                "claim. Take another output_dir, or move it away."
            )

    def read(self) -> None:
        """Take up the list of a run that is resumed; a checkpoint that is not on it is refused."""
        self.listed = dict(read_json(self.path)) if self.path.is_file() else {}
        if strange := [name for name in self._there() if name not in self.listed]:
            raise InvalidInput(
                f"{self.output} holds {strange[-1]}, which this run did not write: its weights could end up under "
                "this run's claim. Move it away."
            )

    def begin(self, name: str) -> None:
        """A checkpoint is about to be written.

        Args:
            name: As in "checkpoint-100".
        """
        self._note(name, None)

    def wrote(self, name: str) -> None:
        """A checkpoint is complete.

        Args:
            name: As in "checkpoint-100".
        """
        self._note(name, self._hashes(name))

    def holds(self, path: str | Path) -> bool:
        """Whether ``path`` is a checkpoint of this run, as it was written.

        Args:
            path: A folder.
        """
        path = Path(path)
        written = self.listed.get(path.name)
        inside = path.parent.resolve() == self.output.resolve() and path.is_dir()
        return inside and bool(written) and written == self._hashes(path.name)

    def last(self) -> Path | None:
        """The newest checkpoint of this run."""
        found = [self.output / name for name in self._there() if self.holds(self.output / name)]
        return found[-1] if found else None

    def _there(self) -> list[str]:
        """Names of checkpoints that lie in the output, in the order of their steps."""
        names = [each.name for each in self.output.iterdir()] if self.output.is_dir() else []
        return sorted(filter(_NAME.fullmatch, names), key=lambda name: int(name.split("-")[1]))

    def _hashes(self, name: str) -> dict[str, str]:
        folder = self.output / name
        files = sorted(each for each in folder.rglob("*") if each.is_file() and not each.name.startswith(_NOT_LOADED))
        return {str(each.relative_to(folder)): private_files.sha256(each) for each in files}

    def _note(self, name: str, hashes: dict[str, str] | None) -> None:
        self.listed[name] = hashes
        private_files.write(self.path, json.dumps(self.listed).encode())
