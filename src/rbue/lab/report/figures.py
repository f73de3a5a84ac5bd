"""Figures of measurements: how right, how sure and how well calibrated.

A function takes plain data and returns a matplotlib ``Figure``; :func:`rbue.lab.report.figure_style.svg` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rbue.errors import InvalidInput
from rbue.lab.report.figure_style import (
    BAD,
    GOOD,
    INK,
    METHOD_MARKERS,
    MUTED,
    SEQUENTIAL,
    SMALL,
    TEXT,
    colour_bar,
    dress,
    legend,
    legend_below,
    looks,
    new_figure,
    percent_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class PlanePoint(NamedTuple):
    """One method in the plane; ``q`` colours a star of MC-DropReLU."""

    label: str
    accuracy: float
    ece: float
    q: float | None = None


class Measured(NamedTuple):
    """One method on one axis: a value and, where it is known, the interval it lies in."""

    label: str
    value: float
    interval: tuple[float, float] | None = None


def interval_panels(panels: Mapping[str, Sequence[Measured]], *, percent: Sequence[str] = ()) -> Figure:
    """One panel a measure, below each other, one line a method: its value as a marker, its interval as a bar.

    Args:
        panels: what to write at its axis -> the methods, from top to bottom, in every panel the same.
        percent: panels whose numbers are fractions to be written in percent.
    """
    if not panels or not all(panels.values()):
        raise InvalidInput("there is nothing to draw; give at least one panel with one method.")
    labels = [one.label for one in next(iter(panels.values()))]
    styles = looks(labels)
    figure = new_figure(4.2, len(panels) * (0.22 * len(labels) + 0.55))
    for axes, (name, measured) in zip(np.atleast_1d(figure.subplots(len(panels), 1)), panels.items(), strict=True):
        for row, (label, value, interval) in enumerate(measured):
            look = styles[label]
            if interval is not None:
                axes.plot(interval, [row, row], color=look.colour, linewidth=2.2, alpha=0.55, solid_capstyle="butt")
            axes.plot(value, row, color=look.colour, marker=look.marker, markersize=8 if look.marker == "*" else 6)
        dress(axes, x=name, grid="x")
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_yticks(range(len(labels)), labels)
        axes.locator_params(axis="x", nbins=5)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        if name in percent:
            percent_ticks(axes.xaxis)
    return figure


def accuracy_ece_plane(points: Sequence[PlanePoint]) -> Figure:
    """Accuracy to the right, ECE upwards: the bottom right corner is the place to be.

    Points with a ``q`` are stars coloured by it, as in the paper; the others have the marker of their method: a
    square for MC-Dropout, a circle for Deep Ensemble.

    Args:
        points: one a method; accuracy as a fraction.
    """
    if not points:
        raise InvalidInput("there is nothing to draw; give at least one point.")
    figure = new_figure(5.0, 3.6)
    axes = figure.subplots()
    stars = [point for point in points if point.q is not None]
    others = [point for point in points if point.q is None]
    styles = looks(point.label for point in others)
    for point in others:
        look = styles[point.label]
        size = 130 if look.marker == "*" else 55
        axes.scatter(
            *(point.accuracy, point.ece),
            s=size,
            facecolors=[(look.colour, look.strength**3)],
            edgecolors=look.colour,
            marker=look.marker,
            label=point.label,
            zorder=3,
        )
    if stars:
        _stars(figure, axes, stars)
    dress(axes, x="accuracy (more is better)", y="ECE (less is better)", grid="both")
    axes.margins(0.12)
    axes.locator_params(axis="x", nbins=5)
    percent_ticks(axes.xaxis)
    if others:
        legend_below(axes, columns=3)
    return figure


def _stars(figure: Figure, axes: Axes, points: Sequence[PlanePoint]) -> None:
    drawn = axes.scatter(
        [point.accuracy for point in points],
        [point.ece for point in points],
        c=[point.q for point in points],  # type: ignore[arg-type]
        s=150,
        cmap=SEQUENTIAL,
        marker=METHOD_MARKERS["mc-droprelu"],
        edgecolors=MUTED,
        linewidths=0.6,
        zorder=3,
    )
    for point, (across, up) in zip(points, _beside([(point.accuracy, point.ece) for point in points]), strict=True):
        axes.annotate(
            f"{point.q:g}",
            (point.accuracy, point.ece),
            xytext=(7 * across, 8 * up),
            textcoords="offset points",
            ha="left" if across > 0 else "right",
            va="center",
            color=INK,
            fontsize=SMALL,
        )
    colour_bar(figure, drawn, "q of MC-DropReLU", ax=axes)


_LABEL = np.array([0.1, 0.05])
"""Width and height of a label of a star, as parts of what the stars span."""


def _beside(places: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """On which side of each point, ``(right, up)``, its label is furthest from other points and from labels so far."""
    points = np.asarray(places, dtype=float)
    points = (points - points.min(0)) / np.maximum(np.ptp(points, axis=0), 1e-12) / _LABEL
    sides, labels = np.array([(1, 1), (-1, 1), (1, -1), (-1, -1)]), np.empty((0, 2))
    found = []
    for number, point in enumerate(points):
        taken = np.concatenate([np.delete(points, number, axis=0), labels])
        spots = point + 0.8 * sides
        best = np.abs(spots[:, None] - taken).max(axis=2).min(axis=1, initial=9.0).argmax()
        found.append((int(sides[best, 0]), int(sides[best, 1])))
        labels = np.concatenate([labels, spots[[best]]])
    return found


def reliability_diagram(
    edges: ArrayLike,
    counts: ArrayLike,
    confidence: ArrayLike,
    accuracy: ArrayLike,
    *,
    label: str,
    note: str = "",
    intervals: tuple[ArrayLike, ArrayLike] | None = None,
) -> Figure:
    """Bars of accuracy a bin of confidence against the diagonal, and below how many images each bin holds.

    The arguments are the fields of :class:`rbue.metrics.Reliability`. A bar that ends below the diagonal is
    overconfident. A bin without images has no bar.

    Args:
        edges: ``(M + 1,)``.
        counts: ``(M,)`` images in each bin.
        confidence: ``(M,)`` mean confidence, NaN where a bin is empty.
        accuracy: ``(M,)`` fraction of right answers, NaN where a bin is empty.
        label: the method; decides the colour.
        note: a line under it, such as the ECE.
        intervals: ``(M,)`` lower and ``(M,)`` upper ends of where the accuracy of each bin lies.
    """
    border, many = np.asarray(edges, dtype=float), np.asarray(counts, dtype=float)
    sure, right = np.asarray(confidence, dtype=float), np.asarray(accuracy, dtype=float)
    colour = looks([label])[label].colour
    filled = many > 0
    left, width = border[:-1][filled], np.diff(border)[filled]
    figure = new_figure(3.3, 3.5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    above.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--", label="perfect")
    above.bar(left, right[filled], width=width, align="edge", color=colour, alpha=0.55, edgecolor=colour, linewidth=0.6)
    above.plot(sure[filled], right[filled], color=INK, marker=".", markersize=4, linestyle="none")
    if intervals is not None:
        low, high = (np.asarray(end, dtype=float)[filled] for end in intervals)
        above.vlines(sure[filled], low, high, colors=INK, linewidth=0.9)
    above.set_ylim(0, 1.02)
    above.set_xlim(0, 1)
    dress(above, title=label, y="accuracy", grid="", title_pad=16 if note else 6)
    above.text(0, 1.02, note, color=MUTED, fontsize=SMALL, va="bottom", transform=above.transAxes)
    below.bar(left, many[filled] / many.sum(), width=width, align="edge", color=MUTED)
    dress(below, x="confidence", y="share", grid="")
    return figure


def risk_coverage_curves(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    allowed: float | None = None,
    chosen: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """The error that remains when only the surest images are answered, one curve a method.

    Args:
        curves: method -> coverage and risk, as :func:`rbue.metrics.risk_coverage` gives them.
        allowed: the risk that thresholds were chosen for, a dashed line.
        chosen: method -> coverage and risk of its threshold, a ring.
    """
    if not curves:
        raise InvalidInput("there is nothing to draw; give at least one curve.")
    figure = new_figure(5.0, 3.6)
    axes = figure.subplots()
    styles = looks(curves)
    for label, (coverage, risk) in curves.items():
        x, y = np.asarray(coverage, dtype=float), np.asarray(risk, dtype=float)
        kept = np.unique(np.linspace(0, len(x) - 1, min(300, len(x))).round().astype(int))  # more cannot be seen
        every = max(1, len(kept) // 6)
        look = styles[label].of_line
        axes.plot(x[kept], y[kept], **look, linewidth=1.6, markevery=every, markersize=4, label=label)
        if chosen and label in chosen:
            axes.scatter(*chosen[label], s=90, facecolors="none", edgecolors=look["color"], linewidths=2, zorder=4)
    if allowed is not None:
        axes.axhline(allowed, color=MUTED, linewidth=1, linestyle="--")
        axes.text(0.01, allowed, f"{100 * allowed:g} % allowed", color=MUTED, fontsize=SMALL, va="bottom")
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    dress(axes, x="share of images answered, the surest first", y="errors among them")
    percent_ticks(axes.xaxis)
    percent_ticks(axes.yaxis)
    legend(axes)
    return figure


def histogram_pair(
    groups: Mapping[str, ArrayLike], most: float, *, label: str, x: str = "entropy in nats", bins: int = 24
) -> Figure:
    """Two histograms over each other, such as the entropy of right and of wrong answers: useful where they part.

    Each is a share of its own group, so that a few errors are as visible as many.

    Args:
        groups: what the two are called -> one number an image; the second one is hatched.
        most: where the axis ends; larger numbers are counted there.
        label: the method, for the title.
        x: what the numbers are.
        bins: number of bars.
    """
    if len(groups) != 2 or not any(np.size(one) for one in groups.values()):
        raise InvalidInput(f"give two groups of numbers, not {', '.join(groups) or 'none'} or empty ones.")
    figure = new_figure(3.3, 2.9)
    axes = figure.subplots()
    edges = np.linspace(0, most, bins + 1)
    for (name, group), colour, hatch in zip(groups.items(), (GOOD, BAD), (None, "////"), strict=True):
        values = np.asarray(group, dtype=float)
        heights = np.histogram(values.clip(0, most), bins=edges)[0] / max(len(values), 1)
        axes.bar(
            *(edges[:-1], heights),
            width=np.diff(edges),
            align="edge",
            facecolor="none" if hatch else (colour, 0.6),
            edgecolor=colour,
            linewidth=1.1 if hatch else 0.7,
            hatch=hatch,
            label=f"{len(values):,} {name}",
        )
    dress(axes, title=label, title_pad=20, x=x, y="share of the group")
    axes.set_xlim(0, most)
    percent_ticks(axes.yaxis)
    legend(axes, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, borderpad=0.2, columnspacing=1.2)
    return figure


def confusion_matrix(counts: ArrayLike, classes: Sequence[str]) -> Figure:
    """How often each class (rows) was answered as each class (columns); colours are shares of the row.

    Args:
        counts: ``(classes, classes)``.
        classes: their names.
    """
    many = np.asarray(counts)
    if many.shape != (len(classes), len(classes)) or not len(classes):
        raise InvalidInput(f"counts have shape {many.shape}; give one row and one column for each of {len(classes)}.")
    from matplotlib.patches import Rectangle

    shares = many / np.maximum(many.sum(1, keepdims=True), 1)
    side = max(3.6, 0.36 * len(classes) + 1.2)
    figure = new_figure(side, side)
    axes = figure.subplots()
    for row, column in zip(*np.nonzero(many), strict=True):
        colour = GOOD if row == column else BAD
        strength = 0.06 + 0.34 * shares[row, column]  # weak enough to read the number in light and in dark
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=(colour, strength), edgecolor="none"))
        axes.text(column, row, str(many[row, column]), color=INK, fontsize=SMALL, ha="center", va="center")
    names = [name if len(name) <= 14 else f"{name[:13]}…" for name in classes]
    axes.set_xticks(range(len(names)), names, rotation=45 if max(map(len, names)) > 2 else 0, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_aspect("equal")
    dress(axes, x="answered", y="labelled", grid="")
    axes.tick_params(length=0, labelcolor=INK)
    return figure


Curve = Mapping[int, Mapping[str, float]]
"""number of samples or epochs -> measure -> value."""


def lines_against_samples(
    curves: Mapping[str, Curve], measures: Mapping[str, str] | None = None, x: str = "samples"
) -> Figure:
    """What more samples bring, or more epochs: one panel a measure, one line a method.

    Args:
        curves: ``curves[method][samples][measure]``.
        measures: measure -> what to write at its axis; accuracy and ECE if left out. Accuracy is written in percent.
        x: what is counted; samples stand on a logarithmic axis.
    """
    names = measures if measures is not None else {"accuracy": "accuracy", "ece": "ECE"}
    if not curves or not names or not any(curves.values()):
        raise InvalidInput("there is nothing to draw; give at least one method with one number of samples.")
    figure = new_figure(3.9 * len(names), 3.3)
    panels = np.atleast_1d(figure.subplots(1, len(names)))
    styles = looks(curves)
    for axes, (measure, name) in zip(panels, names.items(), strict=True):
        for label, curve in curves.items():
            counts = sorted(count for count in curve if measure in curve[count])
            values = [curve[count][measure] for count in counts]
            every = max(1, len(counts) // 8)
            axes.plot(counts, values, **styles[label].of_line, markersize=5, markevery=every, label=label)
        if x == "samples":
            axes.set_xscale("log")
            ticks = sorted({count for curve in curves.values() for count in curve})
            axes.set_xticks(ticks, [str(count) for count in ticks])
            axes.set_xticks([], minor=True)
        else:
            axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        dress(axes, x=x, y=name)
        if measure == "accuracy":
            percent_ticks(axes.yaxis)
    if len(curves) <= 4:
        legend(panels[0])
    else:  # below, where it hides none of the lines
        look = {"frameon": False, "fontsize": SMALL, "labelcolor": INK}
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2 * len(names), **look)
    return figure


def heat_maps(matrices: Mapping[str, ArrayLike], measure: str) -> Figure:
    """Pairwise diversity (JSD, DIS), one square matrix a method; equal colours are equal values in all of them.

    Args:
        matrices: method -> ``(S, S)``.
        measure: what the numbers are, for the colour bar.
    """
    squares = {name: np.asarray(matrix, dtype=float) for name, matrix in matrices.items()}
    if not squares or any(one.ndim != 2 or one.shape[0] != one.shape[1] for one in squares.values()):
        raise InvalidInput("heat maps need at least one square matrix, of shape (samples, samples).")
    columns = min(4, len(squares))
    rows = math.ceil(len(squares) / columns)
    figure = new_figure(2.15 * columns + 0.8, 2.25 * rows + 0.2)
    top = max(float(np.nanmax(one)) for one in squares.values()) or 1.0
    places = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    shown = None
    for axes, (name, matrix) in zip(places, squares.items(), strict=False):
        shown = axes.imshow(matrix, cmap=SEQUENTIAL, vmin=0, vmax=top, interpolation="none")
        for (row, column), value in np.ndenumerate(matrix):
            shade = readable_on(shown.cmap(shown.norm(value)))
            axes.text(column, row, f"{value:.3f}", color=shade, fontsize=SMALL - 1, ha="center", va="center")
        axes.set_title(name, color=INK, fontsize=TEXT)
        names = [str(number) for number in range(1, len(matrix) + 1)]
        axes.set_xticks(range(len(matrix)), names)
        axes.set_yticks(range(len(matrix)), names)
        axes.tick_params(length=0, labelcolor=MUTED, labelsize=SMALL)
        axes.spines[:].set_visible(False)
    for axes in places[len(squares) :]:
        axes.set_axis_off()
    assert shown is not None
    colour_bar(figure, shown, measure, ax=places.tolist(), pad=0.02)
    return figure


def readable_on(colour: Sequence[float]) -> str:
    """Black or white, whichever stands out more on a colour of red, green and blue from 0 to 1.

    >>> readable_on((1.0, 0.9, 0.2)), readable_on((0.0, 0.1, 0.3))
    ('#000000', '#ffffff')
    """
    return "#000000" if luminance(colour) > 0.179 else "#ffffff"  # on which both stand out equally


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance as the web's contrast rules define it."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in tuple(colour)[:3]
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
