"""What more samples bring: measures against the number of passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rbue.errors import InvalidInput
from rbue.lab.report.figures.style import INK, SMALL, dress, legend, looks, new_figure, percent_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 4
"""More lines than this have their legend below, where it hides none of them."""

Curve = Mapping[int, Mapping[str, float]]
"""number of samples -> measure -> value."""


def lines_against_samples(curves: Mapping[str, Curve], measures: Mapping[str, str] | None = None) -> Figure:
    """One panel a measure, one line a method.

    Args:
        curves: ``curves[method][samples][measure]``.
        measures: measure -> what to write at its axis; accuracy and ECE if left out. Accuracy is written in percent.
    """
    names = measures if measures is not None else {"accuracy": "accuracy", "ece": "ECE"}
    if not curves or not names or not any(curves.values()):
        raise InvalidInput("there is nothing to draw; give at least one method with one number of samples.")
    figure = new_figure(3.9 * len(names), 3.3)
    panels = np.atleast_1d(figure.subplots(1, len(names)))
    styles = looks(curves)
    for axes, (measure, name) in zip(panels, names.items(), strict=True):
        for label, curve in curves.items():
            counts = sorted(count for count in curve if measure in curve[count])
            look = styles[label]
            values = [curve[count][measure] for count in counts]
            axes.plot(
                counts, values, color=look.colour, marker=look.marker, linestyle=look.line, markersize=5, label=label
            )
        axes.set_xscale("log")
        ticks = sorted({count for curve in curves.values() for count in curve})
        axes.set_xticks(ticks, [str(count) for count in ticks])
        axes.set_xticks([], minor=True)
        dress(axes, x="samples", y=name)
        if measure == "accuracy":
            percent_ticks(axes.yaxis)
    if len(curves) <= FEW:
        legend(panels[0])
    else:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=SMALL, labelcolor=INK
        )
    return figure
