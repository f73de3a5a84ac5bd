"""What is shown: tables or one JSON document on stdout; remarks, complaints and progress on stderr.

Text goes to a terminal, and some of it was not written here: names of files, runs and classes. :func:`visible` shows
its control characters instead of sending them.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from rbue.lab.processes import is_first
from rbue.lab.report import tables

if TYPE_CHECKING:
    from rbue.lab import data
    from rbue.lab.runs.folders import RunConfig
    from rbue.lab.runs.training import Report
    from rbue.lab.training import EpochReport

PIPE_WIDTH = 200
"""Width of tables that go into a file or a pipe, so that no cell is cut."""

SECONDS_BETWEEN_LINES = 5.0

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def stdout() -> Console:
    """Where results go; of several processes only the first one's."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Where progress, remarks and complaints go."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    wide = None if file.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=file, width=wide, highlight=False, emoji=False, quiet=not is_first())


_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys, or by which it turns text around, or that no file of text can hold; not the line feed."""


def visible(text: str) -> str:
    r"""Text with its control characters as Python writes them.

    >>> print(visible("a\x1b[2Jb\n"))
    a\x1b[2Jb\n
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text).replace("\n", "\\n")


def as_markup(text: str) -> str:
    """Text to be shown as it is by rich."""
    return escape(visible(text))


_WHOLE = re.compile(r"( *)((?:`[^`]*`|(?<![^ (])'[^']*'|[^ ])+)")
"""Blanks, and what is never broken: a word, and what stands in backticks or quotes, since that is copied."""


def at_words(text: str, width: int) -> str:
    """Text with lines that are too long broken at blanks, and begun as far from the margin as the first.

    >>> print(at_words("  no data (`rbue data fetch cifar10` brings it)", 16))
      no data
      (`rbue data fetch cifar10`
      brings it)
    """
    lines: list[str] = []
    margin = text[: len(text) - len(text.lstrip(" "))]
    for blanks, word in _WHOLE.findall(text):
        if lines and cell_len(lines[-1] + blanks + word) <= width:
            lines[-1] += blanks + word
        else:
            lines.append(margin + word)
    return "\n".join(lines)


def _print(console: Console, text: str, form: str = "{}", start: str = "") -> None:
    """Print a line of text in a form of markup, which shows its start already.

    A terminal gets it broken between words, a file or a pipe as it is.
    """
    text = visible(text)
    shown = at_words(text, console.width) if console.file.isatty() else text
    console.print(form.format(escape(shown.removeprefix(start))), soft_wrap=True)


def say(text: str | Path) -> None:
    """Print a line; a path is never broken, so that it can be copied. Line feeds may stand around a text."""
    if isinstance(text, Path):
        stdout().print(as_markup(str(text)), soft_wrap=True)
        return
    inside = text.strip("\n")
    before, _, after = text.partition(inside) if inside else ("", "", text)
    _print(stdout(), inside, f"{before}{{}}{after}")


def remark(text: str) -> None:
    """Say something beside the result."""
    _print(stderr(), text, "[dim]{}[/dim]")


def complain(text: str) -> None:
    """Say what went wrong, in whichever process."""
    console = stderr()
    console.quiet = False
    _print(console, f"error: {text}", "[bold red]error:[/bold red]{}", start="error:")


def print_json(content: Any) -> None:
    """The one JSON document of a command."""
    if is_first():
        print(as_json(content), end="", flush=True)  # a full disk is said here, not when Python ends


def as_json(content: Any) -> str:
    """Readable JSON; paths become text, and numbers that JSON does not know (NaN, infinity) become null."""
    text = json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


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


def table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[str] = (),
    less_important: Sequence[str] = (),
) -> None:
    """Print a table; columns named in ``right`` hold numbers. Cells are shown as they are, without markup.

    Where words would have to be broken, columns named in ``less_important`` are left out, the first one first.
    """
    console, rows = stdout(), [tuple(map(visible, row)) for row in rows]
    left_out: list[str] = []
    while True:
        widths = _whole_words(headings, rows, console.width - _GAP * (len(headings) - 1))
        if widths is not None or len(left_out) == len(less_important):
            break
        left_out.append(less_important[len(left_out)])
        kept = [place for place, heading in enumerate(headings) if heading != left_out[-1]]
        headings, *rows = ([line[place] for place in kept] for line in (headings, *rows))
    widths = widths or [None] * len(headings)
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="bold")
    for heading, width in zip(headings, widths, strict=True):
        side = "right" if heading in right else "left"
        first = heading == headings[0]
        shown.add_column(heading, justify=side, overflow="fold", no_wrap=first, width=width)  # type: ignore[arg-type]
    for row in rows:
        shown.add_row(*(escape(cell) for cell in row))
    _print(console, title, "[bold]{}[/bold]")
    console.print(shown)
    if left_out:
        _print(console, _no_room(left_out), "[dim]{}[/dim]")


def _no_room(left_out: Iterable[str]) -> str:
    return f"no room for {', '.join(dict.fromkeys(left_out))}; --json has everything"


