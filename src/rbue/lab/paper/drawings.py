"""The drawings of an experiment as blocks of the page: tables, figures, and the words that go with them.

:func:`draw` makes the blocks of one :class:`~rbue.lab.paper.experiments.Drawing`. Some kinds of drawings compare
trained runs, others show an illustration (:mod:`rbue.lab.paper.illustrations`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np

from rbue.errors import RbueError
from rbue.lab.methods import parse
from rbue.lab.methods.mc_droprelu import MCDropReLU
from rbue.lab.paper.experiments import Drawing, Experiment
from rbue.lab.paper.gathering import NOT_COMPARED, ExperimentData, GatheredCell, GatheredRow
from rbue.lab.paper.illustrations import FROM_ILLUSTRATIONS
from rbue.lab.paper.numbers import TABLES, as_printed, paper_value
from rbue.lab.paper.results import Measured, how_trained
from rbue.lab.paper.settings import QUICK
from rbue.lab.report import figures, severity_figures
from rbue.lab.report.figures import PlanePoint
from rbue.lab.report.page import Block, Columns, FigureBlock, Fold, Heading, Notice, TableBlock
from rbue.lab.report.run_records import recipe_words
from rbue.lab.report.run_tables import MEASURES, METHOD
from rbue.lab.report.tables import Cell, Column, Row, Table, Value, counted, duration, megabytes, whole
from rbue.lab.runs.folders import RunConfig
from rbue.lab.training.recipe import recipe_for


def anchor_of(config: RunConfig) -> str:
    """What names a run in the page."""
    return f"run-{config.id}"


@dataclass(frozen=True)
class ExperimentView:
    """An experiment's data and the runs it comes from."""

    gathered: ExperimentData
    measured: Measured

    @property
    def experiment(self) -> Experiment:
        """What is shown."""
        return self.gathered.experiment

    @property
    def quick(self) -> bool:
        """Whether the numbers are no evidence."""
        return self.gathered.scale == QUICK.name

    @property
    def models(self) -> list[str]:
        """The networks that have numbers."""
        return list(dict.fromkeys(row.model for row in self.gathered.rows if row.has_numbers))

    def rows(self, model: str) -> list[GatheredRow]:
        """The rows of one network that have numbers."""
        return [row for row in self.gathered.rows if row.model == model and row.has_numbers]

    def configs(self, model: str, method: str) -> list[RunConfig]:
        """The runs of one row, one a repetition."""
        grid = self.experiment.grid
        if grid is None:
            return []
        found = self.measured.configs(grid.data, model, method)
        return found[:1] if self.experiment.shows_one_run and self.measured.settings.seeds is None else found

    def results(self, model: str, method: str) -> list[dict[str, Any]]:
        """The clean results of those of them that have been measured."""
        found = (self.measured.result(config) for config in self.configs(model, method))
        return [result for result in found if result is not None]

    def link(self, model: str, method: str) -> str:
        """The address of where a row's numbers come from; empty if it has none."""
        measured = [config for config in self.configs(model, method) if self.measured.result(config) is not None]
        return f"#{anchor_of(measured[0])}" if measured else ""

    def settings_words(self) -> str:
        """What was run for it: networks, data, recipe, samples, seeds."""
        configs = self._measured()
        if not configs:
            return ""
        networks = _listed(dict.fromkeys(one.model for one in configs))
        parts = (recipe_words(configs[0]), self._samples(configs), self._repetitions(configs))
        return f"{networks} on {self._data()}; {'; '.join(parts)}."

    def caption(self, sentence: str, model: str | None = None, corrupted: bool = False) -> str:
        """A sentence with what was run, short enough to stand below every figure."""
        measured, settings = self._measured(model), self.measured.settings
        if not measured:
            return sentence
        networks = model or _listed(dict.fromkeys(one.model for one in measured))
        samples = self._corrupted_samples(measured) if corrupted else counted(settings.sample_count, "sample")
        parts = [f"{networks} on {self._data(count=False)}", *self._epochs(measured)]
        parts += [samples, self._repetitions(measured)]
        parts += ["quick run, no evidence"] if self.quick else []
        return f"{sentence} ({', '.join(parts)}.)".strip()

    def times_note(self, model: str) -> str:
        """What the training times of one network mean; empty if nothing is known of its trainings."""
        trained = how_trained(self._measured(model), self.measured.root)
        return "" if trained is None else trained.note()

    def _measured(self, model: str | None = None) -> list[RunConfig]:
        """The runs of all networks, or of one, that have been measured."""
        rows = [row for row in self.gathered.rows if model in (None, row.model)]
        configs = (config for row in rows for config in self.configs(row.model, row.method))
        return [config for config in configs if self._has_numbers(config)]

    def _has_numbers(self, config: RunConfig) -> bool:
        if self.measured.result(config) is not None:
            return True
        return bool(self.gathered.corrupted) and bool(self.measured.corrupted_rows(config))

    def _data(self, count: bool = True) -> str:
        assert self.experiment.grid is not None
        wanted, used = self.experiment.grid.data, str(self.gathered.data)
        text = used if used == wanted else f"{used} in place of {wanted}"
        results = (result for row in self.gathered.rows for result in self.results(row.model, row.method))
        counts = (dict(result.get("data") or {}).get("count") for result in results)
        images = next((number for number in counts if number), None) if count else None
        return f"{text} ({images:,} test images)" if images else text

    def _epochs(self, configs: list[RunConfig]) -> list[str]:
        """How long the networks were trained, where that is not the paper's length."""
        usual = recipe_for(configs[0].data).epochs
        counts = {config.recipe.epochs for config in configs}
        return [] if self.quick or counts == {usual} else [f"{counted(counts, 'epoch')} in place of {usual}"]

    def _samples(self, configs: list[RunConfig]) -> str:
        text = f"{counted(self.measured.settings.sample_count, 'sample')} for each image"
        if self.gathered.corrupted:
            text += f" ({self._corrupted_samples(configs).partition(' sample')[0]} for each corrupted one)"
        members = sorted({config.parsed.networks for config in configs} - {1})
        return f"{text}, {' or '.join(map(str, members))} members of an ensemble" if members else text

    def _corrupted_samples(self, configs: list[RunConfig]) -> str:
        asked = self.measured.settings.shift_samples_for
        return counted((asked(one.data, one.model, one.method) for one in configs), "sample")

    def _repetitions(self, configs: list[RunConfig]) -> str:
        counts = set(Counter((config.model, config.method) for config in configs).values())
        if counts == {1}:
            asked = self.measured.settings.seeds or (0,)
            return f"seed {asked[0]}" if len(asked) == 1 else "one run a method"
        fewest, most = min(counts), max(counts)
        return f"mean of {most if fewest == most else f'{fewest} to {most}'} repetitions"


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


