"""What is kept of a run under corruptions: one row for each corruption, severity and way of drawing samples.

``shift.json`` in the run folder holds the ``rows`` and the ``environments`` they come from.
``shift/CORRUPTION-SEVERITY.npy`` holds the mean probabilities of the latest measurement, float16, one row an image,
from which ensembles are combined. Of images that were held out they are ``validation_shift.json`` and
``validation_shift/``, so that no row of test images is among them. A row notes the checksums of its probabilities
(``probs_sha256``) and of the clean images and labels (``clean_sha256``); one from before they were noted is believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rbue.errors import RbueError, warn
from rbue.files import checksum
from rbue.lab.corruptions import CORRUPTIONS, SEVERITIES
from rbue.lab.environment import facts
from rbue.lab.runs.folders import RunConfig, RunFolder, other_stream, outdated, trained_again, training_seconds
from rbue.lab.runs.forms import EACH, NEEDED, misfit
from rbue.lab.runs.measuring import SPLITS
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.probabilities import belong_to, probs_bytes, probs_of, write_probs

Row = dict[str, Any]

_ROW = {
    "corruption": lambda value: value in CORRUPTIONS,
    "severity": lambda value: value in SEVERITIES,
    "samples_asked": lambda value: isinstance(value, int | str | None),
    "seed": lambda value: isinstance(value, int | None),
    "accuracy": lambda value: isinstance(value, int | float),
    "ece": lambda value: isinstance(value, int | float),
    "variant": lambda value: isinstance(value, str),
    "labels_sha256": lambda value: isinstance(value, str),
}
"""What every row has."""
_FORM = {NEEDED: ("rows", "environments"), "rows": [{NEEDED: tuple(_ROW), **_ROW}], "environments": {EACH: {}}}


class Setting(Passes):
    """How predictions are drawn, as rows note it."""

    def facts(self, config: RunConfig) -> dict[str, int | str | None]:
        """What was asked for, as written in a row; rows that agree in it belong together.

        Both are None for a method that gave every sample it has, since nothing random is left then: it need not be
        measured again for another number or seed. Augmented passes have no end. An adaptive setting is a text,
        ``adaptive:MOST,TOLERANCE,CONFIDENCE,FIRST``. Balanced draws are named, and end it with ``,INTERACTIONS``.

        >>> Setting(100, seed=3).facts(RunConfig(method="mc-droprelu"))
        {'samples_asked': 100, 'seed': 3}
        >>> Setting(100, seed=3).facts(RunConfig(method="single"))
        {'samples_asked': None, 'seed': None}
        """
        limit, rule = self.limit(config), self.adaptive
        if limit is not None:
            return {"samples_asked": None if self.samples >= limit else self.samples, "seed": None}
        asked: int | str = self.samples
        if rule is not None:
            asked = f"adaptive:{self.samples},{rule.tolerance:g},{rule.confidence:g},{rule.first}"
            if self.draws == "balanced":  # independent samples have no use for it
                asked += f",{rule.interactions:g}"
        more = {"draws": "" if self.draws == "independent" else self.draws, "augment": self.augment}
        return {"samples_asked": asked, "seed": self.seed, **{name: value for name, value in more.items() if value}}


class Cell(NamedTuple):
    """One damaged set."""

    corruption: str
    severity: int

    def __str__(self) -> str:
        return f"{self.corruption} severity {self.severity}"


@dataclass(frozen=True)
class ShiftStore:
    """The rows and probabilities in one run folder, of its test images or of those that were held out."""

    folder: RunFolder
    split: str = "test"

    @property
    def _name(self) -> str:
        return "shift" if self.split == "test" else f"{self.split}_shift"

    @property
    def file(self) -> Path:
        """The rows."""
        return self.folder.path / f"{self._name}.json"

    def find(
        self, config: RunConfig, setting: Setting, clean: dict[str, str] | None = None, with_probs: bool = False
    ) -> dict[Cell, Row]:
        """The rows of one setting, without the outdated ones.

        Args:
            config: the run.
            setting: how predictions are drawn.
            clean: checksums of the clean images, if they can be others than those that were measured.
            with_probs: whether the probabilities must be here too.
        """
        rows = self._rows(config, setting)
        outdated = self._otherwise(rows, config, clean, with_probs)
        return {cell: row for cell, row in rows.items() if cell not in outdated}

    def near(self, config: RunConfig, setting: Setting) -> dict[Cell, Row]:
        """The rows of a setting; where there are none, of the one with the most rows, if possible augmented alike."""
        asked = [_asked(row) for row in self._content()["rows"]]
        wanted = _asked(setting.facts(config))
        like = [one for one in asked if one[-1] == wanted[-1]] or asked
        chosen = wanted if wanted in asked else max(like, key=like.count, default=wanted)
        rows = [row for row in self._content()["rows"] if _asked(row) == chosen]
        seconds = self._training_seconds(config)
        kept = [row for row in rows if not self._other_measurement(config, row, None, seconds)]
        return {Cell(row["corruption"], row["severity"]): row for row in kept}

    def measured_otherwise(self, config: RunConfig, setting: Setting) -> str:
        """Of which other setting the most rows are, in words; empty if there are rows of this one, or none at all."""
        row = next(iter(self.near(config, setting).values()), None)
        if row is None or _asked(row) == _asked(setting.facts(config)):
            return ""
        names = {"samples_asked": "samples", "seed": "seed", "draws": "draws", "augment": "augment"}
        said = [f"{word} {row[name]}" for name, word in names.items() if row.get(name) is not None]
        return ", ".join(said) or "plain passes, every sample it has"

    def outdated(
        self, config: RunConfig, setting: Setting, clean: dict[str, str] | None = None, with_probs: bool = False
    ) -> dict[Cell, str]:
        """The rows of one setting that are not what would be measured now, and how they were measured, in words."""
        return self._otherwise(self._rows(config, setting), config, clean, with_probs)

    def _otherwise(
        self, rows: dict[Cell, Row], config: RunConfig, clean: dict[str, str] | None, with_probs: bool
    ) -> dict[Cell, str]:
        seconds = self._training_seconds(config)
        found = {
            cell: self._other_measurement(config, row, clean, seconds)
            or (self._other_probs(cell, row) if with_probs else "")
            for cell, row in rows.items()
        }
        return {cell: words for cell, words in found.items() if words}

    def whole(
        self, config: RunConfig, setting: Setting, cell: Cell, clean: dict[str, str] | None = None
    ) -> tuple[Row, NDArray[np.float32]] | None:
        """The row of one set and its probabilities, if they are here and it is not outdated; one file is looked at."""
        row = self._rows(config, setting).get(cell)
        if row is None or self._other_measurement(config, row, clean, self._training_seconds(config)):
            return None
        probs = self.probs_of(row)
        return None if probs is None else (row, probs)

    def _training_seconds(self, config: RunConfig) -> float | None:
        return training_seconds(config, self.folder.root)

    def _other_measurement(
        self, config: RunConfig, row: Row, clean: dict[str, str] | None, seconds: float | None
    ) -> str:
        """With what a row was measured that is another now, in words; empty if nothing is."""
        streams = other_stream(config, row)
        if streams:
            return f"with {streams}"
        if row.get("combined_from") == "stored probabilities" and row["seed"] is not None:
            return "with as many passes of each member, while members share them now"
        if clean is not None and row.get("clean_sha256") not in (None, clean):
            return f"on other {self.split} images than {config.data} holds now"
        return trained_again(row, seconds)

    def _other_probs(self, cell: Cell, row: Row) -> str:
        if not self.has_probs(cell):
            return f"without {self._probs(cell)}, which ensembles need"
        return "" if belong_to(self._probs(cell), row) else f"with other probabilities than {self._probs(cell)} holds"

    def _rows(self, config: RunConfig, setting: Setting) -> dict[Cell, Row]:
        wanted = setting.facts(config)
        rows = [row for row in self._content()["rows"] if _asked(row) == _asked(wanted)]
        return {Cell(row["corruption"], row["severity"]): row for row in rows}

    def add(self, row: Row) -> None:
        """Keep a row, in place of an earlier one, in a folder that is locked."""
        content = self._content()
        here = facts()
        name = checksum(json.dumps(here, sort_keys=True).encode())[:8]
        row = {**row, "environment": name}
        rows = [*(other for other in content["rows"] if _key(other) != _key(row)), row]
        environments = {**content["environments"], name: here}
        self.folder.write(self._name, {"rows": sorted(rows, key=_order), "environments": environments})

    def has_probs(self, cell: Cell) -> bool:
        """Whether the probabilities of a set are here."""
        return self._probs(cell).exists()

    def keep(self, row: Row, probs: NDArray[np.float32]) -> None:
        """Keep a row and its mean probabilities.

        The row comes first: if the command is stopped between the two files, its checksum tells that the probabilities
        are others, while an earlier row without one would be believed to have the new ones.
        """
        with self.folder.locked():
            self.add({**row, "probs_sha256": checksum(probs_bytes(probs))})
            self.save_probs(Cell(row["corruption"], row["severity"]), probs)

    def save_probs(self, cell: Cell, probs: NDArray[np.float32]) -> None:
        """Keep mean probabilities."""
        write_probs(self._probs(cell), probs)

    def probs_of(self, row: Row) -> NDArray[np.float32] | None:
        """The mean probabilities of a row, if they are here."""
        path = self._probs(Cell(row["corruption"], row["severity"]))
        return probs_of(path, row) if path.exists() else None

    def check_shape(self, cell: Cell, probs: NDArray[np.float32], shape: tuple[int, int]) -> None:
        """Refuse probabilities that are not of so many images and classes."""
        if probs.shape != shape:
            raise RbueError(
                f"{self._probs(cell)} has shape {probs.shape} instead of {shape}, the images and classes; "
                "remove it to have it made again."
            )

    def _probs(self, cell: Cell) -> Path:
        return self.folder.path / self._name / f"{cell.corruption}-{cell.severity}.npy"

    def _content(self) -> dict[str, Any]:
        content = self.folder.read(self._name)
        if content is None:
            return {"rows": [], "environments": {}}
        if misfit(content, _FORM):
            raise RbueError(f"{self.file} has another form; remove it to have it made again.")
        return dict(content)


def _asked(row: Row) -> tuple[Any, ...]:  # augment comes last
    return row["samples_asked"], row["seed"], row.get("draws", "independent"), row.get("augment", "")


def _key(row: Row) -> tuple[Any, ...]:
    return *_asked(row), row["corruption"], row["severity"]


def _order(row: Row) -> tuple[Any, ...]:
    return str(row["samples_asked"]), row["seed"] or 0, CORRUPTIONS.index(row["corruption"]), row["severity"]


@dataclass(frozen=True)
class Summary:
    """What one severity came to over its corruptions.

    Attributes:
        severity: 1 to 5.
        corruptions: how many there are.
        accuracy: mean over corruptions; ``worst_accuracy`` is the lowest, at ``hardest``.
        ece: mean over corruptions; ``worst_ece`` is the highest, at ``least_calibrated``.
    """

    severity: int
    corruptions: int
    accuracy: float
    worst_accuracy: float
    hardest: str
    ece: float
    worst_ece: float
    least_calibrated: str


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Mean and worst of every severity."""
    return [_summary(severity, chosen) for severity, chosen in _by_severity(rows).items()]


