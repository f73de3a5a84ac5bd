"""What a section is made of: words and tables. A new kind of block needs three methods and no change elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from rbue.lab.report.tables import Table, html_table, latex_table, markdown_table
from rbue.lab.report.tables.latex import latex_text
from rbue.lab.report.tables.markdown import markdown_text


class Block(Protocol):
    """A part of a section."""

    def html(self, name: str) -> str:
        """The block for a page, in which ``name`` belongs to it and can begin its ids."""

    def markdown(self) -> str:
        """The block for a Markdown file; empty if it can only be looked at."""

    def latex(self, name: str) -> str:
        """The block for a LaTeX file; empty if it can only be looked at."""


@dataclass(frozen=True)
class Text:
    """Paragraphs, parted by empty lines; words in ``backticks`` are code."""

    words: str

    def html(self, name: str) -> str:
        """As paragraphs."""
        return "".join(f"<p>{inline(part)}</p>" for part in self._paragraphs())

    def markdown(self) -> str:
        """As paragraphs."""
        return "\n\n".join(_markdown_inline(part) for part in self._paragraphs())

    def latex(self, name: str) -> str:
        """As paragraphs."""
        return "\n\n".join(_latex_inline(part) for part in self._paragraphs())

    def _paragraphs(self) -> list[str]:
        return [" ".join(part.split()) for part in re.split(r"\n\s*\n", self.words) if part.strip()]


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    title: str

    def html(self, name: str) -> str:
        """As a heading of the third rank."""
        return f'<h3 id="{name}">{inline(self.title)}</h3>'

    def markdown(self) -> str:
        """As a heading of the third rank."""
        return f"### {markdown_text(self.title)}"

    def latex(self, name: str) -> str:
        """As a heading of the third rank."""
        return rf"\subsubsection*{{{latex_text(self.title)}}}"


@dataclass(frozen=True)
class Bullets:
    """A list of short texts."""

    items: Sequence[str]

    def html(self, name: str) -> str:
        """As a list."""
        return f"<ul>{''.join(f'<li>{inline(item)}</li>' for item in self.items)}</ul>"

    def markdown(self) -> str:
        """As a list."""
        return "\n".join(f"- {_markdown_inline(item)}" for item in self.items)

    def latex(self, name: str) -> str:
        """As a list."""
        items = "\n".join(rf"\item {_latex_inline(item)}" for item in self.items)
        return f"\\begin{{itemize}}\n{items}\n\\end{{itemize}}"


@dataclass(frozen=True)
class Notice:
    """Something a reader must not overlook, such as what is missing; the title alone may say it."""

    title: str
    items: Sequence[str] = ()

    def html(self, name: str) -> str:
        """As a marked box."""
        return (
            f'<div class="notice" role="note" aria-labelledby="{name}-notice">'
            f'<p class="notice-title" id="{name}-notice">{inline(self.title)}</p>{self._list().html(name)}</div>'
        )

    def markdown(self) -> str:
        """As a bold line and a list."""
        return f"**{markdown_text(self.title)}**\n\n{self._list().markdown()}".rstrip()

    def latex(self, name: str) -> str:
        """As a bold line and a list."""
        return (rf"\textbf{{{latex_text(self.title)}}}" + "\n" + self._list().latex(name)).rstrip()

    def _list(self) -> Block:
        return Bullets(self.items) if self.items else Text("")


@dataclass(frozen=True)
class TableBlock:
    """A table, with a legend of its columns if ``explain`` is set."""

    table: Table
    explain: bool = False

    def html(self, name: str) -> str:
        """As a sortable table."""
        known = [column for column in self.table.columns if column.about]
        legend = ""
        if self.explain and known:
            terms = "".join(f"<dt>{escape(one.heading)}</dt><dd>{inline(one.about)}</dd>" for one in known)
            legend = f"<details><summary>What the columns mean</summary><dl>{terms}</dl></details>"
        return html_table(self.table, f"{name}-table") + legend

    def markdown(self) -> str:
        """As a table with its caption above."""
        caption = f"*{markdown_text(self.table.caption)}*\n\n" if self.table.caption else ""
        return caption + markdown_table(self.table).rstrip()

    def latex(self, name: str) -> str:
        """As a table environment."""
        return latex_table(self.table, label=f"tab:{name}").rstrip()


@dataclass(frozen=True)
class Fold:
    """Blocks behind a line that opens them; a printed page and other forms show them open."""

    summary: str
    blocks: Sequence[Block]
    open: bool = False

    def html(self, name: str) -> str:
        """As a disclosure."""
        inside = "".join(block.html(f"{name}-{place}") for place, block in enumerate(self.blocks, 1))
        return f"<details{' open' if self.open else ''}><summary>{inline(self.summary)}</summary>{inside}</details>"

    def markdown(self) -> str:
        """The blocks one after the other, if any of them has words."""
        return _under(f"**{markdown_text(self.summary)}**", [block.markdown() for block in self.blocks])

    def latex(self, name: str) -> str:
        """The blocks one after the other, if any of them has words."""
        parts = [block.latex(f"{name}-{place}") for place, block in enumerate(self.blocks, 1)]
        return _under(rf"\textbf{{{latex_text(self.summary)}}}", parts)


def inline(text: str) -> str:
    """A line of text for HTML; words in backticks are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _markdown_inline(text: str) -> str:
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if place % 2 else markdown_text_kept(part) for place, part in enumerate(parts))


def markdown_text_kept(text: str) -> str:
    """Escaped text with the spaces at its ends, which matter between two pieces of a line."""
    bare = text.strip()
    return text.replace(bare, markdown_text(bare)) if bare else text


def _latex_inline(text: str) -> str:
    parts = re.split(r"`([^`]+)`", text)
    return "".join(
        rf"\texttt{{{latex_text(part)}}}" if place % 2 else latex_text(part) for place, part in enumerate(parts)
    )


def _under(title: str, parts: Sequence[str]) -> str:
    filled = [part for part in parts if part]
    return "\n\n".join([title, *filled]) if filled else ""