# Tables of measured numbers with the paper's beside them.


SEEDS = Column("seeds", "runs", text=whole, about="Trainings with different seeds: mean ± standard deviation.")
EXTRAS = ("nll", "brier")
"""Not in the paper; shown beside its accuracy and ECE where they were measured."""

_OWN = (
    Column("max_jsd", "Max-JSD", "higher", about="Greatest Jensen-Shannon divergence of two samples, in nats."),
    Column("max_dis", "Max-DIS", "higher", about="Greatest share of images on which two samples disagree."),
    Column(
        "relative_size",
        "size",
        text="{:.2f} ×".format,
        about="Parameters in those of Single. The paper's is from its captions: four for Deep Ensemble, else one.",
    ),
    Column("stored_bytes", "stored", text=megabytes, about="Files of the trained networks."),
    Column("prediction_seconds", "prediction", text=duration, about="Time of predicting the test images."),
)
COLUMNS = {column.key: column for column in (*MEASURES, *_OWN)}
COLUMNS |= {key: replace(COLUMNS[key], better=None) for key in NOT_COMPARED}
COLUMNS = {key: replace(column, printed=as_printed(key)) for key, column in COLUMNS.items()}


def numbers_table(shown: ExperimentView, model: str, measures: Sequence[str], sentence: str = "") -> Table:
    """One row a method of one network; ``sentence`` begins its caption."""
    rows = shown.rows(model)
    keys = list(measures)
    if "accuracy" in keys:
        keys += [one for one in EXTRAS if one not in keys and any(row.cells[one].measured for row in rows)]
    if "parameters" in keys and any(row.method == "single" for row in rows):
        keys.insert(keys.index("parameters") + 1, "relative_size")
    several = any(_repetitions(row) > 1 for row in rows)
    columns = (METHOD, *((SEEDS,) if several else ()), *(COLUMNS[key] for key in keys))
    lines: list[dict[str, Value]] = []
    for row in rows:
        line: dict[str, Value] = {
            key: _size(shown, row) if key == "relative_size" else _cell(key, row.cells[key]) for key in keys
        }
        line["method"] = Cell(row.method, link=shown.link(row.model, row.method))
        if several:
            line["seeds"] = Cell(_repetitions(row))
        lines.append(line)
    spread = " Mean ± standard deviation." if several else ""
    note = f" {shown.times_note(model)}" if "training_seconds" in keys else ""
    return Table(columns, lines, f"{shown.caption(f'{sentence}{spread}', model)}{note}".rstrip())


