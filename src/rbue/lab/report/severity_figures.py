"""Figures of damaged images: what is left of a measurement at each severity, over all corruptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rbue.errors import InvalidInput
from rbue.lab.report.figure_style import INK, MUTED, dress, legend_below, looks, new_figure, percent_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Mapping[str, Mapping[int, Sequence[float]]]
"""method -> severity -> one number a corruption."""


def severity_boxes(values: Values, measure: str, *, percent: bool = False, title: str = "") -> Figure:
    """One group of boxes a severity, one box a method: quartiles over corruptions, whiskers from least to greatest.

    Args:
        values: ``values[method][severity]`` are the numbers of all corruptions.
        measure: what is measured, for the axis.
        percent: whether the numbers are fractions to be written in percent.
        title: stands above.
    """
    severities, styles = _severities(values), looks(values)
    figure = new_figure(8.4, 3.6)
    axes = figure.subplots()
    width = 0.8 / len(values)
    for place, (method, by_severity) in enumerate(values.items()):
        look = styles[method]
        offset = (place - (len(values) - 1) / 2) * width
        shown = [number for number in severities if number in by_severity]
        drawn = axes.bxp(
            [_box(by_severity[number]) for number in shown],
            positions=[severities.index(number) + offset for number in shown],
            widths=0.8 * width,
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": (look.colour, look.strength), "edgecolor": look.colour, "linewidth": 0.9},
            medianprops={"color": INK, "linewidth": 1.4},
            whiskerprops={"color": look.colour, "linewidth": 0.9},
            capprops={"color": look.colour, "linewidth": 0.9},
        )
        drawn["boxes"][0].set_label(method)
    axes.set_xticks(range(len(severities)), [str(number or "clean") for number in severities])
    for edge in range(1, len(severities)):
        axes.axvline(edge - 0.5, color=MUTED, linewidth=0.4, linestyle=":")
    _finish(axes, measure, percent, title, len(values), columns=5)
    return figure


def severity_medians(values: Values, measure: str, *, percent: bool = False, title: str = "") -> Figure:
    """One curve a method: the median over corruptions against their severity; arguments as above."""
    severities, styles = _severities(values), looks(values)
    figure = new_figure(5.0, 3.8)
    axes = figure.subplots()
    for method, by_severity in values.items():
        shown = sorted(by_severity)
        medians = [float(np.median(by_severity[number])) for number in shown]
        axes.plot(shown, medians, **styles[method].of_line, markersize=5, label=method)
    axes.set_xticks(severities, [str(number or "clean") for number in severities])
    _finish(axes, f"median {measure}", percent, title, len(values), columns=3)
    return figure


def _box(numbers: Sequence[float]) -> dict[str, Any]:
    low, first, median, third, high = np.percentile(np.asarray(numbers, dtype=float), [0, 25, 50, 75, 100])
    return {"whislo": low, "q1": first, "med": median, "q3": third, "whishi": high}


def _severities(values: Values) -> list[int]:
    found = sorted({number for by_severity in values.values() for number in by_severity})
    if not found or any(not len(numbers) for one in values.values() for numbers in one.values()):
        raise InvalidInput("there is nothing to draw; give every method numbers for at least one severity.")
    return found


def _finish(axes: Axes, measure: str, percent: bool, title: str, methods: int, columns: int) -> None:
    dress(axes, title=title, x="severity of the corruption", y=measure)
    if percent:
        percent_ticks(axes.yaxis)
    legend_below(axes, columns=min(methods, columns))
