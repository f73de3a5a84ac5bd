"""Damaged images, where ``rbue shift`` was run: accuracy, calibration, and whether the answers are less sure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rbue import metrics
from rbue.lab.report import severity_figures
from rbue.lab.report.page import Block, Columns, FigureBlock, FigureGrid, TableBlock, Text
from rbue.lab.report.run_answers import Answers
from rbue.lab.report.run_compared import Compared, column_figure, entropy_pair, stored
from rbue.lab.report.run_records import Record
from rbue.lab.report.run_tables import METHOD
from rbue.lab.report.tables import Column, Row, Table, percent
from rbue.lab.shift.rows import Cell, Setting, ShiftStore, by_severity


def shift_blocks(this: Compared) -> list[Block]:
    """Accuracy, ECE and entropy on damaged images, on those sets that all runs with any were measured on."""

    def near(record: Record) -> dict[Cell, dict[str, Any]]:
        setting = record.damaged or Setting.noted(record.result)
        return stored(record, lambda folder: ShiftStore(folder).near(record.settings, setting), {})

    rows = {method: found for method, records in this.group.methods.items() if (found := near(records[0]))}
    if not rows:
        return []
    variants = [{(cell, row["variant"]) for cell, row in found.items()} for found in rows.values()]
    shared = {cell for cell, _ in set.intersection(*variants)}
    if not shared:
        return [Text("The runs were not measured on the same damaged images, so that nothing of it can be compared.")]
    chosen = {method: [row for cell, row in found.items() if cell in shared] for method, found in rows.items()}
    clean = {method: this.group.methods[method][0].result for method in rows}
    measured = {
        key: {method: by_severity(found, key, clean[method]) for method, found in chosen.items()}
        for key in ("accuracy", "ece", "nll")
        if all(key in row for found in (clean.values(), *chosen.values()) for row in found)
    }
    names = sorted({cell.corruption for cell in shared})
    listed = ", ".join(name.replace("_", " ") for name in names)
    kinds = f"{len(names)} corruption{'s' if len(names) != 1 else ''} ({listed})"
    absent = [f"`{method}`" for method in this.group.methods if method not in rows]
    caption = f"Clean test images and severities of damage: means over {kinds}"
    figure_of = {
        key: FigureBlock(
            column_figure(severity_figures.severity_medians(measured[key], name, percent=key == "accuracy")),
            f"Median {name} of each method against the severity of the damage, the numbers of the table as medians.",
        )
        for key, name in (("accuracy", "accuracy"), ("ece", "ECE"))
    }
    blocks: list[Block] = [
        Columns([[figure_of["accuracy"]], [figure_of["ece"]]]),
        TableBlock(_shift_table(measured, caption)),
    ]
    other = [
        f"`{method}` with {_drawn(found[0], 'samples_asked')}, on clean images with {_drawn(clean[method], 'samples')}"
        for method, found in chosen.items()
        if found[0]["samples_asked"] not in (None, clean[method]["samples"])
        or found[0].get("augment", "") != clean[method].get("augment", "")
    ]
    words = [
        *([f"Not measured on damaged images: {', '.join(absent)}."] if absent else []),
        *([f"Measured on damaged images {'; '.join(other)}."] if other else []),
    ]
    if words:
        blocks.append(Text(" ".join(words)))
    pairs = [pair for one in this.first if one.method in chosen and (pair := _damaged(one, chosen[one.method]))]
    if pairs:
        parted = (
            "An answer to a damaged image should be less sure. Entropy of the clean test images, and of the same "
            "images at the highest severity."
        )
        blocks += [Text(parted), FigureGrid(pairs)]
    return blocks


def _drawn(measured: Mapping[str, Any], count: str) -> str:
    """How samples were drawn, in words; a row of a method that gave all it has does not say how many."""
    samples, augment = measured[count], measured.get("augment")
    words = f"{samples or 'all its'} sample{'' if samples == 1 else 's'}"
    return f"{words} augmented by {augment}" if augment else words


def _shift_table(measured: Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]], caption: str) -> Table:
    severities = sorted({level for found in measured["accuracy"].values() for level in found})
    columns = [METHOD]
    forms: dict[str, tuple[str, Callable[[float], str]]] = {
        "accuracy": ("accuracy", lambda value: percent(value, 1)),
        "ece": ("ECE", "{:.3f}".format),
        "nll": ("NLL", "{:.2f}".format),
    }
    for key, (name, text) in forms.items():
        if key not in measured:
            continue
        columns += [Column(f"{key}{level}", f"{name}, {level or 'clean'}", text=text) for level in severities]
    rows: list[Row] = [
        {
            "method": method,
            **{
                f"{key}{level}": float(np.mean(found[method][level]))
                for key, found in measured.items()
                for level in severities
            },
        }
        for method in measured["accuracy"]
    ]
    return Table(columns, rows, caption)


def _damaged(one: Answers, rows: Sequence[Mapping[str, Any]]) -> FigureBlock | None:
    """Entropies of clean and of the most damaged images, if the probabilities of these are here."""
    most = max(row["severity"] for row in rows)
    worst = [row for row in rows if row["severity"] == most]
    found = stored(one.record, lambda folder: [ShiftStore(folder).probs_of(dict(row)) for row in worst], [None])
    if any(probs is None or probs.shape != one.probs.shape for probs in found):
        return None
    damaged = metrics.entropy(torch.from_numpy(np.concatenate(found)).double()).numpy()
    flags = torch.from_numpy(np.repeat([True, False], [len(damaged), len(one.entropy)]))
    auroc = float(metrics.auroc(torch.from_numpy(np.concatenate([damaged, one.entropy])), flags))
    block = entropy_pair(one.method, {"clean": one.entropy, "damaged": damaged}, one)
    words = "1 would part them, 0.5 not at all" if auroc >= 0.5 else "surer of damaged images than of clean ones"
    return FigureBlock(block.figure, f"{block.alt} AUROC {auroc:.3f}.", f"AUROC {auroc:.3f}: {words}.")
