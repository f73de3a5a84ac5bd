"""The plane of accuracy and ECE (paper, figure "Spanning the space of behaviors")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rbue.errors import InvalidInput
from rbue.lab.report.figures.style import (
    INK,
    METHOD_MARKERS,
    MUTED,
    SEQUENTIAL,
    SMALL,
    TEXT,
    dress,
    legend,
    looks,
    method_name,
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


def accuracy_ece_plane(points: Sequence[PlanePoint], *, title: str = "") -> Figure:
    """Accuracy to the right, ECE upwards: the bottom right corner is the place to be.

    Points with a ``q`` are stars coloured by it, as in the paper; the others have the marker of their method: a
    square for MC-Dropout, a circle for Deep Ensemble.

    Args:
        points: one a method; accuracy as a fraction.
        title: stands above.
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
        _stars(axes, stars)
    dress(axes, title=title, x="accuracy (more is better)", y="ECE (less is better)", grid="both")
    axes.margins(0.12)
    axes.locator_params(axis="x", nbins=5)
    percent_ticks(axes.xaxis)
    if others:
        legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)
    return figure


def _stars(axes: Axes, points: Sequence[PlanePoint]) -> None:
    rates = [point.q for point in points]
    drawn = axes.scatter(
        [point.accuracy for point in points],
        [point.ece for point in points],
        c=rates,  # type: ignore[arg-type]
        s=150,
        cmap=SEQUENTIAL,
        marker=METHOD_MARKERS[method_name("mc-droprelu")],
        edgecolors=MUTED,
        linewidths=0.6,
        zorder=3,
    )
    for point in points:
        place = (point.accuracy, point.ece)
        axes.annotate(f"{point.q:g}", place, xytext=(6, 5), textcoords="offset points", color=INK, fontsize=SMALL)
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85)
    bar.set_label("q of MC-DropReLU", color=MUTED, fontsize=TEXT)
    bar.ax.tick_params(labelcolor=MUTED, labelsize=SMALL, color=MUTED)
    bar.outline.set_visible(False)
