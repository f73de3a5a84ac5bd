"""The framework: one image, N random passes, their mean and its entropy (paper, figure of the framework)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from rbue.errors import InvalidInput
from rbue.lab.report.figures.image_row import show_pixels
from rbue.lab.report.figures.style import INK, METHOD_COLOURS, MUTED, SMALL, TEXT, dress, new_figure, undress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOUR = METHOD_COLOURS["mc-droprelu"]


def framework(
    image: ArrayLike, samples: ArrayLike, classes: Sequence[str], *, shown: int = 4, title: str = ""
) -> Figure:
    """Draw how one prediction comes about.

    With a :class:`rbue.Prediction` made with ``return_samples=True``, give ``prediction.samples[:, i]``.

    Args:
        image: uint8, ``(H, W, C)`` or ``(H, W)``.
        samples: class probabilities of every pass for this image, ``(S, classes)``.
        classes: one name a class.
        shown: how many passes are drawn one by one.
        title: stands above the image.
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
    show_pixels(picture, image)
    undress(picture, title or "one image")
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
    _bars(result, mean, color=_COLOUR, yerr=drawn.std(0), ecolor=INK)
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
