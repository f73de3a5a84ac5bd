"""Histograms of entropy for right and wrong answers: uncertainty is worth something where they part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from rbue.errors import InvalidInput
from rbue.lab.report.figures.style import BAD, GOOD, dress, legend, new_figure, percent_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def entropy_histograms(entropy: ArrayLike, correct: ArrayLike, classes: int, *, label: str, bins: int = 24) -> Figure:
    """Two histograms on one axis, each as a share of its own group, so that a few errors are as visible as many.

    Args:
        entropy: one number an image, in nats.
        correct: whether the answer is right, one an image.
        classes: number of classes; the axis ends at its logarithm, the largest entropy there is.
        label: the method, for the title.
        bins: number of bars.
    """
    values, right = np.asarray(entropy, dtype=float), np.asarray(correct, dtype=bool)
    if values.shape != right.shape or not len(values):
        raise InvalidInput(f"entropy has shape {values.shape} and correct {right.shape}; give one of each an image.")
    figure = new_figure(3.3, 2.9)
    axes = figure.subplots()
    edges = np.linspace(0, np.log(classes), bins + 1)
    for chosen, name, colour, hatch in ((right, "right", GOOD, None), (~right, "wrong", BAD, "////")):
        count = int(chosen.sum())
        heights = np.histogram(values[chosen].clip(0, edges[-1]), bins=edges)[0] / max(count, 1)
        axes.bar(
            *(edges[:-1], heights),
            width=np.diff(edges),
            align="edge",
            facecolor="none" if hatch else (colour, 0.6),
            edgecolor=colour,
            linewidth=1.1 if hatch else 0.7,
            hatch=hatch,
            label=f"{count:,} {name}",
        )
    dress(axes, title=label, title_pad=20, x="entropy in nats", y="share of the group")
    axes.set_xlim(0, edges[-1])
    percent_ticks(axes.yaxis)
    legend(axes, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, borderpad=0.2, columnspacing=1.2)
    return figure