def medians_table(by_method: Mapping[str, Mapping[int, Sequence[float]]], measure: str, caption: str) -> Table:
    """The median over corruptions of each method at each severity."""
    severities = sorted({severity for table in by_method.values() for severity in table})
    like = COLUMNS[measure]
    columns = [METHOD]
    columns += [Column(str(one), f"severity {one}", like.better, like.text, like.difference) for one in severities]
    rows: list[Row] = [
        {"method": method, **{str(severity): median(values) for severity, values in table.items()}}
        for method, table in by_method.items()
    ]
    return Table(columns, rows, caption)


def _cell(measure: str, cell: GatheredCell) -> Cell:
    if cell.measured is None:
        return Cell(None, paper=cell.paper)
    std = None if measure in ("parameters", "stored_bytes") else cell.measured.deviation
    return Cell(cell.measured.mean, std, cell.paper, compared=cell.compared)


def _size(shown: ExperimentView, row: GatheredRow) -> Cell:
    grid = shown.experiment.grid
    assert grid is not None
    table = shown.experiment.id if shown.experiment.id in TABLES else None
    return Cell(
        shown.measured.value(grid.data, row.model, row.method, "relative_size"),
        paper=paper_value(grid.data, row.model, row.method, "relative_size", table),
    )


def _repetitions(row: GatheredRow) -> int:
    found = row.cells["accuracy"].measured
    return 0 if found is None else len(found.values)


# Drawings that compare trained runs: tables, box plots, medians, heat maps, the plane.


def tables(shown: ExperimentView, drawing: Drawing) -> list[Block]:
    """One table a network, and what more samples bring."""
    blocks: list[Block] = []
    for number, model in enumerate(shown.models):
        blocks += [Heading(model)] if len(shown.models) > 1 else []
        blocks.append(TableBlock(numbers_table(shown, model, drawing.measures, drawing.caption), explain=number == 0))
        if "accuracy" in drawing.measures:
            blocks += more_samples(shown, model)
    return blocks


def by_severity(shown: ExperimentView, drawing: Drawing) -> list[Block]:
    """Box plots over corruptions, or curves of medians; where all rows are drawn, folded with a table of medians."""
    assert shown.experiment.grid is not None
    large = drawing.kind == "boxes"
    about = "Box plots of {} over corruptions." if large else "Median {} against severity."
    figure_of = severity_figures.severity_boxes if large else severity_figures.severity_medians
    (measure,) = drawing.measures
    found = shown.gathered.corrupted.get(measure, {})
    wanted = drawing.methods or shown.experiment.grid.methods
    values = {method: found[method] for method in wanted if method in found}
    if not values:
        return []
    name, text = COLUMNS[measure].heading, COLUMNS[measure].text
    last = max(severity for table in values.values() for severity in table)
    said = "; ".join(f"{method} {text(median(table[last]))}" for method, table in values.items() if last in table)
    alt = f"{about.format(name)} Medians at severity {last}: {said}."
    figure = figure_of(values, name, percent=measure == "accuracy")
    drawn = FigureBlock(figure, alt, shown.caption(drawing.caption, corrupted=True), wide=large)
    # Only the drawing with the most rows has its table, so that tables do not repeat each other.
    alike = [one for one in shown.experiment.drawings if one.measures == drawing.measures]
    if len(drawing.methods) < max(len(one.methods) for one in alike):
        return [drawn]
    caption = shown.caption(f"Median {name} over corruptions.", corrupted=True)
    table = TableBlock(medians_table(values, measure, caption))
    return [Fold(f"All {len(values)} rows, and medians of {name} as numbers", [drawn, table])]


