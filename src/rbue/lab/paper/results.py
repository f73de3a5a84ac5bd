"""What was measured: means over repetitions, looked up under the paper's names and put beside what the paper prints.

:class:`Measured` reads a folder of runs; :func:`gather` collects what a table or a figure is made from, and lists what
is missing; :func:`how_trained` says where networks were trained, without which a training time says little.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from rbue.lab.corruptions import CORRUPTIONS
from rbue.lab.paper.budget import Rule
from rbue.lab.paper.experiments import MODELS, Experiment, Grid, get
from rbue.lab.paper.illustrations import read_illustration
from rbue.lab.paper.numbers import paper_value, printed
from rbue.lab.paper.settings import QUICK, Settings, name_of, spread
from rbue.lab.runs.folders import RunConfig, RunFolder, other_stream, result_key
from rbue.lab.runs.temperatures import is_calibration_of
from rbue.lab.shift import Row, Setting, ShiftStore

CORRUPTION_COUNT = len(CORRUPTIONS)
CLEAN_MEASURES = (
    *("accuracy", "ece", "nll", "brier"),
    *("training_seconds", "parameters", "stored_bytes", "prediction_seconds"),
)
DIVERSITY_MEASURES = ("mean_jsd", "max_jsd", "mean_dis", "max_dis")
FEW = 3
NOT_COMPARED = ("training_seconds",)
"""What depends on the hardware, so that its difference from the paper's says nothing."""

Cell = tuple[str, str]
"""a network and a method"""
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
        self._configs: dict[tuple[str, str, str], list[RunConfig]] = {}
        self._results: dict[RunConfig, dict[str, Any] | None] = {}
        self._calibrations: dict[RunConfig, dict[str, Any] | None] = {}
        self._corrupted_rows: dict[RunConfig, list[Row]] = {}
        self._alone: dict[RunConfig, bool] = {}

    def configs(self, data: str, model: str, method: str) -> list[RunConfig]:
        """The runs of one cell, one a repetition; the first also of a cell that is left out, as it may be there."""
        cell = (data, model, method)
        if cell not in self._configs:  # claims ask thousands of times, and checking a config takes milliseconds
            repetitions = self.settings.repetitions(*cell) or (0,)
            self._configs[cell] = [self.settings.config(*cell, one) for one in repetitions]
        return self._configs[cell]

    def corrupted_configs(self, data: str, model: str, method: str) -> list[RunConfig]:
        """Those of them that count on corrupted images: the first, unless repetitions were asked for."""
        found = self.configs(data, model, method)
        return found if self.settings.seeds is not None else found[:1]

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
                runs.append(name_of(config))
        if not values:
            return None
        mean, std = spread(values)
        return Summary(mean, std, tuple(values), tuple(runs))

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
        if config not in self._alone:
            trainings = (RunFolder.of(member, self.root).read("training") or {} for member in config.members())
            self._alone[config] = all(
                training.get("side_by_side", 1) == training.get("workers", 1) == 1 for training in trainings
            )
        return self._alone[config]

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

    candidates = dict.fromkeys((*grid.models, *MODELS))
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
            f" With {' or '.join(map(str, self.workers))} processes at work on the machine, each counts in full."
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
    for member in dict.fromkeys(member for config in configs for member in config.members()):
        folder = RunFolder.of(member, root)
        training = folder.read("training") or {}
        machine = machine_of(training.get("device", ""), folder.read("environment") or {})
        if machine is not None and training:
            machines.add(machine)
            counts.add(training.get("side_by_side", 1))
            workers.add(training.get("workers", 1))
    return Trained(tuple(sorted(machines)), tuple(sorted(counts)), tuple(sorted(workers))) if machines else None


@dataclass(frozen=True)
class GatheredCell:
    """One number: measured, and as the paper prints it; either may be None.

    Attributes:
        measured: ours.
        paper: the paper's.
        compared: whether a difference of the two says something.
    """

    measured: Summary | None
    paper: float | None
    compared: bool = True

    @property
    def difference(self) -> float | None:
        """How far the measured mean lies above the paper's value."""
        if self.measured is None or self.paper is None or not self.compared:
            return None
        return self.measured.mean - self.paper


@dataclass(frozen=True)
class GatheredRow:
    """One method on one network."""

    model: str
    method: str
    cells: dict[str, GatheredCell]

    @property
    def cell(self) -> Cell:
        """What names it in a grid."""
        return self.model, self.method

    @property
    def has_numbers(self) -> bool:
        """Whether anything of it has been measured."""
        return any(cell.measured is not None for cell in self.cells.values())


