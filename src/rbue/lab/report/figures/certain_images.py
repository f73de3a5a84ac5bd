"""Images with their sampled class probabilities: every pass is a dot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from rbue.errors import InvalidInput
from rbue.lab.report.figures.image_row import show_pixels
from rbue.lab.report.figures.style import INK, METHOD_COLOURS, SMALL, TEXT, dress, new_figure, undress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def certain_images(
    images: Sequence[ArrayLike],
    samples: ArrayLike,
    classes: Sequence[str],
    captions: Sequence[str],
    *,
    top: int = 4,
    columns: int = 2,
) -> Figure:
    """Each image beside its most probable classes: a bar for the mean, a dot for each pass.

    Args:
        images: uint8, each ``(H, W, C)`` or ``(H, W)``.
        samples: class probabilities ``(S, images, classes)``.
        classes: one name a class.
        captions: one a picture.
        top: how many classes are shown of each.
        columns: pictures in a row.
    """
    drawn = np.asarray(samples, dtype=float)
    if drawn.ndim != 3 or drawn.shape[1:] != (len(images), len(classes)) or len(captions) != len(images):
        raise InvalidInput(
            f"samples have shape {drawn.shape}, but there are {len(images)} images, {len(captions)} captions and "
            f"{len(classes)} classes; give (samples, images, classes)."
        )
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    figure = new_figure(4.2 * columns, 1.45 * rows)
    grid = figure.add_gridspec(rows, 2 * columns, width_ratios=[1, 2] * columns)
    colour = METHOD_COLOURS["mc-droprelu"]
    for place, (image, caption) in enumerate(zip(images, captions, strict=True)):
        row, column = divmod(place, columns)
        picture = figure.add_subplot(grid[row, 2 * column])
        show_pixels(picture, image)
        undress(picture)
        picture.set_title(caption, color=INK, fontsize=TEXT)
        axes = figure.add_subplot(grid[row, 2 * column + 1])
        probs = drawn[:, place]
        order = np.argsort(-probs.mean(0), kind="stable")[:top]
        heights = np.arange(len(order))
        axes.barh(heights, probs.mean(0)[order], height=0.7, color=colour, alpha=0.35)
        spread = np.linspace(-0.25, 0.25, len(probs))
        for height, label in zip(heights, order, strict=True):
            axes.plot(probs[:, label], height + spread, ".", color=colour, markersize=3)
        axes.set_yticks(heights, [classes[label] for label in order])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.02)
        dress(axes, grid="x")
        axes.tick_params(labelsize=SMALL)
    return figure
