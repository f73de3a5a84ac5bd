"""A table for LaTeX with the packages booktabs, float and graphicx."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rbue.lab.report.tables.model import Cell, Column, Table, paper_text, value_text

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",
    "]": "{]}",
    '"': "''",
    "`": r"\`{}",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "§": r"\S{}",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "±": r"$\pm$",
    "−": r"$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "ε": r"$\varepsilon$",
    "Σ": r"$\Sigma$",
    "²": r"$^2$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "–": r"\textendash{}",
    "…": r"\ldots{}",
    "\u00a0": "~",
}


PACKAGES = r"\usepackage{booktabs,float,graphicx}"
_LETTERS = 105
"""How wide a table may be, in letters; shrunk to the 345 points of an article they are about 7 points high."""


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


def latex_text(text: str) -> str:
    r"""Text in which no character is a command.

    >>> print(latex_text("50 % of a_b"))
    50 \% of a\_b
    """
    written = "".join(_SPECIAL.get(letter) or _known(letter) for letter in text)
    return re.sub("-(?=-)", "-{}", written)


def _known(letter: str) -> str:
    """A letter that pdfTeX has, or its number."""
    return letter if letter <= "\u00ff" else rf"\textless{{}}U+{ord(letter):04X}\textgreater{{}}"


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
    cells = [table.cell(row, column) for row in table.rows]
    values = max((len(value_text(column, cell)) for cell in cells), default=0)
    beside = max((len(paper_text(column, cell)) for cell in cells), default=0)
    return 2.4 + max(len(column.title), values + (0.85 * (beside + 2) + 1 if beside else 0))


def _tabular(table: Table, columns: Sequence[Column]) -> str:
    paired = {column.key for column in columns for row in table.rows if table.cell(row, column).paper is not None}
    sides = "".join(("r" if one.numeric else "l") + ("@{ }l" if one.key in paired else "") for one in columns)
    heads = [latex_text(one.title) for one in columns]
    lines = [
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        _line(
            rf"\multicolumn{{2}}{{c}}{{{head}}}" if one.key in paired else head
            for one, head in zip(columns, heads, strict=True)
        ),
        r"\midrule",
        *(
            _line(_cell(one, table.cell(row, one), table.is_best(row, one), one.key in paired) for one in columns)
            for row in table.rows
        ),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(column: Column, cell: Cell, best: bool, paired: bool) -> str:
    value, beside = latex_text(value_text(column, cell)), latex_text(paper_text(column, cell))
    value = rf"\textbf{{{value}}}" if best else value
    if not paired:
        return value
    return rf"{value} & {{\footnotesize ({beside})}}" if beside else f"{value} &"