@dataclass(frozen=True)
class ExperimentData:
    """Everything to draw one experiment with.

    Attributes:
        experiment: what it is.
        scale: ``full`` or ``quick``.
        data: the data set really used.
        rows: one for each network and method.
        heat_maps: measure -> method -> matrix of every two samples.
        corrupted: measure -> method -> severity -> one value a corruption, where all of them are measured: a median
            over the easier ones would stand beside medians over all. With several networks their names stand before
            those of the methods.
        illustration: data that comes from no comparison.
        trained: how the networks behind its rows were trained, if that is known.
        missing: what has not been measured yet, in words.
        left_out: rows that the budget of the folder leaves out.
        stated: what that budget says of it, and why, in sentences.
        options: what `rbue paper run` needs beside the id and the networks to go on with these runs.
    """

    experiment: Experiment
    scale: str
    data: str | None = None
    rows: tuple[GatheredRow, ...] = ()
    heat_maps: dict[str, dict[str, list[list[float]]]] = field(default_factory=dict)
    corrupted: dict[str, dict[str, dict[int, list[float]]]] = field(default_factory=dict)
    illustration: dict[str, Any] | None = None
    trained: Trained | None = None
    missing: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    options: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether every row that the paper has is there."""
        return not self.missing and not self.left_out

    @property
    def has_something(self) -> bool:
        """Whether there is anything to draw it from."""
        if self.experiment.illustration is not None:
            return self.illustration is not None
        if "shift" in self.experiment.measures:
            return any(self.corrupted.values())
        return any(row.has_numbers for row in self.rows)

    @property
    def command(self) -> str:
        """What does the rest of it."""
        grid, models = self.experiment.grid, dict.fromkeys(row.model for row in self.rows)
        only = f" --models {','.join(models)}" if grid is not None and models and tuple(models) != grid.models else ""
        quick = " --quick" if self.scale == QUICK.name else ""
        return f"rbue paper run {self.experiment.id}{only}{quick}{self.options}"

    @property
    def state(self) -> str:
        """``complete``, ``not run``, or what of it is missing or left out, in a few words."""
        if self.is_complete:
            return "complete"
        if not self.missing:
            return f"incomplete, by its budget. {' '.join(self.stated)}"
        if not self.has_something and not any(row.has_numbers for row in self.rows):
            return "not run"
        more = f" and {len(self.missing) - FEW} more" if len(self.missing) > FEW else ""
        return f"{len(self.missing)} missing: {'; '.join(self.missing[:FEW])}{more}"

    @property
    def line(self) -> str:
        """What stands in a report for one that has nothing to show."""
        rest = f"; `{self.command}`" if self.missing else ""
        return f"{self.experiment.place} ({self.experiment.title}): {self.state}{rest}"

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def gather(experiment: Experiment, settings: Settings, root: Path) -> ExperimentData:
    """Collect what there is of an experiment; what is missing is listed, never an error."""
    settings = as_measured(experiment, settings, root)
    measured = Measured(root, settings)
    grid, wanted = experiment.grid, settings.measures(experiment)
    options = settings.typed + (f" --runs {shlex.quote(str(root))}" if root != Path("runs") else "")
    illustration = None if experiment.illustration is None else read_illustration(experiment, settings, root)
    missing: list[str] = []
    if experiment.illustration is not None and illustration is None:
        missing.append(f"the data to draw {experiment.id} from")
    found = ExperimentData(experiment, settings.scale.name, illustration=illustration, options=options)
    if grid is None:
        return replace(found, missing=tuple(missing))
    wanted_runs = Counter((config.model, config.method) for config in settings.configs(experiment))
    rows = [_row(experiment, measured, *cell, diversity="diversity" in wanted) for cell in settings.cells(grid)]
    # What is left out and was measured all the same is shown.
    rows = [row for row in rows if row.cell in wanted_runs or _is_there(row, grid, measured, wanted)]
    cells = [row.cell for row in rows]
    left_out = [cell for cell in settings.cells(grid) if cell not in cells]
    if not cells and not left_out:
        missing.append("all of it, because no row of it was asked for")
    missing += _missing_runs(rows, wanted_runs)
    if "shift" in wanted:
        missing += _missing_corruptions(grid, wanted_runs, measured)
    runs = (config for cell in cells for config in measured.configs(grid.data, *cell))
    return replace(
        found,
        data=settings.data_of(grid.data),
        rows=tuple(rows),
        heat_maps=_heat_maps(grid, cells, measured) if "diversity" in wanted else {},
        corrupted=_corrupted(grid, cells, measured) if "shift" in wanted else {},
        trained=how_trained((one for one in runs if measured.result(one)), root),
        missing=tuple(missing),
        left_out=tuple(" ".join(cell) for cell in left_out),
        stated=tuple(budget_sentences(experiment, settings, cells)),
    )


def _is_there(row: GatheredRow, grid: Grid, measured: Measured, wanted: Container[str]) -> bool:
    if "shift" in wanted:
        return bool(measured.corrupted(grid.data, row.model, row.method, "accuracy"))
    return row.has_numbers


def budget_sentences(experiment: Experiment, settings: Settings, there: Container[Cell] = ()) -> Iterator[str]:
    """What the budget says of an experiment, with its reasons; rows that are ``there`` are not called left out."""
    grid = experiment.grid
    if grid is None:
        return
    cells = settings.cells(grid)
    said: dict[tuple[str, Rule], list[Cell]] = defaultdict(list)
    for cell in cells:
        count = len(settings.repetitions_for(experiment, *cell))
        if settings.seeds is None and (rule := settings.rule("seeds", grid.data, *cell)) is not None:
            words = f"{count} repetitions of" if count > 1 else "" if count or cell in there else "Left out:"
            said[words, rule] += [cell] if words else []
        if not count and cell not in there:
            continue
        if settings.epochs is None and (rule := settings.rule("epochs", grid.data, *cell)) is not None:
            said[f"{counted([rule.epochs or 1], 'epoch')} for", rule].append(cell)
        rule = settings.rule("shift_samples", grid.data, *cell)
        if rule is not None and "shift" in settings.measures(experiment):
            samples = counted([settings.shift_samples_for(grid.data, *cell)], "sample")
            said[f"{samples} of each corrupted image for", rule].append(cell)
    for (words, rule), some in said.items():
        if some:
            rows = "all rows" if len(some) == len(cells) else _rows_in_words(some, len({name for _, name in cells}))
            yield f"{words} {rows}, because {rule.why}."


def counted(numbers: Iterable[int], what: str) -> str:
    """``20 samples``, or ``15 or 20 epochs``."""
    found = sorted(set(numbers))
    return f"{' or '.join(map(str, found))} {what}{'s' if found != [1] else ''}"


def _rows_in_words(cells: Iterable[Cell], methods: int) -> str:
    """``vgg13; resnet18 with svi, mc-rrelu``, where ``vgg13`` has all of so many methods."""
    by_model: dict[str, list[str]] = defaultdict(list)
    for model, method in cells:
        by_model[model].append(method)
    return "; ".join(
        model if len(some) == methods else f"{model} with {', '.join(some)}" for model, some in by_model.items()
    )


def _row(experiment: Experiment, measured: Measured, model: str, method: str, diversity: bool) -> GatheredRow:
    assert experiment.grid is not None
    data = experiment.grid.data
    # A table of the paper shows its own numbers; a figure those of whichever table has them.
    table = experiment.id if experiment.id.startswith("table") else None
    measures = (*CLEAN_MEASURES, *(DIVERSITY_MEASURES if diversity else ()))
    cells = {
        measure: GatheredCell(
            measured.summary(data, model, method, measure),
            paper_value(data, model, method, measure, table),
            compared=measure not in NOT_COMPARED,
        )
        for measure in measures
    }
    return GatheredRow(model, method, cells)


def _missing_runs(rows: Iterable[GatheredRow], wanted: Mapping[Cell, int]) -> Iterator[str]:
    for row in rows:
        found = row.cells["accuracy"].measured
        repetitions = wanted.get(row.cell, 0)
        there = 0 if found is None else len(found.values)
        if there < repetitions:
            part = f": {repetitions - there} of {repetitions} repetitions" if there else ""
            yield f"{row.model} {row.method}{part}"


def _missing_corruptions(grid: Grid, cells: Iterable[Cell], measured: Measured) -> Iterator[str]:
    wanted = CORRUPTION_COUNT * len(measured.severities)
    for model, method in cells:
        table = measured.corrupted(grid.data, model, method, "accuracy")
        there = sum(min(len(table.get(severity, ())), CORRUPTION_COUNT) for severity in measured.severities)
        if there < wanted:
            part = f": {wanted - there} of {wanted}" if there else ""
            yield f"{model} {method} under corruptions{part}"


def _heat_maps(grid: Grid, cells: Sequence[Cell], measured: Measured) -> dict[str, dict[str, list[list[float]]]]:
    found: dict[str, dict[str, list[list[float]]]] = {"jsd": {}, "dis": {}}
    for measure, by_method in found.items():
        for model, method in cells:
            matrix = measured.matrix(grid.data, model, method, measure)
            if matrix is not None:
                by_method[method] = matrix
    return found


def _corrupted(grid: Grid, cells: Sequence[Cell], measured: Measured) -> dict[str, dict[str, dict[int, list[float]]]]:
    found: dict[str, dict[str, dict[int, list[float]]]] = {"accuracy": {}, "ece": {}}
    several = len({model for model, _ in cells}) > 1
    for measure, by_method in found.items():
        for model, method in cells:
            table = measured.corrupted(grid.data, model, method, measure)
            whole = {level: list(seen.values()) for level, seen in table.items() if len(seen) >= CORRUPTION_COUNT}
            if whole:
                by_method[f"{model} {method}" if several else method] = whole
    return found
