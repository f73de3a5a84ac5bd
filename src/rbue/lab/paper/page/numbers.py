"""Tables of measured numbers with the paper's beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from rbue.lab.paper.gathering import NOT_COMPARED, GatheredCell, GatheredRow
from rbue.lab.paper.numbers import TABLES, as_printed, paper_value
from rbue.lab.paper.page.shown import Shown
from rbue.lab.report.run_tables import MEASURES
from rbue.lab.report.tables import Cell, Column, Row, Table, Value, whole

METHOD = Column("method", "method", numeric=False)
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
)
COLUMNS = {column.key: column for column in (*MEASURES, *_OWN)}
COLUMNS |= {key: replace(COLUMNS[key], better=None) for key in NOT_COMPARED}
COLUMNS = {key: replace(column, printed=as_printed(key)) for key, column in COLUMNS.items()}


class Uncompared(Cell):
    """A value whose difference from the paper's says nothing."""

    @property
    def difference(self) -> None:
        """None."""
        return None


def numbers_table(shown: Shown, model: str, measures: Sequence[str], sentence: str = "") -> Table:
    """One row a method of one network; ``sentence`` begins its caption."""
    rows = shown.rows(model)
    keys = list(measures)
    if "accuracy" in keys:
        keys += [extra for extra in EXTRAS if any(row.cells[extra].measured for row in rows)]
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


def spoken(measure: str, value: float) -> str:
    """A value as a text without a table says it."""
    return COLUMNS[measure].text(value)


def _cell(measure: str, cell: GatheredCell) -> Cell:
    if cell.measured is None:
        return Cell(None, paper=cell.paper)
    deviation = None if measure == "parameters" else cell.measured.deviation
    return (Cell if cell.compared else Uncompared)(cell.measured.mean, deviation, cell.paper)


def _size(shown: Shown, row: GatheredRow) -> Cell:
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
