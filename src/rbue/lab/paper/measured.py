"""What was measured: means over repetitions, looked up under the paper's names."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rbue.lab.paper.experiments import get
from rbue.lab.paper.settings import Settings, spread
from rbue.lab.paper.shift_results import CORRUPTION_COUNT, Row, shift_rows
from rbue.lab.runs.folders import RunConfig, RunFolder, other_stream, result_key
from rbue.lab.runs.measuring import is_calibration_of

BySeverity = dict[int, dict[str, float]]
"""severity -> corruption -> value"""


@dataclass(frozen=True)
class Summary:
    """One measurement over its repetitions.

    Attributes:
        mean: mean over them.
        deviation: sample standard deviation; None for one repetition.
        values: one value each.
        runs: the folders they come from, below the folder of runs.
    """

    mean: float
    deviation: float | None
    values: tuple[float, ...]
    runs: tuple[str, ...]


class Measured:
    """The results in a folder of runs that belong to some settings, and no others."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self.root, self.settings = root, settings
        self._results: dict[RunConfig, dict[str, Any] | None] = {}
        self._calibrations: dict[RunConfig, dict[str, Any] | None] = {}
        self._shift: dict[tuple[str, str, str, str], BySeverity] = {}

    def configs(self, data: str, model: str, method: str) -> list[RunConfig]:
        """The runs of one cell, one a repetition."""
        return [self.settings.config(data, model, method, seed) for seed in self.settings.seeds or (0,)]

    def result(self, config: RunConfig) -> dict[str, Any] | None:
        """The clean results of one run; None if there are none with the wanted number of samples and random stream."""
        if config not in self._results:
            found = self._entry(config, "results")
            self._results[config] = None if found is None or other_stream(config, found) else found
        return self._results[config]

    def calibration(self, config: RunConfig) -> dict[str, Any] | None:
        """What temperature scaling did to those results; None if they have not been calibrated."""
        if config not in self._calibrations:
            found, result = self._entry(config, "calibration"), self.result(config)
            fits = found is not None and result is not None and is_calibration_of(found, result)
            self._calibrations[config] = found if fits else None
        return self._calibrations[config]

    def _entry(self, config: RunConfig, file: str) -> dict[str, Any] | None:
        entries: dict[str, Any] = RunFolder.of(config, self.root).read(file) or {}
        return entries.get(result_key(self.settings.samples_of(config)))

    def summary(self, data: str, model: str, method: str, measure: str) -> Summary | None:
        """A clean measurement over its repetitions; None if no repetition has it."""
        values, runs = [], []
        for config in self.configs(data, model, method):
            found = (self.result(config) or {}).get(measure)
            if isinstance(found, int | float):
                values.append(float(found))
                runs.append(RunFolder.of(config, Path()).path.as_posix())
        if not values:
            return None
        mean, deviation = spread(values)
        return Summary(mean, deviation, tuple(values), tuple(runs))

    def value(self, data: str, model: str, method: str, measure: str, table: str | None = None) -> float | None:
        """The mean of a measurement; ``relative_size`` is in sizes of Single.

        A training time is one only if no network beside it shared the clock.
        """
        if measure == "relative_size":
            own, single = (self.value(data, model, one, "parameters") for one in (method, "single"))
            return None if own is None or single is None else own / single
        if measure == "training_seconds" and not all(map(self._trained_alone, self.configs(data, model, method))):
            return None
        found = self.summary(data, model, method, measure)
        return None if found is None else found.mean

    def _trained_alone(self, config: RunConfig) -> bool:
        trainings = (RunFolder.of(member, self.root).read("training") or {} for member in config.members())
        return all(training.get("side_by_side", 1) == 1 for training in trainings)

    def matrix(self, data: str, model: str, method: str, measure: str) -> list[list[float]] | None:
        """The ``jsd`` or ``dis`` of every two samples, from the first repetition that has it."""
        for config in self.configs(data, model, method):
            found = (self.result(config) or {}).get(measure)
            if isinstance(found, list):
                return found
        return None

    def corrupted(self, data: str, model: str, method: str, measure: str) -> BySeverity:
        """A measurement of every corruption at every severity, each the mean over repetitions."""
        key = (data, model, method, measure)
        if key not in self._shift:
            gathered: dict[tuple[int, str], list[float]] = defaultdict(list)
            for config in self.configs(data, model, method):
                for row in self.corrupted_rows(config):
                    if isinstance(row.get(measure), int | float):
                        gathered[row["severity"], row["corruption"]].append(float(row[measure]))
            table: BySeverity = defaultdict(dict)
            for (severity, corruption), values in sorted(gathered.items()):
                table[severity][corruption] = spread(values)[0]
            self._shift[key] = dict(table)
        return self._shift[key]

    def corrupted_runs(self, data: str, model: str, method: str, severity: int) -> int:
        """The fewest repetitions behind any corruption at one severity; 0 before all of them are measured."""
        counts = Counter(
            row["corruption"]
            for config in self.configs(data, model, method)
            for row in self.corrupted_rows(config)
            if row["severity"] == severity
        )
        return min(counts.values()) if len(counts) >= CORRUPTION_COUNT else 0

    def corrupted_rows(self, config: RunConfig) -> list[Row]:
        """What was measured of one run under corruptions with the wanted number of samples."""
        return shift_rows(config, self.root, self.settings.shift_samples_of(config))

    def shift(self, data: str, model: str, method: str, measure: str, severity: int) -> float | None:
        """The median over all corruptions at one severity; None before all of them are measured."""
        found = self.corrupted(data, model, method, measure).get(severity, {})
        return median(found.values()) if len(found) >= CORRUPTION_COUNT else None

    @property
    def severities(self) -> tuple[int, ...]:
        """The severities that were asked for."""
        return self.settings.scale.severities

    @property
    def shift_model(self) -> str:
        """The network to be measured under corruptions: the paper's, or the first that was asked for."""
        grid = get("fig-shift-cifar10").grid
        assert grid is not None
        return self.settings.models_of(grid)[0]
