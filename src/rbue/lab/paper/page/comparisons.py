"""Blocks of the experiments that compare trained runs: tables, box plots, medians, heat maps, the plane."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median

import numpy as np

from rbue.lab.methods import parse
from rbue.lab.methods.mc_droprelu import MCDropReLU
from rbue.lab.paper.definitions import Drawing
from rbue.lab.paper.page.numbers import COLUMNS, medians_table, numbers_table, spoken
from rbue.lab.paper.page.shown import Shown
from rbue.lab.report import figures
from rbue.lab.report.figures import PlanePoint
from rbue.lab.report.page import Block, FigureBlock, Fold, Heading, TableBlock

BySeverity = Mapping[int, Sequence[float]]
SAMPLE_MEASURES = ("accuracy", "ece")


def tables(shown: Shown, drawing: Drawing) -> list[Block]:
    """One table a network, and what more samples bring."""
    blocks: list[Block] = []
    for number, model in enumerate(shown.models):
        blocks += [Heading(model)] if len(shown.models) > 1 else []
        blocks.append(TableBlock(numbers_table(shown, model, drawing.measures, drawing.caption), explain=number == 0))
        if "accuracy" in drawing.measures:
            blocks += more_samples(shown, model)
    return blocks


def boxes(shown: Shown, drawing: Drawing) -> list[Block]:
    """Box plots over corruptions; their medians as a table, where all rows are drawn."""
    (measure,) = drawing.measures
    values = _corrupted(shown, drawing)
    if not values:
        return []
    name = COLUMNS[measure].heading
    figure = figures.severity_boxes(values, name, percent=measure == "accuracy")
    alt = f"Box plots of {name} over corruptions. {_medians_in_words(values, measure)}"
    blocks: list[Block] = [FigureBlock(figure, alt, shown.caption(drawing.caption, corrupted=True), wide=True)]
    if _is_largest(shown, drawing):
        table = medians_table(values, measure, shown.caption(f"Median {name} over corruptions.", corrupted=True))
        blocks.append(Fold(f"Medians of {name} as numbers", [TableBlock(table)]))
    return blocks


def medians(shown: Shown, drawing: Drawing) -> list[Block]:
    """Curves of medians; as a table, where all rows are drawn."""
    (measure,) = drawing.measures
    values = _corrupted(shown, drawing)
    if not values:
        return []
    name = COLUMNS[measure].heading
    figure = figures.severity_medians(values, name, percent=measure == "accuracy")
    alt = f"Median {name} against severity. {_medians_in_words(values, measure)}"
    blocks: list[Block] = [FigureBlock(figure, alt, shown.caption(drawing.caption, corrupted=True))]
    if _is_largest(shown, drawing):
        caption = shown.caption(f"Median {name} over corruptions.", corrupted=True)
        blocks.append(TableBlock(medians_table(values, measure, caption)))
    return blocks


def heat_maps(shown: Shown, drawing: Drawing) -> list[Block]:
    """Every two samples of each method."""
    (measure,) = drawing.measures
    found = shown.gathered.heat_maps.get(measure, {})
    wanted = drawing.methods or tuple(found)
    matrices = {method: found[method] for method in wanted if method in found}
    if not matrices:
        return []
    means = "; ".join(f"{method} {_off_diagonal(matrix):.4f}" for method, matrix in matrices.items())
    name = measure.upper()
    alt = f"Heat maps of {name} between every two of the first samples. Means over pairs: {means}."
    figure = figures.heat_maps(matrices, "JSD in nats" if measure == "jsd" else name)
    return [FigureBlock(figure, alt, shown.caption(drawing.caption), wide=True)]


def plane(shown: Shown, drawing: Drawing) -> list[Block]:
    """Accuracy and ECE as points, and as a table with the paper's where it prints them."""
    blocks: list[Block] = []
    for model in shown.models:
        points = []
        for row in shown.rows(model):
            accuracy, ece = (row.cells[measure].measured for measure in ("accuracy", "ece"))
            if accuracy is not None and ece is not None:
                method = parse(row.method)
                q = method.q if isinstance(method, MCDropReLU) else None
                points.append(PlanePoint(row.method, accuracy.mean, ece.mean, q))
        if points:
            said = "; ".join(f"{one.label} {one.accuracy:.4f}, {one.ece:.4f}" for one in points)
            alt = f"Accuracy and ECE of {len(points)} methods: {said}."
            figure = figures.accuracy_ece_plane(points)
            blocks.append(FigureBlock(figure, alt, shown.caption(drawing.caption, model)))
        table = numbers_table(shown, model, drawing.measures, "The same as numbers, and those the paper prints.")
        blocks.append(TableBlock(table, explain=True))
    return blocks


def more_samples(shown: Shown, model: str) -> list[Block]:
    """Accuracy and ECE against the number of samples, means over repetitions; empty where there is no such curve."""
    curves = {}
    for row in shown.rows(model):
        curve = _curve(shown, model, row.method)
        if len(curve) > 1:
            curves[row.method] = curve
    if not curves:
        return []
    counts = sorted({count for curve in curves.values() for count in curve})
    alt = (
        f"Accuracy and ECE of {', '.join(curves)} against the number of samples, from {counts[0]} to {counts[-1]}; "
        f"most gained in ECE: {_most_gained(curves)}."
    )
    figure = figures.lines_against_samples(curves)
    caption = shown.caption("Accuracy and ECE of the mean over the first samples.", model)
    return [Fold(f"What more samples bring to {model}", [FigureBlock(figure, alt, caption, wide=True)])]


def _curve(shown: Shown, model: str, method: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in shown.results(model, method):
        for entry in (*(result.get("by_samples") or ()), result):
            for measure in SAMPLE_MEASURES:
                if entry.get("samples") and entry.get(measure) is not None:
                    found[int(entry["samples"])][measure].append(entry[measure])
    return {count: {measure: fmean(values) for measure, values in found[count].items()} for count in sorted(found)}


def _most_gained(curves: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str:
    gains = {method: curve[min(curve)]["ece"] - curve[max(curve)]["ece"] for method, curve in curves.items()}
    method = max(gains, key=lambda one: gains[one])
    first, last = curves[method][min(curves[method])]["ece"], curves[method][max(curves[method])]["ece"]
    return f"{method}, from {first:.4f} to {last:.4f}"


def _corrupted(shown: Shown, drawing: Drawing) -> dict[str, BySeverity]:
    assert shown.experiment.grid is not None
    found = shown.gathered.corrupted.get(drawing.measures[0], {})
    wanted = drawing.methods or shown.experiment.grid.methods
    return {method: found[method] for method in wanted if method in found}


def _is_largest(shown: Shown, drawing: Drawing) -> bool:
    """Whether no other drawing of the same measure has more rows, so that tables do not repeat each other."""
    alike = [one for one in shown.experiment.drawings if one.measures == drawing.measures]
    return len(drawing.methods) == max(len(one.methods) for one in alike)


def _medians_in_words(values: Mapping[str, BySeverity], measure: str) -> str:
    last = max(severity for table in values.values() for severity in table)
    said = "; ".join(
        f"{method} {spoken(measure, median(table[last]))}" for method, table in values.items() if last in table
    )
    return f"Medians at severity {last}: {said}."


def _off_diagonal(matrix: Sequence[Sequence[float]]) -> float:
    array = np.asarray(matrix, dtype=float)
    return float(array[~np.eye(len(array), dtype=bool)].mean()) if len(array) > 1 else 0.0
