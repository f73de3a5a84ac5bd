"""What is kept of a run under corruptions, in its folder.

``shift.json`` holds ``rows``, one for each corruption, severity and setting, and the ``environments`` they come from.
``shift/CORRUPTION-SEVERITY.npy`` holds the mean probabilities of the latest measurement, float16, one row an image,
from which ensembles are combined.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rbue.data.corruptions import CORRUPTIONS
from rbue.environment import facts
from rbue.errors import RbueError
from rbue.runs import RunConfig, RunFolder, other_stream
from rbue.shift.settings import Setting
from rbue.stored_probs import read_probs, write_probs

Row = dict[str, Any]


class Cell(NamedTuple):
    """One damaged test set."""

    corruption: str
    severity: int

    def __str__(self) -> str:
        return f"{self.corruption} severity {self.severity}"


@dataclass(frozen=True)
class ShiftStore:
    """The rows and probabilities in one run folder."""

    folder: RunFolder

    def find(self, config: RunConfig, setting: Setting) -> dict[Cell, Row]:
        """The rows of one setting, without those that another version of the random stream drew."""
        return {cell: row for cell, row in self._rows(config, setting).items() if not other_stream(config, row)}

    def other_streams(self, config: RunConfig, setting: Setting) -> dict[Cell, str]:
        """The rows of one setting that another version of the random stream drew, and which, in words."""
        found = {cell: other_stream(config, row) for cell, row in self._rows(config, setting).items()}
        return {cell: words for cell, words in found.items() if words}

    def _rows(self, config: RunConfig, setting: Setting) -> dict[Cell, Row]:
        wanted = setting.facts(config)
        rows = [row for row in self._content()["rows"] if wanted == {name: row[name] for name in wanted}]
        return {Cell(row["corruption"], row["severity"]): row for row in rows}

    def add(self, row: Row) -> None:
        """Keep a row, in place of an earlier one; the file is read anew, for others may write it too."""
        content = self._content()
        here = facts()
        name = hashlib.sha256(json.dumps(here, sort_keys=True).encode()).hexdigest()[:8]
        row = {**row, "environment": name}
        rows = [*(other for other in content["rows"] if _key(other) != _key(row)), row]
        environments = {**content["environments"], name: here}
        self.folder.write("shift", {"rows": sorted(rows, key=_order), "environments": environments})

    def has_probs(self, cell: Cell) -> bool:
        """Whether the probabilities of a set are here."""
        return self._probs(cell).exists()

    def save_probs(self, cell: Cell, probs: NDArray[np.float32]) -> None:
        """Keep mean probabilities."""
        write_probs(self._probs(cell), probs)

    def load_probs(self, cell: Cell) -> NDArray[np.float32]:
        """Mean probabilities kept earlier."""
        return read_probs(self._probs(cell))

    def _probs(self, cell: Cell) -> Path:
        return self.folder.path / "shift" / f"{cell.corruption}-{cell.severity}.npy"

    def _content(self) -> dict[str, Any]:
        content = self.folder.read("shift")
        if content is None:
            return {"rows": [], "environments": {}}
        if not isinstance(content, dict) or not {"rows", "environments"} <= set(content):
            raise RbueError(f"{self.folder.path / 'shift.json'} has another form; remove it to have it made again.")
        return content


def _key(row: Row) -> tuple[Any, ...]:
    return row["samples_asked"], row["seed"], row["corruption"], row["severity"]


def _order(row: Row) -> tuple[Any, ...]:
    return str(row["samples_asked"]), row["seed"] or 0, CORRUPTIONS.index(row["corruption"]), row["severity"]
