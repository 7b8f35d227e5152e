"""Which ``checkpoint-N`` folders a run wrote itself, and what was in them.

`transformers` takes whatever lies in ``output_dir`` under such a name for its own. One that a plain training left there
holds weights that no noise protects: resumed from, or loaded as the best, they would be saved under this run's claim.
So a run keeps a list of what it wrote, with hashes, in its own folder, and uses nothing else.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from sordina import private_files
from sordina.errors import InvalidInput
from sordina.run_folder import read_json

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
