"""The three activation functions (paper, figure of DropReLU and RReLU)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rbue.lab.report.figures.style import INK, METHOD_COLOURS, MUTED, SMALL, dress, legend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def activation_curves(q: float = 0.9, lower: float = 1 / 8, upper: float = 1 / 3, reach: float = 3.0) -> Figure:
    """ReLU, both branches of DropReLU, and RReLU with the band of its slopes.

    Args:
        q: the probability that DropReLU is a ReLU.
        lower: smallest slope of RReLU for negative inputs.
        upper: largest one.
        reach: the inputs go from ``-reach`` to ``reach``.
    """
    figure = new_figure(8.4, 2.9)
    relu, drop, random = figure.subplots(1, 3, sharex=True, sharey=True)
    x = np.array([-reach, 0.0, reach])
    negative = x[:2]
    kept = np.maximum(x, 0)

    relu.plot(x, kept, color=INK, linewidth=2)
    dress(relu, title="ReLU", x="input", y="output", grid="both")

    colour = METHOD_COLOURS["mc-droprelu"]
    drop.plot(x, kept, color=colour, linewidth=2, label=f"kept, probability {q:g}")
    drop.plot(negative, negative, color=colour, linewidth=2, linestyle="--", label=f"dropped, {1 - q:.4g}")
    dress(drop, title="DropReLU", x="input", grid="both")
    legend(drop, loc="lower right")

    colour = METHOD_COLOURS["mc-rrelu"]
    middle = (lower + upper) / 2
    random.plot(x, np.where(x < 0, middle * x, x), color=colour, linewidth=2, label=f"mean slope {middle:.3g}")
    random.fill_between(
        negative,
        lower * negative,
        upper * negative,
        color=colour,
        alpha=0.3,
        label=f"slopes {lower:.3g} to {upper:.3g}",
    )
    dress(random, title="RReLU", x="input", grid="both")
    legend(random, loc="lower right")
    for axes in (relu, drop, random):
        axes.axhline(0, color=MUTED, linewidth=0.8)
        axes.axvline(0, color=MUTED, linewidth=0.8)
        axes.tick_params(labelsize=SMALL)
    return figure
