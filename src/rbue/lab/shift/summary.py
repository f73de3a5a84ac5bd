"""Rows of a run gathered by severity: for tables, box plots and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rbue.errors import warn
from rbue.lab.runs.folders import RunConfig, RunFolder, other_stream, result_key
from rbue.lab.shift.rows import Row
from rbue.lab.shift.settings import Setting


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


def clean_result(config: RunConfig, folder: RunFolder, setting: Setting) -> dict[str, Any] | None:
    """What ``rbue evaluate`` found on the undamaged test images with as many samples, if it was run."""
    results = folder.entries("results")
    if config.parsed.limit is not None and setting.samples >= config.parsed.limit:
        return next((result for result in results.values() if result.get("samples") == config.parsed.limit), None)
    found = results.get(result_key(setting.samples, setting.seed))
    streams = "" if found is None else other_stream(config, found)
    if streams:
        warn(f"{folder.path} was measured on clean images with {streams}; that is left out.")
        return None
    return found


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
