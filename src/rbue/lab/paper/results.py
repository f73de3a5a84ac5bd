"""What was measured: means over repetitions, looked up under the paper's names.

:class:`Measured` reads a folder of runs; :func:`how_trained` says where networks were trained, without which a training
time says little.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from rbue.lab.corruptions import CORRUPTIONS
from rbue.lab.paper.experiments import MODELS, Experiment, get
from rbue.lab.paper.numbers import printed
from rbue.lab.paper.settings import Settings, name_of, spread
from rbue.lab.runs.folders import RunConfig, RunFolder, outdated, result_key
from rbue.lab.runs.temperatures import is_calibration_of
from rbue.lab.shift import Row, Setting, ShiftStore
from rbue.lab.training.trainer import read_log

CORRUPTION_COUNT = len(CORRUPTIONS)
BySeverity = dict[int, dict[str, float]]
"""severity -> corruption -> value"""


@dataclass(frozen=True)
class Summary:
    """One measurement over its repetitions.

    Attributes:
        mean: mean over them.
        deviation: sample standard deviation, under the name it is stored by; None for one repetition.
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
        self._corrupted_rows: dict[RunConfig, list[Row]] = {}
        self._beside: dict[RunConfig, set[tuple[int | None, int | None]]] = {}

    def configs(self, data: str, model: str, method: str) -> list[RunConfig]:
        """The runs of one cell, one a repetition; the first also of a cell that is left out, as it may be there."""
        repetitions = self.settings.repetitions(data, model, method) or (0,)
        return [self.settings.config(data, model, method, one) for one in repetitions]

    def corrupted_configs(self, data: str, model: str, method: str) -> list[RunConfig]:
        """Those of them that count on corrupted images: the first, unless repetitions were asked for."""
        found = self.configs(data, model, method)
        return found if self.settings.seeds is not None else found[:1]

    def result(self, config: RunConfig) -> dict[str, Any] | None:
        """The clean results of one run; None if there are none with the wanted samples, random stream and networks."""
        if config not in self._results:
            found = self._entry(config, "results")
            self._results[config] = None if found is None or outdated(config, self.root, found) else found
        return self._results[config]

    def calibration(self, config: RunConfig) -> dict[str, Any] | None:
        """What temperature scaling did to those results; None if they have not been calibrated."""
        found, result = self._entry(config, "calibration"), self.result(config)
        fits = found is not None and result is not None and is_calibration_of(found, result)
        return found if fits else None

    def _entry(self, config: RunConfig, file: str) -> dict[str, Any] | None:
        entries: dict[str, Any] = RunFolder.of(config, self.root).read(file) or {}
        return entries.get(result_key(self.settings.samples_of(config)))

    def summary(self, data: str, model: str, method: str, measure: str) -> Summary | None:
        """A clean measurement over its repetitions; None if no repetition has it.

        A training time is that of the repetitions that shared the machine as the first of them did, if that shared it
        with as many processes as the first of Single, beside which it is read.
        """
        values, runs, first = [], [], None
        usual = self._processes(self.configs(data, model, "single")[0])
        for config in self.configs(data, model, method):
            found = (self.result(config) or {}).get(measure)
            if isinstance(found, int | float):
                if measure == "training_seconds":
                    if usual and self._processes(config) != usual:
                        continue
                    first = first or self._trained_beside(config)
                    if self._trained_beside(config) != first:
                        continue
                values.append(float(found))
                runs.append(name_of(config))
        if not values:
            return None
        mean, std = spread(values)
        return Summary(mean, std, tuple(values), tuple(runs))

    def value(self, data: str, model: str, method: str, measure: str, table: str | None = None) -> float | None:
        """The mean of a measurement; ``relative_size`` is in sizes of Single.

        A training time counts only where all networks are known to have trained alone, and then by the median epoch:
        what compiling takes differs by method, and counts for more in a short training.
        """
        if measure == "relative_size":
            own, single = (self.value(data, model, one, "parameters") for one in (method, "single"))
            return None if own is None or single is None else own / single
        if measure == "training_seconds":
            times = [self._seconds_alone(one) for one in self.configs(data, model, method) if self.result(one)]
            known = [one for one in times if one is not None]
            return spread(known)[0] if known and len(known) == len(times) else None
        found = self.summary(data, model, method, measure)
        return None if found is None else found.mean

    def _trained_beside(self, config: RunConfig) -> set[tuple[int | None, int | None]]:
        """How many networks and processes its trainings were among; None where that was not noted."""
        if config not in self._beside:
            trainings = (RunFolder.of(member, self.root).read("training") or {} for member in config.trainings())
            self._beside[config] = {(one.get("side_by_side"), one.get("workers")) for one in trainings}
        return self._beside[config]

    def _processes(self, config: RunConfig) -> set[int]:
        """How many processes were at work where its networks were trained; empty where no training is known."""
        return {processes or 1 for networks, processes in self._trained_beside(config) if networks is not None}

    def _seconds_alone(self, config: RunConfig) -> float | None:
        """The time of all epochs, by the median one of each network; None unless each had the machine for itself."""
        logs = [read_log(RunFolder.of(member, self.root).log) for member in config.trainings()]
        if self._trained_beside(config) != {(1, 1)} or not all(logs):
            return None
        return sum(len(log) * median(epoch["seconds"] for epoch in log) for log in logs)

    def matrix(self, data: str, model: str, method: str, measure: str) -> list[list[float]] | None:
        """The ``jsd`` or ``dis`` of every two samples, from the first repetition that has it."""
        for config in self.configs(data, model, method):
            found = (self.result(config) or {}).get(measure)
            if isinstance(found, list):
                return found
        return None

    def corrupted(self, data: str, model: str, method: str, measure: str) -> BySeverity:
        """A measurement of every corruption at every severity, each the mean over repetitions."""
        gathered: dict[tuple[int, str], list[float]] = defaultdict(list)
        for config in self.corrupted_configs(data, model, method):
            for row in self.corrupted_rows(config):
                if isinstance(row.get(measure), int | float):
                    gathered[row["severity"], row["corruption"]].append(float(row[measure]))
        table: BySeverity = defaultdict(dict)
        for (severity, corruption), values in sorted(gathered.items()):
            table[severity][corruption] = spread(values)[0]
        return dict(table)

    def corrupted_runs(self, data: str, model: str, method: str, severity: int) -> int:
        """The fewest repetitions behind any corruption at one severity; 0 before all of them are measured."""
        counts = Counter(
            row["corruption"]
            for config in self.corrupted_configs(data, model, method)
            for row in self.corrupted_rows(config)
            if row["severity"] == severity
        )
        return min(counts.values()) if len(counts) >= CORRUPTION_COUNT else 0

    def corrupted_rows(self, config: RunConfig) -> list[Row]:
        """What was measured of one run under corruptions with the wanted number of samples."""
        if config not in self._corrupted_rows:
            samples = self.settings.shift_samples_of(config)
            self._corrupted_rows[config] = shift_rows(config, self.root, samples)
        return self._corrupted_rows[config]

    def shift_medians(self, data: str, model: str, method: str, measure: str, severity: int) -> list[float]:
        """The median over all corruptions of each repetition that has them."""
        repetitions = (
            [row[measure] for row in self.corrupted_rows(config) if row["severity"] == severity and measure in row]
            for config in self.corrupted_configs(data, model, method)
        )
        return [median(found) for found in repetitions if len(found) >= CORRUPTION_COUNT]

    def shift(self, data: str, model: str, method: str, measure: str, severity: int) -> float | None:
        """The median over all corruptions at one severity; None before all of them are measured."""
        found = self.corrupted(data, model, method, measure).get(severity, {})
        return median(found.values()) if len(found) >= CORRUPTION_COUNT else None

    @property
    def severities(self) -> tuple[int, ...]:
        """The severities that were asked for."""
        return self.settings.scale.severities

    @cached_property
    def shift_model(self) -> str:
        """The network under corruptions: the first that was asked for, or that was measured, or the paper's."""
        experiment = get("fig-shift-cifar10")
        assert experiment.grid is not None
        return as_measured(experiment, self.settings, self.root).models_of(experiment.grid)[0]


