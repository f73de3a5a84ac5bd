"""A table for Markdown pages."""

from __future__ import annotations

import re

from rbue.lab.report.tables.model import Cell, Column, Table, paper_text, value_text


def markdown_table(table: Table) -> str:
    """The table in pipes; the best value of a column is bold, the paper's value stands in brackets."""
    lines = [
        [markdown_text(column.title) for column in table.columns],
        ["---:" if column.numeric else "---" for column in table.columns],
    ]
    for row in table.rows:
        lines.append([_cell(column, table.cell(row, column), table.is_best(row, column)) for column in table.columns])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown_text(text: str) -> str:
    """Text in which no character is markup, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|#~$&])", r"\\\1", " ".join(text.split()))


def _cell(column: Column, cell: Cell, best: bool) -> str:
    value, beside = markdown_text(value_text(column, cell)), paper_text(column, cell)
    value = f"**{value}**" if best else value
    return f"{value} ({markdown_text(beside)})" if beside else value
