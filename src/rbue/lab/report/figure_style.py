"""The one style of all figures, colours, markers, lines and axes, and figures as SVG.

Each colour here is an exact value that stands for a role. In a page, :func:`inline_svg` exchanges it for the page's own
colour of that role, so that a figure follows light and dark mode. Nothing here touches pyplot, so figures can be drawn
in a notebook, in a thread and on a machine without a display.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from rbue.errors import RbueError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, LINE, PAPER = "#1d1f26", "#5a5e69", "#d9d6cd", "#fffffe"
_METHODS = {
    "single": ("#4a4a55", "D"),
    "mc-dropout": ("#2f93d4", "s"),
    "deep-ensemble": ("#0b3c8c", "o"),
    "svi": ("#a8489a", "v"),
    "mc-rrelu": ("#0b8a63", "^"),
    "mc-droprelu": ("#d4520b", "*"),
}
METHOD_COLOURS = {name: colour for name, (colour, _) in _METHODS.items()}
METHOD_MARKERS = {name: marker for name, (_, marker) in _METHODS.items()}
OTHER_COLOUR, OTHER_MARKERS = "#7a5c1e", ("P", "X", "p", "h", "d", "<", ">")
GOOD, BAD = METHOD_COLOURS["deep-ensemble"], METHOD_COLOURS["mc-droprelu"]
THEME = {
    INK: "--ink",
    MUTED: "--muted",
    LINE: "--line",
    PAPER: "--paper",
    OTHER_COLOUR: "--method-other",
    **{colour: f"--method-{name}" for name, colour in METHOD_COLOURS.items()},
}
"""Which variable of a page's style sheet each colour becomes."""

SMALL, TEXT, TITLE = 8.0, 9.0, 10.5
SEQUENTIAL = "cividis"
"""Perceptually uniform, and the same to readers with and without colour-blindness."""

_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (9, 3)))
_STRENGTHS = (1.0, 0.72, 0.5, 0.34, 0.22)


