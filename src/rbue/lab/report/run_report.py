"""The report of run folders that ``rbue report`` writes: the page, and what could not be put into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rbue.errors import RbueError
from rbue.lab.environment import default_device
from rbue.lab.methods.mc_droprelu import MCDropReLU
from rbue.lab.report import figures
from rbue.lab.report.page import Block, Bullets, FigureBlock, Fold, Heading, Notice, Page, Section, TableBlock, Text
from rbue.lab.report.run_answers import (
    Answers,
    TestImages,
    calibration_blocks,
    certain_cards,
    entropy_blocks,
    risk_blocks,
)
from rbue.lab.report.run_records import Record, RunGroup, group_records, missing, without_copies
from rbue.lab.report.run_tables import PaperValue, comparison_table, no_paper, provenance_table, runs_table, source_of
from rbue.lab.report.tables import Table
from rbue.lab.runs.networks import NoWeights

Part = tuple[str, list[Block]]


@dataclass(frozen=True)
class Report:
    """A report of runs.

    Attributes:
        page: what to read.
        runs: every measured run as a row, for scripts.
        missing: one sentence for everything that is not in it.
    """

    page: Page
    runs: Table
    missing: list[str]


def report_on(
    records: Sequence[Record],
    paper_value: PaperValue = no_paper,
    *,
    pictures: bool = True,
    device: torch.device | None = None,
) -> Report:
    """Report on runs.

    Args:
        records: from :func:`read_records`.
        paper_value: gives the paper's numbers.
        pictures: whether to draw figures and images, which needs matplotlib and the test images.
        device: where the samples of a few images are drawn again; the GPU if there is one and this is left out.

    Raises:
        RbueError: if none of the runs is measured.
    """
    records, copies = without_copies(records)
    groups, gaps = group_records(records), Gaps(missing(records) + copies)
    if not groups:
        raise RbueError(_nothing(records, gaps.sentences()))
    images = TestImages()
    parts = [
        (group, _parts(group, paper_value, images, pictures, device or default_device(), gaps)) for group in groups
    ]
    said = gaps.sentences()
    notice = [Section("What is missing", [Notice("This report is not complete", said)])] if said else []
    sources = [source_of(record, record.anchor) for group in groups for record in group.records]
    words = (
        "Every number above comes from one of these runs. The same seeds and the same version of the random stream "
        "give the same random bits on every machine."
    )
    origin = Section("Where each number comes from", [Text(words), TableBlock(provenance_table(sources))], "provenance")
    page = Page(_title(groups), [*notice, *_sections(parts), origin], _lead(groups, records))
    return Report(page, runs_table(records, paper_value), said)


def _parts(
    group: RunGroup, paper_value: PaperValue, images: TestImages, pictures: bool, device: torch.device, gaps: Gaps
) -> list[Part]:
    """What a group came to; what is missing of it is added to the gaps."""
    table = comparison_table(group, paper_value)
    parts: list[Part] = [("Comparison", [*_summary(group, table), TableBlock(table, explain=True)])]
    if not pictures:
        return parts
    answers: list[Answers] = []
    for records in group.methods.values():
        try:
            answers.append(images.answers(records[0]))
        except RbueError as error:
            gaps.of_run(records[0], str(error))
    parts[0][1].extend(_plane(group, table))
    more = more_samples_blocks(group)
    if more:
        parts.append(("What more samples bring", more))
    if answers:
        parts.append(("Calibration", calibration_blocks(answers)))
        parts.append(("Answering only what is sure", risk_blocks(answers)))
        parts.append(("Right and wrong answers", entropy_blocks(answers)))
        parts.append(("Most and least certain images", _certain(answers, device, gaps)))
    return parts


def _plane(group: RunGroup, table: Table) -> list[Block]:
    """Accuracy and ECE of all methods as points; empty for fewer than two."""
    points = []
    for (method, records), row in zip(group.methods.items(), table.rows, strict=True):
        numbers = {column.key: table.cell(row, column).number for column in table.columns}
        accuracy, ece = numbers["accuracy"], numbers["ece"]
        if accuracy is not None and ece is not None:
            kind = records[0].settings.parsed
            points.append(figures.PlanePoint(method, accuracy, ece, kind.q if isinstance(kind, MCDropReLU) else None))
    if len(points) < 2:
        return []
    if sum(point.q is not None for point in points) < 2:
        points = [point._replace(q=None) for point in points]
    alt = (
        "Accuracy against ECE. " + "; ".join(f"{one.label}: {one.accuracy:.4f}, {one.ece:.4f}" for one in points) + "."
    )
    return [FigureBlock(figures.accuracy_ece_plane(points), alt, "The bottom right corner is the place to be.")]


def more_samples_blocks(group: RunGroup) -> list[Block]:
    """Accuracy and ECE against the number of samples, where runs were measured with several; else empty."""
    curves = {}
    for method, records in group.methods.items():
        results = [one for one in records[0].results.values() if one["seed"] == records[0].result["seed"]]
        entries = [entry for result in results for entry in (*(result.get("by_samples") or ()), result)]
        curve = {entry["samples"]: {key: entry[key] for key in ("accuracy", "ece")} for entry in entries}
        if len(curve) > 1:
            curves[method] = curve
    if not curves:
        return []
    alt = "Accuracy and ECE against the number of samples: " + "; ".join(
        f"{method} with {', '.join(map(str, sorted(curve)))} samples" for method, curve in curves.items()
    )
    return [FigureBlock(figures.lines_against_samples(curves), f"{alt}.", wide=True)]


_CARDS = (
    "The three most probable classes of each image; the right one is underlined. A bar is the mean over all samples"
)
_LINES = ", the line on it the range that nine in ten samples lie in: a long line means that the samples disagree"


def _certain(answers: Sequence[Answers], device: torch.device, gaps: Gaps) -> list[Block]:
    """Cards of every method, and what is on them."""
    folds: list[Block] = []
    has_lines = False
    opened = next((one for one in answers if one.record.settings.parsed.limit is None), answers[0])
    for one in answers:
        cards, trouble = certain_cards(one, device)
        folds.append(Fold(one.method, cards, open=one is opened))
        if trouble is None:
            has_lines |= one.has_spread
        elif isinstance(trouble, NoWeights):
            gaps.without_weights.append(one.record)
        else:
            gaps.of_run(one.record, f"the samples of its most and least certain images cannot be drawn: {trouble}")
    return [Text(f"{_CARDS}{_LINES if has_lines else ''}."), *folds]


class Gaps:
    """What is missing, gathered while the report is made.

    Attributes:
        without_weights: runs whose samples cannot be drawn again.
    """

    def __init__(self, known: Sequence[str] = ()) -> None:
        self._known = list(known)
        self.without_weights: list[Record] = []

    def of_run(self, record: Record, trouble: str) -> None:
        """Note what is missing of one run, without this machine's folders, which mean nothing to another reader."""
        self._known.append(f"`{record.name}`: {trouble.replace(f'{record.root}/', '')}")

    def sentences(self) -> list[str]:
        """One sentence for each thing that is missing."""
        runs = self.without_weights
        if not runs:
            return self._known
        *first, last = (f"`{record.name}`" for record in runs)
        names, whose = (f"{', '.join(first)} and {last}", "their") if first else (last, "its")
        return [
            *self._known,
            f"the weights of {names} are not kept in {whose} folder{'s' if first else ''}: what was measured is "
            f"reported, but the samples of {whose} most and least certain images cannot be drawn.",
        ]


