"""What temperature scaling would add: rows that are not the paper's, in a section of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rbue.lab.paper.gathering import ExperimentData
from rbue.lab.paper.measured import Measured
from rbue.lab.paper.page.numbers import COLUMNS, METHOD, SEEDS
from rbue.lab.paper.page.section import QUICK_TITLE
from rbue.lab.paper.page.shown import anchor_of
from rbue.lab.paper.settings import spread
from rbue.lab.report.page import Block, Notice, Section, TableBlock, Text
from rbue.lab.report.run_records import recipe_words
from rbue.lab.report.tables import Cell, Column, Table, Value
from rbue.lab.runs.folders import RunConfig

TITLE = "After temperature scaling (two-fold cross-fit on the test set; not in the paper)"
WORDS = (
    "The log of the mean probabilities is divided by a temperature. Each half of the test images is scaled by the "
    "temperature that gives the other half the least NLL, so the accuracy stays as it is and no image is scaled by its "
    "own label; but labels of test images are used, which no row above does.\n\n"
    "Before and after are both from the stored probabilities, which are rounded to half precision and never below "
    "6e-8: the values before can differ a little from those in the tables above, the NLL most."
)
TEMPERATURES = Column(
    "temperatures",
    "temperatures",
    numeric=False,
    about="One a half, fitted on the other; of several runs the range.",
)
SCORES = ("ece", "nll", "brier")

Entries = list[tuple[RunConfig, dict[str, Any]]]


def calibrated_sections(gathered: Sequence[ExperimentData], measured: Measured) -> list[Section]:
    """One section with one table a network, or none if nothing has been calibrated."""
    groups: dict[RunConfig, dict[str, Entries]] = {}
    for config in dict.fromkeys(c for one in gathered for c in measured.settings.configs(one.experiment)):
        entry = measured.calibration(config)
        if entry is not None:
            network = replace(config, method="single", seed=0)
            groups.setdefault(network, {}).setdefault(config.method, []).append((config, entry))
    if not groups:
        return []
    blocks: list[Block] = [Text(WORDS)]
    if measured.settings.quick:
        blocks.append(Notice(QUICK_TITLE))
    for number, (network, methods) in enumerate(groups.items()):
        words = f"{TITLE}: {network.model} on {network.data}, {recipe_words(network)}, "
        count = measured.settings.sample_count
        words += f"{count} sample{'s' if count != 1 else ''}."
        blocks.append(TableBlock(_table(methods, words), explain=number == 0))
    return [Section(TITLE, blocks, "temperature", "Temperature")]


def _table(methods: dict[str, Entries], caption: str) -> Table:
    several = any(len(entries) > 1 for entries in methods.values())
    scores = [
        replace(COLUMNS[score], key=f"{score}_{when}", heading=f"{COLUMNS[score].heading} {when}", about="")
        for score in SCORES
        for when in ("before", "after")
    ]
    columns = (METHOD, *((SEEDS,) if several else ()), TEMPERATURES, COLUMNS["accuracy"], *scores)
    rows: list[dict[str, Value]] = []
    for method, entries in methods.items():
        row: dict[str, Value] = {
            f"{score}_{when}": _mean(entries, when, score) for score in SCORES for when in ("before", "after")
        }
        row["method"] = Cell(method, link=f"#{anchor_of(entries[0][0])}")
        row["temperatures"] = _temperatures(entries)
        row["accuracy"] = _mean(entries, "after", "accuracy")
        if several:
            row["seeds"] = Cell(len(entries))
        rows.append(row)
    return Table(columns, rows, f"{caption} Mean ± standard deviation." if several else caption)


def _mean(entries: Entries, when: str, score: str) -> Cell:
    return Cell(*spread([float(entry[when][score]) for _, entry in entries]))


def _temperatures(entries: Entries) -> str:
    found = [temperature for _, entry in entries for temperature in entry["temperatures"]]
    if len(entries) == 1:
        return ", ".join(f"{one:.2f}" for one in found)
    return f"{min(found):.2f} to {max(found):.2f}"
