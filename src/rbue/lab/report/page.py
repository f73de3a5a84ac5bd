"""One self-contained HTML page, put together from sections of blocks.

>>> page = Page("Title", [Section("First", [Text("Some words, some `code`.")])])
>>> "<code>code</code>" in page.html()
True

A page needs no network: style, script, figures and images are in the file. The same page as Markdown or LaTeX holds its
words and tables. How each block looks in HTML is written in ``assets/blocks.html``.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape
from numpy.typing import ArrayLike

from rbue._version import __version__
from rbue.errors import InvalidInput
from rbue.lab.report.figure_style import inline_svg
from rbue.lab.report.tables import (
    LATEX_PACKAGES,
    NO_BREAK,
    Column,
    Table,
    latex_table,
    latex_text,
    markdown_table,
    markdown_text,
    whole_letters,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Block:
    """A part of a section; a new kind is a class and a macro of the same name in ``assets/blocks.html``."""

    def html(self, name: str) -> str:
        """The block for a page, in which ``name`` belongs to it and can begin its ids."""
        return _macro(type(self).__name__, self, name)

    def markdown(self) -> str:
        """The block for a Markdown file; empty if it can only be looked at."""
        return ""

    def latex(self, name: str) -> str:
        """The block for a LaTeX file; empty if it can only be looked at."""
        return ""


@dataclass(frozen=True)
class Text(Block):
    """Paragraphs, parted by empty lines; words in ``backticks`` are code."""

    words: str

    def paragraphs(self) -> list[str]:
        """Each on one line."""
        return [" ".join(part.split()) for part in re.split(r"\n\s*\n", self.words) if part.strip()]

    def markdown(self) -> str:
        """As paragraphs."""
        return "\n\n".join(map(_markdown_inline, self.paragraphs()))

    def latex(self, name: str) -> str:
        """As paragraphs."""
        return "\n\n".join(map(_latex_inline, self.paragraphs()))


@dataclass(frozen=True)
class Heading(Block):
    """A heading within a section."""

    title: str

    def markdown(self) -> str:
        """As a heading of the third rank."""
        return f"### {markdown_text(self.title)}"

    def latex(self, name: str) -> str:
        """As a heading of the third rank."""
        return rf"\subsubsection*{{{latex_text(self.title)}}}"


@dataclass(frozen=True)
class Bullets(Block):
    """A list of short texts."""

    items: Sequence[str]

    def markdown(self) -> str:
        """As a list."""
        return "\n".join(f"- {_markdown_inline(item)}" for item in self.items)

    def latex(self, name: str) -> str:
        """As a list."""
        items = "\n".join(rf"\item {_latex_inline(item)}" for item in self.items)
        return f"\\begin{{itemize}}\n{items}\n\\end{{itemize}}"


@dataclass(frozen=True)
class Notice(Block):
    """Something a reader must not overlook, such as what is missing; the title alone may say it."""

    title: str
    items: Sequence[str] = ()

    def markdown(self) -> str:
        """As a bold line and a list."""
        return f"**{markdown_text(self.title)}**\n\n{Bullets(self.items).markdown()}".rstrip()

    def latex(self, name: str) -> str:
        """As a bold line and a list."""
        items = f"\n{Bullets(self.items).latex(name)}" if self.items else ""
        return rf"\textbf{{{latex_text(self.title)}}}{items}"


@dataclass(frozen=True)
class TableBlock(Block):
    """A table, with a legend of its columns if ``explain`` is set."""

    table: Table
    explain: bool = False

    @property
    def explained(self) -> list[Column]:
        """The columns that say what they are about."""
        return [column for column in self.table.columns if column.about]

    def markdown(self) -> str:
        """As a table with its caption above."""
        caption = f"*{markdown_text(self.table.caption)}*\n\n" if self.table.caption else ""
        return caption + markdown_table(self.table).rstrip()

    def latex(self, name: str) -> str:
        """As a table environment."""
        return latex_table(self.table, label=f"tab:{name}").rstrip()


@dataclass(frozen=True)
class Fold(Block):
    """Blocks behind a line that opens them; a printed page and other forms show them open."""

    summary: str
    blocks: Sequence[Block]
    open: bool = False

    def markdown(self) -> str:
        """The blocks one after the other, if any of them has words."""
        inside = [text for block in self.blocks if (text := block.markdown())]
        return "\n\n".join([f"**{markdown_text(self.summary)}**", *inside]) if inside else ""

    def latex(self, name: str) -> str:
        """The blocks one after the other, if any of them has words."""
        inside = [text for n, block in enumerate(self.blocks, 1) if (text := block.latex(f"{name}-{n}"))]
        return "\n\n".join([rf"\textbf{{{latex_text(self.summary)}}}", *inside]) if inside else ""


@dataclass(frozen=True)
class FigureBlock(Block):
    """One figure.

    Attributes:
        figure: what to show.
        alt: what it shows, for those who do not see it.
        caption: what a reader should take from it.
        wide: keep it readable on a narrow screen by letting it scroll in a region of its own.
    """

    figure: Figure
    alt: str
    caption: str = ""
    wide: bool = False

    def __post_init__(self) -> None:
        if not self.alt.strip():
            raise InvalidInput("a figure needs an alternative text; say what it shows.")

    def svg(self, name: str) -> str:
        """The figure within the page, in its colours."""
        return inline_svg(self.figure, self.alt, name)


@dataclass(frozen=True)
class FigureGrid(Block):
    """Small figures side by side, as many in a row as the screen has room for."""

    figures: Sequence[FigureBlock]


@dataclass(frozen=True)
class Columns(Block):
    """Blocks in columns side by side on a wide screen, one below the other elsewhere."""

    columns: Sequence[Sequence[Block]]

    def markdown(self) -> str:
        """The blocks one after the other."""
        return "\n\n".join(text for blocks in self.columns for block in blocks if (text := block.markdown()))

    def latex(self, name: str) -> str:
        """The blocks one after the other."""
        blocks = [block for blocks in self.columns for block in blocks]
        return "\n\n".join(text for n, block in enumerate(blocks, 1) if (text := block.latex(f"{name}-{n}")))


@dataclass(frozen=True)
class Bar:
    """One class: its mean probability and, where there are samples, their range or that of most of them."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    marked: bool = False


