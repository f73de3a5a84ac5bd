"""Tables of measurements: one model, and the same table as Markdown, CSV and LaTeX.

As HTML it is a part of a page, :class:`rbue.lab.report.page.TableBlock`. A table whose cells are texts already needs no
model: :func:`markdown_rows` and :func:`csv_rows` write it as it is.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rbue.errors import InvalidInput

MISSING = "–"
NO_BREAK = "\u00a0"

# How numbers are written, in tables and elsewhere. ``gap`` stands before a unit: a terminal wants a plain space.


def percent(value: float, digits: int = 2, gap: str = NO_BREAK) -> str:
    """A fraction in percent."""
    return f"{100 * value:.{digits}f}{gap}%"


def points(difference: float) -> str:
    """A difference of fractions in percentage points, with its sign."""
    return f"{'−' if difference < 0 else '+'}{abs(100 * difference):.2f}"


def whole(value: float) -> str:
    """A whole number with commas between thousands."""
    return f"{value:,.0f}"


def counted(numbers: int | Iterable[int], what: str) -> str:
    """``20 samples``, or ``15 or 20 epochs``."""
    found = [numbers] if isinstance(numbers, int) else sorted(set(numbers))
    return f"{' or '.join(map(whole, found))} {what}{'s' if found != [1] else ''}"


def megabytes(value: float) -> str:
    """Bytes, as the size of a file is given."""
    return f"{value / 1e6:,.1f}{NO_BREAK}MB"


def duration(seconds: float, gap: str = NO_BREAK) -> str:
    """Seconds as people write them.

    >>> [duration(value, gap=" ") for value in (8.3, 125, 3725, 400_000, 9e8)]
    ['8.3 s', '2:05', '1:02:05', '4.6 days', '10,417 days']
    """
    if seconds < 59.95:  # what rounds to 60.0 is a minute
        return f"{seconds:.1f}{gap}s"
    days = seconds / 86_400
    if days >= 2:
        return f"{days:,.{1 if days < 10 else 0}f}{gap}days"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@dataclass(frozen=True)
class Cell:
    """One value, and what stands beside it.

    Attributes:
        value: a number, words, or None if it is missing.
        std: standard deviation over seeds, shown as ``mean ± std``.
        paper: the paper's value of the same thing.
        link: where the value comes from, an address within the page.
        anchor: the id of this cell, for such links.
        why: why it is missing.
        interval: lower and upper end of where it lies with 95 % confidence.
        best: whether to mark it as the best of its column; decided by the values alone if left out.
        compared: whether its difference from the paper's says something.
    """

    value: float | str | None
    std: float | None = None
    paper: float | None = None
    link: str = ""
    anchor: str = ""
    why: str = "not measured"
    interval: tuple[float, float] | None = None
    best: bool | None = None
    compared: bool = True

    @property
    def number(self) -> float | None:
        """The value if it is a number that can be compared."""
        return self.value if isinstance(self.value, int | float) and math.isfinite(self.value) else None

    @property
    def difference(self) -> float | None:
        """How far the value lies above the paper's."""
        return None if self.number is None or self.paper is None or not self.compared else self.number - self.paper


Value = Cell | float | str | None
Row = Mapping[str, Value]


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
        spread: how a standard deviation is written, if not like a number, which may have a sign.
    """

    key: str
    heading: str
    better: Literal["higher", "lower"] | None = None
    text: Callable[[float], str] = "{:.4f}".format
    difference: Callable[[float], str] | None = None
    about: str = ""
    numeric: bool = True
    printed: Callable[[float], str] | None = None
    spread: Callable[[float], str] | None = None

    @property
    def title(self) -> str:
        """The heading with an arrow towards the better values."""
        return f"{self.heading} {'↑' if self.better == 'higher' else '↓'}" if self.better else self.heading

    def value_text(self, cell: Cell) -> str:
        """A value as people read it, with its standard deviation."""
        if isinstance(cell.value, str):
            return cell.value
        if cell.value is None:
            return MISSING
        text = self.text(cell.value) if math.isfinite(cell.value) else str(cell.value)
        return text if cell.std is None else f"{text} ± {(self.spread or self.text)(cell.std)}"

    def interval_text(self, cell: Cell) -> str:
        """The interval as people read it; empty if there is none."""
        if cell.interval is None:
            return ""
        low, high = map(self.text, cell.interval)
        unit = f"{NO_BREAK}%"
        return f"{low.removesuffix(unit) if high.endswith(unit) else low} to {high}"

    def beside(self, cell: Cell) -> str:
        """What stands in brackets beside a value where there is one line for all of it."""
        return ", ".join(filter(None, [self.interval_text(cell), *self.paper_texts(cell)]))

    def paper_texts(self, cell: Cell) -> list[str]:
        """The paper's value and, with its sign, the difference from it; as far as there are any."""
        texts = []
        if cell.paper is not None:
            texts.append(f"paper {(self.printed or self.text)(cell.paper)}")
        if cell.difference is not None:
            sign = "−" if cell.difference < 0 else "+"
            signed = self.difference or (lambda difference: f"{sign}{self.text(abs(difference))}")
            texts.append(signed(cell.difference))
        return texts


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

    def cells(self, column: Column) -> list[Cell]:
        """A column from top to bottom."""
        return [self.cell(row, column) for row in self.rows]

    def is_best(self, row: Row, column: Column) -> bool:
        """Whether a cell has the best value of its column, in which at least two differ as they are written."""
        cell = self.cell(row, column)
        if cell.best is not None:
            return cell.best
        own = cell.number
        if column.better is None or own is None:
            return False
        numbers = [cell.number for cell in self.cells(column) if cell.number is not None]
        best = (max if column.better == "higher" else min)(numbers)
        return column.text(own) == column.text(best) and len(set(map(column.text, numbers))) > 1


