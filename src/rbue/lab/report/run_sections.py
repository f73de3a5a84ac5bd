"""The sections of a report of runs: each takes what is compared and gives blocks, or none where nothing is stored.

A section reads what the run folders hold: results, probabilities, logs, calibration, shift, ood. A new one is a
function and a line in :data:`SECTIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rbue.lab.methods.mc_droprelu import MCDropReLU
from rbue.lab.report import figures
from rbue.lab.report.chance import CONFIDENCE
from rbue.lab.report.page import Block, Columns, FigureBlock, FigureGrid, TableBlock, Text
from rbue.lab.report.run_answers import ENOUGH, Answers, image_cards
from rbue.lab.report.run_compared import Compared, column_figure, stored
from rbue.lab.report.run_outside import outside_blocks
from rbue.lab.report.run_records import RunGroup
from rbue.lab.report.run_shift import shift_blocks
from rbue.lab.report.run_tables import METHOD
from rbue.lab.report.run_trust import trust_blocks
from rbue.lab.report.tables import Cell, Column, Row, Table, percent, whole
from rbue.lab.runs.folders import RunFolder
from rbue.lab.runs.networks import NoWeights
from rbue.lab.runs.temperatures import FILE as CALIBRATION
from rbue.lab.runs.temperatures import at_a_bound, is_calibration_of
from rbue.lab.training.trainer import read_log
from rbue.metrics.sets import binomial_interval


def interval_blocks(this: Compared, table: Table) -> list[Block]:
    """Accuracy, NLL and ECE with their intervals, and accuracy against ECE; empty for fewer than two methods."""
    if len(table.rows) < 2:
        return []
    columns = {column.key: column for column in table.columns}

    def cell(row: Row, key: str) -> Cell:
        return table.cell(row, columns[key])

    def name(row: Row) -> str:
        return str(cell(row, "method").value)

    panels = {}
    for key in ("accuracy", "nll", "ece"):
        found = [(name(row), cell(row, key)) for row in table.rows]
        panels[columns[key].heading] = [
            figures.Measured(label, one.number, one.interval) for label, one in found if one.number is not None
        ]
    shown = {heading: found for heading, found in panels.items() if found}
    forest = FigureBlock(
        figures.interval_panels(shown, percent=["accuracy"]),
        f"{', '.join(shown)} of each method{' with 95 % intervals' if this.chance else ''}, the numbers of the table.",
        "95 % intervals over the test images. Methods share these images, so that two can be told apart although their "
        "intervals overlap."
        if this.chance
        else "",
    )
    points = []
    for (method, records), row in zip(this.group.methods.items(), table.rows, strict=True):
        accuracy, ece, kind = cell(row, "accuracy").number, cell(row, "ece").number, records[0].settings.parsed
        if accuracy is not None and ece is not None:
            points.append(figures.PlanePoint(method, accuracy, ece, kind.q if isinstance(kind, MCDropReLU) else None))
    if sum(point.q is not None for point in points) < 2:
        points = [point._replace(q=None) for point in points]
    alt = "; ".join(f"{one.label}: {one.accuracy:.4f}, {one.ece:.4f}" for one in points)
    caption = "The bottom right corner is the place to be."
    plane = FigureBlock(column_figure(figures.accuracy_ece_plane(points)), f"Accuracy against ECE. {alt}.", caption)
    return [Columns([[forest], [plane]])] if points else [forest]


# Calibration


def calibration_blocks(this: Compared) -> list[Block]:
    """Reliability diagrams, and what a temperature would do, where `rbue calibrate` was run."""
    drawn = []
    for one in this.first:
        diagram, ece = one.reliability(), one.record.result["ece"]
        right = (diagram.accuracy * diagram.counts).nan_to_num().round()
        figure = figures.reliability_diagram(
            *(diagram.edges, diagram.counts, diagram.confidence, diagram.accuracy),
            label=one.method,
            note=f"ECE {ece:.4f}",
            intervals=binomial_interval(right, diagram.counts, CONFIDENCE),
        )
        alt = (
            f"Reliability diagram of {one.method}: mean confidence {one.confidence.mean():.3f}, accuracy "
            f"{one.correct.mean():.3f}, ECE {ece:.4f}."
        )
        drawn.append(FigureBlock(figure, alt))
    words = Text(
        "Each bar holds the answers of one range of confidence and is as tall as the share of them that is right. The "
        "dot on it stands at their mean confidence, with the 95 % interval of the share. A bar is overconfident where "
        "the whole line lies below the dashed one, and underconfident where it lies above. The small bars below show "
        "how many answers each range holds."
    )
    table = _temperature_table(this.group)
    return [*([words, FigureGrid(drawn)] if drawn else []), *([TableBlock(table, explain=True)] if table.rows else [])]


_SCALED = (
    METHOD,
    Column(
        "temperature", "temperature", text="{:.2f}".format, about="Mean of those of both halves; above 1 it softens."
    ),
    *(
        Column(f"{when}_{key}", f"{name} {when}", about=f"{name} {when} scaling.")
        for key, name in (("ece", "ECE"), ("nll", "NLL"))
        for when in ("before", "after")
    ),
)


def _temperature_table(group: RunGroup) -> Table:
    rows: list[Row] = []
    for method, records in group.methods.items():
        key = list(records[0].results)[-1]
        entry = stored(records[0], lambda folder: folder.entries(CALIBRATION), {}).get(key)
        if entry is None or not is_calibration_of(entry, records[0].result):
            continue
        mean = float(np.mean(entry["temperatures"]))
        scores = {f"{when}_{score}": entry[when][score] for when in ("before", "after") for score in ("ece", "nll")}
        bound = Cell(None, why="no temperature within the bounds is best")
        rows.append({"method": method, "temperature": bound if at_a_bound(entry) else Cell(mean), **scores})
    caption = "One temperature, fitted on the other half of the test images: what is left once a scale is mended"
    return Table(_SCALED, rows, caption)


# Where it is wrong

MATRIX_CLASSES = 30
"""A matrix of more classes cannot be read, nor can a longer table."""

_CLASS = (
    Column("class", "class", numeric=False),
    Column("images", "images", text=whole, about="Test images of the class."),
    Column("recall", "recall", text=lambda value: percent(value, 0), about="Share of its images answered right."),
    Column(
        "precision", "precision", text=lambda value: percent(value, 0), about="Share of such answers that is right."
    ),
    Column(
        "confusion", "most often taken for", numeric=False, about="The wrong answer given most often, and how often."
    ),
)


def error_blocks(this: Compared) -> list[Block]:
    """Confusion matrix and scores of each class, one fold a method."""
    return this.folds(_errors)


def _errors(one: Answers) -> list[Block]:
    classes, labels = one.images.classes, one.images.labels
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (labels, one.probs.argmax(1)), 1)
    table = TableBlock(_class_table(counts, classes), explain=True)
    if len(classes) > MATRIX_CLASSES:
        return [table]
    wrong = int(counts.sum() - np.trace(counts))
    figure = FigureBlock(
        figures.confusion_matrix(counts, classes),
        f"Confusion matrix of {one.method}: {wrong} of {counts.sum():,} images are off the diagonal.",
        "Rows are the labels, columns the answers; what is off the diagonal is wrong.",
        wide=len(classes) > 12,
    )
    return [Columns([[figure], [table]])]


def _class_table(counts: NDArray[np.int_], classes: Sequence[str]) -> Table:
    of_class, right, answered = counts.sum(1), counts.diagonal(), counts.sum(0)
    lows, highs = binomial_interval(torch.tensor(right), torch.tensor(of_class), CONFIDENCE)
    rows: list[tuple[float, Row]] = []
    for place, name in enumerate(classes):
        images, hits = int(of_class[place]), int(right[place])
        if not images:
            continue
        wrong = counts[place].copy()
        wrong[place] = 0
        most = int(wrong.argmax())
        recall = hits / images
        row: Row = {
            "class": name,
            "images": images,
            "recall": Cell(recall, interval=(float(lows[place]), float(highs[place]))),
            "precision": hits / int(answered[place]) if answered[place] else Cell(None, why="it was never answered"),
            "confusion": f"{classes[most]} ({wrong[most]})" if wrong[most] else Cell(None, why="never wrong"),
        }
        rows.append((recall, row))
    rows.sort(key=lambda entry: entry[0])
    worst = [row for _, row in rows[:MATRIX_CLASSES]]
    which = "the worst first" if len(worst) == len(rows) else f"the worst {len(worst)} of {len(rows)}"
    return Table(_CLASS, worst, f"Scores of each class with 95 % intervals, {which}")


_CARDS = (
    "The three most probable classes of each image; the right one is underlined. A bar is the mean over all samples"
)
_LINES = (
    f", the line on it the range that nine in ten samples lie in, or all of them where they are fewer than {ENOUGH}: a "
    "long line means that the samples disagree"
)


def image_blocks(this: Compared) -> list[Block]:
    """Surest mistakes, least and most certain images of every method."""
    if not this.first:
        return []
    has_lines = False

    def cards(one: Answers) -> list[Block]:
        nonlocal has_lines
        found, trouble = image_cards(one, this.device)
        if trouble is None:
            has_lines |= one.has_spread
        elif isinstance(trouble, NoWeights):
            this.gaps.without_weights.append(one.record)
        else:
            this.gaps.of_run(one.record, f"the samples of its most and least certain images cannot be drawn: {trouble}")
        if one.correct.all():
            return [Text(f"All {len(one.correct):,} answers are right."), *found]
        return found

    folds = this.folds(cards)
    return [Text(f"{_CARDS}{_LINES if has_lines else ''}."), *folds]


# Training


def training_blocks(this: Compared) -> list[Block]:
    """Loss and accuracy while training, and what more samples bring."""
    curves = {}
    for method, records in this.group.methods.items():
        first = records[0]
        folder = first.folder if first.root is None else RunFolder.of(first.settings.trainings()[0], first.root)
        if log := read_log(folder.log):
            curves[method] = {
                entry["epoch"] + 1: {str(key): float(entry[key]) for key in ("loss", "accuracy") if key in entry}
                for entry in log
            }
    drawn = []
    for key in ("loss", "accuracy") if curves else ():
        last = "; ".join(f"{method} {curve[max(curve)].get(key, math.nan):.4f}" for method, curve in curves.items())
        figure = figures.lines_against_samples(curves, {key: f"training {key}"}, x="epoch")
        drawn.append(FigureBlock(figure, f"Training {key} by epoch. At the end: {last}."))
    grid = [*drawn, *more_samples(this.group)]
    if not grid:
        return []
    words = (
        "Loss and accuracy on the training images as they were trained on, of an ensemble those of its first network"
    )
    more = ", and what more samples bring on the test images." if len(grid) > len(drawn) else "."
    return [Text(words + more if drawn else "What more samples bring on the test images."), FigureGrid(grid)]


def more_samples(group: RunGroup) -> list[FigureBlock]:
    """Accuracy and ECE against the number of samples, where runs were measured with several; else empty."""
    curves = {}
    for method, records in group.methods.items():
        results = [one for one in records[0].results.values() if _drawn(one) == _drawn(records[0].result)]
        entries = [entry for result in results for entry in (*(result.get("by_samples") or ()), result)]
        curve = {entry["samples"]: {key: entry[key] for key in ("accuracy", "ece")} for entry in entries}
        if len(curve) > 1:
            curves[method] = curve
    found = "; ".join(f"{name} with {', '.join(map(str, sorted(curve)))} samples" for name, curve in curves.items())
    return [
        FigureBlock(
            figures.lines_against_samples(curves, {key: name}), f"{name} against the number of samples: {found}."
        )
        for key, name in (("accuracy", "accuracy"), ("ece", "ECE"))
        if curves
    ]


def _drawn(result: dict[str, Any]) -> tuple[Any, ...]:
    return result["seed"], result.get("draws", "independent"), result.get("augment", "")


SECTIONS: tuple[tuple[str, Callable[[Compared], list[Block]]], ...] = (
    ("Which answers to trust", trust_blocks),
    ("Calibration", calibration_blocks),
    ("Where it is wrong", error_blocks),
    ("Images to look at", image_blocks),
    ("Damaged images", shift_blocks),
    ("What does not belong", outside_blocks),
    ("Training and samples", training_blocks),
)
"""What follows the comparison, in this order; a section without blocks is left out."""