def _sections(parts: Sequence[tuple[RunGroup, list[Part]]]) -> list[Section]:
    """Sections by idea for one group; one section a group, with headings, for several."""
    if len(parts) == 1:
        return [Section(title, blocks) for title, blocks in parts[0][1]]
    sections = []
    for group, found in parts:
        blocks: list[Block] = []
        for title, inside in found:
            blocks += [Heading(title), *inside]
        sections.append(Section(group.title, blocks))
    return sections


def _summary(group: RunGroup, table: Table) -> list[Block]:
    """What stands out, in words."""
    if len(table.rows) < 2:
        return []
    items = []
    for key, said in (("accuracy", "Most accurate"), ("ece", "Best calibrated"), ("nll", "Best likelihood")):
        column = next(column for column in table.columns if column.key == key)
        best = [
            (table.cell(row, table.columns[0]).value, table.cell(row, column).number)
            for row in table.rows
            if table.is_best(row, column)
        ]
        if best and best[0][1] is not None:
            names = " and ".join(f"`{name}`" for name, _ in best)
            items.append(f"{said}: {names}, {column.heading} {column.text(best[0][1])}.")
    result = group.records[0].result
    count = dict(result.get("data") or {}).get("count")
    if count:
        error = 100 * math.sqrt(result["accuracy"] * (1 - result["accuracy"]) / count)
        items.append(
            f"With {count:,} test images, chance alone moves an accuracy by about ± {error:.1f} points "
            "(one standard error)."
        )
    return [Bullets(items)]


def _title(groups: Sequence[RunGroup]) -> str:
    return f"{groups[0].title}: how sure, and how right" if len(groups) == 1 else "How sure, and how right"


def _lead(groups: Sequence[RunGroup], records: Sequence[Record]) -> str:
    measured = sum(bool(record.results) for record in records)
    methods = len({method for group in groups for method in group.methods})
    where = groups[0].recipe if len(groups) == 1 else f"{len(groups)} settings of network, data and recipe"
    return f"{_count(methods, 'method')} in {_count(measured, 'measured run')}; {where}."


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' if number != 1 else ''}"


def _nothing(records: Sequence[Record], gaps: Sequence[str]) -> str:
    if len(records) == 1:
        return f"there is nothing to report yet: {records[0].name}: {records[0].trouble}"
    shown = gaps[0] if gaps else f"{records[0].name}: {records[0].trouble}"
    return f"there is nothing to report yet: none of the {len(records)} runs is measured ({shown.rstrip('.')})."
