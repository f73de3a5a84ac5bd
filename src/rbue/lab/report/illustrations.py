"""Figures that compare no runs: the activation functions, a network, one prediction, images, the variance of a layer.

A function takes plain data and returns a matplotlib ``Figure``; :func:`rbue.lab.report.figure_style.svg` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from rbue.errors import InvalidInput
from rbue.lab.report.figure_style import (
    INK,
    LINE,
    METHOD_COLOURS,
    MUTED,
    PAPER,
    SMALL,
    TEXT,
    dress,
    legend,
    legend_below,
    new_figure,
    undress,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def activation_curves(q: float = 0.9, lower: float = 1 / 8, upper: float = 1 / 3, reach: float = 3.0) -> Figure:
    """The paper's figure of ReLU, both branches of DropReLU, and RReLU with the band of its slopes.

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
    slopes = f"slopes {lower:.3g} to {upper:.3g}"
    random.fill_between(negative, lower * negative, upper * negative, color=colour, alpha=0.3, label=slopes)
    dress(random, title="RReLU", x="input", grid="both")
    legend(random, loc="lower right")
    for axes in (relu, drop, random):
        axes.axhline(0, color=MUTED, linewidth=0.8)
        axes.axvline(0, color=MUTED, linewidth=0.8)
        axes.tick_params(labelsize=SMALL)
    return figure


_COLOURS = {"ReLU": INK, "DropReLU": METHOD_COLOURS["mc-droprelu"], "RReLU": METHOD_COLOURS["mc-rrelu"]}
_RADIUS = 0.3


def network_drawing(
    kinds: Sequence[str] = tuple(_COLOURS),
    layers: Sequence[int] = (3, 4, 4, 2),
    q: float = 0.7,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    seed: int = 3,
) -> Figure:
    """The paper's figure of the network, once a kind of activation; in each neuron the curve that a pass drew for it.

    Args:
        kinds: which of ``ReLU``, ``DropReLU`` and ``RReLU`` to draw.
        layers: neurons of the input, of each hidden layer and of the output.
        q: the probability that DropReLU is a ReLU.
        lower: smallest slope of RReLU for negative inputs.
        upper: largest one.
        seed: decides the draws.
    """
    unknown = [kind for kind in kinds if kind not in _COLOURS]
    if unknown or not kinds or len(layers) < 3:
        raise InvalidInput(
            f"kinds are {', '.join(_COLOURS)} and layers at least three, not {list(kinds)}, {list(layers)}."
        )
    figure = new_figure(2.9 * len(kinds), 3.1)
    random = np.random.default_rng(seed)
    for axes, kind in zip(np.atleast_1d(figure.subplots(1, len(kinds))), kinds, strict=True):
        slope = {
            "ReLU": lambda: 0.0,
            "DropReLU": lambda: float(random.random() >= q),
            "RReLU": lambda: random.uniform(lower, upper),
        }[kind]
        _draw(axes, _COLOURS[kind], layers, slope)
        undress(axes, kind)
        axes.set_aspect("equal")
    return figure


def _draw(axes: Axes, colour: str, layers: Sequence[int], slope: Callable[[], float]) -> None:
    """One network; ``slope`` draws what a neuron gives to negative inputs in one pass."""
    from matplotlib.patches import Circle

    places = [[(1.25 * depth, row - (count - 1) / 2) for row in range(count)] for depth, count in enumerate(layers)]
    for left, right in pairwise(places):
        for start in left:
            for end in right:
                axes.plot(*zip(start, end, strict=True), color=LINE, linewidth=0.8, zorder=1)
    for depth, column in enumerate(places):
        hidden = 0 < depth < len(places) - 1
        for x, y in column:
            edge = colour if hidden else MUTED
            axes.add_patch(Circle((x, y), _RADIUS, facecolor=PAPER, edgecolor=edge, linewidth=1.2, zorder=2))
            if hidden:
                bend = 0.65 * _RADIUS * np.array([[-1, 0, 1], [-slope(), 0, 1]])
                axes.plot(x + bend[0], y + bend[1], color=edge, linewidth=1.6, zorder=3)
    low = -max(layers) / 2 - 0.25
    for x, text in ((0.0, "image"), (places[-1][0][0], "classes")):
        axes.text(x, low, text, color=MUTED, fontsize=SMALL, ha="center", va="top")
    axes.set_xlim(-0.7, places[-1][0][0] + 0.7)
    axes.set_ylim(low - 0.4, max(layers) / 2 + 0.1)


