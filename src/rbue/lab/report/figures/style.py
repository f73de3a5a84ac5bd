"""The one style of all figures: colours, markers, lines, axes.

Each colour here is an exact value that stands for a role. In a page, :func:`rbue.lab.report.figures.inline_svg`
exchanges it for the page's own colour of that role, so that a figure follows light and dark mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbue.errors import RbueError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, LINE, PAPER = "#1d1f26", "#5a5e69", "#d9d6cd", "#fffffe"
METHOD_COLOURS = {
    "single": "#4a4a55",
    "mc-dropout": "#2f93d4",
    "deep-ensemble": "#0b3c8c",
    "svi": "#a8489a",
    "mc-rrelu": "#0b8a63",
    "mc-droprelu": "#d4520b",
}
METHOD_MARKERS = {
    "single": "D",
    "mc-dropout": "s",
    "deep-ensemble": "o",
    "svi": "v",
    "mc-rrelu": "^",
    "mc-droprelu": "*",
}
OTHER_COLOUR, OTHER_MARKER = "#7a5c1e", "P"
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


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """The look of each method, named as in a run (``mc-droprelu:0.9``) or in the paper (``MC-DropReLU(0.9)``).

    >>> found = looks(["single", "mc-droprelu:0.8", "MC-DropReLU(0.9)"])
    >>> found["mc-droprelu:0.8"].colour == found["MC-DropReLU(0.9)"].colour
    True
    >>> found["mc-droprelu:0.8"].line == found["MC-DropReLU(0.9)"].line
    False
    """
    seen: dict[str, int] = {}
    found = {}
    for label in labels:
        method = method_name(label)
        turn = seen.get(method, 0)
        seen[method] = turn + 1
        found[label] = Look(
            METHOD_COLOURS.get(method, OTHER_COLOUR),
            METHOD_MARKERS.get(method, OTHER_MARKER),
            _LINES[turn % len(_LINES)],
            _STRENGTHS[turn % len(_STRENGTHS)],
        )
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
        raise RbueError("figures need matplotlib, which is not here; `pip install rbue[lab]` brings it.") from error
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


def percent_ticks(axis: Any) -> None:
    """Write the numbers of an axis, which are fractions, in percent."""
    from matplotlib.ticker import FuncFormatter

    as_percent: Callable[[float, int], str] = lambda value, _: f"{100 * value:.4g} %"  # noqa: E731
    axis.set_major_formatter(FuncFormatter(as_percent))