def shift_rows(config: RunConfig, root: Path, samples: int) -> list[Row]:
    """What was measured under corruptions: rows with ``corruption``, ``severity``, ``accuracy``, ``ece``."""
    return list(ShiftStore(RunFolder.of(config, root)).find(config, Setting(samples)).values())


def shift_is_done(config: RunConfig, root: Path, severities: Sequence[int], samples: int) -> bool:
    """Whether all corruptions at all the severities are there."""
    seen = {(row["corruption"], row["severity"]) for row in shift_rows(config, root, samples)}
    return all(sum(severity == one for _, severity in seen) >= CORRUPTION_COUNT for one in severities)


def as_measured(experiment: Experiment, settings: Settings, root: Path) -> Settings:
    """Where any network will do and none was asked for, the settings with one.

    That is the one with the fewest rows left out by the budget; of several the one with the most rows that were
    measured under corruptions.
    """
    grid = experiment.grid
    if grid is None or not grid.any_network or settings.models is not None:
        return settings

    def lacks(one: Settings) -> tuple[int, int]:
        configs = list(one.configs(experiment))
        measured = sum(bool(shift_rows(config, root, one.shift_samples_of(config))) for config in configs)
        return len(one.cells(grid)) - len({config.method for config in configs}), -measured

    candidates = dict.fromkeys((*grid.models, *reversed(MODELS)))  # the deepest first, as the paper has it
    return min((replace(settings, models=(model,)) for model in candidates), key=lacks)


