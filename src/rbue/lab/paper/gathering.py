"""One experiment's data, measured and printed side by side: what a table or a figure is made from."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rbue.lab.paper.definitions import Experiment, Grid
from rbue.lab.paper.illustrations import read_illustration
from rbue.lab.paper.measured import Measured, Summary
from rbue.lab.paper.numbers import paper_value
from rbue.lab.paper.settings import Settings
from rbue.lab.paper.shift_results import CORRUPTION_COUNT
from rbue.lab.paper.trained import Trained, how_trained

CLEAN_MEASURES = ("accuracy", "ece", "nll", "brier", "training_seconds", "parameters")
DIVERSITY_MEASURES = ("mean_jsd", "max_jsd", "mean_dis", "max_dis")
NOT_COMPARED = ("training_seconds",)
"""What depends on the hardware, so that its difference from the paper's says nothing."""


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
    options: str = ""

    @property
    def has_something(self) -> bool:
        """Whether anything of it has been measured or made."""
        numbers = any(cell.measured is not None for row in self.rows for cell in row.cells.values())
        return numbers or self.illustration is not None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def gather(experiment: Experiment, settings: Settings, root: Path) -> ExperimentData:
    """Collect what there is of an experiment; what is missing is listed, never an error."""
    measured = Measured(root, settings)
    wanted = settings.measures(experiment)
    options = settings.typed + (f" --runs {shlex.quote(str(root))}" if root != Path("runs") else "")
    missing: list[str] = []
    illustration = None
    if experiment.illustration is not None:
        illustration = read_illustration(experiment, settings, root)
        if illustration is None:
            missing.append(f"the data to draw {experiment.id} from")
    grid = experiment.grid
    if grid is None:
        return ExperimentData(
            experiment, settings.scale.name, illustration=illustration, missing=tuple(missing), options=options
        )
    cells = list(dict.fromkeys((config.model, config.method) for config in settings.configs(experiment)))
    rows = tuple(_row(experiment, measured, *cell, diversity="diversity" in wanted) for cell in cells)
    if not cells:
        missing.append("all of it, because no row of it was asked for")
    missing += _missing_runs(rows, len(settings.seeds or grid.seeds))
    corrupted = _corrupted(grid, cells, measured) if "shift" in wanted else {}
    if "shift" in wanted:
        missing += _missing_corruptions(grid, cells, measured)
    return ExperimentData(
        experiment,
        settings.scale.name,
        data=settings.data_of(grid.data),
        rows=rows,
        heat_maps=_heat_maps(grid, cells, measured) if "diversity" in wanted else {},
        corrupted=corrupted,
        illustration=illustration,
        trained=how_trained((one for one in settings.configs(experiment) if measured.result(one)), root),
        missing=tuple(missing),
        options=options,
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


def _missing_runs(rows: Iterable[GatheredRow], repetitions: int) -> Iterator[str]:
    for row in rows:
        found = row.cells["accuracy"].measured
        there = 0 if found is None else len(found.values)
        if there < repetitions:
            part = f": {repetitions - there} of {repetitions} repetitions" if there else ""
            yield f"{row.model} {row.method}{part}"


def _missing_corruptions(grid: Grid, cells: list[tuple[str, str]], measured: Measured) -> Iterator[str]:
    wanted = CORRUPTION_COUNT * len(measured.severities)
    for model, method in cells:
        table = measured.corrupted(grid.data, model, method, "accuracy")
        there = sum(min(len(table.get(severity, ())), CORRUPTION_COUNT) for severity in measured.severities)
        if there < wanted:
            part = f": {wanted - there} of {wanted}" if there else ""
            yield f"{model} {method} under corruptions{part}"


def _heat_maps(grid: Grid, cells: list[tuple[str, str]], measured: Measured) -> dict[str, dict[str, list[list[float]]]]:
    found: dict[str, dict[str, list[list[float]]]] = {"jsd": {}, "dis": {}}
    for measure, by_method in found.items():
        for model, method in cells:
            matrix = measured.matrix(grid.data, model, method, measure)
            if matrix is not None:
                by_method[method] = matrix
    return found


def _corrupted(
    grid: Grid, cells: list[tuple[str, str]], measured: Measured
) -> dict[str, dict[str, dict[int, list[float]]]]:
    found: dict[str, dict[str, dict[int, list[float]]]] = {"accuracy": {}, "ece": {}}
    several = len({model for model, _ in cells}) > 1
    for measure, by_method in found.items():
        for model, method in cells:
            table = measured.corrupted(grid.data, model, method, measure)
            whole = {level: list(seen.values()) for level, seen in table.items() if len(seen) >= CORRUPTION_COUNT}
            if whole:
                by_method[f"{model} {method}" if several else method] = whole
    return found
