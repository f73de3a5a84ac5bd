"""What a table or a figure is made from: measured numbers beside the paper's, what is missing, what its budget says."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rbue.lab.paper.budget import Rule
from rbue.lab.paper.experiments import Experiment, Grid
from rbue.lab.paper.illustrations import read_illustration
from rbue.lab.paper.numbers import paper_value
from rbue.lab.paper.results import CORRUPTION_COUNT, Measured, Summary, Trained, as_measured, how_trained
from rbue.lab.paper.settings import QUICK, Settings
from rbue.lab.report.tables import counted

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
            said[f"{counted(rule.epochs or 1, 'epoch')} for", rule].append(cell)
        rule = settings.rule("shift_samples", grid.data, *cell)
        if rule is not None and "shift" in settings.measures(experiment):
            samples = counted(settings.shift_samples_for(grid.data, *cell), "sample")
            said[f"{samples} of each corrupted image for", rule].append(cell)
    for (words, rule), some in said.items():
        if some:
            rows = "all rows" if len(some) == len(cells) else _rows_in_words(some, len({name for _, name in cells}))
            yield f"{words} {rows}, because {rule.why}."


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
    for model, method in cells:
        configs = measured.corrupted_configs(grid.data, model, method)
        rows = (row for config in configs for row in measured.corrupted_rows(config))
        there = sum(row["severity"] in measured.severities for row in rows)
        wanted = CORRUPTION_COUNT * len(measured.severities) * len(configs)
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