def markdown_table(table: Table) -> str:
    """The table in pipes; the best value of a column is bold, the paper's value stands in brackets."""

    def written(row: Row, column: Column) -> str:
        cell = table.cell(row, column)
        value, beside = markdown_text(column.value_text(cell)), markdown_text(column.beside(cell))
        value = f"**{value}**" if table.is_best(row, column) else value
        return f"{value} ({beside})" if beside else value

    titles = [markdown_text(column.title) for column in table.columns]
    right = {title for title, column in zip(titles, table.columns, strict=True) if column.numeric}
    return markdown_rows(titles, ([written(row, column) for column in table.columns] for row in table.rows), right)


def markdown_rows(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Container[str] = ()) -> str:
    """Cells that are Markdown already as a table; columns with a heading in ``right`` stand to the right.

    >>> print(markdown_rows(["method", "ECE"], [["`svi`", "0.03"]], right=["ECE"]), end="")
    | method | ECE |
    | --- | ---: |
    | `svi` | 0.03 |
    """
    rule = ["---:" if heading in right else "---" for heading in headings]
    return "".join(f"| {' | '.join(line)} |\n" for line in (headings, rule, *rows))


_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
"""Control characters but those that are white space."""


def markdown_text(text: str) -> str:
    """Text in which no character is markup, on one line; a terminal that shows the file gets no control character."""
    text = _CONTROL.sub("\ufffd", text)
    return re.sub(r"([\\`*_{}\[\]<>|#~$&])", r"\\\1", " ".join(text.split()))


def whole_letters(text: str) -> str:
    """Text that a file can hold: half letters, from names of files that are no UTF-8, become question marks."""
    return text.encode("utf-8", "replace").decode()


def csv_table(table: Table) -> str:
    """The table for spreadsheets and scripts: numbers unrounded, an empty field for a missing value.

    Standard deviations, ends of intervals, the paper's values and differences are columns such as ``ece_std``,
    ``ece_low``, ``ece_high``, ``ece_paper`` and ``ece_difference``; those that would be empty are left out.
    """
    fields: dict[str, list[float | str | None]] = {}
    for column in table.columns:
        cells = table.cells(column)
        fields[column.key] = [cell.value for cell in cells]
        for name, values in {
            "std": [cell.std for cell in cells],
            "low": [cell.interval and cell.interval[0] for cell in cells],
            "high": [cell.interval and cell.interval[1] for cell in cells],
            "paper": [cell.paper for cell in cells],
            "difference": [cell.difference for cell in cells],
        }.items():
            if any(value is not None for value in values):
                fields[f"{column.key}_{name}"] = [*values]
    return csv_rows([*fields], zip(*fields.values(), strict=True))


