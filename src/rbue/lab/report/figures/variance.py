"""The variance of a DropReLU layer against q: what the paper writes, what holds, and what a simulation shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from rbue.lab.report.figures.style import INK, METHOD_COLOURS, MUTED, dress, legend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def variance_against_q(
    q: ArrayLike,
    paper: ArrayLike,
    exact: ArrayLike,
    simulated: ArrayLike,
    error: ArrayLike | None = None,
    *,
    dropout: ArrayLike | None = None,
    title: str = "",
) -> Figure:
    """Draw the variances of a layer's sum (:mod:`rbue.variance`) over q.

    Args:
        q: probabilities that a ReLU is kept.
        paper: the paper's formula at each q.
        exact: the exact value at each q.
        simulated: the simulated one.
        error: its standard error; drawn three times as long as it is.
        dropout: variance of dropout with ``p = 1 - q``, if wanted.
        title: stands above.
    """
    rate = np.asarray(q, dtype=float)
    figure = new_figure(5.0, 3.9)
    axes = figure.subplots()
    axes.plot(rate, paper, color=METHOD_COLOURS["svi"], linestyle="--", linewidth=1.8, label="formula of the paper")
    axes.plot(rate, exact, color=METHOD_COLOURS["mc-droprelu"], linewidth=1.8, label="exact")
    if dropout is not None:
        colour = METHOD_COLOURS["mc-dropout"]
        axes.plot(rate, dropout, color=colour, linestyle=":", linewidth=1.8, label="dropout with p = 1 − q")
    bars = None if error is None else 3 * np.asarray(error, dtype=float)
    axes.errorbar(
        *(rate, simulated),
        yerr=bars,
        color=INK,
        ecolor=MUTED,
        marker="o",
        markersize=4,
        linestyle="none",
        capsize=2,
        label="simulation" + ("" if bars is None else " ± 3 standard errors"),
    )
    axes.set_ylim(bottom=0)
    dress(axes, title=title, x="q, the probability that a ReLU is kept", y="variance of the sum")
    legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    return figure
