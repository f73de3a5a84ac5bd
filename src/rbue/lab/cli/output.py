"""What is shown: tables or one JSON document on stdout; remarks and complaints on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPE_WIDTH = 200
"""Width of tables that go into a file or a pipe, so that no cell is cut."""

SECONDS_OF_A_DAY = 86_400

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def stdout() -> Console:
    """Where results go."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Where progress, remarks and complaints go."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    wide = None if file.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=file, width=wide, highlight=False)


def say(text: str) -> None:
    """Print a line as it is, never broken; a path can be copied from it."""
    stdout().print(escape(text), soft_wrap=True)


def remark(text: str) -> None:
    """Say something beside the result."""
    stderr().print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)


def complain(text: str) -> None:
    """Say what went wrong."""
    stderr().print(f"[bold red]error:[/bold red] {escape(text)}", soft_wrap=True)


def print_json(content: Any) -> None:
    """The one JSON document of a command."""
    sys.stdout.write(as_json(content))


def as_json(content: Any) -> str:
    """Readable JSON; paths become text, and numbers that JSON does not know (NaN, infinity) become null."""
    return json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


_NAME_WIDTH = 15  # of a method, such as deep-ensemble:4
_GAP = 2  # between columns, one of which is their border


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table; columns named in ``right`` hold numbers. Cells are shown as they are, without markup."""
    console, rows = stdout(), [tuple(row) for row in rows]
    widths = _whole_words(headings, rows, console.width - _GAP * (len(headings) - 1))
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="bold")
    for heading, width in zip(headings, widths, strict=True):
        side = "right" if heading in right else "left"
        first = heading == headings[0]
        shown.add_column(heading, justify=side, overflow="fold", no_wrap=first, width=width)  # type: ignore[arg-type]
    for row in rows:
        shown.add_row(*(escape(cell) for cell in row))
    console.print(f"[bold]{escape(title)}[/bold]", soft_wrap=True)
    console.print(shown)


def methods_table(console: Console) -> Table:
    """A table whose first column is a method, for the caller to fill; tight where it is to fit into 80 columns."""
    wide = console.width > 100
    shown = Table(
        box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=wide, padding=(0, 1) if wide else (0, 0)
    )
    shown.add_column("method", overflow="fold")
    return shown


def print_methods(console: Console, shown: Table, less_important: Sequence[str]) -> None:
    """Print such a table; where it is too wide, columns with these headings are left out, the first one first.

    Left to itself, rich would take the room from the names until nothing is left of them, since they may be folded.
    """
    names, left_out = shown.columns[0], []
    unlimited = console.options.update(max_width=PIPE_WIDTH)
    names.max_width = _NAME_WIDTH  # to be measured with; in the end they get what there is
    for heading in less_important:
        if console.measure(shown, options=unlimited).maximum <= console.width:
            break
        shown.columns = [column for column in shown.columns if column.header != heading]
        left_out.append(heading.split()[0])
    names.max_width = None
    console.print(shown)
    if left_out:
        console.print(f"[dim]no room for {', '.join(left_out)}; --json has everything[/dim]", soft_wrap=True)


def _whole_words(headings: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> Sequence[int | None]:
    """Widths of columns that break no word, if a table is too wide and there are such; the first is never broken.

    >>> _whole_words(("id", "text"), [("a b", "one two three")], 12)
    [3, 9]
    """
    columns = list(zip(headings, *rows, strict=True))
    wanted = [max(cell_len(cell) for cell in column) for column in columns]
    least = [max((cell_len(word) for cell in column for word in cell.split()), default=1) for column in columns]
    least = [max(few, min(many, 8)) for few, many in zip(least, wanted, strict=True)]  # keeps "0.7 s" together
    least[0] = wanted[0]
    spare, asked = room - sum(least), sum(wanted) - sum(least)
    if spare < 0 or spare >= asked:
        return [None] * len(columns)
    return [few + spare * (many - few) // asked for few, many in zip(least, wanted, strict=True)]


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, escape(value))
    stdout().print(grid)


def percent(value: float) -> str:
    """A fraction in percent."""
    return f"{100 * value:.2f} %"


def number(value: float | None, digits: int = 4) -> str:
    """A measurement; a dash for one that a method does not have."""
    return "–" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds as people write them: 8.3 s, 2:05, 1:02:05, 4.5 days, 10,401 days."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    days = seconds / SECONDS_OF_A_DAY
    if days >= 2:
        return f"{days:,.1f} days" if days < 10 else f"{days:,.0f} days"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
