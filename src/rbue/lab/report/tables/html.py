"""A table for the page: sortable by its headings, scrolling in a region of its own."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from rbue.lab.report.tables.model import Cell, Column, Table, difference_text, printed_text, value_text

LONG = 24
"""Words longer than this may be broken into lines."""


def html_table(table: Table, name: str) -> str:
    """The table in a region that can be focused and scrolled; ``name`` is its id.

    The headings are buttons, which the page's script lets sort; cells carry their exact number for it.
    """
    head = "".join(_heading(column) for column in table.columns)
    body = "".join(_row(table, index) for index in range(len(table.rows)))
    caption = f'<caption id="{escape(name)}-caption"><span>{escape(table.caption or name)}</span></caption>'
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{escape(name)}-caption">'
        f'<table class="sortable" id="{escape(name)}">{caption}'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _heading(column: Column) -> str:
    kind = "" if column.numeric else ' class="words"'
    about = f' title="{escape(column.about)}"' if column.about else ""
    better = f'<span class="unseen">, {column.better} is better</span>' if column.better else ""
    arrow = f' <span aria-hidden="true">{column.title[-1]}</span>' if column.better else ""
    return (
        f'<th scope="col"{kind} aria-sort="none"><button type="button"{about}>'
        f'{escape(column.heading)}{arrow}{better}<span class="turn" aria-hidden="true"></span></button></th>'
    )


def _row(table: Table, index: int) -> str:
    row = table.rows[index]
    cells = []
    for place, column in enumerate(table.columns):
        cell, best = table.cell(row, column), table.is_best(row, column)
        tag, scope = ("th", ' scope="row"') if place == 0 else ("td", "")
        kind = " ".join(_classes(column, cell, best))
        shown = f' class="{kind}"' if kind else ""
        anchor = f' id="{escape(cell.anchor)}"' if cell.anchor else ""
        cells.append(f"<{tag}{anchor}{scope}{shown}{_sort_key(cell)}>{_content(column, cell, best)}</{tag}>")
    return f"<tr>{''.join(cells)}</tr>\n"


def _classes(column: Column, cell: Cell, best: bool) -> Iterator[str]:
    if not column.numeric:
        yield "words"
        if len(value_text(column, cell)) > LONG:
            yield "long"
    if best:
        yield "best"


def _sort_key(cell: Cell) -> str:
    if cell.number is not None:
        return f' data-number="{cell.number!r}"'
    return "" if isinstance(cell.value, str) else " data-missing"


def _content(column: Column, cell: Cell, best: bool) -> str:
    text = escape(value_text(column, cell)).replace("/", "/<wbr>")
    if cell.value is None:
        why = escape(cell.why)
        text = f'<span aria-hidden="true">{text}</span><span class="unseen">{why}</span>'
        text = f'<span class="missing" title="{why}">{text}</span>'
    if best:
        text = f'<strong>{text}<span class="unseen"> (best)</span></strong>'
    if cell.link:
        text = f'<a href="{escape(cell.link)}">{text}</a>'
    if cell.paper is not None:
        difference = (
            "" if cell.difference is None else f" <span>{escape(difference_text(column, cell.difference))}</span>"
        )
        text += f'<span class="paper">paper {escape(printed_text(column, cell.paper))}{difference}</span>'
    return text