@dataclass(frozen=True)
class Card:
    """One image with what was said about it.

    Attributes:
        pixels: uint8, ``(H, W, C)`` or ``(H, W)``.
        alt: what is on it and what was said about it.
        title: a few words below it.
        facts: a quieter line.
        bars: its most probable classes.
        good: whether the answer was right; None if that is not the question.
    """

    pixels: ArrayLike
    alt: str
    title: str
    facts: str = ""
    bars: Sequence[Bar] = ()
    good: bool | None = None


@dataclass(frozen=True)
class Cards(Block):
    """Cards side by side under a small heading."""

    title: str
    cards: Sequence[Card]


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it.

    Attributes:
        title: the heading.
        blocks: what stands under it.
        name: what its id is made from; the title if left out.
        short: what the contents call it, if not by its title.
        open: whether it is shown at first, of a section that can be folded; None for one that cannot.
    """

    title: str
    blocks: Sequence[Block]
    name: str = ""
    short: str = ""
    open: bool | None = None


@dataclass(frozen=True)
class Page:
    """Sections under one title.

    Attributes:
        title: what the page is about.
        sections: from top to bottom; those without blocks are left out.
        lead: one or two sentences under the title, or several paragraphs, parted by empty lines.
        facts: a smaller line under them.
        wide: whether to use all of a wide screen; for pages whose blocks stand in :class:`Columns`.
        foot: a line at the end; how it was made, if left out.
    """

    title: str
    sections: Sequence[Section]
    lead: str = ""
    foot: str = f"Made by rbue {__version__}."
    facts: str = ""
    wide: bool = False

    def html(self) -> str:
        """One file that needs nothing else."""
        text = _templates().get_template("page.html").render(page=self, sections=list(self._named()))
        return whole_letters(text)

    def markdown(self) -> str:
        """Its words and tables as Markdown."""
        parts = [f"# {markdown_text(self.title)}", Text(self.lead).markdown(), _markdown_inline(self.facts)]
        for section in self.sections:
            inside = [text for block in section.blocks if (text := block.markdown())]
            parts += [f"## {markdown_text(section.title)}", *inside] if inside else []
        return whole_letters("\n\n".join(part for part in [*parts, markdown_text(self.foot)] if part) + "\n")

    def latex(self) -> str:
        """Its words and tables as LaTeX, to be included in a document with ``booktabs``, ``float`` and ``graphicx``."""
        comment = rf"% Needs {LATEX_PACKAGES} in the preamble; to be read with \input. " + " ".join(self.foot.split())
        settings = r"\begingroup\sloppy\parindent=0pt\parskip=\smallskipamount"
        parts = [f"{comment}\n{settings}", rf"\section*{{{latex_text(self.title)}}}", Text(self.lead).latex("lead")]
        parts += [Text(self.facts).latex("facts")]
        for name, section in self._named():
            inside = [text for n, block in enumerate(section.blocks, 1) if (text := block.latex(f"{name}--{n}"))]
            parts += [rf"\subsection*{{{latex_text(section.title)}}}", *inside] if inside else []
        return "\n\n".join(part for part in [*parts, r"\endgroup"] if part) + "\n"

    def _named(self) -> Iterator[tuple[str, Section]]:
        """Sections with ids that differ."""
        used: set[str] = set()
        for section in self.sections:
            if not section.blocks:
                continue
            wanted = re.sub(r"[^a-z0-9]+", "-", (section.name or section.title).lower()).strip("-") or "section"
            name, turn = wanted, 2
            while name in used:
                name, turn = f"{wanted}-{turn}", turn + 1
            used.add(name)
            yield name, section


@cache
def _templates() -> Environment:
    """The page and its blocks; whatever they are given is escaped."""
    found = Environment(loader=PackageLoader("rbue.lab.report", "assets"), autoescape=True, keep_trailing_newline=True)
    found.filters |= {"inline": _html_inline, "breakable": _breakable, "png_uri": _png_uri}
    return found


def _macro(name: str, *given: Any) -> str:
    """What a macro writes, as plain text: markup that goes on escaping what it is joined with would surprise."""
    return str(getattr(_templates().get_template("blocks.html").module, name)(*given))


def _inline(text: str, words: Callable[[str], str], code: Callable[[str], str]) -> str:
    """A line of text in which what stands in backticks is code."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(code(part) if place % 2 else words(part) for place, part in enumerate(parts))


def _html_inline(text: str) -> Markup:
    def words(part: str) -> str:  # no line begins with a unit
        return escape(part.replace(" %", f"{NO_BREAK}%"))

    return Markup(_inline(text, words, lambda part: f"<code>{escape(part)}</code>"))


def _markdown_inline(text: str) -> str:
    def words(part: str) -> str:  # with the spaces at its ends, which part it from code
        return re.sub(r"\S(.*\S)?", lambda found: markdown_text(found[0]), part, flags=re.DOTALL)

    return _inline(text, words, "`{}`".format)


def _latex_inline(text: str) -> str:
    return _inline(text, latex_text, lambda part: rf"\texttt{{{latex_text(part)}}}")


def _breakable(text: str) -> Markup:
    """Long paths may go on in the next line."""
    return Markup(str(escape(text)).replace("/", "/<wbr>"))


def _png_uri(pixels: ArrayLike) -> str:
    """Pixels as an address that contains the image itself."""
    from PIL import Image

    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.size == 0:
        raise InvalidInput(f"an image must be uint8 of shape (H, W, C), not {array.dtype} {array.shape}.")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