def csv_rows(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Values as comma-separated lines below one with their names; None is an empty field.

    A spreadsheet would run text that begins like a formula, so that gets an apostrophe first, which it hides.

    >>> print(csv_rows(["class", "count"], [["=1+1", -2]]), end="")
    class,count
    '=1+1,-2
    """
    buffer = io.StringIO()
    lines = ([_no_formula(value) for value in row] for row in (names, *rows))
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return whole_letters(buffer.getvalue())


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


LATEX_PACKAGES = r"\usepackage{booktabs,float,graphicx}"
_LETTERS = 105
"""How wide a LaTeX table may be, in letters; shrunk to the 345 points of an article they are about 7 points high."""

_SPECIAL = {NO_BREAK: "~"} | dict(
    re.findall(
        r"(\S) (\S+)",
        r"""
\ \textbackslash{}  { \{  } \}  & \&  % \%  $ \$  # \#  _ \_  ~ \textasciitilde{}  ^ \textasciicircum{}
< \textless{}  > \textgreater{}  | \textbar{}  [ {[}  ] {]}  " ''  ` \`{}  ‘ `  ’ '  “ ``  ” ''  § \S{}
≤ $\le$  ≥ $\ge$  ± $\pm$  − $-$  ↑ $\uparrow$  ↓ $\downarrow$  → $\rightarrow$  ε $\varepsilon$  Σ $\Sigma$
² $^2$  × $\times$  · $\cdot$  – \textendash{}  … \ldots{}
""",
    )
)


def latex_text(text: str) -> str:
    r"""Text in which no character is a command; a letter that pdfTeX does not have becomes its number.

    >>> print(latex_text("50 % of a_b"))
    50 \% of a\_b
    """

    def known(letter: str) -> str:
        if letter <= "\u00ff" and not _CONTROL.match(letter):
            return letter
        return rf"\textless{{}}U+{ord(letter):04X}\textgreater{{}}"

    return re.sub("-(?=-)", "-{}", "".join(_SPECIAL.get(letter) or known(letter) for letter in text))


def latex_table(table: Table, label: str = "") -> str:
    r"""A ``table`` environment, which stays where it is; needs ``\usepackage{booktabs,float,graphicx}``.

    A table too wide to be read on a page goes on below itself, with its first column again.
    """
    lines = [
        r"\begin{table}[H]",
        r"\centering",
        r"\abovecaptionskip=0pt\belowcaptionskip=6pt",
        *([rf"\caption{{{latex_text(table.caption)}}}"] if table.caption else []),
        *([rf"\label{{{re.sub(r'[^A-Za-z0-9:.-]', '-', label)}}}"] if label else []),
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{\shortstack{%",
        "\\\\[8pt]\n".join(_tabular(table, columns) for columns in _panels(table)) + "}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _panels(table: Table) -> list[list[Column]]:
    """The columns in as few groups as can be read, about as wide as each other, each after the first column."""
    widths = [_width(table, column) for column in table.columns]
    tried = [_filled(table.columns, widths, limit) for limit in range(_LETTERS, 0, -1)]
    return [panels for panels in tried if len(panels) == len(tried[0])][-1]


def _filled(columns: Sequence[Column], widths: Sequence[float], limit: float) -> list[list[Column]]:
    panels, room = [[columns[0]]], limit - widths[0]
    for column, width in zip(columns[1:], widths[1:], strict=True):
        if width > room and len(panels[-1]) > 1:
            panels.append([columns[0]])
            room = limit - widths[0]
        panels[-1].append(column)
        room -= width
    return panels


def _width(table: Table, column: Column) -> float:
    """About how many letters wide a column is, with the space beside it."""
    cells = table.cells(column)
    values = max((len(column.value_text(cell)) for cell in cells), default=0)
    beside = max((len(column.beside(cell)) for cell in cells), default=0)
    return 2.4 + max(len(column.title), values + (0.85 * (beside + 2) + 1 if beside else 0))


def _tabular(table: Table, columns: Sequence[Column]) -> str:
    paired = {column.key for column in columns if any(map(column.beside, table.cells(column)))}

    def heading(column: Column) -> str:
        title = latex_text(column.title)
        return rf"\multicolumn{{2}}{{c}}{{{title}}}" if column.key in paired else title

    def written(row: Row, column: Column) -> str:
        cell = table.cell(row, column)
        value, beside = latex_text(column.value_text(cell)), latex_text(column.beside(cell))
        value = rf"\textbf{{{value}}}" if table.is_best(row, column) else value
        if column.key not in paired:
            return value
        return rf"{value} & {{\footnotesize ({beside})}}" if beside else f"{value} &"

    def line(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\"

    sides = "".join(("r" if one.numeric else "l") + ("@{ }l" if one.key in paired else "") for one in columns)
    head = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule", line(map(heading, columns)), r"\midrule"]
    rows = [line(written(row, column) for column in columns) for row in table.rows]
    return "\n".join([*head, *rows, r"\bottomrule", r"\end{tabular}"])