def heat_maps(shown: ExperimentView, drawing: Drawing) -> list[Block]:
    """Every two samples of each method."""
    (measure,) = drawing.measures
    found = shown.gathered.heat_maps.get(measure, {})
    wanted = drawing.methods or tuple(found)
    matrices = {method: found[method] for method in wanted if method in found}
    if not matrices:
        return []
    means = "; ".join(f"{method} {_off_diagonal(matrix):.4f}" for method, matrix in matrices.items())
    name = measure.upper()
    alt = f"Heat maps of {name} between every two of the first samples. Means over pairs: {means}."
    figure = figures.heat_maps(matrices, "JSD in nats" if measure == "jsd" else name)
    return [FigureBlock(figure, alt, shown.caption(drawing.caption), wide=True)]


def plane(shown: ExperimentView, drawing: Drawing) -> list[Block]:
    """Accuracy and ECE as points, and as a table with the paper's where it prints them."""
    blocks: list[Block] = []
    for model in shown.models:
        points, drawn = [], []
        for row in shown.rows(model):
            accuracy, ece = (row.cells[measure].measured for measure in ("accuracy", "ece"))
            if accuracy is not None and ece is not None:
                method = parse(row.method)
                q = method.q if isinstance(method, MCDropReLU) else None
                points.append(PlanePoint(row.method, accuracy.mean, ece.mean, q))
        if points:
            said = "; ".join(f"{one.label} {one.accuracy:.4f}, {one.ece:.4f}" for one in points)
            alt = f"Accuracy and ECE of {len(points)} methods: {said}."
            figure = figures.accuracy_ece_plane(points)
            drawn = [FigureBlock(figure, alt, shown.caption(drawing.caption, model))]
        table = numbers_table(shown, model, drawing.measures, "The same as numbers, and those the paper prints.")
        blocks.append(Columns([drawn, [TableBlock(table, explain=True)]]))
    return blocks


def more_samples(shown: ExperimentView, model: str) -> list[Block]:
    """Accuracy and ECE against the number of samples, means over repetitions; empty where there is no such curve."""
    curves = {}
    for row in shown.rows(model):
        curve = _curve(shown, model, row.method)
        if len(curve) > 1:
            curves[row.method] = curve
    if not curves:
        return []
    counts = sorted({count for curve in curves.values() for count in curve})
    alt = (
        f"Accuracy and ECE of {', '.join(curves)} against the number of samples, from {counts[0]} to {counts[-1]}; "
        f"most gained in ECE: {_most_gained(curves)}."
    )
    figure = figures.lines_against_samples(curves)
    caption = shown.caption("Accuracy and ECE of the mean over the first samples.", model)
    return [Fold(f"What more samples bring to {model}", [FigureBlock(figure, alt, caption, wide=True)])]


def _curve(shown: ExperimentView, model: str, method: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in shown.results(model, method):
        for entry in (*(result.get("by_samples") or ()), result):
            for measure in ("accuracy", "ece"):
                if entry.get("samples") and entry.get(measure) is not None:
                    found[int(entry["samples"])][measure].append(entry[measure])
    return {count: {measure: fmean(values) for measure, values in found[count].items()} for count in sorted(found)}


def _most_gained(curves: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str:
    ends = [(curve[min(curve)]["ece"], curve[max(curve)]["ece"], method) for method, curve in curves.items()]
    first, last, method = max(ends, key=lambda one: one[0] - one[1])
    return f"{method}, from {first:.4f} to {last:.4f}"


def _off_diagonal(matrix: Sequence[Sequence[float]]) -> float:
    array = np.asarray(matrix, dtype=float)
    return float(array[~np.eye(len(array), dtype=bool)].mean()) if len(array) > 1 else 0.0


FROM_RUNS: Mapping[str, Callable[[ExperimentView, Drawing], list[Block]]] = {
    "table": tables,
    "boxes": by_severity,
    "medians": by_severity,
    "heat-maps": heat_maps,
    "plane": plane,
}


def draw(shown: ExperimentView, drawing: Drawing) -> list[Block]:
    """The blocks of one drawing; none where the data of an illustration is missing, a notice where drawing fails."""
    try:
        if drawing.kind in FROM_RUNS:
            return FROM_RUNS[drawing.kind](shown, drawing)
        content = shown.gathered.illustration
        return [] if content is None else FROM_ILLUSTRATIONS[drawing.kind](content, drawing.caption)
    except RbueError as error:
        return [Notice("This could not be drawn", [str(error)])]
