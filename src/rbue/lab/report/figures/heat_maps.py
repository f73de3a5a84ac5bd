"""Matrices of pairwise diversity (JSD, DIS), side by side on one colour scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from rbue.errors import InvalidInput
from rbue.lab.report.figures.style import INK, MUTED, SEQUENTIAL, SMALL, TEXT, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


EVEN = 0.179
"""The luminance on which black and white stand out equally."""


def heat_maps(matrices: Mapping[str, ArrayLike], measure: str, *, columns: int = 4, digits: int = 3) -> Figure:
    """Draw one square matrix a method; equal colours are equal values in all of them.

    Args:
        matrices: method -> ``(S, S)``.
        measure: what the numbers are, for the colour bar.
        columns: how many matrices stand in a row.
        digits: decimals of the numbers in the fields.
    """
    squares = {name: np.asarray(matrix, dtype=float) for name, matrix in matrices.items()}
    if not squares or any(one.ndim != 2 or one.shape[0] != one.shape[1] for one in squares.values()):
        raise InvalidInput("heat maps need at least one square matrix, of shape (samples, samples).")
    columns = min(columns, len(squares))
    rows = math.ceil(len(squares) / columns)
    figure = new_figure(2.15 * columns + 0.8, 2.25 * rows + 0.2)
    top = max(float(np.nanmax(one)) for one in squares.values()) or 1.0
    places = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    shown = None
    for axes, (name, matrix) in zip(places, squares.items(), strict=False):
        shown = axes.imshow(matrix, cmap=SEQUENTIAL, vmin=0, vmax=top, interpolation="none")
        for (row, column), value in np.ndenumerate(matrix):
            shade = readable_on(shown.cmap(shown.norm(value)))
            axes.text(column, row, f"{value:.{digits}f}", color=shade, fontsize=SMALL - 1, ha="center", va="center")
        axes.set_title(name, color=INK, fontsize=TEXT)
        numbers = range(len(matrix))
        axes.set_xticks(numbers, [str(number + 1) for number in numbers])
        axes.set_yticks(numbers, [str(number + 1) for number in numbers])
        axes.tick_params(length=0, labelcolor=MUTED, labelsize=SMALL)
        axes.spines[:].set_visible(False)
    for axes in places[len(squares) :]:
        axes.set_axis_off()
    assert shown is not None
    bar = figure.colorbar(shown, ax=places.tolist(), shrink=0.85, pad=0.02)
    bar.set_label(measure, color=MUTED, fontsize=TEXT)
    bar.ax.tick_params(labelcolor=MUTED, labelsize=SMALL, color=MUTED)
    bar.outline.set_visible(False)
    return figure


def readable_on(colour: Sequence[float]) -> str:
    """Black or white, whichever stands out more on a colour of red, green and blue from 0 to 1.

    >>> readable_on((1.0, 0.9, 0.2)), readable_on((0.0, 0.1, 0.3))
    ('#000000', '#ffffff')
    """
    return "#000000" if luminance(colour) > EVEN else "#ffffff"


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance as the web's contrast rules define it."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in tuple(colour)[:3]
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
