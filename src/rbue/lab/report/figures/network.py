"""A small network, each neuron with the activation it happened to draw (paper, figure of the network)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from rbue.errors import InvalidInput
from rbue.lab.report.figures.style import INK, LINE, METHOD_COLOURS, MUTED, PAPER, SMALL, new_figure, undress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("ReLU", "DropReLU", "RReLU")
_COLOURS = {"ReLU": INK, "DropReLU": METHOD_COLOURS["mc-droprelu"], "RReLU": METHOD_COLOURS["mc-rrelu"]}
_RADIUS = 0.3


def network_drawing(
    kinds: Sequence[str] = KINDS,
    layers: Sequence[int] = (3, 4, 4, 2),
    q: float = 0.7,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    seed: int = 3,
) -> Figure:
    """One network a kind of activation; in each hidden neuron stands the curve that one random pass drew for it.

    Args:
        kinds: which of ``ReLU``, ``DropReLU`` and ``RReLU`` to draw.
        layers: neurons of the input, of each hidden layer and of the output.
        q: the probability that DropReLU is a ReLU.
        lower: smallest slope of RReLU for negative inputs.
        upper: largest one.
        seed: decides the draws.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds or len(layers) < 3:
        raise InvalidInput(
            f"kinds are {', '.join(KINDS)} and layers at least three, not {list(kinds)}, {list(layers)}."
        )
    figure = new_figure(2.9 * len(kinds), 3.1)
    random = np.random.default_rng(seed)
    for axes, kind in zip(np.atleast_1d(figure.subplots(1, len(kinds))), kinds, strict=True):
        _draw(axes, kind, layers, lambda kind=kind: _slope(kind, q, lower, upper, random))
        undress(axes, kind)
        axes.set_aspect("equal")
    return figure


def _slope(kind: str, q: float, lower: float, upper: float, random: np.random.Generator) -> float:
    """The slope that a neuron gives to negative inputs in one pass."""
    if kind == "ReLU":
        return 0.0
    return float(random.random() >= q) if kind == "DropReLU" else float(random.uniform(lower, upper))


def _draw(axes: Axes, kind: str, layers: Sequence[int], slope: object) -> None:
    from matplotlib.patches import Circle

    places = [[(1.25 * depth, row - (count - 1) / 2) for row in range(count)] for depth, count in enumerate(layers)]
    for left, right in pairwise(places):
        for start in left:
            for end in right:
                axes.plot(*zip(start, end, strict=True), color=LINE, linewidth=0.8, zorder=1)
    for depth, column in enumerate(places):
        hidden = 0 < depth < len(places) - 1
        for x, y in column:
            edge = _COLOURS[kind] if hidden else MUTED
            axes.add_patch(Circle((x, y), _RADIUS, facecolor=PAPER, edgecolor=edge, linewidth=1.2, zorder=2))
            if hidden:
                bend = 0.65 * _RADIUS * np.array([[-1, 0, 1], [-slope(), 0, 1]])  # type: ignore[operator]
                axes.plot(x + bend[0], y + bend[1], color=edge, linewidth=1.6, zorder=3)
    low = -max(layers) / 2 - 0.25
    for x, text in ((0.0, "image"), (places[-1][0][0], "classes")):
        axes.text(x, low, text, color=MUTED, fontsize=SMALL, ha="center", va="top")
    axes.set_xlim(-0.7, places[-1][0][0] + 0.7)
    axes.set_ylim(low - 0.4, max(layers) / 2 + 0.1)
