"""Images side by side with captions, such as the severities of a corruption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from rbue.errors import InvalidInput
from rbue.lab.report.figures.style import MUTED, TEXT, new_figure, undress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def image_row(images: Sequence[ArrayLike], captions: Sequence[str]) -> Figure:
    """Draw images in a row.

    Args:
        images: uint8, each ``(H, W, C)`` or ``(H, W)``.
        captions: one below each image.
    """
    return image_rows([images], captions)


def image_rows(rows: Sequence[Sequence[ArrayLike]], captions: Sequence[str]) -> Figure:
    """Draw rows of images, such as several images at the same severities.

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
            show_pixels(axes, image)
            undress(axes)
    for axes, caption in zip(places[-1], captions, strict=True):
        axes.text(0.5, -0.06, caption, color=MUTED, fontsize=TEXT, ha="center", va="top", transform=axes.transAxes)
    return figure


def show_pixels(axes: Axes, image: ArrayLike) -> None:
    """Draw an image pixel by pixel, not smoothed."""
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="none")
