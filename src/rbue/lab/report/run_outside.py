"""Images that do not belong, where ``rbue ood`` was run: whether the answers to them are less sure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rbue.lab.data.outside import short_name
from rbue.lab.report import figures
from rbue.lab.report.page import Block, FigureBlock, FigureGrid, TableBlock, Text
from rbue.lab.report.run_compared import Compared, stored
from rbue.lab.report.run_records import Record
from rbue.lab.report.run_tables import METHOD
from rbue.lab.report.tables import Cell, Column, Row, Table, counted
from rbue.lab.runs.folders import outdated
from rbue.lab.runs.out_of_distribution import ENTROPY_BINS, SCORES

_WORDS = (
    "Images from elsewhere have no right answer here, so the network should be unsure of them. A score tells them from "
    "the test images as well as its AUROC says: 1 always, 0.5 not at all. Which score is best was not known before: "
    "choose one on other images than those that judge it."
)


Entry = Mapping[str, Any]


def outside_blocks(this: Compared) -> list[Block]:
    """AUROC of every score on every set, and the entropies of the first run of each method, as most were measured."""
    firsts: dict[str, Record] = {}
    for records in this.group.methods.values():  # in which a method may be twice, augmented and plain
        firsts.setdefault(records[0].settings.method, records[0])
    measured = {}
    for method, record in firsts.items():
        entries = stored(record, lambda folder: folder.entries("ood"), {}).values()
        today = [entry for entry in entries if not outdated(record.settings, record.root, entry)]
        if kept := [entry for entry in today if entry.get("sets")]:
            measured[method] = kept
    if not measured:
        return []
    alike = _alike(measured, lambda entry: (entry.get("augment", ""), _images(entry)))
    whole = {  # gave all samples they have, and agree with any number
        method: entries
        for method, entries in alike.items()
        if firsts[method].settings.parsed.limit is not None and not entries[0].get("augment")
    }
    others = {method: entries for method, entries in alike.items() if method not in whole}
    same = whole | _alike(others, lambda entry: (entry.get("samples"), entry.get("draws", "independent")))
    found = {method: same[method][-1] for method in alike if method in same}
    absent = [f"`{method}`" for method in firsts if method not in found]
    words = f"{_WORDS} Not measured like that: {', '.join(absent)}." if absent else _WORDS
    drawn = [
        _entropies(method, short_name(name), one["entropies"])
        for method, entry in found.items()
        for name, one in entry["sets"].items()
        if "entropies" in one
    ]
    return [Text(words), *([FigureGrid(drawn)] if drawn else []), TableBlock(_table(found), explain=True)]


def _alike(measured: Mapping[str, list[Entry]], how: Callable[[Entry], Any]) -> dict[str, list[Entry]]:
    """The entries that agree in how they were measured: as most methods were, the latest of those."""
    every = [one for entries in measured.values() for one in dict.fromkeys(map(how, entries))]
    chosen = max(reversed(every), key=every.count, default=None)
    kept = {method: [entry for entry in entries if how(entry) == chosen] for method, entries in measured.items()}
    return {method: entries for method, entries in kept.items() if entries}


def _images(entry: Entry) -> int | None:
    return dict(entry.get("data") or {}).get("count")


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


def _table(found: Mapping[str, Entry]) -> Table:
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
    first = next(iter(found.values()))
    how = [
        counted((entry["samples"] for entry in found.values() if "samples" in entry), "sample"),
        "balanced draws" if any(entry.get("draws") == "balanced" for entry in found.values()) else "",
        f"augmented: {first['augment']}" if first.get("augment") else "",
    ]
    count = "" if _images(first) is None else f"{_images(first):,} "
    caption = f"AUROC of each score: {count}test images against images from elsewhere"
    return Table(columns, rows, ", ".join([caption, *filter(None, how)]))


def _entropies(method: str, name: str, counts: Mapping[str, Sequence[int]]) -> FigureBlock:
    middles = (np.arange(ENTROPY_BINS) + 0.5) / ENTROPY_BINS
    groups = {"test images": np.repeat(middles, counts["inside"]), f"of {name}": np.repeat(middles, counts["outside"])}
    means = "; ".join(f"{len(one):,} {label}, mean {one.mean():.2f}" for label, one in groups.items() if len(one))
    figure = figures.histogram_pair(groups, 1, label=method, x="entropy / entropy of a guess", bins=ENTROPY_BINS)
    return FigureBlock(figure, f"Entropy of the answers of {method}, as a part of that of a guess: {means}.")
