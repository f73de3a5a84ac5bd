"""Pictures of the rows: accuracy and likelihood (in README), both against ``q``, and images from elsewhere."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING

from result_tables import KEY, OPENOOD, RERUNS, RUNS, SEEDS, TITLES, Study, kept_with

from rbue.lab.data.outside import USUAL
from rbue.lab.report.figure_style import INK, METHOD_COLOURS, MUTED, SMALL, TEXT, dress, method_name, new_figure
from rbue.lab.runs.folders import RunFolder
from rbue.lab.runs.out_of_distribution import means

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AREA = 75.0
"""Of the point of one training, in square points."""

PLACES = {
    "single": ((9, 2), "left"),
    "mc-dropout:0.2": ((4, 10), "left"),
    "mc-dropout:0.5": ((9, -2), "left"),
    "deep-ensemble:4": ((-13, 0), "right"),
    "svi": ((-9, -4), "right"),
    "mc-rrelu": ((9, 3), "left"),
    "mc-droprelu:0.8": ((9, -3), "left"),
    "mc-droprelu:0.85": ((-6, 10), "left"),
    "mc-droprelu:0.9": ((-8, -9), "right"),
    "mc-droprelu:0.95": ((9, -4), "left"),
}
"""Where (in points) the name of a row is written, and on which side of it."""


def again(study: Study, method: str) -> list[tuple[float, float]]:
    """Accuracy in percent and NLL of a row trained with another seed, or once more with the same."""
    found = []
    for root in (RUNS, *sorted(RERUNS.glob("*"))):
        for seed in SEEDS:
            results = RunFolder.of(study.config(method, seed), root).read("results") or {}
            if KEY in results and (root, seed) != (RUNS, 0):
                found.append((100 * results[KEY]["accuracy"], results[KEY]["nll"]))
    return found


def picture(study: Study) -> Figure:
    """One point a row; faint ones are the same row trained again."""
    figure = new_figure(7.2, 4.0)
    axes = figure.subplots()
    for method, (config, result) in study.measured().items():
        colour = METHOD_COLOURS[method_name(method)]
        place = 100 * result["accuracy"], result["nll"]
        for other in again(study, method):
            axes.plot(*zip(place, other, strict=True), color=colour, alpha=0.25, linewidth=0.8, zorder=1)
            axes.scatter(*other, s=0.35 * AREA, color=colour, alpha=0.3, linewidths=0, zorder=2)
        area = AREA * len(config.members())
        axes.scatter(*place, s=area, color=colour, edgecolors="white", linewidths=0.8, zorder=3)
        offset, side = PLACES[method]
        axes.annotate(
            TITLES[method],
            place,
            xytext=offset,
            textcoords="offset points",
            ha=side,
            va="center",
            color=colour,
            fontsize=TEXT,
        )
    dress(axes, x="accuracy, % (more is better)", y="negative log-likelihood (less is better)", grid="both")
    axes.margins(0.09)
    axes.annotate(
        "better", (0.13, 0.05), xytext=(-46, 26), xycoords="axes fraction", textcoords="offset points", color=INK,
        fontsize=TEXT, arrowprops={"arrowstyle": "->", "color": INK},
    )  # fmt: skip
    for name, count, marker in (("1 training", 1, 1.0), ("4 trainings", 4, 1.0), ("trained again", 1, 0.35)):
        axes.scatter([], [], s=AREA * count * marker, color=MUTED, alpha=0.3 if marker < 1 else 1, lw=0, label=name)
    axes.legend(frameon=False, fontsize=SMALL, labelcolor=MUTED, loc="upper right", labelspacing=1.1)
    return figure


def against_q(studies: dict[str, Study]) -> Figure:
    """Accuracy and NLL of MC-DropReLU by ``q``, a row of two panels for each study; faint points are trained again."""
    figure = new_figure(7.6, 2.4 * len(studies))
    grid = figure.subplots(len(studies), 2, squeeze=False)
    for line, (title, study) in zip(grid, studies.items(), strict=True):
        found = {method: one for method, one in study.measured().items() if kept_with(method) is not None}
        ordered = sorted(found, key=lambda method: kept_with(method) or 0)
        for axes, what, first in zip(line, ("accuracy, %", "negative log-likelihood"), (True, False), strict=True):
            values = [100 * found[m][1]["accuracy"] if first else found[m][1]["nll"] for m in ordered]
            places = range(len(ordered))  # evenly: 0.99 and 1 would lie upon each other
            colour = METHOD_COLOURS["mc-droprelu"]
            axes.plot(places, values, color=colour, marker="o", ms=5, lw=1.2)
            axes.scatter(places[-1:], values[-1:], s=40, color=METHOD_COLOURS["single"], zorder=3)
            for place, method in zip(places, ordered, strict=True):
                others = [pair[0 if first else 1] for pair in again(study, method)]
                axes.scatter([place] * len(others), others, s=16, color=colour, alpha=0.3, lw=0)
            dress(axes, title=title, x="q (1 is the plain network)", y=what, grid="y")
            axes.set_xticks(places, [f"{kept_with(method):g}" for method in ordered])
    return figure


MARKS = {"max_probability": "o", "mutual_information": "v", "energy": "D", "nearest": "s"}
"""Scores of the picture of images from elsewhere, one of each kind."""


def against_outside(study: Study) -> Figure:
    """AUROC of some scores, a line a row of the table, a panel for near and one for far sets; means over seeds."""
    found = {row: entries for row, entries in study.outside().items() if row[2] == "plain"}
    figure = new_figure(9.0, 0.9 + 0.34 * (len(found) + 1))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, group, sets in zip(panels, ("near", "far"), USUAL[study.data], strict=True):
        for line, ((_, method, _), entries) in enumerate(found.items()):
            measured = [means(entry, sets) for entry in entries]
            points = {score: [100 * one[score]["auroc"] for one in measured if score in one] for score in MARKS}
            centres = {score: mean(values) for score, values in points.items() if values}
            colour = METHOD_COLOURS[method_name(method)]
            axes.plot([min(centres.values()), max(centres.values())], [line, line], color=colour, lw=0.8, alpha=0.5)
            for score, value in centres.items():
                axes.scatter(value, line, marker=MARKS[score], s=34, color=colour, lw=0, zorder=3)
        for score, published in OPENOOD.items():
            axes.scatter(published[group], len(found), marker=MARKS[score], s=30, facecolors="white", edgecolors=MUTED)
        dress(axes, title=f"{group}: {', '.join(sets)}", x="AUROC, %", grid="x")
    panels[0].set_yticks(
        range(len(found) + 1),
        [f"{TITLES.get(method, method)}, {recipe}" for recipe, method, _ in found] + ["OpenOOD v1.5"],
    )
    panels[0].invert_yaxis()
    for score, mark in MARKS.items():
        panels[1].scatter([], [], marker=mark, s=34, color=MUTED, lw=0, label=score.replace("_", " "))
    figure.legend(frameon=False, fontsize=SMALL, labelcolor=MUTED, loc="outside lower center", ncols=len(MARKS))
    return figure
