"""Figures as SVG: a file of its own, or a part of a page that follows the page's colours."""

from __future__ import annotations

import html
import io
import re
from threading import Lock
from typing import TYPE_CHECKING

from rbue.lab.report.figures.style import THEME

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# matplotlib reads its SVG settings from one place for the whole process while it writes.
_writing = Lock()


def svg(figure: Figure) -> str:
    """A figure as an SVG file; a figure drawn anew from the same data gives the same bytes.

    Letters are paths, so that it looks the same in a paper and on a machine without the fonts.
    """
    return _written(figure, fonts="path")


def inline_svg(figure: Figure, alt: str, prefix: str) -> str:
    """A figure as an ``<svg>`` element to put into HTML.

    Letters stay text in the font of the page, and colours become the variables of :data:`THEME`.

    Args:
        figure: what to write.
        alt: what the figure shows, for those who do not see it.
        prefix: makes its ids different from those of other figures in the page.
    """
    text = _written(figure, fonts="none")
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    # matplotlib names a picture by its content, so that two equal ones would share an id, which nothing refers to.
    text = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", text)
    text = re.sub(r'\b(id="|url\(#|xlink:href="#)', rf"\g<1>{prefix}-", text)
    text = re.sub("#[0-9a-f]{6}", lambda colour: _themed(colour[0]), text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    width, height = figure.get_size_inches() * 96
    opening = (
        f'<svg role="img" aria-label="{html.escape(alt)}" viewBox="0 0 {width * 0.75:g} {height * 0.75:g}" '
        f'width="{width:.0f}" height="{height:.0f}" style="max-width: {1.2 * width:.0f}px">'
    )
    return re.sub(r"<svg\b[^>]*>", lambda _: opening, text, count=1).strip()


def _written(figure: Figure, fonts: str) -> str:
    import matplotlib as mpl

    buffer = io.StringIO()
    with _writing, mpl.rc_context({"svg.fonttype": fonts, "svg.hashsalt": "rbue"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _themed(colour: str) -> str:
    return f"var({THEME[colour]})" if colour in THEME else colour