def framework(image: ArrayLike, samples: ArrayLike, classes: Sequence[str], *, shown: int = 4) -> Figure:
    """The paper's figure of the framework: one image, its random passes, their mean and its entropy.

    With a :class:`rbue.Prediction` made with ``return_samples=True``, give ``prediction.samples[:, i]``.

    Args:
        image: uint8, ``(H, W, C)`` or ``(H, W)``.
        samples: class probabilities of every pass for this image, ``(S, classes)``.
        classes: one name a class.
        shown: how many passes are drawn one by one.
    """
    drawn = np.asarray(samples, dtype=float)
    if drawn.ndim != 2 or drawn.shape[1] != len(classes) or not len(drawn):
        raise InvalidInput(f"samples have shape {drawn.shape}; give (samples, {len(classes)} classes) of one image.")
    mean = drawn.mean(0)
    entropy = float(-np.sum(mean[mean > 0] * np.log(mean[mean > 0])))
    shown = min(shown, len(drawn))
    figure = new_figure(8.6, 3.6)
    grid = figure.add_gridspec(shown, 3, width_ratios=(1.1, 1.5, 2))

    picture = figure.add_subplot(grid[:, 0])
    _show_pixels(picture, image)
    undress(picture, "one image")
    _arrow(picture)
    numbers = [*range(shown - 1), len(drawn) - 1]
    for row, number in enumerate(numbers):
        axes = figure.add_subplot(grid[row, 1])
        _bars(axes, drawn[number], color=MUTED)
        axes.set_ylabel(f"pass {number + 1}", color=MUTED, fontsize=SMALL, rotation=0, ha="right", va="center")
        if row == shown // 2:
            _arrow(axes)
        if row == 0:
            axes.set_title(f"{len(drawn)} random passes", color=INK, fontsize=TEXT)
    result = figure.add_subplot(grid[:, 2])
    label = int(mean.argmax())
    _bars(result, mean, color=METHOD_COLOURS["mc-droprelu"], yerr=drawn.std(0), ecolor=INK)
    dress(result, title=f"mean: {classes[label]}, {100 * mean[label]:.1f} %\nentropy {entropy:.3f} nats")
    result.set_xticks(range(len(classes)), classes if len(classes) <= 20 else [""] * len(classes))
    if max(map(len, classes)) > 3:
        result.tick_params(axis="x", rotation=60)
    return figure


def _bars(axes: Axes, probs: Any, **look: Any) -> None:
    axes.bar(range(len(probs)), probs, width=0.8, error_kw={"linewidth": 1}, **look)
    axes.set_ylim(0, 1.05)
    dress(axes, grid="")
    axes.set_xticks([])
    axes.set_yticks([0, 1])


def _arrow(axes: Axes) -> None:
    """Point to what comes next, right of the axes."""
    axes.annotate(
        "",
        xy=(1.17, 0.5),
        xytext=(1.03, 0.5),
        xycoords="axes fraction",
        annotation_clip=False,
        arrowprops={"arrowstyle": "->", "color": MUTED, "linewidth": 1.4},
    )


def image_rows(rows: Sequence[Sequence[ArrayLike]], captions: Sequence[str]) -> Figure:
    """Rows of images, such as several images at the same severities of a corruption.

    Args:
        rows: rows of equal length; images are uint8, each ``(H, W, C)`` or ``(H, W)``.
        captions: one below each column.
    """
    columns = len(captions)
    if not columns or not rows or any(len(row) != columns for row in rows):
        counts = ", ".join(str(len(row)) for row in rows) or "no"
        raise InvalidInput(f"there are {counts} images in a row and {columns} captions; give one caption an image.")
    figure = new_figure(1.4 * columns, 1.4 * len(rows) + 0.3)
    places = figure.subplots(len(rows), columns, squeeze=False)
    for row, line in zip(rows, places, strict=True):
        for axes, image in zip(line, row, strict=True):
            _show_pixels(axes, image)
            undress(axes)
    for axes, caption in zip(places[-1], captions, strict=True):
        axes.text(0.5, -0.06, caption, color=MUTED, fontsize=TEXT, ha="center", va="top", transform=axes.transAxes)
    return figure


def _show_pixels(axes: Axes, image: ArrayLike) -> None:
    """Draw an image pixel by pixel, not smoothed."""
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="none")


def variance_against_q(
    q: ArrayLike, paper: ArrayLike, exact: ArrayLike, simulated: ArrayLike, error: ArrayLike, dropout: ArrayLike
) -> Figure:
    """The variance of a layer's sum over q (:mod:`rbue.variance`): what the paper writes, what holds, a simulation.

    Args:
        q: probabilities that a ReLU is kept.
        paper: the paper's formula at each q.
        exact: the exact value at each q.
        simulated: the simulated one.
        error: its standard error; drawn three times as long as it is.
        dropout: variance of dropout with ``p = 1 - q``.
    """
    rate = np.asarray(q, dtype=float)
    figure = new_figure(5.0, 3.9)
    axes = figure.subplots()
    axes.plot(rate, paper, color=METHOD_COLOURS["svi"], linestyle="--", linewidth=1.8, label="formula of the paper")
    axes.plot(rate, exact, color=METHOD_COLOURS["mc-droprelu"], linewidth=1.8, label="exact")
    colour = METHOD_COLOURS["mc-dropout"]
    axes.plot(rate, dropout, color=colour, linestyle=":", linewidth=1.8, label="dropout with p = 1 − q")
    axes.errorbar(
        *(rate, simulated),
        yerr=3 * np.asarray(error, dtype=float),
        color=INK,
        ecolor=MUTED,
        marker="o",
        markersize=4,
        linestyle="none",
        capsize=2,
        label="simulation ± 3 standard errors",
    )
    axes.set_ylim(bottom=0)
    dress(axes, x="q, the probability that a ReLU is kept", y="variance of the sum")
    legend_below(axes, columns=2)
    return figure