@dataclass(frozen=True)
class Trained:
    """How some networks were trained.

    Attributes:
        machines: what they were trained on, in words.
        side_by_side: the numbers of networks that were trained at a time by one process.
        workers: the numbers of processes that were at work at a time.
    """

    machines: tuple[str, ...]
    side_by_side: tuple[int, ...]
    workers: tuple[int, ...] = (1,)

    def note(self) -> str:
        """What stands below a table of training times."""
        return (
            f"Training times count compiling and saving, on {' or '.join(self.machines)}; the paper's are from "
            f"{printed()['hardware']}, so no difference is shown. Networks trained side by side (here "
            f"{' or '.join(map(str, self.side_by_side))} at a time) share the time."
        ) + (
            " Of those trained with more or fewer processes at work on the machine than Single the time is left out."
            if len(self.workers) > 1
            else f" {self.workers[0]} processes were at work on the machine, and each counts in full."
            if self.workers != (1,)
            else ""
        )


def machine_of(device: str, environment: Mapping[str, Any]) -> str | None:
    """What computed on a type of device: the GPU, or the CPU with its cores; None where that was not noted.

    >>> machine_of("cpu", {"cpu": "Xeon", "cores": 16, "gpu": "H200"})
    'Xeon, 16 cores'
    """
    if device == "cuda":
        return environment.get("gpu")
    known = environment.get("cpu") and environment.get("cores")
    return f"{environment['cpu']}, {environment['cores']} cores" if known else None


def how_trained(configs: Iterable[RunConfig], root: Path) -> Trained | None:
    """How the networks of runs were trained; None if none of them says."""
    machines: set[str] = set()
    counts: set[int] = set()
    workers: set[int] = set()
    for member in dict.fromkeys(member for config in configs for member in config.trainings()):
        folder = RunFolder.of(member, root)
        training = folder.read("training") or {}
        machine = machine_of(training.get("device", ""), folder.read("environment") or {})
        if machine is not None and training:
            machines.add(machine)
            counts.add(training.get("side_by_side", 1))
            workers.add(training.get("workers", 1))
    return Trained(tuple(sorted(machines)), tuple(sorted(counts)), tuple(sorted(workers))) if machines else None
