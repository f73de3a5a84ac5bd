"""One measure of all methods as bars, with the paper's values as marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rbue.errors import InvalidInput
from rbue.lab.report.figures.style import INK, SMALL, dress, legend, looks, new_figure, percent_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure_bars(
    values: Mapping[str, float],
    measure: str,
    *,
    deviations: Mapping[str, float] | None = None,
    paper: Mapping[str, float] | None = None,
    percent: bool = False,
    title: str = "",
) -> Figure:
    """One horizontal bar a method.

    Args:
        values: method -> number.
        measure: what is measured, for the axis.
        deviations: method -> standard deviation over seeds, where there is one.
        paper: method -> the paper's number, where it has one.
        percent: whether the numbers are fractions to be written in percent.
        title: stands above.
    """
    if not values:
        raise InvalidInput("there is nothing to draw; give at least one value.")
    figure = new_figure(5.0, 0.8 + 0.32 * len(values))
    axes = figure.subplots()
    styles = looks(values)
    for place, (label, value) in enumerate(values.items()):
        look = styles[label]
        spread = None if deviations is None else deviations.get(label)
        axes.barh(place, value, height=0.7, color=(look.colour, 0.75), xerr=spread, ecolor=INK)
    stated = [(place, paper[label]) for place, label in enumerate(values) if paper is not None and label in paper]
    if stated:
        places, numbers = zip(*stated, strict=True)
        axes.plot(numbers, places, "|", color=INK, markersize=14, markeredgewidth=2, label="paper")
        legend(axes, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    axes.set_yticks(range(len(values)), list(values))
    axes.invert_yaxis()
    dress(axes, title=title, x=measure, grid="x")
    axes.tick_params(axis="y", labelcolor=INK, labelsize=SMALL, length=0)
    if percent:
        percent_ticks(axes.xaxis)
    return figure
