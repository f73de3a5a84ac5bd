"""The reliability diagram: how often answers of a given confidence are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from rbue.lab.report.figures.style import INK, MUTED, SMALL, dress, looks, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reliability_diagram(
    edges: ArrayLike, counts: ArrayLike, confidence: ArrayLike, accuracy: ArrayLike, *, label: str, note: str = ""
) -> Figure:
    """Bars of accuracy a bin of confidence against the diagonal, and below how many images each bin holds.

    The arguments are the fields of :class:`rbue.metrics.Reliability`. A bar that ends below the diagonal is
    overconfident. A bin without images has no bar.

    Args:
        edges: ``(M + 1,)``.
        counts: ``(M,)`` images in each bin.
        confidence: ``(M,)`` mean confidence, NaN where a bin is empty.
        accuracy: ``(M,)`` fraction of right answers, NaN where a bin is empty.
        label: the method; decides the colour.
        note: a line under it, such as the ECE.
    """
    border, many = np.asarray(edges, dtype=float), np.asarray(counts, dtype=float)
    sure, right = np.asarray(confidence, dtype=float), np.asarray(accuracy, dtype=float)
    colour = looks([label])[label].colour
    filled = many > 0
    left, width = border[:-1][filled], np.diff(border)[filled]
    figure = new_figure(3.3, 3.5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    above.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--", label="perfect")
    above.bar(left, right[filled], width=width, align="edge", color=colour, alpha=0.55, edgecolor=colour, linewidth=0.6)
    above.plot(sure[filled], right[filled], color=INK, marker=".", markersize=4, linestyle="none")
    above.set_ylim(0, 1.02)
    above.set_xlim(0, 1)
    dress(above, title=label, y="accuracy", grid="")
    if note:
        above.text(0.04, 0.96, note, color=INK, fontsize=SMALL, va="top", transform=above.transAxes)
    below.bar(left, many[filled] / many.sum(), width=width, align="edge", color=MUTED)
    dress(below, x="confidence", y="share", grid="")
    return figure
