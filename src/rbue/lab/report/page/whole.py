"""The page as a whole: head, contents, sections, foot; and the same words and tables in other forms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from rbue._version import __version__
from rbue.lab.report.page.blocks import Block, Text, inline
from rbue.lab.report.tables.latex import PACKAGES, latex_text
from rbue.lab.report.tables.markdown import markdown_text


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it.

    Attributes:
        title: the heading.
        blocks: what stands under it.
        name: its id; made from the title if left out.
        short: what the contents call it, if not by its title.
    """

    title: str
    blocks: Sequence[Block]
    name: str = ""
    short: str = ""


@dataclass(frozen=True)
class Page:
    """Sections under one title.

    Attributes:
        title: what the page is about.
        sections: from top to bottom; those without blocks are left out.
        lead: one or two sentences under the title.
        foot: a line at the end; how it was made, if left out.
    """

    title: str
    sections: Sequence[Section]
    lead: str = ""
    foot: str = f"Made by rbue {__version__}."

    def html(self) -> str:
        """One file that needs nothing else."""
        named = list(self._named())
        contents = "".join(f'<li><a href="#{name}">{inline(one.short or one.title)}</a></li>' for name, one in named)
        body = "\n".join(
            f'<section aria-labelledby="{name}"><h2 id="{name}" tabindex="-1">{inline(section.title)}</h2>\n'
            + "\n".join(block.html(f"{name}--{place}") for place, block in enumerate(section.blocks, 1))
            + "</section>"
            for name, section in named
        )
        parts = {
            "TITLE": escape(self.title),
            "LEAD": f'<p class="lead">{inline(self.lead)}</p>' if self.lead else "",
            "CONTENTS": contents,
            "BODY": body,
            "FOOT": inline(self.foot),
            "STYLE": _asset("page.css"),
            "SCRIPT": _asset("page.js"),
        }
        return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], _asset("page.html"))

    def markdown(self) -> str:
        """Its words and tables as Markdown."""
        parts = [f"# {markdown_text(self.title)}", markdown_text(self.lead)]
        for section in self.sections:
            inside = [text for text in (block.markdown() for block in section.blocks) if text]
            parts += [f"## {markdown_text(section.title)}", *inside] if inside else []
        return "\n\n".join(part for part in [*parts, markdown_text(self.foot)] if part) + "\n"

    def latex(self) -> str:
        """Its words and tables as LaTeX, to be included in a document with ``booktabs``, ``float`` and ``graphicx``."""
        comment = rf"% Needs {PACKAGES} in the preamble; to be read with \input. " + " ".join(self.foot.split())
        settings = r"\begingroup\sloppy\parindent=0pt\parskip=\smallskipamount"
        parts = [f"{comment}\n{settings}", rf"\section*{{{latex_text(self.title)}}}", Text(self.lead).latex("lead")]
        for name, section in self._named():
            blocks = enumerate(section.blocks, 1)
            inside = [text for text in (block.latex(f"{name}--{place}") for place, block in blocks) if text]
            parts += [rf"\subsection*{{{latex_text(section.title)}}}", *inside] if inside else []
        return "\n\n".join(part for part in [*parts, r"\endgroup"] if part) + "\n"

    def _named(self) -> Iterator[tuple[str, Section]]:
        """Sections with ids that differ."""
        used: set[str] = set()
        for section in self.sections:
            if not section.blocks:
                continue
            wanted = section.name or re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
            name, turn = wanted, 2
            while name in used:
                name, turn = f"{wanted}-{turn}", turn + 1
            used.add(name)
            yield name, section


def _asset(name: str) -> str:
    return files("rbue.lab.report.page").joinpath("assets", name).read_text(encoding="utf-8")
