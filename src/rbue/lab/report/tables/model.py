"""What a table is, before it is written in any form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rbue.errors import InvalidInput

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: names it in rows and in CSV files.
        heading: stands above it.
        better: which end is the better one, if either is; the best cell of the column is marked.
        text: how a number is written.
        difference: how a difference from the paper is written; like a number, with its sign, if left out.
        about: one sentence on what is measured.
        numeric: False for words, which stand to the left.
        printed: how a number of the paper is written, if with other digits than ours.
    """

    key: str
    heading: str
    better: Literal["higher", "lower"] | None = None
    text: Callable[[float], str] = "{:.4f}".format
    difference: Callable[[float], str] | None = None
    about: str = ""
    numeric: bool = True
    printed: Callable[[float], str] | None = None

    @property
    def title(self) -> str:
        """The heading with an arrow towards the better values."""
        return f"{self.heading} {'↑' if self.better == 'higher' else '↓'}" if self.better else self.heading


@dataclass(frozen=True)
class Cell:
    """One value, and what stands beside it.

    Attributes:
        value: a number, words, or None if it is missing.
        deviation: standard deviation over seeds, shown as ``mean ± deviation``.
        paper: the paper's value of the same thing.
        link: where the value comes from, an address within the page.
        anchor: the id of this cell, for such links.
        why: why it is missing.
    """

    value: float | str | None
    deviation: float | None = None
    paper: float | None = None
    link: str = ""
    anchor: str = ""
    why: str = "not measured"

    @property
    def number(self) -> float | None:
        """The value if it is a number that can be compared."""
        return self.value if isinstance(self.value, int | float) and math.isfinite(self.value) else None

    @property
    def difference(self) -> float | None:
        """How far the value lies above the paper's."""
        return None if self.number is None or self.paper is None else self.number - self.paper


Value = Cell | float | str | None
Row = Mapping[str, Value]


@dataclass(frozen=True)
class Table:
    """Columns and rows; a row need not have every column.

    Attributes:
        columns: from left to right. The first one names the row.
        rows: from top to bottom; each maps keys of columns to cells or plain values.
        caption: what the table shows.
    """

    columns: Sequence[Column]
    rows: Sequence[Row] = ()
    caption: str = ""

    def __post_init__(self) -> None:
        known = {column.key for column in self.columns}
        if not known or len(known) < len(self.columns):
            raise InvalidInput(f"a table needs columns with different keys, not {[one.key for one in self.columns]}.")
        strange = sorted({key for row in self.rows for key in row} - known)
        if strange:
            raise InvalidInput(f"a row has {', '.join(strange)}, but the columns are {', '.join(sorted(known))}.")

    def cell(self, row: Row, column: Column) -> Cell:
        """The cell at a place; a missing one if there is none."""
        found = row.get(column.key)
        return found if isinstance(found, Cell) else Cell(found)

    def is_best(self, row: Row, column: Column) -> bool:
        """Whether a cell has the best value of its column, in which at least two differ."""
        if column.better is None:
            return False
        shown = [self.cell(one, column).number for one in self.rows]
        numbers = {column.text(number): number for number in shown if number is not None}
        own = self.cell(row, column).number
        if own is None or len(numbers) < 2:
            return False
        best = (max if column.better == "higher" else min)(number for number in shown if number is not None)
        return column.text(own) == column.text(best)


def value_text(column: Column, cell: Cell) -> str:
    """The value as people read it, with its deviation."""
    if isinstance(cell.value, str):
        return cell.value
    if cell.value is None:
        return MISSING
    text = column.text(cell.value) if math.isfinite(cell.value) else str(cell.value)
    return text if cell.deviation is None else f"{text} ± {column.text(cell.deviation)}"


def paper_text(column: Column, cell: Cell) -> str:
    """The paper's value and the difference from it; empty if the paper has none."""
    if cell.paper is None:
        return ""
    text = f"paper {printed_text(column, cell.paper)}"
    return text if cell.difference is None else f"{text}, {difference_text(column, cell.difference)}"


def printed_text(column: Column, value: float) -> str:
    """A number of the paper as it prints it."""
    return (column.printed or column.text)(value)


def difference_text(column: Column, difference: float) -> str:
    """A difference with its sign."""
    if column.difference is not None:
        return column.difference(difference)
    return f"{'−' if difference < 0 else '+'}{column.text(abs(difference))}"
