"""Matrices of pairwise diversity (JSD, DIS), side by side on one colour scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from rbue.errors import InvalidInput
from rbue.report.figures.style import INK, MUTED, SEQUENTIAL, SMALL, TEXT, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
            on_light = value > 0.47 * top
            shade = "#000000" if on_light else "#ffffff"
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
