"""Put the report together: the page, and what could not be put into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rbue.errors import RbueError
from rbue.lab.environment import default_device
from rbue.lab.report.of_runs import drawing
from rbue.lab.report.of_runs.answers import Answers, TestImages
from rbue.lab.report.of_runs.certainty import certain_cards, has_spread
from rbue.lab.report.of_runs.comparison import PaperValue, comparison_table, no_paper, runs_table
from rbue.lab.report.of_runs.gaps import Gaps
from rbue.lab.report.of_runs.reading import Group, Record, group_records, missing, without_copies
from rbue.lab.report.page import Block, Bullets, Fold, Heading, Notice, Page, Section, TableBlock, Text
from rbue.lab.report.page.provenance import provenance_table, source_from_run
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
    sources = [
        source_from_run(
            *(record.name, record.settings.method, record.settings.seed, record.result, record.environment),
            anchor=record.anchor,
        )
        for group in groups
        for record in group.records
    ]
    words = (
        "Every number above comes from one of these runs. The same seeds and the same version of the random stream "
        "give the same random bits on every machine."
    )
    origin = Section("Where each number comes from", [Text(words), TableBlock(provenance_table(sources))], "provenance")
    sections = [*notice, *_sections(parts), origin]
    page = Page(_title(groups), sections, _lead(groups, records))
    return Report(page, runs_table(records, paper_value), said)


def _parts(
    group: Group, paper_value: PaperValue, images: TestImages, pictures: bool, device: torch.device, gaps: Gaps
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
    parts[0][1].extend(drawing.plane(group, table))
    more = drawing.more_samples(group)
    if more:
        parts.append(("What more samples bring", more))
    if answers:
        parts.append(("Calibration", drawing.calibration(answers)))
        parts.append(("Answering only what is sure", drawing.selective(answers)))
        parts.append(("Right and wrong answers", drawing.entropies(answers)))
        parts.append(("Most and least certain images", _certain(answers, device, gaps)))
    return parts


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
            has_lines |= has_spread(one)
        elif isinstance(trouble, NoWeights):
            gaps.without_weights.append(one.record)
        else:
            gaps.of_run(one.record, f"the samples of its most and least certain images cannot be drawn: {trouble}")
    return [Text(f"{_CARDS}{_LINES if has_lines else ''}."), *folds]


def _sections(parts: Sequence[tuple[Group, list[Part]]]) -> list[Section]:
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


def _summary(group: Group, table: Table) -> list[Block]:
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


def _title(groups: Sequence[Group]) -> str:
    return f"{groups[0].title}: how sure, and how right" if len(groups) == 1 else "How sure, and how right"


def _lead(groups: Sequence[Group], records: Sequence[Record]) -> str:
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
