"""A table for spreadsheets and scripts: numbers unrounded, what stands beside them in columns of their own."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

from rbue.lab.report.tables.model import Cell, Column, Table

_Reader = Callable[[Cell], float | str | None]
_BESIDE: dict[str, _Reader] = {
    "std": lambda cell: cell.deviation,
    "paper": lambda cell: cell.paper,
    "difference": lambda cell: cell.difference,
}


def csv_table(table: Table) -> str:
    """The table with one heading line; an empty field is a missing value.

    Deviations, the paper's values and differences are columns such as ``ece_std``, ``ece_paper`` and
    ``ece_difference``; those that would be empty are left out.
    """
    fields: list[tuple[str, Column, _Reader]] = []
    for column in table.columns:
        fields.append((column.key, column, lambda cell: cell.value))
        cells = [table.cell(row, column) for row in table.rows]
        fields += [
            (f"{column.key}_{name}", column, read)
            for name, read in _BESIDE.items()
            if any(read(cell) is not None for cell in cells)
        ]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([name for name, _, _ in fields])
    for row in table.rows:
        values = [read(table.cell(row, column)) for _, column, read in fields]
        writer.writerow(["" if value is None else value for value in values])
    return buffer.getvalue()
