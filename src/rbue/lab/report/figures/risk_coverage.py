"""Risk-coverage curves: the error that remains when only the surest images are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from rbue.errors import InvalidInput
from rbue.lab.report.figures.style import dress, legend, looks, new_figure, percent_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 300


def risk_coverage_curves(curves: Mapping[str, tuple[ArrayLike, ArrayLike]], *, title: str = "") -> Figure:
    """One curve a method.

    Args:
        curves: method -> coverage and risk, as :func:`rbue.metrics.risk_coverage` gives them.
        title: stands above.
    """
    if not curves:
        raise InvalidInput("there is nothing to draw; give at least one curve.")
    figure = new_figure(5.0, 3.6)
    axes = figure.subplots()
    styles = looks(curves)
    for label, (coverage, risk) in curves.items():
        x, y = np.asarray(coverage, dtype=float), np.asarray(risk, dtype=float)
        kept = np.unique(np.linspace(0, len(x) - 1, min(_POINTS, len(x))).round().astype(int))
        look = styles[label]
        every = max(1, len(kept) // 6)
        axes.plot(
            *(x[kept], y[kept]),
            color=look.colour,
            linestyle=look.line,
            linewidth=1.6,
            marker=look.marker,
            markevery=every,
            markersize=4,
            label=label,
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    dress(axes, title=title, x="share of images answered, the surest first", y="errors among them")
    percent_ticks(axes.xaxis)
    percent_ticks(axes.yaxis)
    legend(axes)
    return figure