def methods_table(
    title: str,
    headings: Sequence[str],
    methods: Iterable[tuple[str, Iterable[Sequence[str]]]],
    less_important: Sequence[str],
    left: Sequence[str] = (),
    note: str = "",
    parted: bool = False,
) -> None:
    """Print a table whose first column is a method; tight where it is to fit into 80 columns.

    Left to itself, rich would take the room from the names until nothing is left of them, since they may be folded.

    Args:
        title: stands above.
        headings: of the other columns, which hold numbers unless they are named in ``left``.
        methods: each with its rows, whose cells are markup.
        less_important: headings of columns to leave out where the table is too wide, the first one first.
        left: headings of columns with words.
        note: stands below.
        parted: whether a line parts the methods.
    """
    console = stdout()
    wide = console.width > 100
    shown = Table(
        box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=wide, padding=(0, 1) if wide else (0, 0)
    )
    shown.add_column("method", overflow="fold")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    for label, rows in methods:
        for place, row in enumerate(rows):
            shown.add_row("" if place else as_markup(label), *row)
        if parted:
            shown.add_section()
    names, left_out = shown.columns[0], []
    unlimited = console.options.update(max_width=PIPE_WIDTH)
    names.max_width = _NAME_WIDTH  # to be measured with; in the end they get what there is
    for heading in less_important:
        if console.measure(shown, options=unlimited).maximum <= console.width:
            break
        shown.columns = [column for column in shown.columns if column.header != heading]
        left_out.append(heading.split()[0])
    names.max_width = None
    _print(console, title, "[bold]{}[/bold]")
    console.print(shown)
    for line in filter(None, (_no_room(left_out) if left_out else "", note)):
        _print(console, line, "[dim]{}[/dim]")


def _whole_words(headings: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> Sequence[int | None] | None:
    """Widths of columns that break no word, or None if there is no room for them; the first is never broken.

    >>> _whole_words(("id", "text"), [("a b", "one two three")], 12)
    [3, 9]
    """
    columns = list(zip(headings, *rows, strict=True))
    wanted = [max(cell_len(cell) for cell in column) for column in columns]
    least = [max((cell_len(word) for cell in column for word in cell.split()), default=1) for column in columns]
    least = [max(few, min(many, 8)) for few, many in zip(least, wanted, strict=True)]  # keeps "0.7 s" together
    least[0] = wanted[0]
    spare, asked = room - sum(least), sum(wanted) - sum(least)
    if spare < 0:
        return None
    if spare >= asked:
        return [None] * len(columns)
    return [few + spare * (many - few) // asked for few, many in zip(least, wanted, strict=True)]


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(as_markup(name), as_markup(value))
    stdout().print(grid)


def number(value: float | None, digits: int = 4) -> str:
    """A measurement; a dash for one that a method does not have."""
    return "–" if value is None else f"{value:.{digits}f}"


percent, duration = partial(tables.percent, gap=" "), partial(tables.duration, gap=" ")


@contextmanager
def training_progress() -> Iterator[Report]:
    """A function to tell of every epoch: loss, accuracy and time left."""
    console = stderr()
    if not console.is_terminal:
        yield lambda config, epoch: remark(f"{_name(config)}: {_state(config, epoch)}")
        return
    names, states = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[state]}"))
    columns = (SpinnerColumn(), names, BarColumn(30), states)
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}
        waiting = bars.add_task("first epoch", total=None, state="")

        def report(config: RunConfig, epoch: EpochReport) -> None:
            bars.update(waiting, visible=False)
            if config.id not in tasks:
                tasks[config.id] = bars.add_task(visible(_name(config)), total=config.recipe.epochs, state="")
            bars.update(tasks[config.id], completed=epoch.epoch + 1, state=_state(config, epoch))

        try:
            yield report
        finally:
            bars.update(waiting, visible=False)


@contextmanager
def training_lines() -> Iterator[Report]:
    """The same for one of several processes: a line now and then, which says what it is about."""
    lines = _Lines()

    def report(config: RunConfig, epoch: EpochReport) -> None:
        name = f"{config.data} {config.model} {_name(config)}"
        if lines.is_due(name, epoch.epoch + 1, config.recipe.epochs):
            remark(f"{name}: {_state(config, epoch)}")

    yield report


def _name(config: RunConfig) -> str:
    return f"{config.method} seed {config.seed}"


def _state(config: RunConfig, epoch: EpochReport) -> str:
    done, total = epoch.epoch + 1, config.recipe.epochs
    text = f"epoch {done}/{total}, loss {epoch.loss:.4f}, accuracy {100 * epoch.accuracy:.2f} %"
    left = (total - done) * epoch.seconds * epoch.side_by_side
    return text if done == total else f"{text}, {duration(left)} left"


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something without steps is going on."""
    console = stderr()
    if console.is_terminal:
        with console.status(Text(visible(what))):
            yield
    else:
        remark(what)
        yield


@contextmanager
def data_progress() -> Iterator[data.Progress]:
    """A function to tell of bytes and images done."""
    console = stderr()
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(30), MofNCompleteColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(visible(what), total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


@contextmanager
def data_lines(name: str) -> Iterator[data.Progress]:
    """The same for one of several processes, which does something of this name."""
    lines = _Lines()
    yield lambda _, done, total: lines(name, done, total)


class _Lines:
    """A line when something begins or ends, and every few seconds between."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def is_due(self, what: str, done: int, total: int | None) -> bool:
        """Whether to tell how much of something is done."""
        now = time.monotonic()
        due = done == total or now - self._told.get(what, -math.inf) > SECONDS_BETWEEN_LINES
        if due:
            self._told[what] = now
        return due

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if self.is_due(what, done, total):
            remark(f"{what}: {done:,}" + (f" of {total:,}" if total is not None else ""))


class Flowing(TyperGroup):
    """A group of verbs; typer keeps the line breaks of a docstring but in its first paragraph, here none is kept."""

    def get_command(self, ctx: Any, name: str) -> Any:
        """The verb, with each paragraph of its help in one line."""
        verb = super().get_command(ctx, name)
        if verb is not None and verb.help:
            verb.help = "\n\n".join(" ".join(part.split()) for part in verb.help.split("\n\n"))
        return verb
