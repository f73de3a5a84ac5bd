"""A table for LaTeX with the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rbue.report.tables.model import Cell, Column, Table, paper_text, value_text

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
    "–": "--",
    "…": r"\ldots{}",
    "\u00a0": "~",
}


def latex_table(table: Table, label: str = "") -> str:
    r"""A ``table`` environment; needs ``\usepackage{booktabs,graphicx}``, the latter to fit a wide table in."""
    sides = "".join("r" if column.numeric else "l" for column in table.columns)
    rows = [
        _line(_cell(column, table.cell(row, column), table.is_best(row, column)) for column in table.columns)
        for row in table.rows
    ]
    lines = [
        r"\begin{table}",
        r"\centering",
        *([rf"\caption{{{latex_text(table.caption)}}}"] if table.caption else []),
        *([rf"\label{{{re.sub(r'[^A-Za-z0-9:.-]', '-', label)}}}"] if label else []),
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        _line(latex_text(column.title) for column in table.columns),
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    r"""Text in which no character is a command.

    >>> print(latex_text("50 % of a_b"))
    50 \% of a\_b
    """
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(column: Column, cell: Cell, best: bool) -> str:
    value, beside = latex_text(value_text(column, cell)), paper_text(column, cell)
    value = rf"\textbf{{{value}}}" if best else value
    return rf"{value} {{\footnotesize ({latex_text(beside)})}}" if beside else value
