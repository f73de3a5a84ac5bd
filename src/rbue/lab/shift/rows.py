"""What is kept of a run under corruptions, in its folder.

``shift.json`` holds ``rows``, one for each corruption, severity and setting, and the ``environments`` they come from.
``shift/CORRUPTION-SEVERITY.npy`` holds the mean probabilities of the latest measurement, float16, one row an image,
from which ensembles are combined. A row notes the checksums of that file (``probs_sha256``) and of the clean images and
labels (``clean_sha256``); one from before they were noted is believed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rbue.errors import RbueError
from rbue.lab.corruptions import CORRUPTIONS, SEVERITIES
from rbue.lab.environment import facts
from rbue.lab.runs.folders import RunConfig, RunFolder, other_stream
from rbue.lab.runs.stored_probs import belong_to, checksum, file_content, read_probs, write_probs
from rbue.lab.shift.settings import Setting

Row = dict[str, Any]

_NEEDED: dict[str, tuple[type, ...]] = {
    "samples_asked": (int, str, type(None)),
    "seed": (int, type(None)),
    "accuracy": (int, float),
    "ece": (int, float),
    "variant": (str,),
    "labels_sha256": (str,),
}
"""What every row has, and of which types."""


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

    def find(
        self, config: RunConfig, setting: Setting, clean: dict[str, str] | None = None, with_probs: bool = False
    ) -> dict[Cell, Row]:
        """The rows of one setting, without the outdated ones.

        Args:
            config: the run.
            setting: how predictions are drawn.
            clean: checksums of the clean test images, if they can be others than those that were measured.
            with_probs: whether the probabilities must be here too.
        """
        outdated = self.outdated(config, setting, clean, with_probs)
        return {cell: row for cell, row in self._rows(config, setting).items() if cell not in outdated}

    def outdated(
        self, config: RunConfig, setting: Setting, clean: dict[str, str] | None = None, with_probs: bool = False
    ) -> dict[Cell, str]:
        """The rows of one setting that are not what would be measured now, and how they were measured, in words."""
        found = {
            cell: _other_measurement(config, row, clean) or (self._other_probs(cell, row) if with_probs else "")
            for cell, row in self._rows(config, setting).items()
        }
        return {cell: words for cell, words in found.items() if words}

    def whole(self, config: RunConfig, setting: Setting, cell: Cell, clean: dict[str, str] | None) -> Row | None:
        """The row of one set, if it is not outdated and its probabilities are here; no other file is looked at."""
        row = self._rows(config, setting).get(cell)
        if row is None or _other_measurement(config, row, clean) or self._other_probs(cell, row):
            return None
        return row

    def _other_probs(self, cell: Cell, row: Row) -> str:
        if not self.has_probs(cell):
            return f"without {self._probs(cell)}, which ensembles need"
        return "" if belong_to(self._probs(cell), row) else f"with other probabilities than {self._probs(cell)} holds"

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

    def keep(self, row: Row, probs: NDArray[np.float32]) -> None:
        """Keep a row and its mean probabilities.

        The row comes first: if the command is stopped between the two files, its checksum tells that the probabilities
        are others, while an earlier row without one would be believed to have the new ones.
        """
        self.add({**row, "probs_sha256": checksum(file_content(probs))})
        self.save_probs(Cell(row["corruption"], row["severity"]), probs)

    def save_probs(self, cell: Cell, probs: NDArray[np.float32]) -> None:
        """Keep mean probabilities."""
        write_probs(self._probs(cell), probs)

    def load_probs(self, cell: Cell, shape: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Mean probabilities kept earlier, which must be of so many images and classes."""
        probs = read_probs(self._probs(cell))
        if shape is not None and probs.shape != shape:
            raise RbueError(
                f"{self._probs(cell)} has shape {probs.shape} instead of {shape}, the images and classes; "
                "remove it to have it made again."
            )
        return probs

    def _probs(self, cell: Cell) -> Path:
        return self.folder.path / "shift" / f"{cell.corruption}-{cell.severity}.npy"

    def _content(self) -> dict[str, Any]:
        content = self.folder.read("shift")
        if content is None:
            return {"rows": [], "environments": {}}
        if not _has_our_form(content):
            raise RbueError(f"{self.folder.path / 'shift.json'} has another form; remove it to have it made again.")
        return dict(content)


def _has_our_form(content: dict[str, Any]) -> bool:
    rows, environments = content.get("rows"), content.get("environments")
    if not isinstance(rows, list) or not isinstance(environments, dict):
        return False
    return all(isinstance(one, dict) for one in environments.values()) and all(map(_is_row, rows))


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict) or row.get("corruption") not in CORRUPTIONS or row.get("severity") not in SEVERITIES:
        return False
    return all(name in row and isinstance(row[name], kinds) for name, kinds in _NEEDED.items())


def _other_measurement(config: RunConfig, row: Row, clean: dict[str, str] | None) -> str:
    """With what a row was measured that is another now, in words; empty if nothing is."""
    streams = other_stream(config, row)
    if streams:
        return f"with {streams}"
    if clean is not None and row.get("clean_sha256") not in (None, clean):
        return f"on other test images than {config.data} holds now"
    return ""


def _key(row: Row) -> tuple[Any, ...]:
    return row["samples_asked"], row["seed"], row["corruption"], row["severity"]


def _order(row: Row) -> tuple[Any, ...]:
    return str(row["samples_asked"]), row["seed"] or 0, CORRUPTIONS.index(row["corruption"]), row["severity"]