def by_severity(rows: Sequence[Row], measure: str, clean: dict[str, Any] | None = None) -> dict[int, list[float]]:
    """A measure of all corruptions at each severity, as the figures take it; a clean result is severity 0."""
    first = {} if clean is None else {0: [float(clean[measure])]}
    return {**first, **{severity: [row[measure] for row in chosen] for severity, chosen in _by_severity(rows).items()}}


def clean_result(config: RunConfig, folder: RunFolder, setting: Setting, split: str = "test") -> dict[str, Any] | None:
    """What ``rbue evaluate`` found on the undamaged images with as many samples, if it was run."""
    found = _clean(folder.entries(SPLITS[split]), config, setting)
    if found is not None and (words := outdated(config, folder.root, found)):
        warn(f"{folder.path} was measured on clean images {words}; that is left out.")
        return None
    return found


def clean_otherwise(config: RunConfig, folder: RunFolder, setting: Setting, split: str = "test") -> str:
    """How else than asked for the undamaged images were measured, and what does as asked, in words; empty if not so."""
    results = folder.entries(SPLITS[split])
    if not results or _clean(results, config, setting) is not None:
        return ""
    options = [
        f"--samples {setting.samples}",
        *([f"--sample-seed {setting.seed}"] if setting.seed else []),
        *([f"--draws {setting.draws}"] if setting.draws != "independent" else []),
        *([f"--augment {setting.augment}"] if setting.augment else []),
        *([f"--split {split}"] if split != "test" else []),
    ]
    command = f"`rbue evaluate {config.id} {' '.join(options)}` adds it"
    return f"measured with {' and '.join(results)}, not {setting.of(config).key}; {command}"


def _clean(results: Mapping[str, dict[str, Any]], config: RunConfig, setting: Setting) -> dict[str, Any] | None:
    limit = setting.limit(config)
    if limit is not None and setting.samples >= limit:
        plain = [result for result in results.values() if not result.get("augment")]
        return next((result for result in plain if result.get("samples") == limit), None)
    return results.get(setting.of(config).key)


def _summary(severity: int, rows: Sequence[Row]) -> Summary:
    hardest = min(rows, key=lambda row: row["accuracy"])
    least_calibrated = max(rows, key=lambda row: row["ece"])
    return Summary(
        severity,
        len(rows),
        fmean(row["accuracy"] for row in rows),
        hardest["accuracy"],
        hardest["corruption"],
        fmean(row["ece"] for row in rows),
        least_calibrated["ece"],
        least_calibrated["corruption"],
    )


def _by_severity(rows: Sequence[Row]) -> dict[int, list[Row]]:
    levels = sorted({row["severity"] for row in rows})
    return {level: [row for row in rows if row["severity"] == level] for level in levels}