@dataclass(frozen=True)
class Look:
    """How one method is drawn, in every figure.

    Attributes:
        colour: decided by the method, whatever its settings.
        marker: likewise, so that colour is never the only difference between methods.
        line: line style; tells the settings of one method apart.
        strength: opacity of a filled area; likewise.
    """

    colour: str
    marker: str
    line: Any = "-"
    strength: float = 1.0

    @property
    def of_line(self) -> dict[str, Any]:
        """What matplotlib calls it when it draws a line."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line}


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """The look of each method, named as in a run (``mc-droprelu:0.9``) or in the paper (``MC-DropReLU(0.9)``).

    >>> found = looks(["single", "mc-droprelu:0.8", "MC-DropReLU(0.9)"])
    >>> found["mc-droprelu:0.8"].colour == found["MC-DropReLU(0.9)"].colour
    True
    >>> found["mc-droprelu:0.8"].line == found["MC-DropReLU(0.9)"].line
    False
    """
    seen = Counter[str]()
    others: dict[str, tuple[str, str]] = {}
    found = {}
    for label in labels:
        method = method_name(label)
        if method not in _METHODS:  # they share a colour, so lines tell them apart as well
            others.setdefault(method, (OTHER_COLOUR, OTHER_MARKERS[len(others) % len(OTHER_MARKERS)]))
        colour, marker = _METHODS.get(method) or others[method]
        turn = seen[colour]
        seen[colour] += 1
        found[label] = Look(colour, marker, _LINES[turn % len(_LINES)], _STRENGTHS[turn % len(_STRENGTHS)])
    return found


def method_name(label: str) -> str:
    """The method in a label, without its settings.

    >>> method_name("mc-droprelu:0.9,last"), method_name("Deep Ensemble(4)")
    ('mc-droprelu', 'deep-ensemble')
    """
    return label.replace("(", ":").partition(":")[0].strip().lower().replace(" ", "-")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, without pyplot.

    Raises:
        RbueError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RbueError("figures need matplotlib, which is not here; `pip install 'rbue[lab]'` brings it.") from error
    return Figure(figsize=(width, height), facecolor="white", layout="constrained")


def dress(axes: Axes, *, title: str = "", x: str = "", y: str = "", grid: str = "y", title_pad: float = 6) -> None:
    """Give axes their texts and quiet lines; ``grid`` is ``x``, ``y``, ``both`` or empty."""
    axes.set_facecolor("none")
    if title:
        axes.set_title(title, color=INK, fontsize=TITLE, loc="left", pad=title_pad)
    axes.set_xlabel(x, color=MUTED, fontsize=TEXT)
    axes.set_ylabel(y, color=MUTED, fontsize=TEXT)
    axes.tick_params(colors=MUTED, labelcolor=MUTED, labelsize=SMALL, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
        spine.set_linewidth(0.8)
    if grid:
        axes.grid(visible=True, axis=grid, color=LINE, linewidth=0.8)  # type: ignore[arg-type]
        axes.set_axisbelow(True)


def undress(axes: Axes, title: str = "") -> None:
    """Axes that hold a picture or a drawing: no ticks, no frame."""
    axes.set_axis_off()
    axes.set_facecolor("none")
    if title:
        axes.set_title(title, color=INK, fontsize=TITLE)


def legend(axes: Axes, **where: Any) -> None:
    """A legend without a box."""
    axes.legend(frameon=False, fontsize=SMALL, labelcolor=INK, **{"loc": "best", **where})


def legend_below(axes: Axes, columns: int) -> None:
    """A legend under the axes, where it hides nothing; long labels get fewer columns, so that none is cut off."""
    longest = max(map(len, axes.get_legend_handles_labels()[1]), default=0)
    width = axes.figure.get_window_extent().width / axes.figure.dpi
    columns = max(1, min(columns, int(width / (0.5 + 0.062 * longest))))
    legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=columns)


def colour_bar(figure: Any, drawn: Any, label: str, **where: Any) -> None:
    """The scale of colours beside what was drawn with it."""
    bar = figure.colorbar(drawn, shrink=0.85, **where)
    bar.set_label(label, color=MUTED, fontsize=TEXT)
    bar.ax.tick_params(labelcolor=MUTED, labelsize=SMALL, color=MUTED)
    bar.outline.set_visible(False)


def percent_ticks(axis: Any) -> None:
    """Write the numbers of an axis, which are fractions, in percent; below 0 and above 1 there is room for markers."""
    from matplotlib.ticker import FuncFormatter

    low, high = axis.get_view_interval()
    room = 0.12 * (min(high, 1) - max(low, 0))  # ticks are at least a ninth of the axis apart, so that none lies there
    if room > 0 and (low < -room or high > 1 + room):
        set_limits = axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim
        set_limits(max(low, -room), min(high, 1 + room))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


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
    text = re.sub("#[0-9a-f]{6}", lambda found: f"var({THEME[found[0]]})" if found[0] in THEME else found[0], text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    width, height = figure.get_size_inches() * 96
    opening = (
        f'<svg role="img" aria-label="{html.escape(alt)}" viewBox="0 0 {width * 0.75:g} {height * 0.75:g}" '
        f'width="{width:.0f}" height="{height:.0f}" style="max-width: {1.2 * width:.0f}px">'
    )
    return re.sub(r"<svg\b[^>]*>", lambda _: opening, text, count=1).strip()


def _written(figure: Figure, fonts: str) -> str:
    import matplotlib as mpl
    from matplotlib.text import Text

    buffer = io.StringIO()
    settings = {"svg.fonttype": fonts, "svg.hashsalt": "rbue", "text.parse_math": False}
    with _writing, mpl.rc_context(settings), warnings.catch_warnings():  # type: ignore[arg-type]
        if fonts == "none":  # the reader's fonts have what matplotlib's lacks
            warnings.filterwarnings("ignore", "Glyph .* missing")
        for text in figure.findobj(Text):  # names of classes may hold dollars, which are no formula
            text.set_parse_math(False)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
