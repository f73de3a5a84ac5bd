"""Figures in a page: SVG within it, with alternative text, in the page's own colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from rbue.errors import InvalidInput
from rbue.lab.report.figures.svg import inline_svg
from rbue.lab.report.page.blocks import inline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureBlock:
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

    def html(self, name: str) -> str:
        """As a figure with its caption."""
        picture = inline_svg(self.figure, self.alt, name)
        caption = f"<figcaption>{inline(self.caption)}</figcaption>" if self.caption else ""
        if self.wide:
            region = (
                f'class="scroll" role="region" tabindex="0" aria-label="Figure: {escape(self.caption or self.alt)}"'
            )
            return f'<figure class="wide"><div {region}>{picture}</div>{caption}</figure>'
        return f"<figure>{picture}{caption}</figure>"

    def markdown(self) -> str:
        """Nothing: a Markdown file cannot hold it."""
        return ""

    def latex(self, name: str) -> str:
        """Nothing: a LaTeX file cannot hold it."""
        return ""


@dataclass(frozen=True)
class FigureGrid:
    """Small figures side by side, as many in a row as the screen has room for."""

    figures: Sequence[FigureBlock]

    def html(self, name: str) -> str:
        """As a grid."""
        inside = "".join(one.html(f"{name}-{place}") for place, one in enumerate(self.figures, 1))
        return f'<div class="grid">{inside}</div>'

    def markdown(self) -> str:
        """Nothing: a Markdown file cannot hold it."""
        return ""

    def latex(self, name: str) -> str:
        """Nothing: a LaTeX file cannot hold it."""
        return ""
