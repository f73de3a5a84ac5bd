"""Images that do not belong, where ``rbue ood`` was run: whether the answers to them are less sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rbue.lab.data.outside import short_name
from rbue.lab.report import figures
from rbue.lab.report.page import Block, FigureBlock, FigureGrid, TableBlock, Text
from rbue.lab.report.run_compared import Compared, stored
from rbue.lab.report.run_tables import METHOD
from rbue.lab.report.tables import Cell, Column, Row, Table
from rbue.lab.runs.out_of_distribution import ENTROPY_BINS, SCORES

_WORDS = (
    "Images from elsewhere have no right answer here, so the network should be unsure of them. A score tells them from "
    "the test images as well as its AUROC says: 1 always, 0.5 not at all. Which score is best was not known before: "
    "choose one on other images than those that judge it."
)


def outside_blocks(this: Compared) -> list[Block]:
    """AUROC of every score on every set, and the entropies of the first run of each method."""
    found = {}
    for method, records in this.group.methods.items():
        entries = list(stored(records[0], lambda folder: folder.entries("ood"), {}).values())
        if entries and entries[-1].get("sets"):
            found[method] = entries[-1]
    if not found:
        return []
    drawn = [
        _entropies(method, short_name(name), one["entropies"])
        for method, entry in found.items()
        for name, one in entry["sets"].items()
        if "entropies" in one
    ]
    return [Text(_WORDS), *([FigureGrid(drawn)] if drawn else []), TableBlock(_table(found), explain=True)]


_ABOUT = {
    "max_probability": "The probability of the answer.",
    "entropy": "Entropy of the mean over samples.",
    "expected_entropy": "Mean entropy of the samples.",
    "mutual_information": "What is left of the entropy: how far samples disagree.",
    "variation_ratio": "Share of the samples with another answer.",
    "energy": "Mean over samples of the log of the summed exponentials of the logits.",
    "max_logit": "Mean over samples of the largest logit.",
    "nearest": "Distance to one of the nearest training images, in features.",
    "mahalanobis": "Distance to the nearest class, in features.",
}


def _table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = [
        METHOD,
        Column("images", "images from", numeric=False, about="What the test images are told from."),
        *(Column(score, score.replace("_", " "), text="{:.3f}".format, about=_ABOUT[score]) for score in SCORES),
    ]
    absent = Cell(None, why="it takes several samples, or a classifier that all of them share")
    rows: list[Row] = [
        {
            "method": method,
            "images": short_name(name),
            **{score: one["scores"][score]["auroc"] if score in one["scores"] else absent for score in SCORES},
        }
        for method, entry in found.items()
        for name, one in entry["sets"].items()
    ]
    return Table(columns, rows, "AUROC of each score: test images against images from elsewhere")


def _entropies(method: str, name: str, counts: Mapping[str, Sequence[int]]) -> FigureBlock:
    middles = (np.arange(ENTROPY_BINS) + 0.5) / ENTROPY_BINS
    groups = {"test images": np.repeat(middles, counts["inside"]), f"of {name}": np.repeat(middles, counts["outside"])}
    means = "; ".join(f"{len(one):,} {label}, mean {one.mean():.2f}" for label, one in groups.items() if len(one))
    figure = figures.histogram_pair(groups, 1, label=method, x="entropy / entropy of a guess", bins=ENTROPY_BINS)
    return FigureBlock(figure, f"Entropy of the answers of {method}, as a part of that of a guess: {means}.")
